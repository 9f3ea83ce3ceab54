"""How well a vocabulary covers a text: the size of its tokens, and the unknown ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.tokenization import tokenizer
from data_pipelines.reports import by_script, scripts


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How a vocabulary does on a text: [UNK] per token, and tokens per white-space word.

    `characters_per_token` is 0 unless the script writes no spaces between words: then it is shown.
    `mark_share` is the share of the characters that combine with the letter before them. `scripts`
    has the figures of `by_script`, `languages` the coverage of each language.
    """

    words: int
    fertility: float
    unknown_rate: float
    characters_per_token: float = 0.0
    mark_share: float = 0.0
    scripts: Sequence[Mapping[str, Any]] = ()
    languages: Mapping[str, Coverage] = dataclasses.field(default_factory=dict)

    @property
    def granularity(self) -> str:
        """The size of tokens, in words."""
        if self.characters_per_token:
            return f"{self.characters_per_token:.2f} characters per token"
        return f"{self.fertility:.3f} tokens per word"


def measured(vocabulary: tokenizer.Tokenizer, chunk_counts: Mapping[str, int]) -> Coverage:
    """Returns the coverage of white-space-separated words with these counts."""
    counts = np.fromiter(chunk_counts.values(), np.int64, len(chunk_counts))
    blank = " " if vocabulary.keeps_blanks else ""
    texts = [f"{blank}{chunk}" for chunk in chunk_counts]
    ids, lengths = vocabulary.encode_flat(texts)
    words, tokens = int(counts.sum()), int(lengths @ counts)
    unknown = int((ids == vocabulary.unk_id) @ np.repeat(counts, lengths))
    characters, unspaced, marks = (
        sum(count * of(chunk) for chunk, count in chunk_counts.items())
        for of in (len, scripts.unspaced_characters, scripts.marks)
    )
    has_spaces = unspaced < scripts.UNSPACED_SHARE * characters
    return Coverage(
        words,
        fertility=tokens / max(words, 1),
        unknown_rate=unknown / max(tokens, 1),
        characters_per_token=0.0 if has_spaces else characters / max(tokens, 1),
        mark_share=marks / max(characters, 1),
        scripts=by_script.counted(vocabulary, texts, ids, lengths, counts).figures(vocabulary),
    )
