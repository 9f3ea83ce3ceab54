"""The statistics of rows of values in a manifest: columns, channels, scaling and labels, checked.

Figures for people are not checked, and other names are fine.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.options import faults as faults_lib
from bertjax.options import schema

MOST_FAULTS = 10
_LARGEST = sys.float_info.max


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST  # which a nan is not


def _number(value: Any, name: str) -> Iterator[ValueError]:
    if not _is_number(value):
        yield faults_lib.wrong(name, value, "a finite number")


def _deviation(value: Any, name: str) -> Iterator[ValueError]:
    if not _is_number(value) or value <= 0:
        yield faults_lib.wrong(name, value, "a finite number above 0")


def _quantiles(value: Any, name: str) -> Iterator[ValueError]:
    # Most of a manifest: a fault for each number would fill the screen.
    if not isinstance(value, list) or not all(map(_is_number, value)):
        yield from itertools.islice(schema.faults(value, [_number], name), 1)
    elif (np.diff(np.array(value, np.float64)) < 0).any():
        yield faults_lib.wrong(name, value, "numbers that do not fall")


def _names(value: Any, name: str) -> Iterator[ValueError]:
    texts = isinstance(value, list) and value and all(isinstance(it, str) for it in value)
    if not texts or len(set(value)) < len(value):
        yield faults_lib.wrong(name, value, "a list of different texts")


_SCALED = {"name": str, "mean": _number, "deviation": _deviation}
_COLUMN = {
    **{"kind": str, "form": str, "quantiles": _quantiles, "categories": _names},
    **{"smallest": _number, "largest": _number, **_SCALED},
}


def _column(value: Any, name: str) -> Iterator[ValueError]:
    yield from schema.faults(value, {"name": str}, name, is_whole=True)
    if isinstance(value, Mapping):
        yield from schema.faults(value, _COLUMN, name)
        if value.get("kind") == "category" and "categories" not in value:
            yield ValueError(f"{name}.categories is missing")


def _channel(value: Any, name: str) -> Iterator[ValueError]:
    yield from schema.faults(value, _SCALED, name, is_whole=True)


# Kind of labels -> what describes them.
_LABELS: Mapping[str, Any] = {
    "classes": {"names": _names},
    "numbers": {"names": _names, "means": [_number], "deviations": [_deviation]},
    "forecast": {"horizon": schema.Whole(1, 1 << 20), "season": schema.Whole(0, 1 << 30)},
}


def _labels(value: Any, name: str) -> Iterator[ValueError]:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in _LABELS:
        yield faults_lib.unknown(f"{name}.kind", kind, _LABELS)
    else:
        yield from schema.faults(value, _LABELS[kind], name, is_whole=True)


_SCALING = {"patch", "channel_means", "channel_deviations"}  # of pixels
_STATISTICS = {
    "columns": [_column],
    "label_column": _column,
    "channels": [_channel],
    "labels": _labels,
    "patch": schema.Whole(1, 1 << 14),
    "channel_means": [_number],
    "channel_deviations": [_deviation],
}


def faults(fields: Mapping[str, Any]) -> Iterator[ValueError]:
    """Yields the faults of the statistics of a manifest, given as JSON has it."""
    statistics, features = fields["statistics"], fields["features"]
    found = [*itertools.islice(schema.faults(statistics, _STATISTICS, "statistics"), MOST_FAULTS)]
    yield from found
    if found:
        return
    shapes = {name: shape for name, (shape, _) in features.items()}
    for name in ("values", "observed"):
        if name in shapes and (len(shapes[name]) != 2 or shapes[name][0] != "length"):
            must = "['length', N], the values of each position"
            yield faults_lib.wrong(f"the shape of {name}", shapes[name], must)
            return
    sizes = {"columns": fields["max_seq_length"]}
    if pixels := shapes.get("pixels"):
        yield from (
            ValueError(f"statistics.{it} is missing") for it in _SCALING - statistics.keys()
        )
        sizes |= {"channel_means": pixels[-1], "channel_deviations": pixels[-1]}
    yield from _misfits(statistics, sizes, shapes.get("labels"))


def _misfits(
    statistics: Mapping[str, Any], sizes: Mapping[str, int], label_shape: list[int] | None
) -> Iterator[ValueError]:
    """Yields lists of other sizes than they must have, and labels of another shape."""
    labels = statistics.get("labels", {})
    names = len(labels.get("names", ()))
    flat = {**statistics, **{f"labels.{name}": it for name, it in labels.items()}}
    for name, size in {**sizes, "labels.means": names, "labels.deviations": names}.items():
        if name in flat and len(flat[name]) != size:
            yield ValueError(
                f"statistics.{name} has {len(flat[name])} entries; it must have {size}"
            )
    if labels and label_shape is not None:
        shape = [] if labels["kind"] == "classes" else [labels.get("horizon", names)]
        if label_shape != shape:
            must = f"{shape}, as statistics.labels are {labels['kind']}"
            yield faults_lib.wrong("the shape of labels", label_shape, must)
