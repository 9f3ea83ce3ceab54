"""The names of every parameter: theirs, ours and what lies between, one table for both directions.

Here belong names and shapes; files belong to the readers and writers. `{layer}` in a name is the
number of a layer, counted from 0.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import models

Transform = Callable[[np.ndarray], np.ndarray]


def _transpose(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.T)


FLOAT_TYPES = ("float32", "float16", "bfloat16")

# Name -> (theirs to ours, ours to theirs).
TRANSFORMS: dict[str, tuple[Transform, Transform]] = {
    "same": (np.ascontiguousarray, np.ascontiguousarray),
    "transpose": (_transpose, _transpose),
}


@dataclasses.dataclass(frozen=True)
class Name:
    """A parameter of another program, ours, and the transform from theirs to ours."""

    theirs: str
    ours: str
    transform: str = "same"


# Our path -> our shape: fields of EncoderConfig, numbers, or "labels", which only a head knows.
SHAPES: dict[str, tuple[str | int, ...]] = {
    "encoder.embeddings.word.embedding": ("vocab_size", "hidden_size"),
    "encoder.embeddings.position.embedding": ("max_position_embeddings", "hidden_size"),
    "encoder.embeddings.segment.embedding": ("type_vocab_size", "hidden_size"),
    "encoder.embeddings.norm.scale": ("hidden_size",),
    "encoder.embeddings.norm.bias": ("hidden_size",),
    "encoder.layers.{layer}.attention.query.kernel": ("hidden_size", "hidden_size"),
    "encoder.layers.{layer}.attention.query.bias": ("hidden_size",),
    "encoder.layers.{layer}.attention.key.kernel": ("hidden_size", "hidden_size"),
    "encoder.layers.{layer}.attention.key.bias": ("hidden_size",),
    "encoder.layers.{layer}.attention.value.kernel": ("hidden_size", "hidden_size"),
    "encoder.layers.{layer}.attention.value.bias": ("hidden_size",),
    "encoder.layers.{layer}.attention.output.kernel": ("hidden_size", "hidden_size"),
    "encoder.layers.{layer}.attention.output.bias": ("hidden_size",),
    "encoder.layers.{layer}.attention_norm.scale": ("hidden_size",),
    "encoder.layers.{layer}.attention_norm.bias": ("hidden_size",),
    "encoder.layers.{layer}.intermediate.kernel": ("hidden_size", "intermediate_size"),
    "encoder.layers.{layer}.intermediate.bias": ("intermediate_size",),
    "encoder.layers.{layer}.output.kernel": ("intermediate_size", "hidden_size"),
    "encoder.layers.{layer}.output.bias": ("hidden_size",),
    "encoder.layers.{layer}.output_norm.scale": ("hidden_size",),
    "encoder.layers.{layer}.output_norm.bias": ("hidden_size",),
    "pooler.dense.kernel": ("hidden_size", "hidden_size"),
    "pooler.dense.bias": ("hidden_size",),
    "mlm_head.dense.kernel": ("hidden_size", "hidden_size"),
    "mlm_head.dense.bias": ("hidden_size",),
    "mlm_head.norm.scale": ("hidden_size",),
    "mlm_head.norm.bias": ("hidden_size",),
    "mlm_head.bias": ("vocab_size",),
    "nsp_head.dense.kernel": ("hidden_size", 2),
    "nsp_head.dense.bias": (2,),
    "classifier.kernel": ("hidden_size", "labels"),
    "classifier.bias": ("labels",),
    "span_head.kernel": ("hidden_size", 2),
    "span_head.bias": (2,),
}


def _affine(theirs: str, ours: str) -> tuple[Name, Name]:
    """A torch Linear: its weight is [out, in], our kernel [in, out]."""
    return (
        Name(f"{theirs}.weight", f"{ours}.kernel", "transpose"),
        Name(f"{theirs}.bias", f"{ours}.bias"),
    )


def _torch_norm(theirs: str, ours: str) -> tuple[Name, Name]:
    return Name(f"{theirs}.weight", f"{ours}.scale"), Name(f"{theirs}.bias", f"{ours}.bias")


_HF_LAYER, _LAYER = "bert.encoder.layer.{layer}", "encoder.layers.{layer}"

# Source: transformers, models/bert/modeling_bert.py; the names of its state dicts.
HUGGINGFACE: tuple[Name, ...] = (
    Name("bert.embeddings.word_embeddings.weight", "encoder.embeddings.word.embedding"),
    Name("bert.embeddings.position_embeddings.weight", "encoder.embeddings.position.embedding"),
    Name("bert.embeddings.token_type_embeddings.weight", "encoder.embeddings.segment.embedding"),
    *_torch_norm("bert.embeddings.LayerNorm", "encoder.embeddings.norm"),
    *_affine(f"{_HF_LAYER}.attention.self.query", f"{_LAYER}.attention.query"),
    *_affine(f"{_HF_LAYER}.attention.self.key", f"{_LAYER}.attention.key"),
    *_affine(f"{_HF_LAYER}.attention.self.value", f"{_LAYER}.attention.value"),
    *_affine(f"{_HF_LAYER}.attention.output.dense", f"{_LAYER}.attention.output"),
    *_torch_norm(f"{_HF_LAYER}.attention.output.LayerNorm", f"{_LAYER}.attention_norm"),
    *_affine(f"{_HF_LAYER}.intermediate.dense", f"{_LAYER}.intermediate"),
    *_affine(f"{_HF_LAYER}.output.dense", f"{_LAYER}.output"),
    *_torch_norm(f"{_HF_LAYER}.output.LayerNorm", f"{_LAYER}.output_norm"),
    *_affine("bert.pooler.dense", "pooler.dense"),
    *_affine("cls.predictions.transform.dense", "mlm_head.dense"),
    *_torch_norm("cls.predictions.transform.LayerNorm", "mlm_head.norm"),
    Name("cls.predictions.bias", "mlm_head.bias"),
    *_affine("cls.seq_relationship", "nsp_head.dense"),
    *_affine("classifier", "classifier"),
    *_affine("qa_outputs", "span_head"),
)


def _tf_dense(theirs: str, ours: str) -> tuple[Name, Name]:
    return Name(f"{theirs}/kernel", f"{ours}.kernel"), Name(f"{theirs}/bias", f"{ours}.bias")


def _tf_norm(theirs: str, ours: str) -> tuple[Name, Name]:
    return Name(f"{theirs}/gamma", f"{ours}.scale"), Name(f"{theirs}/beta", f"{ours}.bias")


def _tf_output(theirs: str, ours: str) -> tuple[Name, Name]:
    """The last layer of a head: the released code keeps its weights as [classes, hidden]."""
    return (
        Name(f"{theirs}output_weights", f"{ours}.kernel", "transpose"),
        Name(f"{theirs}output_bias", f"{ours}.bias"),
    )


_TF_LAYER = "bert/encoder/layer_{layer}"

# Source: google-research/bert, modeling.py, run_pretraining.py, run_classifier.py, run_squad.py.
TF1: tuple[Name, ...] = (
    Name("bert/embeddings/word_embeddings", "encoder.embeddings.word.embedding"),
    Name("bert/embeddings/position_embeddings", "encoder.embeddings.position.embedding"),
    Name("bert/embeddings/token_type_embeddings", "encoder.embeddings.segment.embedding"),
    *_tf_norm("bert/embeddings/LayerNorm", "encoder.embeddings.norm"),
    *_tf_dense(f"{_TF_LAYER}/attention/self/query", f"{_LAYER}.attention.query"),
    *_tf_dense(f"{_TF_LAYER}/attention/self/key", f"{_LAYER}.attention.key"),
    *_tf_dense(f"{_TF_LAYER}/attention/self/value", f"{_LAYER}.attention.value"),
    *_tf_dense(f"{_TF_LAYER}/attention/output/dense", f"{_LAYER}.attention.output"),
    *_tf_norm(f"{_TF_LAYER}/attention/output/LayerNorm", f"{_LAYER}.attention_norm"),
    *_tf_dense(f"{_TF_LAYER}/intermediate/dense", f"{_LAYER}.intermediate"),
    *_tf_dense(f"{_TF_LAYER}/output/dense", f"{_LAYER}.output"),
    *_tf_norm(f"{_TF_LAYER}/output/LayerNorm", f"{_LAYER}.output_norm"),
    *_tf_dense("bert/pooler/dense", "pooler.dense"),
    *_tf_dense("cls/predictions/transform/dense", "mlm_head.dense"),
    *_tf_norm("cls/predictions/transform/LayerNorm", "mlm_head.norm"),
    Name("cls/predictions/output_bias", "mlm_head.bias"),
    *_tf_output("cls/seq_relationship/", "nsp_head.dense"),
    *_tf_output("", "classifier"),
    *_tf_output("cls/squad/", "span_head"),
)


def shapes(config: models.EncoderConfig, *, labels: int | None = None) -> dict[str, Any]:
    """Returns the shape of every parameter that a model of these sizes may have, by our path.

    A number that is not known (`labels`, while that is None) is None in its shape.
    """
    sizes = {**dataclasses.asdict(config), "labels": labels}
    expanded = {}
    for path, dimensions in SHAPES.items():
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in dimensions)
        for layer in range(config.num_hidden_layers if "{layer}" in path else 1):
            expanded[path.format(layer=layer)] = shape
    return expanded


def our_paths(
    theirs: Collection[str], table: Sequence[Name], *, spelling: Callable[[str], str] = str
) -> set[str]:
    """Returns our paths of those of their names that the table knows."""
    found = (_find(spelling(name), table, "theirs") for name in theirs)
    return {_ours(entry, layer) for entry, layer in filter(None, found)}


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

    `ignored` are regexes of names that are no parameters of the model (optimizer slots);
    `shapes` are ours, as from `shapes`; `required` our paths that must be there; `spelling` maps a
    name to the spelling of the table (other prefixes, older names).

    Raises:
      ValueError: listing every name that is unknown, there twice, of the wrong shape or type, and
        every one that is missing.
    """
    params: dict[str, np.ndarray] = {}
    sources: dict[str, str] = {}
    faults = []
    for name, array in theirs.items():
        if any(re.fullmatch(pattern, spelling(name)) for pattern in ignored):
            continue
        found = _find(spelling(name), table, "theirs")
        if found is None:
            faults.append(f"{name} {list(array.shape)} is no parameter that is known here")
            continue
        path = _ours(*found)
        if path in sources:
            faults.append(f"{name} and {sources[path]} are the same parameter, {path}")
            continue
        sources[path] = name
        if fault := _fault(array, found[0], shapes, path):
            faults.append(f"{name} {fault}")
            continue
        params[path] = TRANSFORMS[found[0].transform][0](array.astype(np.float32, copy=False))
    for path in sorted(set(required) - set(sources), key=_by_number):
        entry, layer = _known(path, table)
        faults.append(f"{entry.theirs.format(layer=layer)} ({path}) is missing")
    if faults:
        raise ValueError("the parameters do not fit the model:\n  " + "\n  ".join(faults))
    return params


def to_theirs(params: Mapping[str, np.ndarray], table: Sequence[Name]) -> dict[str, np.ndarray]:
    """Returns our parameters under their names and in their layout, in the order of the table.

    Raises:
      ValueError: listing every path that the table does not know.
    """
    unknown = [path for path in params if _find(path, table, "ours") is None]
    if unknown:
        raise ValueError(
            "there is no name in the other format for:\n  " + "\n  ".join(sorted(unknown))
        )
    order = {entry.ours: index for index, entry in enumerate(table)}
    found = [(*_known(path, table), path) for path in params]
    # The layers stand together, one after the other, where the table has the first of their names.
    first_of_layer = min(order[e.ours] for e in table if "{layer}" in e.ours)

    def place(item: tuple[Name, str, str]) -> tuple[int, int, int]:
        entry, layer, _ = item
        index = order[entry.ours]
        return (first_of_layer, int(layer), index) if layer else (index, 0, 0)

    return {
        entry.theirs.format(layer=layer): TRANSFORMS[entry.transform][1](np.asarray(params[path]))
        for entry, layer, path in sorted(found, key=place)
    }


def _fault(
    array: np.ndarray, entry: Name, shapes: Mapping[str, Any] | None, path: str
) -> str | None:
    if array.dtype.name not in FLOAT_TYPES:
        return f"holds {array.dtype}; known are {', '.join(FLOAT_TYPES)}"
    if shapes is None:
        return None
    if path not in shapes:
        return f"is of a layer that the config does not have ({path})"
    wanted = shapes[path][::-1] if entry.transform == "transpose" else shapes[path]
    fits = len(wanted) == array.ndim and all(
        size in (None, got) for size, got in zip(wanted, array.shape, strict=True)
    )
    if fits:
        return None
    described = ["labels" if size is None else size for size in wanted]
    return f"has the shape {list(array.shape)}; the config asks for {described}"


def _find(name: str, table: Sequence[Name], side: str) -> tuple[Name, str] | None:
    """Returns the entry of a name and the number of its layer ("" without one)."""
    for entry, pattern in _patterns(table, side):
        if match := pattern.fullmatch(name):
            return entry, match.groupdict().get("layer", "")
    return None


def _known(path: str, table: Sequence[Name]) -> tuple[Name, str]:
    found = _find(path, table, "ours")
    if found is None:
        raise ValueError(f"there is no name in the other format for {path}")
    return found


def _patterns(table: Sequence[Name], side: str) -> Iterator[tuple[Name, re.Pattern[str]]]:
    for entry in table:
        pattern = re.escape(getattr(entry, side)).replace(r"\{layer\}", r"(?P<layer>0|[1-9]\d*)")
        yield entry, re.compile(pattern)  # re keeps the compiled ones


def _ours(entry: Name, layer: str) -> str:
    return entry.ours.format(layer=layer)


def _by_number(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in path.split(".")]
