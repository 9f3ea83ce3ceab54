"""The choices by which a model turns a text into one vector, in training and in use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models import activations, pooling
from bertjax.options import encoder as fields
from bertjax.options import faults

SIMILARITIES = ("cosine", "dot")

# Kind of text -> the names under which its prompt is looked for.
# Source: sentence-transformers, SentenceTransformer.encode_query and .encode_document.
PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}

LARGEST_SIZE = fields.LARGEST_WIDTH  # of a vector


@dataclasses.dataclass(frozen=True)
class Projection:
    """A dense layer to vectors of `size`, between pooling and normalization.

    `activation` is a key of `activations.PROJECTION_ACTIVATIONS`.
    Source: sentence-transformers, Dense.

    Raises:
      ValueError: listing every field that does not fit.
    """

    size: int
    activation: str = "tanh"
    use_bias: bool = True

    def __post_init__(self):
        faults.check("a projection does not fit", self._faults())

    def _faults(self) -> Iterator[ValueError]:
        known = activations.PROJECTION_ACTIVATIONS
        if type(self.size) is not int or not 1 <= self.size <= LARGEST_SIZE:
            yield faults.wrong("size", self.size, f"from 1 to {LARGEST_SIZE:,}")
        if not isinstance(self.activation, str) or self.activation not in known:
            yield faults.unknown("activation", self.activation, known)
        if type(self.use_bias) is not bool:
            yield faults.wrong("use_bias", self.use_bias, "True or False")


def projections_of(rows: Sequence[Any]) -> tuple[Projection, ...]:
    """Returns projections from rows of fields, as in config.finetuning.projections.

    Raises:
      ValueError: if a row is not one of a projection.
    """
    try:
        return tuple(Projection(*row) for row in rows)
    except TypeError:
        raise ValueError(
            "it must hold rows of size, activation and whether there is a bias, such as "
            "((512, 'tanh', True),)"
        ) from None


def size_of(projections: Sequence[Projection], hidden_size: int) -> int:
    """Returns the size of the vectors of an encoder with these projections."""
    return projections[-1].size if projections else hidden_size


@dataclasses.dataclass(frozen=True)
class SentenceVectors:
    """The choices that a model for sentence embeddings was trained with.

    `pooling` is a key of `pooling.POOLINGS`; `normalize` says that vectors have length 1.
    `projections` stand between the two, in their order. `prompts` are put before texts, by name;
    `default_prompt` names the prompt of texts of no kind. Longer texts are cut to `max_seq_length`
    tokens, including [CLS] and [SEP]; 0: the most that the model reads. Vectors may be cut to the
    `matryoshka_dims`. By default they are cut to `truncate_dim` after normalization; 0: not at all.

    Raises:
      ValueError: if a name is unknown.
    """

    pooling: str = "mean"
    normalize: bool = False
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str = ""
    max_seq_length: int = 0
    similarity: str = "cosine"
    matryoshka_dims: Sequence[int] = ()
    truncate_dim: int = 0
    projections: Sequence[Projection] = ()

    def __post_init__(self):
        prompts = ["", *self.prompts]
        known = {"pooling": pooling.POOLINGS, "similarity": SIMILARITIES, "default_prompt": prompts}
        for name, names in known.items():
            if getattr(self, name) not in names:
                raise faults.unknown(name, getattr(self, name), filter(None, names))

    def prompt(self, of: str) -> str:
        """Returns the prompt of a "query" or a "document", "" without one."""
        prompts = [self.prompts[name] for name in PROMPT_NAMES[of] if name in self.prompts]
        return prompts[0] if prompts else self.prompts.get(self.default_prompt, "")


def shortened(
    vectors: Float[Array, "batch size"], *, dims: int, normalize: bool
) -> Float[Array, "batch dims"]:
    """Returns the first `dims` numbers of vectors (0: all), to length 1 with `normalize`.

    Source: Kusupati et al. 2022, Matryoshka representation learning, section 3. The length is at
    least 1e-12, as in torch's `normalize`.
    """
    vectors = vectors[:, : dims or None]
    if not normalize:
        return vectors
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
