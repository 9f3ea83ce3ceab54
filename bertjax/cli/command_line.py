"""The command line of a program: a dataclass of options, a flag each, and errors in one line.

    @dataclasses.dataclass(frozen=True)
    class Options:
        input: str = command_line.option("the file to read")
        beams: int = command_line.option("targets searched at a time", default=1, at_least=1)

    if __name__ == "__main__":
        command_line.parse(Options, __doc__)
        command_line.run(main)  # main(options: Options)

Nothing here imports JAX or TensorFlow, so that a program can parse its command line before it does.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging as std_logging
import os
import re
import signal
import sys
import traceback
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

from bertjax import config as config_lib
from bertjax import recipes
from bertjax.cli import interruptions
from bertjax.options import faults, table

flags.disclaim_key_flags()  # a flag belongs to the program that parses its options

# Errors whose message is the whole story: the user's command or data, or the disk. Where one was
# raised is logged with --verbosity=1.
USER_ERRORS = (ValueError, OSError, faults.RunError)
MOST_ROWS = 1 << 24  # of a batch; libraries end the process for lack of memory beyond it
# Control characters but for tab, line feed and carriage return, as they are shown.
CONTROLS = {
    code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if code not in (9, 10, 13)
}
MOST_CHARACTERS = 2_000  # of a line of an error

_HELP = re.compile(r"--?(?:help|h|helpshort|\?)(?:=(?P<about>.*))?")
_FLAG = re.compile(r"--?[\w.]+=")
_HOME = re.compile(r"(?:(?<==)|(?<=,))~(?=/)")
_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)e\+?\d+", re.IGNORECASE)


class WholeNumbers(flags.IntegerParser):
    """Takes 1000, 1e3 and 1.5e3; 1.5 and 1e-3 are not whole numbers."""

    def convert(self, argument: int | str) -> int:
        try:
            return super().convert(argument)
        except ValueError:
            if not _EXPONENT.fullmatch(str(argument)) or not float(argument).is_integer():
                raise ValueError(f"{argument!r} is not a whole number") from None
            return int(float(argument))


def _define_integer(
    name: str, default: int | None, help_text: str, flag_values: flags.FlagValues
) -> None:
    parser, serializer = WholeNumbers(), flags.ArgumentSerializer()
    flags.DEFINE(parser, name, default, help_text, flag_values, serializer)


# Type of an option -> what defines its flag.
_DEFINERS: dict[Any, Callable[..., Any]] = {
    str: flags.DEFINE_string,
    int: _define_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_boolean,
    list[str]: flags.DEFINE_list,
}


def option(
    help_text: str | Callable[[], str],
    *,
    choices: Callable[[], Iterable[str]] | Iterable[str] | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    needs: str = "",
    excludes: str = "",
    flag: str = "",
    positional: bool = False,
    define: Callable[..., None] | None = None,
    **field_arguments: Any,
) -> Any:
    """Returns the dataclass field of an option; without a default the option is required.

    A help text and choices that come from a table may be functions, which see a new row.

    Args:
      help_text: what --help prints
      choices: the values that the option may have
      at_least: the lowest value
      at_most: the highest value
      needs: an option without which this one has no effect
      excludes: an option that cannot be given together with this one
      flag: the flag's name, if it is not the field's
      positional: the option has no flag and is an argument; a tuple takes all further arguments,
        of which there may be none if it has a default
      define: defines the flag in place of the field's type
      **field_arguments: of `dataclasses.field`
    """
    metadata = {"help": help_text, "choices": choices, "bounds": (at_least, at_most), "flag": flag}
    metadata |= {"needs": needs, "excludes": excludes, "positional": positional, "define": define}
    return dataclasses.field(metadata=metadata, **field_arguments)


def choices(options_class: type) -> dict[str, list[str]]:
    """Returns the values that options may have, for the options with choices."""
    allowed = {it.name: it.metadata["choices"] for it in dataclasses.fields(options_class)}
    return {name: list(_value(it)) for name, it in allowed.items() if it}


def _value(given: Any) -> Any:
    """Returns what a help text or choices are now, where a function says them."""
    return given() if callable(given) else given


_REQUIRED = " (required)"


def define_flags(options_class: type, flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines a flag for every option that is not positional."""
    hints, choices_of = typing.get_type_hints(options_class), choices(options_class)
    for field in dataclasses.fields(options_class):
        about, name = field.metadata, _flag(field)
        if about["positional"]:
            continue
        is_required = field.default is dataclasses.MISSING
        default: Any = None if is_required else field.default
        text = _value(about["help"])
        if about["define"]:
            about["define"](flag_values=flag_values)
        elif field.name in choices_of:
            flags.DEFINE_enum(name, default, choices_of[field.name], text, flag_values)
        else:
            kind = hints[field.name]
            kind = kind if kind in _DEFINERS else typing.get_args(kind)[0]  # X | None: X, None
            text += f" ({bounds})" if (bounds := _bounds(field)) else ""
            _DEFINERS[kind](name, default, text, flag_values=flag_values)
        if is_required:
            flags.mark_flag_as_required(name, flag_values)
            flag_values[name].help += _REQUIRED


def parsed(
    options_class: type, flag_values: flags.FlagValues, arguments: Sequence[str] = ()
) -> Any:
    """Returns the options that parsed flags, and the arguments behind them, stand for.

    Raises:
      ValueError: if there are too few or too many arguments, or options do not go together.
    """
    fields = dataclasses.fields(options_class)
    names = [field.name for field in fields if field.metadata["positional"]]
    needed = [it.name for it in fields if it.name in names and it.default is dataclasses.MISSING]
    values = {
        field.name: flag_values[_flag(field)].value for field in fields if field.name not in names
    }
    takes_all = bool(names) and typing.get_type_hints(options_class)[names[-1]] is not str
    if takes_all and len(arguments) >= len(needed):
        arguments = [*arguments[: len(names) - 1], tuple(arguments[len(names) - 1 :])]  # pyright: ignore[reportAssignmentType]
    if len(arguments) != len(names):
        raise ValueError(_wrong_arguments(arguments, names, takes_all))
    options = options_class(**values, **dict(zip(names, arguments, strict=True)))
    check(options)
    return options


def _wrong_arguments(arguments: Sequence[str], names: Sequence[str], takes_all: bool) -> str:
    if not names:
        return f"{arguments[0]!r} is not a flag; --help lists the flags"
    expected = "one argument, the " if len(names) == 1 else f"{len(names)} arguments: "
    expected = f"at least {expected}" if takes_all else expected
    return f"got the arguments {list(arguments)}; give {expected}{', '.join(names)}"


def made(options_class: type, **values: Any) -> Any:
    """Returns the options of a Python caller, checked as a command line is."""
    known = [field.name for field in dataclasses.fields(options_class)]
    for name in values:
        if name not in known:
            near = faults.suggestion(name, known)
            raise ValueError(f"{name!r} is not an option; known are {', '.join(known)}{near}")
    options = options_class(**values)
    check(options)
    return options


def subset(options_class: type, options: Any) -> dict[str, Any]:
    """Returns the fields of a class of options that other options have as well."""
    return {it.name: getattr(options, it.name) for it in dataclasses.fields(options_class)}


def check(options: Any) -> None:
    """Raises ValueError for options out of their choices or bounds, or that do not go together."""
    for name, allowed in choices(type(options)).items():
        value = getattr(options, name)
        if value is not None and value not in allowed:
            raise faults.unknown(name, value, allowed)
    fields = {field.name: field for field in dataclasses.fields(options)}
    for field in fields.values():
        (least, most), value = field.metadata["bounds"], getattr(options, field.name)
        is_low = None not in (value, least) and not value >= least
        if is_low or (None not in (value, most) and not value <= most):
            raise faults.wrong(f"--{_flag(field)}", value, _bounds(field))
        needed, excluded = field.metadata["needs"], field.metadata["excludes"]
        if not (needed or excluded) or getattr(options, field.name) in (None, field.default):
            continue
        if needed and not getattr(options, needed):
            other = _flag(fields[needed])
            raise ValueError(f"--{_flag(field)} goes with --{other}, which is not given")
        if excluded and getattr(options, excluded):
            other = _flag(fields[excluded])
            raise ValueError(f"--{_flag(field)} cannot be given with --{other}: leave one out")


def _bounds(field: dataclasses.Field[Any]) -> str:
    """Returns the words for the range of a number, "" if it has no bounds."""
    words = zip(("at least", "at most"), field.metadata["bounds"], strict=True)
    return " and ".join(f"{word} {bound:,}" for word, bound in words if bound is not None)


def _flag(field: dataclasses.Field[Any]) -> str:
    return field.metadata["flag"] or field.name


@dataclasses.dataclass
class _Program:
    """The result of `parse` for `run`: the options, or the topic of the help on a recipe."""

    options: Any = None
    topic: str = ""


_program = _Program()


def parse(options_class: type, purpose: str | None, *, logs: bool = False) -> None:
    """Parses the command line, for `run`; call it before imports that take seconds.

    A mistake ends the process with a line and code 1, --help with the `purpose`, which is the
    program's docstring, and the flags. A program that `logs` shows its INFO lines.
    """
    open_missing_streams()
    interruptions.leave_at_notices()
    if logs:
        logging.set_verbosity(logging.INFO)
    define_flags(options_class)
    arguments = itertools.takewhile(lambda argument: argument != "--", sys.argv[1:])
    requests = [match for match in map(_HELP.fullmatch, arguments) if match]
    _program.topic = (requests[0]["about"] or "") if requests else ""
    if _program.topic and "config" in flags.FLAGS:
        return
    if requests:
        about = [] if _program.topic else [(purpose or "").strip(), ""]
        _print_and_exit([*about, *_help(_program.topic)])
    # A flag of a config is defined when --config is parsed, so nothing may be parsed twice.
    _, *rest = parse_flags(sys.argv)
    try:
        _program.options = parsed(options_class, flags.FLAGS, rest)
    except ValueError as error:
        fail(error)


def run(
    main: Callable[[Any], None], *, choices: Mapping[str, Collection[str]] | None = None
) -> None:
    """Runs `main` with the options that `parse` read.

    A mistake of the user ends it with one line and code 1. `choices` are the values of options of
    --config, which --help lists.
    """
    if _program.topic:
        _print_and_exit(_help(_program.topic, choices or {}))
    call = functools.partial(_guarded, functools.partial(main, _program.options))
    app.run(lambda _: call(), argv=sys.argv[:1], flags_parser=list)


def _guarded(program: Callable[[], None]) -> None:
    for each in (_is_ours, _make_printable):
        logging.get_absl_handler().addFilter(each)
    try:
        program()
        sys.stdout.flush()
    except BrokenPipeError:
        _end_quietly()
    except KeyboardInterrupt:
        sys.stderr.write("\nbertjax: interrupted\n")
        sys.exit(interruptions.EXIT_CODES[signal.SIGINT])
    except USER_ERRORS as error:
        logging.debug("Where it happened:", exc_info=True)
        fail(error)
    except MemoryError as error:
        fail(f"there is not enough memory: {error or 'none is left'}")
    except (RuntimeError, AssertionError) as error:
        if not _is_of_devices(error):
            raise
        logging.debug("Where it happened:", exc_info=True)
        fail(_of_devices(error))


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
    discard_output()
    sys.exit(1)


def _print_and_exit(lines: Iterable[str]) -> NoReturn:
    try:
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        _end_quietly()
    sys.exit(0)


def _help(topic: str, choices: Mapping[str, Collection[str]] | None = None) -> Iterator[str]:
    """Yields the flags of a program, or flags and options whose names have `topic` in them."""
    ours = [(name, flag) for name, flag in sorted(_ours().items()) if topic in name]
    for name, flag in sorted(ours, key=lambda it: not it[1].help.endswith(_REQUIRED)):
        has_default = flag.default not in (None, "") and flag.default is not False  # 0 is one
        yield f"  --{name}: {flag.help}{f' (default: {flag.default_as_str})' * has_default}"
    if "config" not in flags.FLAGS:
        return
    if not topic:
        yield "\n--config.OPTION=VALUE sets an option; --help=config lists them, --help=WORD some."
        return
    names = [arg.partition("=")[2] for arg in sys.argv if re.match("--?config=", arg)]
    try:
        config = recipes.load(names[-1]) if names else flags.FLAGS["config"].default
        config = config or config_lib.default_config()
    except (ValueError, FileNotFoundError) as error:
        fail(error)
    rows = table.rows()
    for name, value in config_lib.flatten(config):
        if topic in f"config.{name}":
            meaning, known = rows[table.row_name(name)].help, (choices or {}).get(name, ())
            if any(choice not in meaning for choice in known):
                meaning += f"; known are {', '.join(known)}"
            yield f"  {f'--config.{name}={value}':<58}  {meaning}".rstrip()


def _is_ours(record: std_logging.LogRecord) -> bool:
    # JAX logs the back-ends that it lacks. Failures reach the user as exceptions: where a disk is
    # full, orbax logs a traceback for each of its threads, and asyncio one for each array.
    if record.levelno >= std_logging.ERROR:
        is_repeated = "/orbax/" in record.pathname or record.name == "asyncio"
        return not is_repeated or logging.level_debug()
    return record.levelno >= std_logging.WARNING or "/jax/" not in record.pathname


def _make_printable(record: std_logging.LogRecord) -> bool:
    """Shows control characters of names in files, which a terminal would obey."""
    if (shown := (message := record.getMessage()).translate(CONTROLS)) != message:
        record.msg, record.args = shown, ()
    return True


def parse_flags(argv: Sequence[str], *, known_only: bool = False) -> list[str]:
    """Returns the arguments without flags; the process ends with a line where flags are wrong."""
    try:
        return flags.FLAGS(with_home(argv), known_only=known_only)
    except (flags.Error, AttributeError, TypeError, ValueError, FileNotFoundError) as error:
        fail(f"the command line cannot be used: {_reason(error)}")


def with_home(argv: Sequence[str]) -> list[str]:
    """Returns the arguments, with the home directory for "~/" at the beginning of a flag's path.

    A shell leaves --output=~/x as it is, and the path would begin with a directory called "~".
    """
    home = os.path.expanduser("~")
    return [
        _HOME.sub(lambda _: home, argument) if _FLAG.match(argument) else argument
        for argument in argv
    ]


def _reason(error: Exception) -> str:
    missing = re.findall(r"Flag --(\w+) must have a value other than None", str(error))
    if missing:
        names = " and ".join(f"--{name}" for name in missing)
        return f"{names} must be given; --help lists the flags"
    if early := re.search(r"(--config\.[^=\s]+)\S* in argv before a value for", str(error)):
        return f"{early[1]} is an option of a recipe; give --config=RECIPE before it"
    if not isinstance(error, flags.UnrecognizedFlagError):
        return str(error).strip().rpartition("\n")[2]
    if error.flagname.startswith("config.") and "config" in flags.FLAGS:
        return f"--{error.flagname} is an option of a recipe; give --config=RECIPE before it"
    near = faults.suggestion(error.flagname, _ours(), of="--").removeprefix(".")
    return f"--{error.flagname} is not a flag.{near} --help lists the flags"


def _ours() -> dict[str, flags.Flag]:
    """Returns the flags that bertjax and the program define, without its libraries' flags."""
    by_module = flags.FLAGS.flags_by_module_dict()
    modules = [name for name in by_module if name == sys.argv[0] or "bertjax" in name.split(".")]
    return {flag.name: flag for name in modules for flag in by_module[name]}


def open_missing_streams() -> None:
    """Opens /dev/null as each standard stream that is closed; call it first.

    Else the next opened file would have its number, and the output would go into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115  they stay open
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def print_report(*lines: str) -> None:
    """Prints lines about work that is done, or goes on.

    A reader that has gone, as "| head" does, makes no job fail: what comes later is not printed.
    """
    try:
        print(*(line.translate(CONTROLS) for line in lines), sep="\n", flush=True)
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Makes standard output, whose reader has gone, take everything and keep nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(reason: object) -> NoReturn:
    """Ends the program with a line on standard error, and code 1."""
    lines = str(reason).translate(CONTROLS).split("\n")
    sys.exit("bertjax: " + "\n".join(map(_shortened, lines)))


def _shortened(line: str) -> str:
    """Returns a line that fits a screen, without the middle of what a damaged file put into it."""
    if len(line) <= MOST_CHARACTERS:
        return line
    half = MOST_CHARACTERS // 2
    return f"{line[:half]} ... ({len(line) - 2 * half:,} characters) ... {line[-half:]}"
