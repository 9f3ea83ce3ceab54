"""Sentences of held-out records with a word masked, to see what a new model fills in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np
from etils import epath

from bertjax.data import record_files, records
from bertjax.tokenization import token_ids, tokenizer

MOST_TOKENS = 24  # of a sentence that is shown
_BEGINS_WORD = ("\u2581", "\u0120")  # of sentencepiece and of byte-level BPE


def masked(directory: epath.PathLike, number: int) -> list[str]:
    """Returns at most `number` sentences of a record directory, each with a "[MASK]"."""
    record_set = records.open(directory)
    vocabulary = tokenizer.load(record_set.directory)
    rows = (_with_a_mask(ids, vocabulary) for ids in _rows(record_set, vocabulary))
    return list(itertools.islice(filter(None, rows), number))


def _rows(record_set: records.RecordSet, vocabulary: token_ids.Tokenizer) -> Iterator[list[int]]:
    """Yields the first tokens of each row of the first shard, from a whole word on."""
    for serialized in record_files.serialized(record_set.shard_paths[0]).batch(1):
        parsed = records.parse_batch(serialized, record_set.manifest)
        row = {name: values.numpy()[0] for name, values in parsed.items()}
        first = records.sequence_ids(row) == 1
        ids = _unmasked(row)[first].tolist()
        words = [token for token in ids if token not in vocabulary.special_ids]
        # A sentence longer than a row is cut inside a word.
        whole = itertools.dropwhile(vocabulary.continues_word.__getitem__, words)
        yield list(whole)[:MOST_TOKENS]


def _unmasked(row: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the ids of a row before static masks hid some."""
    ids = row["input_ids"].copy()
    if "masked_lm_ids" in row:
        used = row["masked_lm_weights"] > 0
        ids[row["masked_lm_positions"][used]] = row["masked_lm_ids"][used]
    return ids


def _with_a_mask(ids: list[int], vocabulary: token_ids.Tokenizer) -> str:
    """Returns the text with the letters nearest to its middle that are one token masked, or ""."""
    continues = [*vocabulary.continues_word[ids], False]
    places = sorted(range(len(ids)), key=lambda place: abs(place - len(ids) // 2))
    for place in places:
        is_whole = not continues[place] and not continues[place + 1]
        if is_whole and vocabulary.surface(ids[place]).strip(" \u2581").isalpha():
            before, after = vocabulary.decode(ids[:place]), vocabulary.decode(ids[place + 1 :])
            left, right = (_space_before(it, vocabulary) for it in (ids[place:], ids[place + 1 :]))
            return f"{before.strip()}{left}[MASK]{right}{after.strip()}".strip()
    return ""


def _space_before(ids: list[int], vocabulary: token_ids.Tokenizer) -> str:
    is_wordpiece = vocabulary.kind == "wordpiece"
    return " " if ids and (is_wordpiece or vocabulary.token(ids[0])[:1] in _BEGINS_WORD) else ""
