"""The names of parameters, theirs and ours, and their transforms: one table for both directions.

The tables are in `families`; readers and writers handle files. `{layer}` in a name is the number of
a layer, counted from 0. `{inner}` in their name counts layers within a layer: `in_a_row` makes an
entry for each; before that it matches any number.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.options import faults

Transform = Callable[[np.ndarray], np.ndarray]


def _transpose(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.T)


def _row(array: np.ndarray) -> np.ndarray:
    return array.reshape(1, -1)


def _of_row(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1)


def _in_batch(array: np.ndarray) -> np.ndarray:
    return array.reshape(1, 1, -1)


def _of_convolution(array: np.ndarray) -> np.ndarray:
    """Returns [rows x columns x channels, out] of torch's [out, channels, rows, columns]."""
    return np.ascontiguousarray(array.transpose(2, 3, 1, 0).reshape(-1, len(array)))


def _convolution(kernel: np.ndarray) -> np.ndarray:
    size, channels = patch_sides(len(kernel))
    return np.ascontiguousarray(kernel.reshape(size, size, channels, -1).transpose(3, 2, 0, 1))


def patch_sides(values: int) -> tuple[int, int]:
    """Returns height and channels, 3 or 1, of a square patch with this number of values.

    No number fits both.
    """
    for channels in (3, 1):
        size = math.isqrt(values // channels)
        if size * size * channels == values:
            return size, channels
    raise ValueError(f"a patch of {values} values is not a square with 1 or 3 channels")


FLOAT_TYPES = ("float64", "float32", "float16", "bfloat16")

# Name -> (theirs to ours, ours to theirs).
TRANSFORMS: dict[str, tuple[Transform, Transform]] = {
    "same": (np.ascontiguousarray, np.ascontiguousarray),
    "transpose": (_transpose, _transpose),
    "row": (_row, _in_batch),
    "of_row": (_of_row, _row),
    "convolution": (_of_convolution, _convolution),
}


@dataclasses.dataclass(frozen=True)
class Name:
    """The name of a parameter in another program, our path, and the transform from theirs to ours.

    `heads` are the heads of models with this name, () for all: a name may depend on the head. Our
    number of a layer is `each` times theirs, plus `first`.
    """

    theirs: str
    ours: str
    transform: str = "same"
    heads: tuple[str, ...] = ()
    each: int = 1
    first: int = 0


def torch_dense(theirs: str, ours: str, *, heads: tuple[str, ...] = ()) -> tuple[Name, Name]:
    """A torch Linear: its weight is [out, in], our kernel [in, out]."""
    return (
        Name(f"{theirs}.weight", f"{ours}.kernel", "transpose", heads),
        Name(f"{theirs}.bias", f"{ours}.bias", heads=heads),
    )


def torch_norm(theirs: str, ours: str) -> tuple[Name, Name]:
    """A torch LayerNorm."""
    return Name(f"{theirs}.weight", f"{ours}.scale"), Name(f"{theirs}.bias", f"{ours}.bias")


def renamed(table: Sequence[Name], parts: Mapping[str, str]) -> tuple[Name, ...]:
    """Returns the entries with parts of their names replaced, in the order of `parts`."""
    entries = list(table)
    for old, new in parts.items():
        entries = [dataclasses.replace(it, theirs=it.theirs.replace(old, new)) for it in entries]
    return tuple(entries)


def tensorflow1(table: Sequence[Name]) -> tuple[Name, ...]:
    """Returns torch's names as those of a TF1 checkpoint: layer_0/output/dense/kernel.

    Kernels lie as ours do, but for `output_weights`, which lie as torch's.
    """

    def variable(entry: Name) -> Name:
        scope, _, last = entry.theirs.replace("layer.{layer}", "layer_{layer}").rpartition(".")
        our_layer, _, our_last = entry.ours.rpartition(".")
        is_norm = our_layer.endswith("norm")
        words = {"weight": "gamma" if is_norm else "kernel", "bias": "beta" if is_norm else "bias"}
        name = "" if our_last == "embedding" else words.get(last, last)
        theirs = "/".join(filter(None, [*scope.split("."), name]))
        return Name(theirs, entry.ours, entry.transform if last == "output_weights" else "same")

    return tuple(map(variable, table))


def as_float32(array: np.ndarray) -> np.ndarray:
    """Returns the array in float32, infinite where a number of float64 is beyond it."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)


def of_head(table: Sequence[Name], head: str) -> tuple[Name, ...]:
    """Returns the names of models with this head."""
    return tuple(entry for entry in table if not entry.heads or head in entry.heads)


def in_a_row(table: Sequence[Name], count: int) -> tuple[Name, ...]:
    """Returns the names of models in which each layer applies `count` layers in a row."""
    rows: list[Name] = []
    for entry in table:
        if "{inner}" not in entry.theirs:
            rows.append(entry)
            continue
        for inner in range(count):
            theirs = entry.theirs.replace("{inner}", str(inner))
            rows.append(dataclasses.replace(entry, theirs=theirs, each=count, first=inner))
    return tuple(rows)


def our_paths(
    theirs: Collection[str], table: Sequence[Name], *, spelling: Callable[[str], str] = str
) -> set[str]:
    """Maps their tensor names to our parameter paths; unknown names are dropped."""
    matches = (_find(spelling(name), table, "theirs") for name in theirs)
    return {_ours(entry, layer) for entry, layer in filter(None, matches)}


def unfuse(
    theirs: Mapping[str, np.ndarray],
    fused: Mapping[str, Sequence[str]],
    *,
    spelling: Callable[[str], str] = str,
) -> dict[str, np.ndarray]:
    """Returns their tensors, with fused ones split into their parts of equal size."""
    tensors: dict[str, np.ndarray] = {}
    for name, array in theirs.items():
        for whole, parts in fused.items():
            if match := _pattern(whole).fullmatch(spelling(name)):
                if len(array) % len(parts):
                    raise faults.wrong(
                        f"the number of rows of {name}", len(array), f"a multiple of {len(parts)}"
                    )
                names = [part.format(**match.groupdict()) for part in parts]
                tensors |= zip(names, np.split(array, len(parts)), strict=True)
                break
        else:
            tensors[name] = array
    return tensors


def fuse(
    theirs: Mapping[str, np.ndarray], fused: Mapping[str, Sequence[str]]
) -> dict[str, np.ndarray]:
    """Returns their tensors, fused where they store one matrix (q, k, v). Inverse of `unfuse`."""
    tensors = dict(theirs)
    for whole, parts in fused.items():
        for match in filter(None, map(_pattern(parts[0]).fullmatch, theirs)):
            shares = [tensors.pop(part.format(**match.groupdict())) for part in parts]
            tensors[whole.format(**match.groupdict())] = np.concatenate(shares)
    return tensors


def to_ours(
    theirs: Mapping[str, np.ndarray],
    table: Sequence[Name],
    *,
    ignored: Collection[str] = (),
    shapes: Mapping[str, Any] | None = None,
    required: Collection[str] = (),
    spelling: Callable[[str], str] = str,
) -> dict[str, np.ndarray]:
    """Returns their parameters under our paths, in our layout and float32.

    `ignored` are regexes of names that are not parameters of the model (optimizer slots);
    `shapes` are our shapes, as from `pretrained.shapes`; `required` our paths that must be present;
    `spelling` maps a name to the spelling of the table (other prefixes, older names).
    """
    params: dict[str, np.ndarray] = {}
    sources: dict[str, str] = {}
    misfits = []
    for name, array in theirs.items():
        if any(re.fullmatch(pattern, spelling(name)) for pattern in ignored):
            continue
        match = _find(spelling(name), table, "theirs")
        if match is None:
            misfits.append(f"{name} {list(array.shape)} is not a parameter that is known here")
            continue
        path = _ours(*match)
        if path in sources:
            misfits.append(f"{name} and {sources[path]} are the same parameter, {path}")
            continue
        sources[path] = name
        if fault := _fault(array, match[0], shapes, path):
            misfits.append(f"{name} {fault}")
            continue
        single = as_float32(array)
        if array.dtype == np.float64 and (np.isinf(single) & np.isfinite(array)).any():
            misfits.append(f"{name} has float64 numbers that are too large for float32")
            continue
        params[path] = TRANSFORMS[match[0].transform][0](single)
    for path in sorted(set(required) - set(sources), key=_by_number):
        if (match := _find(path, table, "ours")) is None:
            raise ValueError(f"the other format has no name for {path}")
        entry, layer = match
        misfits.append(f"{entry.theirs.format(layer=layer)} ({path}) is missing")
    faults.check("the parameters do not fit the model", misfits)
    return params


def knows(table: Sequence[Name], path: str) -> bool:
    """Returns whether the table has a name for our path."""
    return _find(path, table, "ours") is not None


def to_theirs(params: Mapping[str, np.ndarray], table: Sequence[Name]) -> dict[str, np.ndarray]:
    """Returns our parameters under their names and in their layout."""
    matches = {path: match for path in params if (match := _find(path, table, "ours"))}
    unknown = sorted(params.keys() - matches.keys())
    faults.check("the other format has no name for", unknown)
    return {
        entry.theirs.format(layer=layer): TRANSFORMS[entry.transform][1](np.asarray(params[path]))
        for path, (entry, layer) in matches.items()
    }


def _fault(
    array: np.ndarray, entry: Name, shapes: Mapping[str, Any] | None, path: str
) -> str | None:
    if array.dtype.name not in FLOAT_TYPES:
        return f"holds {array.dtype}; known are {', '.join(FLOAT_TYPES)}"
    if shapes is None:
        return None
    if path not in shapes:
        return f"belongs to a layer that the config does not have ({path})"
    expected = shapes[path][::-1] if entry.transform == "transpose" else shapes[path]
    if entry.transform in ("row", "of_row", "convolution"):
        expected = TRANSFORMS[entry.transform][1](np.empty(shapes[path], np.int8)).shape
    fits = len(expected) == array.ndim and all(
        size in (None, got) for size, got in zip(expected, array.shape, strict=True)
    )
    if fits:
        return None
    described = ["labels" if size is None else size for size in expected]
    return f"has the shape {list(array.shape)}; the config asks for {described}"


def _find(name: str, table: Sequence[Name], side: str) -> tuple[Name, str] | None:
    """Returns the entry of a name and their number of the layer ("" without one)."""
    for entry in table:
        if match := _pattern(getattr(entry, side)).fullmatch(name):
            layer = match.groupdict().get("layer", "")
            if side == "theirs" or not layer:
                return entry, layer
            number, first = divmod(int(layer), entry.each)
            if first == entry.first:
                return entry, str(number)
    return None


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    number = r"0|[1-9]\d*"
    pattern = re.escape(name).replace(r"\{layer\}", f"(?P<layer>{number})")
    return re.compile(pattern.replace(r"\{inner\}", f"(?:{number})"))


def _ours(entry: Name, layer: str) -> str:
    return entry.ours.format(layer=entry.each * int(layer) + entry.first if layer else "")


def _by_number(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in path.split(".")]
