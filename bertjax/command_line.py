"""What the command-line programs share: quiet libraries, and errors of the user's as one line."""

from __future__ import annotations

import logging as std_logging
import sys
from collections.abc import Callable

from absl import app, logging

from bertjax import checkpoint, monitor

# Errors whose message is the whole story: the user's command or data, or the disk. Where one was
# raised is logged with --verbosity=1.
USER_ERRORS = (
    ValueError,
    FileNotFoundError,
    checkpoint.CheckpointError,
    monitor.DivergedError,
)


def run(main: Callable[[list[str]], None]) -> None:
    """Parses the flags and runs `main`; what the user got wrong ends it with one line, code 1."""

    def guarded(argv: list[str]) -> None:
        logging.get_absl_handler().addFilter(_is_ours)
        try:
            main(argv)
        except USER_ERRORS as error:
            logging.debug("Where it happened:", exc_info=True)
            sys.exit(f"bertjax: {error}")

    app.run(guarded, flags_parser=_parse_flags)


def _parse_flags(argv: list[str]) -> list[str]:
    # A misspelt option of a config is an AttributeError, a wrong type a TypeError.
    try:
        return app.parse_flags_with_usage(argv)
    except (AttributeError, TypeError, ValueError, FileNotFoundError) as error:
        sys.exit(f"bertjax: the command line cannot be used: {error}")


def _is_ours(record: std_logging.LogRecord) -> bool:
    # orbax tells some forty lines a checkpoint and warns of its own options; JAX tells which
    # back-ends it lacks. What fails reaches the user as an exception.
    if "/orbax/" in record.pathname:
        return record.levelno >= std_logging.ERROR
    return record.levelno >= std_logging.WARNING or "/jax/" not in record.pathname
