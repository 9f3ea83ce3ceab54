"""The start and end of the command-line programs: flags, help, and a user's error as one line."""

from __future__ import annotations

import functools
import itertools
import logging as std_logging
import os
import re
import signal
import sys
import traceback
import types
from collections.abc import Collection, Iterator, Mapping
from typing import NoReturn

from absl import app, flags, logging

from bertjax import config as config_lib
from bertjax import recipes
from bertjax.cli import interruptions, program_flags
from bertjax.options import table
from bertjax.workdirs import checkpoint, ownership


class RunError(RuntimeError):
    """A run cannot go on; the message says why and what to do."""


# Errors whose message is the whole story: the user's command or data, or the disk. Where one was
# raised is logged with --verbosity=1.
USER_ERRORS = (
    ValueError,
    OSError,
    RunError,
    checkpoint.CheckpointError,
    ownership.WorkdirInUseError,
)

_HELP = re.compile(r"--?(?:help|h|helpshort|\?)(?:=(?P<about>.*))?")


def run(main: types.FunctionType, *, choices: Mapping[str, Collection[str]] | None = None) -> None:
    """Parses the flags and runs `main`; what the user got wrong ends it with one line, code 1.

    `choices` are the values of options of --config, which --help lists.
    """

    def guarded(argv: list[str]) -> None:
        logging.get_absl_handler().addFilter(_is_ours)
        try:
            main(argv)
            sys.stdout.flush()
        except BrokenPipeError:
            _end_quietly()
        except KeyboardInterrupt:
            sys.stderr.write("\nbertjax: interrupted\n")
            sys.exit(interruptions.EXIT_CODES[signal.SIGINT])
        except USER_ERRORS as error:
            logging.debug("Where it happened:", exc_info=True)
            program_flags.fail(error)
        except MemoryError as error:
            program_flags.fail(f"there is not enough memory: {error or 'none is left'}")
        except (RuntimeError, AssertionError) as error:
            if not _is_of_devices(error):
                raise
            logging.debug("Where it happened:", exc_info=True)
            program_flags.fail(_of_devices(error))

    program_flags.open_missing_streams()
    purpose = main.__globals__.get("__doc__") or ""  # of the program's module
    parser = functools.partial(_parse_flags, purpose=purpose, choices=choices or {})
    app.run(guarded, flags_parser=parser)


def _is_of_devices(error: Exception) -> bool:
    """Returns whether JAX failed in looking for devices, for which it has no error of its own."""
    *_, innermost = traceback.extract_tb(error.__traceback__)
    return innermost.filename.endswith("jax/_src/xla_bridge.py")


def _of_devices(error: Exception) -> str:
    platforms, reason = os.environ.get("JAX_PLATFORMS"), f" ({error})" if str(error) else ""
    if not platforms:
        return f"JAX cannot use the devices of this machine{reason}"
    return (
        f"JAX_PLATFORMS is {platforms!r}, and JAX finds no such device{reason}; unset "
        "JAX_PLATFORMS to use what there is, or install JAX for that device: "
        "pip install 'jax[cuda13]' or 'jax[tpu]'"
    )


def _end_quietly() -> NoReturn:
    """Ends a program that prints its predictions and whose reader, as "| head", has enough."""
    program_flags.discard_output()
    sys.exit(1)


def _parse_flags(
    argv: list[str], purpose: str, choices: Mapping[str, Collection[str]]
) -> list[str]:
    # A flag of a config is defined when --config is parsed, so nothing may be parsed twice.
    arguments = itertools.takewhile(lambda argument: argument != "--", argv[1:])
    requests = [match for match in map(_HELP.fullmatch, arguments) if match]
    if requests:
        about = requests[0]["about"] or ""
        try:
            print(*([] if about else [purpose.strip(), ""]), *_help(about, argv, choices), sep="\n")
            sys.stdout.flush()
        except BrokenPipeError:
            _end_quietly()
        sys.exit(0)
    try:
        return flags.FLAGS(program_flags.with_home(argv))
    except (flags.Error, AttributeError, TypeError, ValueError, FileNotFoundError) as error:
        program_flags.refuse(error)


def _help(about: str, argv: list[str], choices: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yields the flags of a program, or flags and options whose names have `about` in them."""
    ours = {name: flag for name, flag in sorted(program_flags.ours().items()) if about in name}
    for name, flag in ours.items():
        default = f" (default: {flag.default_as_str})" if flag.default not in (None, False) else ""
        yield f"  --{name}: {flag.help}{default}"
    if "config" not in flags.FLAGS:
        return
    if not about:
        yield "\n--config.OPTION=VALUE sets an option; --help=config lists them, --help=WORD some."
        return
    names = [arg.partition("=")[2] for arg in argv if re.match("--?config=", arg)]
    try:
        config = recipes.load(names[-1]) if names else flags.FLAGS["config"].default
        config = config or config_lib.default_config()
    except (ValueError, FileNotFoundError) as error:
        program_flags.fail(error)
    rows = table.rows()
    for name, value in config_lib.flatten(config):
        if about in f"config.{name}":
            meaning = rows[table.row_name(name)].help
            if any(choice not in meaning for choice in choices.get(name, ())):
                meaning += f"; known are {', '.join(choices[name])}"
            yield f"  {f'--config.{name}={value}':<58}  {meaning}".rstrip()


def _is_ours(record: std_logging.LogRecord) -> bool:
    # JAX logs the back-ends that it lacks. Failures reach the user as exceptions: where a disk is
    # full, orbax logs a traceback for each of its threads, and asyncio one for each array.
    if record.levelno >= std_logging.ERROR:
        is_repeated = "/orbax/" in record.pathname or record.name == "asyncio"
        return not is_repeated or logging.level_debug()
    return record.levelno >= std_logging.WARNING or "/jax/" not in record.pathname
