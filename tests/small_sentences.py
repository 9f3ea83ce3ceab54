"""A small model of sentence embeddings with random weights, and texts of mixed lengths for it."""

import dataclasses
import json
import pathlib

import numpy as np

from bertjax import models
from bertjax.convert import formats
from bertjax.convert.families import mpnet
from bertjax.models import sentence_vectors
from tests import small_records, small_tokenizers
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


def write_mpnet(directory: pathlib.Path) -> None:
    """Writes a random model with the files of all-mpnet-base-v2 and unused rows of words."""
    vocabulary = small_tokenizers.mpnet(small_records.WORDS)
    config = models.EncoderConfig(
        vocab_size=vocabulary.vocab_size + 3,
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=32,
        layer_norm_eps=1e-5,
        **mpnet.FAMILY.traits,
    )
    made = weights.make("none", config=config, vocabulary=vocabulary, scale=0.5, norm_scale=1.0)
    formats.write(made, directory, format="huggingface")
    fields = json.loads((directory / "config.json").read_text())
    entries = "".join(f"{entry}\n" for entry in vocabulary.vocabulary)
    (directory / "vocab.txt").write_text(entries)
    (directory / "1_Pooling").mkdir()
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    files = {
        "config.json": {**fields, "architectures": ["MPNetForMaskedLM"]},
        "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.0.0"}},
        "sentence_bert_config.json": {"max_seq_length": MAX_LENGTH, "do_lower_case": False},
        "modules.json": [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, (kind, path) in enumerate(kinds.items())
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": HIDDEN,
            **{f"pooling_mode_{mode}": mode == "mean_tokens" for mode in modes},
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))


def texts(count: int, *, seed: int = 0, longest: int = 15) -> list[str]:
    """Texts of 0 to `longest` words, no two of them alike but the empty ones."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, count)
    return [" ".join(f"w{word}" for word in rng.integers(0, 90, length)) for length in lengths]
