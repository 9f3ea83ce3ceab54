"""Tokens that a vocabulary lacks: their share in texts, and a warning where they are many."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from absl import logging

from bertjax.tokenization import token_ids

# The name of the share in JSON, as in the manifest of records.
KEY = "unknown_rate"
# The shares above which the vocabulary hardly fits the texts, and from which a text is not read.
MUCH, MOST = 0.05, 0.5


@dataclasses.dataclass
class UnknownTokens:
    """The tokens of texts that were read, the [UNK] among them, and the text with most of those.

    `texts` counts all texts, `unread` texts of which at least half are [UNK].
    """

    unk_id: int
    unknown: int = 0
    tokens: int = 0
    texts: int = 0
    unread: int = 0
    first_unread: str = ""

    def add(self, ids: Sequence[int] | np.ndarray, place: str = "") -> float:
        """Counts a text, without [CLS] and [SEP], and returns its share of [UNK]."""
        unknown = int(np.count_nonzero(np.asarray(ids) == self.unk_id))
        share = unknown / len(ids) if len(ids) else 0.0
        self.unknown, self.tokens, self.texts = (
            self.unknown + unknown, self.tokens + len(ids), self.texts + 1,
        )  # fmt: skip
        if share >= MOST:
            self.unread += 1
            self.first_unread = self.first_unread or place
        return share

    def warn(self, source: str = "") -> None:
        """Warns if many of all tokens are [UNK], or most of the tokens of one text.

        `source`, if it is given, names where the texts are from.
        """
        if not self.unread and self.unknown <= MUCH * self.tokens:
            return
        where = ""
        if self.texts > 1 and self.unread:
            where = f"; of {self.unread:,} texts at least half (first: {self.first_unread})"
        logging.warning(
            "%s%d of %d tokens are [UNK]%s: the model's vocabulary lacks them, and the model "
            "cannot read them; use a model of this language or alphabet",
            f"{source}: " if source else "", self.unknown, self.tokens, where,
        )  # fmt: skip


def of_rows(rows: Sequence[np.ndarray], tokenizer: token_ids.Tokenizer) -> UnknownTokens:
    """Returns the count over rows of token ids, each a text or two with special tokens."""
    flat, starts = np.concatenate(rows), np.cumsum([0, *map(len, rows[:-1])])
    is_special = np.isin(flat, [tokenizer.cls_id, tokenizer.sep_id])
    tokens = np.add.reduceat((~is_special).astype(np.int64), starts)
    unknown = np.add.reduceat((flat == tokenizer.unk_id).astype(np.int64), starts)
    unread = np.flatnonzero((unknown > 0) & (unknown >= MOST * tokens))
    first = f"row {unread[0] + 1}" if len(unread) else ""
    counts = (int(unknown.sum()), int(tokens.sum()), len(rows), len(unread))
    return UnknownTokens(tokenizer.unk_id, *counts, first)
