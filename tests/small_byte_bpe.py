"""A small byte-level BPE with RoBERTa's special tokens, for tests."""

import functools

from bertjax.tokenization import byte_bpe
from data_pipelines import train_vocabulary
from data_pipelines.vocabulary import unit_counts

LINES = (
    "the unwanted runner was running, and the other runner ran home.",
    "she said: Élan vital! 博推 twice; they want running water",
    "Under The Tree (the other one) they don't want 2024 runners",
)


@functools.cache
def vocabulary(
    size: int = 320, *, add_prefix_space: bool = False, keeps_marks: bool = False
) -> byte_bpe.ByteBpeTokenizer:
    """Returns a vocabulary of LINES: 261 bytes and special tokens, the rest merges."""
    kind = train_vocabulary.TRAINERS["byte_bpe"]
    options = train_vocabulary.Options(
        input="",
        output="",
        kind="byte_bpe",
        size=size,
        normalization="none",
        add_prefix_space=add_prefix_space,
        keep_marks=keeps_marks,
    )
    counts = unit_counts.Counts(kind.splitter(options))
    for line in LINES * 5:
        counts.add(line)
    made = kind.train(counts.units(), options)
    assert isinstance(made, byte_bpe.ByteBpeTokenizer)
    return made
