"""The values that options of a config must have for an objective, and the faults of others."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax.options import faults as faults_lib

# Option -> the values that it may have, and why.
Needs = Mapping[str, tuple[Sequence[Any], str]]


def faults(config: Any, objective: str, needs: Needs) -> Iterator[str]:
    """Yields a sentence for each option of `needs` that has another value."""
    for name, (values, reason) in needs.items():
        value = functools.reduce(operator.getitem, name.split("."), config)
        if value not in values:
            must = f"{' or '.join(map(repr, values))} with the objective {objective!r}"
            yield str(faults_lib.wrong(f"config.{name}", value, must, reason))
