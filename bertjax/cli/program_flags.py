"""Flags of all programs: whole numbers as 1e6, reports, and errors in one line."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from absl import flags

_FLAG = re.compile(r"--?[\w.]+=")
_HOME = re.compile(r"(?:(?<==)|(?<=,))~(?=/)")
_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)e\+?\d+", re.IGNORECASE)

MOST_ROWS = 1 << 24  # of a batch
MOST_CHARACTERS = 2_000  # of a line of an error

flags.disclaim_key_flags()  # a flag is of the program that defines it


class Parser(flags.IntegerParser):
    """Takes 1000, 1e3 and 1.5e3; 1.5 and 1e-3 are not whole numbers."""

    def convert(self, argument: int | str) -> int:
        try:
            return super().convert(argument)
        except ValueError:
            if not _EXPONENT.fullmatch(str(argument)) or not float(argument).is_integer():
                raise ValueError(f"{argument!r} is not a whole number") from None
            return int(float(argument))


def with_home(argv: Sequence[str]) -> list[str]:
    """Returns the arguments, with the home directory for "~/" at the beginning of a flag's path.

    A shell leaves --output=~/x as it is, and the path would begin with a directory called "~".
    """
    home = os.path.expanduser("~")
    return [
        _HOME.sub(lambda _: home, argument) if _FLAG.match(argument) else argument
        for argument in argv
    ]


def DEFINE_integer(
    name: str,
    default: int | None,
    help_text: str,
    *,
    lower_bound: int | None = None,
    upper_bound: int | None = None,
    flag_values: flags.FlagValues = flags.FLAGS,
    **arguments: Any,
) -> None:
    """Defines a flag as `flags.DEFINE_integer` does."""
    parser, serializer = Parser(lower_bound, upper_bound), flags.ArgumentSerializer()
    flags.DEFINE(parser, name, default, help_text, flag_values, serializer, **arguments)


def open_missing_streams() -> None:
    """Opens /dev/null as each standard stream that is closed; call it first.

    Else the next file that is opened would have its number, and what is printed would go there.
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
        print(*lines, sep="\n", flush=True)
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Makes standard output, whose reader has gone, take everything and keep nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def DEFINE_batch_size(default: int, help_text: str) -> None:
    """Defines --batch_size; libraries end the process for lack of memory beyond its bound."""
    DEFINE_integer("batch_size", default, help_text, lower_bound=1, upper_bound=MOST_ROWS)


def fail(reason: object) -> NoReturn:
    """Ends the program with a line on standard error, and code 1."""
    lines = str(reason).split("\n")
    sys.exit("bertjax: " + "\n".join(map(_shortened, lines)))


def _shortened(line: str) -> str:
    """Returns a line that fits a screen, without the middle of what a damaged file put into it."""
    if len(line) <= MOST_CHARACTERS:
        return line
    half = MOST_CHARACTERS // 2
    return f"{line[:half]} ... ({len(line) - 2 * half:,} characters) ... {line[-half:]}"


def refuse(error: Exception) -> NoReturn:
    """Ends the program with the reason why flags could not be parsed."""
    fail(f"the command line cannot be used: {_reason(error)}")


def ours() -> dict[str, flags.Flag]:
    """Returns the flags that bertjax and the program define, not those of its libraries."""
    by_module = flags.FLAGS.flags_by_module_dict()
    modules = [name for name in by_module if name == sys.argv[0] or "bertjax" in name.split(".")]
    return {flag.name: flag for name in modules for flag in by_module[name]}


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
    meant = difflib.get_close_matches(error.flagname, ours(), n=3)
    near = f" Did you mean {' or '.join(f'--{name}' for name in meant)}?" if meant else ""
    return f"--{error.flagname} is not a flag.{near} --help lists the flags"
