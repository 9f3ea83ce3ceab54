"""How a model turns a text into one vector: what it was trained with, and what users must keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models import activations, pooling
from bertjax.options import encoder as fields

SIMILARITIES = ("cosine", "dot")

# By which names a prompt is looked for, by what is encoded.
# Source: sentence-transformers, SentenceTransformer.encode_query and .encode_document.
PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}

LARGEST_SIZE = fields.LARGEST_WIDTH  # of a vector


@dataclasses.dataclass(frozen=True)
class Projection:
    """A dense layer between the pooling and the normalization, which makes vectors of `size`.

    `activation` is a key of `activations.PROJECTION_ACTIVATIONS`.
    Source: sentence-transformers, Dense.

    Raises:
      ValueError: listing every field that does not fit.
    """

    size: int
    activation: str = "tanh"
    use_bias: bool = True

    def __post_init__(self):
        faults, known = [], activations.PROJECTION_ACTIVATIONS
        if type(self.size) is not int or not 1 <= self.size <= LARGEST_SIZE:
            faults.append(f"the size is {self.size!r:.60}; it must be from 1 to {LARGEST_SIZE:,}")
        if not isinstance(self.activation, str) or self.activation not in known:
            faults.append(
                f"the activation is {self.activation!r:.60}; known are {', '.join(known)}"
            )
        if type(self.use_bias) is not bool:
            faults.append(f"the bias is {self.use_bias!r:.60}; it must be True or False")
        if faults:
            raise ValueError("; ".join(faults))


def projections_of(rows: Sequence[Any]) -> tuple[Projection, ...]:
    """Returns the projections of rows of their fields, as config.finetuning.projections has them.

    Raises:
      ValueError: if a row is none, or as `Projection`.
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
    `projections` stand between the two, in their order. `prompts` are put before texts, by name,
    and `default_prompt` is the name of one for texts of no kind.
    Longer texts are cut to `max_seq_length` tokens, [CLS] and [SEP] among them; 0: as many as the
    model reads. `matryoshka_dims` are the lengths to which vectors may be cut. `truncate_dim` is
    the one to which they are cut by default, after they are normalized; 0: they are not.

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
        if self.pooling not in pooling.POOLINGS:
            raise ValueError(
                f"pooling is {self.pooling!r}; known are {', '.join(pooling.POOLINGS)}"
            )
        if self.similarity not in SIMILARITIES:
            raise ValueError(
                f"the similarity is {self.similarity!r}; known are {', '.join(SIMILARITIES)}"
            )
        if self.default_prompt and self.default_prompt not in self.prompts:
            raise ValueError(
                f"the default prompt is {self.default_prompt!r}; known are "
                f"{', '.join(self.prompts) or 'none'}"
            )

    def prompt(self, of: str) -> str:
        """Returns what is put before a "query" or a "document", "" where there is nothing."""
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
