"""The types of values that are read back, by a sample that has the right ones."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

# Type of a sample -> the types of values, and what they are called.
_TYPES: Mapping[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str, "a text"),
    tuple: (list | tuple, "a list"),
}


def wrong_types(value: Any, sample: Any, name: str) -> Iterator[str]:
    """Yields what is of another type than in a sample, by dotted names.

    A name that the sample lacks has the type of its "*", or any; a missing group may be None.
    """
    if isinstance(sample, Mapping):
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if (expected := sample.get(key, sample.get("*"))) is not None:
                    yield from wrong_types(inner, expected, f"{name}.{key}")
        elif value is not None:
            yield f"{name} is {value!r:.60}; it must be an object"
        return
    types, title = _TYPES[type(sample)]
    if not isinstance(value, types) or isinstance(value, bool) != isinstance(sample, bool):
        yield f"{name} is {value!r:.60}; it must be {title}"
