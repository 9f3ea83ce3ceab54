"""A finished WordPiece vocabulary with the words of a domain, in its unused slots and at its end.

Every old entry keeps its id, so a model with this vocabulary goes on from the old one's weights
with config.exchange_vocabulary.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from bertjax.tokenization import added_tokens, tokenizer, wordpiece
from data_pipelines.vocabulary import vocabulary_entries

UNUSED = re.compile(r"\[unused\d+\]")
SHOWN = 8


def load(path: str) -> tokenizer.Tokenizer:
    """Returns the vocabulary that is to be extended."""
    known = tokenizer.load(path)
    if not isinstance(known.base, wordpiece.WordPieceTokenizer):
        raise ValueError(
            f"--extend is {path}, a vocabulary of the kind {known.kind}; only one of the released "
            "BERT's kind, wordpiece, takes words as further entries. Train another vocabulary on "
            "the text, and start with --config.exchange_vocabulary=True from the model's weights"
        )
    return known


def splitter(known: tokenizer.Tokenizer) -> Callable[[str], list[str]]:
    """Returns the function that cuts a chunk of text into words by the rules of a vocabulary."""
    return functools.partial(wordpiece.split_words, **_rules(known))


def extended(
    known: tokenizer.Tokenizer, word_counts: Mapping[str, int], size: int
) -> tokenizer.Tokenizer:
    """Returns the tokenizer with further words, in the place of [unusedN] and then at the end.

    They are those that save most tokens: a word's count times its pieces but one; an unknown word
    saves one. Words that occur once are left out. `size` is the most entries there may be.
    """
    base, tokens = known.base, known.added_tokens
    assert isinstance(base, wordpiece.WordPieceTokenizer)
    entries = list(base.vocabulary)
    slots = [token_id for token_id, entry in enumerate(entries) if UNUSED.fullmatch(entry)]
    has_tokens_behind = any(token.id >= base.vocab_size for token in tokens)
    room = 0 if has_tokens_behind else max(size - base.vocab_size, 0)
    if not slots and not room:
        why = "has added tokens behind its entries" if has_tokens_behind else "may not grow"
        raise ValueError(
            f"--extend names a vocabulary of {base.vocab_size:,} entries without unused ones "
            f"([unused1]) that {why}, --size={size}: give "
            + ("one without added tokens" if has_tokens_behind else "a larger --size")
        )
    words = _words_cut_most(base, word_counts)[: len(slots) + room]
    if not words:
        raise ValueError("the vocabulary cuts no word that is twice in the text: it needs no more")
    for token_id, word in zip(slots, words, strict=False):
        entries[token_id] = word
    appended = words[len(slots) :]
    logging.info(
        "%d words are in the place of unused entries, %d are appended: %s, ...",
        len(words) - len(appended), len(appended), ", ".join(words[:SHOWN]),
    )  # fmt: skip
    made = wordpiece.WordPieceTokenizer([*entries, *appended], **_rules(known))
    return added_tokens.attach(made, tokens)


def _words_cut_most(
    base: wordpiece.WordPieceTokenizer, word_counts: Mapping[str, int]
) -> list[str]:
    """Returns the words that are not entries yet, those that save most tokens first."""
    entries = {*base.vocabulary}
    saved = {
        word: count * max(len(base.pieces(word)) - 1, 1)
        for word, count in word_counts.items()
        if count >= vocabulary_entries.MINIMUM_PAIR_FREQUENCY
        and len(word) <= wordpiece.MAX_INPUT_CHARS_PER_WORD
        and word not in entries
    }
    return sorted(saved, key=lambda word: (-saved[word], word))


def _rules(known: tokenizer.Tokenizer) -> dict[str, Any]:
    base = known.base
    return {**base.rules, "cuts_long_words": getattr(base, "cuts_long_words", False)}
