"""What the command-line programs share: quiet libraries, and errors of the user's as one line."""

from __future__ import annotations

import logging as std_logging
import os
import sys
from collections.abc import Callable

from absl import app, flags, logging

from bertjax.training import monitor
from bertjax.workdirs import checkpoint

# Errors whose message is the whole story: the user's command or data, or the disk. Where one was
# raised is logged with --verbosity=1.
USER_ERRORS = (
    ValueError,
    OSError,
    checkpoint.CheckpointError,
    monitor.DivergedError,
)


def run(main: Callable[[list[str]], None]) -> None:
    """Parses the flags and runs `main`; what the user got wrong ends it with one line, code 1."""

    def guarded(argv: list[str]) -> None:
        logging.get_absl_handler().addFilter(_is_ours)
        try:
            main(argv)
            sys.stdout.flush()
        except BrokenPipeError:  # of "| head", which has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except USER_ERRORS as error:
            logging.debug("Where it happened:", exc_info=True)
            sys.exit(f"bertjax: {error}")

    app.run(guarded, flags_parser=_parse_flags)


def _parse_flags(argv: list[str]) -> list[str]:
    # A misspelt option of a config is an AttributeError, a wrong type a TypeError.
    try:
        return flags.FLAGS(argv)
    except flags.IllegalFlagValueError as error:
        # Where a recipe refuses its argument, a traceback that ends with why.
        reason = str(error).strip().rpartition("\n")[2]
        sys.exit(f"bertjax: the command line cannot be used: {reason}")
    except flags.Error:
        return app.parse_flags_with_usage(argv)
    except (AttributeError, TypeError, ValueError, FileNotFoundError) as error:
        sys.exit(f"bertjax: the command line cannot be used: {error}")


def _is_ours(record: std_logging.LogRecord) -> bool:
    # JAX tells which back-ends it lacks. What fails reaches the user as an exception.
    return record.levelno >= std_logging.WARNING or "/jax/" not in record.pathname
