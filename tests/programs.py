"""Runs `python -m MODULE ...` inside this process, which has JAX imported already.

A program is its module's file run as `__main__` with flags of its own, so what a test sees is what
a user sees: flags, standard input and output, and the line of an error. It knows no function of
the program, and goes on working when these move.
"""

import dataclasses
import io
import json
import logging
import runpy
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import absl.app
import absl.logging
from absl import flags
from absl.testing import flagsaver

# What people start of `bertjax`.
NAMES = (
    *("train", "evaluate", "predict", "encode", "fill_mask", "score"),
    *("convert", "plan", "glue", "doctor", "start"),
)

Output = io.BytesIO  # what takes the bytes of standard output

absl.app.define_help_flags()  # once for all programs, as the flags that absl defines when imported


@dataclasses.dataclass(frozen=True)
class Done:
    """What is left of a program: the bytes it wrote, and the error that ended it, "" if none."""

    output: bytes
    error: str

    @property
    def lines(self) -> list:
        """The JSON value of each line of output."""
        return [json.loads(line) for line in self.output.decode().splitlines()]


def run(
    module: str, *arguments: object, lines: tuple[str, ...] = (), raw: bytes | None = None
) -> Done:
    """Runs a module with arguments; `lines`, or `raw` bytes, are its standard input."""
    given = "".join(line + "\n" for line in lines).encode() if raw is None else raw
    output = io.TextIOWrapper(Output(), encoding="utf-8", write_through=True)
    error: object = None
    with (
        mock.patch.object(sys, "argv", [module, *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), "utf-8")),
        mock.patch.object(sys, "stdout", output),
        _flags_of_its_own(),
        _logging_as_before(),
        warnings.catch_warnings(),
    ):
        # The module may have been imported by something else; it runs a second time.
        warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
        # How ml_collections reads a recipe.
        warnings.filterwarnings("ignore", "the load_module", DeprecationWarning)
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=False)
        except SystemExit as end:
            error = end.code
    return Done(output.buffer.getvalue(), "" if error in (None, 0) else str(error))


def succeed(module: str, *arguments: object, lines: tuple[str, ...] = ()) -> Done:
    """Runs a module that must end without an error."""
    done = run(module, *arguments, lines=lines)
    assert not done.error, f"python -m {module} {' '.join(map(str, arguments))}: {done.error}"
    return done


@contextmanager
def _flags_of_its_own() -> Iterator[None]:
    was_parsed = flags.FLAGS.is_parsed()
    with flagsaver.flagsaver():  # also takes away the flags that are defined meanwhile
        yield
    if not was_parsed:
        flags.FLAGS.unparse_flags()


@contextmanager
def _logging_as_before() -> Iterator[None]:
    root, handler = logging.getLogger(), absl.logging.get_absl_handler()
    verbosity, level, handlers = absl.logging.get_verbosity(), root.level, list(root.handlers)
    filters = list(handler.filters)
    try:
        yield
    finally:
        absl.logging.set_verbosity(verbosity)
        handler.filters[:] = filters
        root.handlers[:] = handlers
        root.setLevel(level)
