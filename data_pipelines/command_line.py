"""Options of the programs here: one dataclass each, every field a flag of the same name."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import app, flags

from bertjax.cli import program_flags
from data_pipelines import workers


def option(
    help_text: str | Callable[[], str],
    *,
    choices: Callable[[], Iterable[str]] | None = None,
    **field_arguments: Any,
) -> Any:
    """Returns a dataclass field with the help text of its flag.

    What comes from a table is a function, so that a new row is known wherever it is asked for.
    `choices` are the values that the flag may have.
    """
    metadata = {"help": help_text, "choices": choices}
    return dataclasses.field(metadata=metadata, **field_arguments)


def choices(options_class: type) -> dict[str, list[str]]:
    """Returns the values that options may have, of those that have a choice."""
    return {
        field.name: list(field.metadata["choices"]())
        for field in dataclasses.fields(options_class)
        if field.metadata["choices"]
    }


def run(options_class: type, main: Callable[[Any], None], *, positional: str = "") -> None:
    """Parses the command line into `options_class` and calls `main` with it.

    The errors by which programs report bad input end the process with their message alone.
    Flags are defined here rather than at import, so that importing a program defines none.
    """
    program_flags.open_missing_streams()
    define_flags(options_class, flags.FLAGS, positional)

    def checked_main(arguments: Sequence[str]) -> None:
        try:
            main(parsed(options_class, flags.FLAGS, positional, arguments[1:]))
        except (ValueError, OSError, workers.WorkerDied) as error:
            program_flags.fail(error)
        except MemoryError as error:
            program_flags.fail(f"there is not enough memory: {error or 'none is left'}")

    app.run(checked_main, flags_parser=parse)


print_report = program_flags.print_report


def parse(argv: Sequence[str], *, known_only: bool = False) -> list[str]:
    """Returns what is left of the arguments when the flags are parsed.

    Raises:
      SystemExit: with 0 after --help, and with a line where flags cannot be used.
    """
    try:
        return flags.FLAGS(program_flags.with_home(argv), known_only=known_only)
    except SystemExit:  # absl's help ends with 1
        sys.exit(0)
    except flags.Error as error:
        program_flags.refuse(error)


def define_flags(options_class: type, flag_values: flags.FlagValues, positional: str = "") -> None:
    """Defines a flag for every field but the positional ones; without default it is required."""
    hints, choices_of = typing.get_type_hints(options_class), choices(options_class)
    for field in dataclasses.fields(options_class):
        if field.name in positional.split():
            continue
        required = field.default is dataclasses.MISSING
        default: Any = None if required else field.default
        help_text = field.metadata["help"]
        help_text = help_text() if callable(help_text) else help_text
        # Listed by --help as the program's own, as if it had defined them itself.
        arguments: dict[str, Any] = {"module_name": sys.argv[0]}
        arguments |= {"flag_values": flag_values, "required": required}
        if field.name in choices_of:
            flags.DEFINE_enum(field.name, default, choices_of[field.name], help_text, **arguments)
        else:
            kinds = typing.get_args(hints[field.name]) or (hints[field.name],)  # X | None: X, None
            _DEFINERS[kinds[0]](field.name, default, help_text, **arguments)


def parsed(
    options_class: type,
    flag_values: flags.FlagValues,
    positional: str = "",
    arguments: Sequence[str] = (),
) -> Any:
    """Returns the options that parsed flags and the remaining `arguments` stand for.

    `positional` are the names of the options that the arguments are, with spaces between them.
    """
    names = positional.split()
    if len(arguments) != len(names):
        expected = "one argument, the " if len(names) == 1 else f"{len(names)} arguments: "
        expected += ", ".join(names)
        expected = expected if names else "none besides its options"
        raise ValueError(f"got the arguments {list(arguments)}; this program takes {expected}")
    values = {
        field.name: flag_values[field.name].value
        for field in dataclasses.fields(options_class)
        if field.name not in names
    }
    return options_class(**values, **dict(zip(names, arguments, strict=True)))


_DEFINERS: dict[type, Callable[..., Any]] = {
    str: flags.DEFINE_string,
    int: program_flags.DEFINE_integer,
    float: flags.DEFINE_float,
    bool: flags.DEFINE_boolean,
}
