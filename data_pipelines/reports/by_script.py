"""Characters, tokens and [UNK] by script, and the entries that a vocabulary has for each script.

White space is not counted. Digits, punctuation and signs belong to the letter before them in their
sentence, or to the first one; a sentence without letters belongs to no script.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from bertjax.tokenization import tokenizer
from data_pipelines.reports import distinct, scripts

# A script is shown from this share of the characters on, or if this share of all tokens is its
# [UNK].
SHOWN_SHARE, UNKNOWN_SHOWN = 1e-3, 1e-4
TITLE = "Scripts (in mixed sentences by a sample)"
WINDOW_TEXTS = 2048
# Texts of one script, nearly all of most corpora, are counted at once. Tokens of the others are
# looked up in about this number of characters of a block, a sample where there are more.
MOST_LOOKED_UP = 10_000

_NUM_SCRIPTS = len(scripts.NAMES)
_COUNTED = ("characters", "tokens", "unknown_tokens")
# Characters, tokens and [UNK] of each script.
_Table = Int[np.ndarray, "3 scripts"]


@dataclasses.dataclass(frozen=True)
class ScriptCounts:
    """The characters, tokens and [UNK] of a text, by the name of the script."""

    characters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unknown_tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def figures(self, vocabulary: tokenizer.Tokenizer) -> list[dict[str, Any]]:
        """Returns the figures of the scripts that are shown, the most frequent first."""
        characters, tokens = sum(self.characters.values()), sum(self.tokens.values())
        entries = vocabulary_entries(vocabulary) if characters else {}
        return [
            {
                "script": name,
                "character_share": count / characters,
                "characters_per_token": count / max(self.tokens.get(name, 0), 1),
                "unknown_rate": self.unknown_tokens.get(name, 0) / max(self.tokens.get(name, 0), 1),
                "vocabulary_entries": entries.get(name, 0),
            }
            for name, count in distinct.most_frequent(self.characters, _NUM_SCRIPTS).items()
            if count >= SHOWN_SHARE * characters
            or self.unknown_tokens.get(name, 0) >= UNKNOWN_SHOWN * tokens > 0
        ]


NONE = ScriptCounts()


def counted(
    vocabulary: tokenizer.Tokenizer,
    texts: Sequence[str],
    ids: Int[np.ndarray, " tokens"],
    lengths: Int[np.ndarray, " texts"],
    times: Int[np.ndarray, " texts"] | None = None,
) -> ScriptCounts:
    """Returns the counts of texts that `encode_flat` made `ids` and `lengths` of.

    A text stands `times` times in the corpus, by default once. Integers have no script.
    """
    table = np.zeros((3, _NUM_SCRIPTS), np.int64)
    if vocabulary.kind == tokenizer.IntegerTokenizer.kind:
        return NONE
    times = np.ones(len(texts), np.int64) if times is None else times
    text_of_unknown = np.searchsorted(
        np.cumsum(lengths), np.flatnonzero(ids == vocabulary.unk_id), "right"
    )
    unknown = np.bincount(text_of_unknown, minlength=len(texts))
    for start in range(0, len(texts), WINDOW_TEXTS):
        part = slice(start, start + WINDOW_TEXTS)
        most = max(1, MOST_LOOKED_UP * len(texts[part]) // len(texts))
        table += _of_window(
            vocabulary, texts[part], lengths[part], unknown[part], times[part], most
        )
    return _named(table)


def vocabulary_entries(vocabulary: tokenizer.Tokenizer) -> dict[str, int]:
    """Returns the entries of each script: that of the first letter of an entry.

    Special tokens are not counted, and parts of characters have no script.
    """
    ordinary = np.setdiff1d(np.arange(vocabulary.vocab_size), vocabulary.special_ids)
    entries = [vocabulary.surface(token_id) for token_id in ordinary.tolist()]
    numbers = scripts.numbers("".join(entries))
    entry_of = np.repeat(np.arange(len(entries)), _sizes(entries))
    script_of = np.full(len(entries), scripts.COMMON)
    letters = np.flatnonzero(numbers > scripts.COMMON)[::-1]
    script_of[entry_of[letters]] = numbers[letters]  # The last to be assigned is the first letter.
    return _by_name(np.bincount(script_of, minlength=_NUM_SCRIPTS))


def rows(figures: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns the figures of each script in words."""
    return [
        (
            "digits, signs" if each["script"] == scripts.NAMES[scripts.COMMON] else each["script"],
            f"{each['character_share']:.2%} of the characters, "
            f"{each['characters_per_token']:.2f} per token, {each['unknown_rate']:.3%} [UNK], "
            f"{each['vocabulary_entries']:,} entries of the vocabulary",
        )
        for each in figures
    ]


def _of_window(
    vocabulary: tokenizer.Tokenizer,
    texts: Sequence[str],
    lengths: Int[np.ndarray, " texts"],
    unknown: Int[np.ndarray, " texts"],
    times: Int[np.ndarray, " texts"],
    most: int,
) -> _Table:
    sizes = _sizes(texts)
    numbers = scripts.numbers("".join(texts))
    counts_of_all = np.bincount(numbers, minlength=_NUM_SCRIPTS)
    counts_of_all[scripts.SPACE] += 1  # so that something is present in texts without characters
    present = np.flatnonzero(counts_of_all)
    place_of = np.zeros(_NUM_SCRIPTS, np.int64)
    place_of[present] = np.arange(len(present))
    cells = np.repeat(np.arange(len(texts)) * len(present), sizes) + place_of[numbers]
    seen = np.bincount(cells, minlength=len(texts) * len(present)).reshape(len(texts), -1)
    letters = seen * (present > scripts.COMMON)
    num_scripts = np.count_nonzero(letters, axis=1)
    visible = seen @ (present != scripts.SPACE)

    is_plain = num_scripts <= 1
    script_of = np.full(len(texts), scripts.COMMON)
    has_one = num_scripts == 1
    script_of[has_one] = present[letters[has_one].argmax(axis=1)]
    counts = np.stack([visible, lengths, unknown]) * times
    table = np.stack(
        [np.bincount(script_of[is_plain], row[is_plain], _NUM_SCRIPTS) for row in counts]
    ).astype(np.int64)
    if is_plain.all():
        return table
    mixed = np.flatnonzero(~is_plain)
    mixed_texts = [texts[i] for i in mixed.tolist()]
    of_mixed, num_tokens = numbers[np.repeat(~is_plain, sizes)], int(counts[1, mixed].sum())
    step = -(-len(of_mixed) // most)
    return table + _of_mixed(vocabulary, mixed_texts, of_mixed, times[mixed], step, num_tokens)


def _of_mixed(
    vocabulary: tokenizer.Tokenizer,
    texts: Sequence[str],
    numbers: UInt8[np.ndarray, " characters"],
    times: Int[np.ndarray, " texts"],
    step: int,
    num_tokens: int,
) -> _Table:
    """Returns the counts of texts with letters of several scripts, which have `num_tokens`.

    The tokens of a character are those of every `step`-th text, or of its beginning, scaled so that
    all together are `num_tokens`.
    """
    sizes = _sizes(texts)
    starts = np.cumsum(sizes) - sizes
    filled = scripts.filled(numbers, np.repeat(starts, sizes))
    is_visible = numbers != scripts.SPACE
    sampled = np.zeros((3, _NUM_SCRIPTS))
    for i in range(0, len(texts), step):
        text = texts[i][:MOST_LOOKED_UP]
        inside = slice(starts[i], starts[i] + len(text))
        ids, places, _ = vocabulary.encode_with_offsets(text)
        of_token = filled[inside][np.minimum(places, len(text) - 1)]
        of_visible = filled[inside][is_visible[inside]]
        of_unknown = of_token[ids == vocabulary.unk_id]
        for row, numbers_seen in enumerate((of_visible, of_token, of_unknown)):
            sampled[row] += times[i] * np.bincount(numbers_seen, minlength=_NUM_SCRIPTS)
    characters = np.bincount(filled, np.repeat(times, sizes) * is_visible, _NUM_SCRIPTS)
    overall = sampled.sum(axis=1, keepdims=True)
    sampled = np.where(sampled[0] > 0, sampled, overall)  # A script that the sample lacks.
    tokens = characters * sampled[1:] / np.maximum(sampled[0], 1)
    tokens *= num_tokens / max(tokens[0].sum(), 1)
    return np.rint([characters, *tokens]).astype(np.int64)


def _sizes(texts: Sequence[str]) -> Int[np.ndarray, " texts"]:
    return np.fromiter(map(len, texts), np.int64, len(texts))


def _named(table: _Table) -> ScriptCounts:
    return ScriptCounts(**{n: _by_name(row) for n, row in zip(_COUNTED, table, strict=True)})


def _by_name(counts: Int[np.ndarray, " scripts"]) -> dict[str, int]:
    return {scripts.NAMES[number]: int(counts[number]) for number in np.flatnonzero(counts)}
