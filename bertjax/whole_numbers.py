"""Flags of whole numbers, which may be written as 1e6 too. All programs define theirs here."""

from __future__ import annotations

import re
from typing import Any

from absl import flags

_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)e\+?\d+", re.IGNORECASE)

flags.disclaim_key_flags()  # a flag is of the program that defines it


class Parser(flags.IntegerParser):
    """Takes 1000, 1e3 and 1.5e3; 1.5 and 1e-3 are no whole numbers."""

    def convert(self, argument: int | str) -> int:
        try:
            return super().convert(argument)
        except ValueError:
            if not _EXPONENT.fullmatch(str(argument)) or not float(argument).is_integer():
                raise ValueError(f"{argument!r} is no whole number") from None
            return int(float(argument))


def DEFINE_integer(
    name: str,
    default: int | None,
    help_text: str,
    *,
    lower_bound: int | None = None,
    flag_values: flags.FlagValues = flags.FLAGS,
    **arguments: Any,
) -> None:
    """Defines a flag as `flags.DEFINE_integer` does."""
    parser, serializer = Parser(lower_bound), flags.ArgumentSerializer()
    flags.DEFINE(parser, name, default, help_text, flag_values, serializer, **arguments)
