"""A small model of sentence embeddings with random weights, and texts of mixed lengths for it."""

import dataclasses
import pathlib

import numpy as np

from bertjax import models
from bertjax.convert import formats
from bertjax.models import sentence_vectors
from tests import small_records
from tests.convert import weights

HIDDEN, MAX_LENGTH = 16, 20

VECTORS = sentence_vectors.SentenceVectors(
    pooling="mean",
    normalize=True,
    prompts={"query": "w9 ", "document": ""},
    max_seq_length=MAX_LENGTH,
)


def write(
    directory: pathlib.Path,
    sentence: sentence_vectors.SentenceVectors | None = VECTORS,
    *,
    format: str = "huggingface",
    scale: float = 1.0,
) -> None:
    """Writes the model; with another scale it is another model."""
    vocabulary = small_records.vocabulary()
    config = models.EncoderConfig(
        vocab_size=vocabulary.vocab_size,
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    made = weights.make("none", config=config, vocabulary=vocabulary)
    params = {path: array * np.float32(scale) for path, array in made.params.items()}
    made = weights.for_sentences(dataclasses.replace(made, params=params), sentence)
    formats.write(made, directory, format=format)


def texts(count: int, *, seed: int = 0, longest: int = 15) -> list[str]:
    """Texts of 0 to `longest` words, no two of them alike but the empty ones."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, count)
    return [" ".join(f"w{word}" for word in rng.integers(0, 90, length)) for length in lengths]
