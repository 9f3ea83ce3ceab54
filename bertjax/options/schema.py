"""JSON that is read back, against a table of its fields: all faults at once, by dotted names.

A schema is a type (bool, int, float, str, or tuple for a list), a `Whole` number in a range, a
dictionary of the schemas of names, where "*" stands for all others, a list with the one schema of
its items, or a function that yields the faults of a value with a name.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.options import faults as faults_lib

# Type in a schema -> the types of values, and what a message calls them.
_KINDS: Mapping[type, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str, "a text"),
    tuple: ((list, tuple), "a list"),
}


@dataclasses.dataclass(frozen=True)
class Whole:
    """A whole number from `least` to `most`, None: without an upper bound."""

    least: int
    most: int | None = None


def faults(value: Any, schema: Any, name: str, *, is_whole: bool = False) -> Iterator[ValueError]:
    """Yields where a value differs from its schema.

    Names that a schema has may be missing, and objects may be None, unless `is_whole`. Names that
    it does not have are fine.
    """
    if isinstance(schema, dict):
        if isinstance(value, Mapping):
            inner = f"{name}." if name else ""
            for missing in (schema.keys() - {"*"} - value.keys()) if is_whole else ():
                yield ValueError(f"{inner}{missing} is missing")
            for key, it in value.items():
                if (expected := schema.get(key, schema.get("*"))) is not None:
                    yield from faults(it, expected, f"{inner}{key}", is_whole=is_whole)
        elif value is not None or is_whole:
            yield faults_lib.wrong(name, value, "an object of names and values")
    elif isinstance(schema, list):
        yield from faults(value, tuple, name)
        for number, it in enumerate(value if isinstance(value, list | tuple) else ()):
            yield from faults(it, schema[0], f"{name}[{number}]", is_whole=is_whole)
    elif isinstance(schema, Whole):
        least, most = schema.least, schema.most
        fits = isinstance(value, int) and not isinstance(value, bool)
        if not fits or value < least or (most is not None and value > most):
            upper = "" if most is None else f" and at most {most:,}"
            yield faults_lib.wrong(name, value, f"a whole number, at least {least}{upper}")
    elif isinstance(schema, type):
        kinds, title = _KINDS[schema]
        if not isinstance(value, kinds) or isinstance(value, bool) != (schema is bool):
            yield faults_lib.wrong(name, value, title)
    else:
        yield from schema(value, name)


def of(sample: Any) -> Any:
    """Returns the schema of a sample; None stands for any value."""
    if isinstance(sample, Mapping):
        return {name: of(it) for name, it in sample.items() if it is not None}
    return type(sample)
