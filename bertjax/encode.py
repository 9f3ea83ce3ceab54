"""Features of a checkpoint's encoder for other programs, one text per line of standard input.

python -m bertjax.encode --checkpoint=DIR --layers=last4 --pooling=mean < lines.txt > features.npz
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jaxtyping import Array

from bertjax import command_line, inference
from bertjax.devices import sharding
from bertjax.models import parameters

# `last4` concatenates the last four layers: the best feature-based choice of Devlin et al. 2019,
# table 7, beside `second_to_last` and `sum4`.
LAYERS: dict[str, Callable[[Sequence[Array]], Array]] = {
    "last": lambda states: states[-1],
    "second_to_last": lambda states: states[-2],
    "last4": lambda states: jnp.concatenate(states[-4:], axis=-1),
    "sum4": lambda states: sum(states[-3:], states[-4]),
    "embeddings": lambda states: states[0],
}
LAYERS_NEEDED = {"last": 1, "second_to_last": 2, "last4": 4, "sum4": 4, "embeddings": 0}
POOLINGS = ("cls", "mean", "none")


def encode(
    model: inference.TrainedModel,
    texts: Sequence[str],
    *,
    layers: str = "last",
    pooling: str = "mean",
    batch_size: int = 32,
) -> dict[str, np.ndarray]:
    """Returns float32 `features` of the texts, and `lengths` in tokens with [CLS] and [SEP].

    With pooling "cls" or "mean" (over all real tokens) features are [texts, size]. With "none" they
    are [tokens of all texts, size], text i starting at row `offsets`[i], and `input_ids` names the
    tokens.

    Raises:
      ValueError: for an unknown option, a model with too few layers, or a text that is too long.
    """
    if layers not in LAYERS or pooling not in POOLINGS:
        raise ValueError(
            f"layers is {layers!r}, known are {', '.join(LAYERS)}; "
            f"pooling is {pooling!r}, known are {', '.join(POOLINGS)}"
        )
    run = functools.partial(
        _features, model.params, graphdef=model.graphdef, layers=layers, pooling=pooling
    )
    parts = list(_in_batches(model, texts, run, batch_size))
    lengths = np.concatenate([np.zeros(0, np.int32), *(mask.sum(axis=1) for _, mask, _ in parts)])
    if pooling != "none":
        features = np.concatenate([features for features, _, _ in parts])
        return {"features": features, "lengths": lengths}
    return {
        "features": np.concatenate([f[mask != 0] for f, mask, _ in parts]),
        "input_ids": np.concatenate([ids[mask != 0] for _, mask, ids in parts]),
        "lengths": lengths,
        "offsets": np.cumsum(lengths) - lengths,
    }


def _in_batches(
    model: inference.TrainedModel, texts: Sequence[str], run: Any, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    unit = model.mesh.size
    batch_size, most = (-(-size // unit) * unit for size in (batch_size, len(texts)))
    for start in range(0, len(texts), batch_size):
        chosen = texts[start : start + batch_size]
        tokens = model.vocabulary.encode_batch(chosen)
        # A short last batch is filled up, so that it needs no program of its own.
        filler = [[]] * (min(batch_size, most) - len(tokens))
        batch = inference.single_segment_batch([*tokens, *filler], model)
        features = np.asarray(
            run(sharding.to_devices(batch, model.mesh, len(batch["input_ids"]))), np.float32
        )
        count = len(tokens)
        inference.check_numbers(features[:count], f"texts {start + 1} to {start + count}")
        yield features[:count], batch["input_mask"][:count], batch["input_ids"][:count]


@functools.partial(jax.jit, static_argnames=("graphdef", "layers", "pooling"))
def _features(params: Any, batch: Any, *, graphdef: Any, layers: str, pooling: str) -> Array:
    encoder = parameters.merge(graphdef, params).encoder
    states = encoder.hidden_states(batch)
    if len(states) - 1 < LAYERS_NEEDED[layers]:
        raise ValueError(
            f"--layers={layers} needs {LAYERS_NEEDED[layers]} layers; the model has "
            f"{len(states) - 1}: choose another of {', '.join(LAYERS)}"
        )
    features = LAYERS[layers](states).astype(jnp.float32)
    if pooling == "cls":
        return features[:, 0]
    if pooling == "mean":
        mask = batch["input_mask"][:, :, None].astype(jnp.float32)
        return (features * mask).sum(axis=1) / mask.sum(axis=1)
    return features


def _define_flags() -> None:
    inference.define_flags("Workdir of a training run.")
    flags.DEFINE_enum("layers", "last", list(LAYERS), "Which layers' hidden states.")
    flags.DEFINE_enum(
        "pooling", "mean", POOLINGS, "How tokens become one vector; none: all tokens."
    )
    flags.DEFINE_integer("batch_size", 32, "Texts at a time.", lower_bound=1)


def main(argv: list[str]) -> None:
    """Reads texts from standard input and writes an .npz archive to standard output."""
    del argv
    options = flags.FLAGS
    # An empty line keeps its row: [CLS] [SEP]. str.splitlines would also break a line at U+2028.
    texts = [line.removesuffix("\n") for line in sys.stdin]
    if not texts:
        raise ValueError("standard input holds no text; give one text per line")
    features = encode(
        inference.load(options.checkpoint, step=options.step),
        texts,
        layers=options.layers,
        pooling=options.pooling,
        batch_size=options.batch_size,
    )
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **features)
    sys.stdout.buffer.write(archive.getvalue())


if __name__ == "__main__":
    _define_flags()
    command_line.run(main)
