"""Ordered (regex, value) rules over parameter paths: one idea for sharding, decay and freezing.

A parameter's path is its place in the nested dict, joined by dots:
`encoder.layers.7.attention.query.kernel`. The first rule whose regex matches the whole path wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import jax

Value = TypeVar("Value")


def path_name(path: Sequence[Any]) -> str:
    """Returns the dotted name of a `jax.tree_util` key path."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator=".")


def assign(rules: Sequence[tuple[str, Value]], tree: Any, *, table: str) -> Any:
    """Returns a tree shaped like `tree` that holds every leaf's first matching rule's value.

    Raises:
      ValueError: naming every leaf that no rule matches and every rule that no leaf uses; `table`
        is how the message calls the rules.
    """
    used, unmatched = set(), []

    def first_match(path: Sequence[Any], _: Any) -> Value | None:
        name = path_name(path)
        for index, (pattern, value) in enumerate(rules):
            if re.fullmatch(pattern, name):
                used.add(index)
                return value
        unmatched.append(name)
        return None

    assigned = jax.tree_util.tree_map_with_path(first_match, tree)
    faults = [f"no rule matches parameter {name}" for name in unmatched]
    faults += [
        f"rule {pattern!r} matches no parameter that an earlier rule leaves"
        for index, (pattern, _) in enumerate(rules)
        if index not in used
    ]
    if faults:
        raise ValueError(f"{table} does not fit the model:\n  " + "\n  ".join(faults))
    return assigned
