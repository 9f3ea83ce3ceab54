"""The statistics of rows of values in a manifest: columns, channels, scaling and labels, checked.

Figures for people are not checked, and other names are fine.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.options import faults as faults_lib
from bertjax.options import schema

NAMES_SHOWN = 20  # of categories and classes

_Check = Callable[[Any, str], Iterator[ValueError]]


def _rule(fits: Callable[[Any], bool], must: str) -> _Check:
    """Returns the schema of the values that fit."""

    def check(value: Any, name: str) -> Iterator[ValueError]:
        if not fits(value):
            yield faults_lib.wrong(name, value, must)

    return check


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # a nan is not


def _do_not_fall(value: Any) -> bool:
    are_numbers = isinstance(value, list) and all(map(_is_number, value))
    return are_numbers and all(a <= b for a, b in itertools.pairwise(value))


def _are_names(value: Any) -> bool:
    are_texts = isinstance(value, list) and all(isinstance(it, str) for it in value)
    return are_texts and 0 < len(value) == len(set(value))


_NUMBER = _rule(_is_number, "a finite number")
_DEVIATION = _rule(lambda it: _is_number(it) and it > 0, "a finite number above 0")
_NAMES = _rule(_are_names, "a list of different texts")
_SCALED = {"name": str, "mean": _NUMBER, "deviation": _DEVIATION}
_COLUMN = {
    **{"kind": str, "form": str, "smallest": _NUMBER, "largest": _NUMBER, "categories": _NAMES},
    **{"quantiles": _rule(_do_not_fall, "finite numbers that do not fall"), **_SCALED},
}
# Kind of labels -> their fields.
_LABELS: Mapping[str, Any] = {
    "classes": {"names": _NAMES},
    "numbers": {"names": _NAMES, "means": [_NUMBER], "deviations": [_DEVIATION]},
    "forecast": {"horizon": schema.Whole(1, 1 << 20), "season": schema.Whole(0, 1 << 30)},
}


def _column(value: Any, name: str) -> Iterator[ValueError]:
    of_category = isinstance(value, Mapping) and value.get("kind") == "category"
    needed = {"name": str, **({"categories": _NAMES} if of_category else {})}
    faults = list(schema.faults(value, needed, name, is_whole=True))
    yield from faults or schema.faults(value, _COLUMN, name)


def _labels(value: Any, name: str) -> Iterator[ValueError]:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _LABELS:
        yield faults_lib.unknown(f"{name}.kind", kind, _LABELS)
    else:
        yield from schema.faults(value, _LABELS[kind], name, is_whole=True)


_SCALING = {
    "patch": schema.Whole(1),
    "channel_means": [_NUMBER],
    "channel_deviations": [_DEVIATION],
}
_STATISTICS = {
    **{"columns": [_column], "label_column": _column, "labels": _labels, **_SCALING},
    "pixel_range": _rule(lambda it: _do_not_fall(it) and len(it) == 2, "two numbers that rise"),
    "channels": [lambda value, name: schema.faults(value, _SCALED, name, is_whole=True)],
}


def described(facts: Mapping[str, Any]) -> str:
    """Returns the scale or the classes of a column, a channel or labels for people, in a line."""
    parts = []
    for name, value in facts.items():
        if name == "quantiles":
            value = f"{len(value):,}, put on a normal distribution"
        elif isinstance(value, list):
            more = f", ... {len(value):,} in all" * (len(value) > NAMES_SHOWN)
            value = ", ".join(map(str, value[:NAMES_SHOWN])) + more
        elif isinstance(value, float):
            value = f"{value:.6g}"
        parts += [f"{name} {value}"] if name != "name" else []
    return "; ".join(parts)


def faults(fields: Mapping[str, Any]) -> Iterator[ValueError]:
    """Yields the faults of the statistics of a manifest, given as JSON has it."""
    statistics = fields["statistics"]
    shapes = {name: shape for name, (shape, _) in fields["features"].items()}
    found = list(schema.faults(statistics, _STATISTICS, "statistics"))
    if "pixels" in shapes:
        found += schema.faults(statistics, _SCALING, "statistics", is_whole=True)
    for name, sizes in (("values", 1), ("observed", 1), ("pixels", 3)):
        shape = shapes.get(name, [])
        is_by_position = shape[:1] == ["length"]
        if name in shapes and (len(shape) - is_by_position, is_by_position) != (sizes, sizes == 1):
            must = "three sizes" if name == "pixels" else "['length', N], N values a position"
            found.append(faults_lib.wrong(f"the shape of {name}", shape, must))
    yield from found or _misfits(statistics, shapes, fields["max_seq_length"])


def _misfits(
    statistics: Mapping[str, Any], shapes: Mapping[str, list[Any]], length: int
) -> Iterator[ValueError]:
    """Yields lists that do not have the size of others, and labels of another shape."""
    labels = statistics.get("labels", {})
    names = len(labels.get("names", ()))
    sizes = {"columns": length, "labels.means": names, "labels.deviations": names}
    if "pixels" in shapes:
        sizes |= dict.fromkeys(("channel_means", "channel_deviations"), shapes["pixels"][-1])
    lists = {**statistics, **{f"labels.{name}": it for name, it in labels.items()}}
    for name in sizes.keys() & lists.keys():
        if len(lists[name]) != sizes[name]:
            must = f"{sizes[name]} entries; it has {len(lists[name])}"
            yield ValueError(f"statistics.{name} must have {must}")
    shape = [] if labels.get("kind") == "classes" else [labels.get("horizon", names)]
    if labels and shapes.get("labels", shape) != shape:
        must = f"{shape}, as statistics.labels are {labels['kind']}"
        yield faults_lib.wrong("the shape of labels", shapes["labels"], must)
