"""Parameters of a larger model that start as a smaller model's, repeated.

Which sizes may grow, and how layers, heads and numbers are repeated. `warm_start` has the other
weights that a run starts from. Source: ModernBERT-large, which was started from base:
AnswerDotAI/ModernBERT, initialization.py (`tile_weights_from_middle`) and model.py
(`init_model_from_pretrained`), layers as Gopher's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import numpy as np
from jaxtyping import Int

# Fields of EncoderConfig that may be larger than in the source.
FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    "intermediate_size",
)
# Parameters whose last axis has the heads one after the other, and those whose first axis has.
_QUERIES_LAST = r".*\.attention\.query\.(kernel|bias)"
_KEYS_LAST = r".*\.attention\.(key|value)\.(kernel|bias)"
_QUERIES_FIRST = r".*\.attention\.output\.kernel"


def tiled_places(old: int, new: int, unit: int = 1) -> Int[np.ndarray, " new"]:
    """Returns which of `old` places each of `new` ones repeats: the old in the middle, then on.

    Places are moved in blocks of `unit`, which divides both.
    """
    old, new = old // unit, new // unit
    blocks = (np.arange(new) - (new - old) // 2) % old
    return (blocks[:, None] * unit + np.arange(unit)).ravel()


def repeated_layers(old: int, new: int) -> list[int]:
    """Returns the index into `old` layers that each of `new` ones repeats."""
    return [min(round(number * old / new), old - 1) for number in range(new)]


def tiled(
    params: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    path: str,
    depths: tuple[int, int],
    head_size: int,
    shared: int = 1,
    rows: Collection[str],
) -> dict[str, np.ndarray]:
    """Returns the parameters of an encoder at `path`, and of the heads on it, in larger shapes.

    `depths` are the numbers of stored layers, old and new. Heads are repeated whole, of `head_size`
    each, because rotary positions turn their halves together; the `shared` heads of queries that
    read one head of keys are repeated together. The first axis of the parameters
    named in `rows` stays as it is. Parameters that the smaller model lacks are left out.
    """
    of_layer = repeated_layers(*depths)

    def source(name: str) -> str:
        if layer := re.match(re.escape(f"{path}.layers.") + r"(\d+)(\..*)", name):
            return f"{path}.layers.{of_layer[int(layer[1])]}{layer[2]}"
        return name

    return {
        name: _tiled(name, params[source(name)], shape, (head_size, shared), name in rows)
        for name, shape in shapes.items()
        if source(name) in params and params[source(name)].ndim == len(shape)
    }


def _tiled(
    name: str,
    value: np.ndarray,
    shape: tuple[int, ...],
    heads: tuple[int, int],
    has_rows: bool,
) -> np.ndarray:
    size, shared = heads
    for axis in range(int(has_rows), value.ndim):
        old, new = value.shape[axis], shape[axis]
        if old == new:
            continue
        is_last = axis == value.ndim - 1
        if re.fullmatch(_QUERIES_LAST, name) if is_last else re.fullmatch(_QUERIES_FIRST, name):
            unit = size * shared
        else:
            unit = size if is_last and re.fullmatch(_KEYS_LAST, name) else 1
        value = np.take(value, tiled_places(old, new, unit), axis)
    return value
