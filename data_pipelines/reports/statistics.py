"""Counts of a corpus while it is tokenized, and of examples while they are written.

A tally is made of one part of the work (a block of text, a shard), goes between processes by
pickle and to disk as JSON, and is merged with its neighbours; `statistics()` returns the figures.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from bertjax.data import contents, masking, records
from bertjax.tokenization import tokenizer
from data_pipelines.objectives import pairing
from data_pipelines.reports import by_script, distinct, losses, scripts

# A shorter line that comes twice ("Yes.", "Chapter II", "* * *") says nothing about a corpus.
MIN_LINE_CHARACTERS = 20

FREQUENT_SHOWN, REPEATED_SHOWN, LETTERS_SHOWN = 10, 5, 50

# A sentence of more tokens is long: 60 is much even for a statute.
LONG_SENTENCE = 100
# Lengths from this one on are counted together: longer sentences (in tokens) and documents (in
# sentences) are rare, and the tally stays small.
MAX_LENGTH = 4095


def counted_lengths(lengths: Int[np.ndarray, " any"]) -> Int[np.ndarray, " lengths"]:
    """Returns the count of each length; the last index counts all longer ones."""
    return np.bincount(np.minimum(lengths, MAX_LENGTH), minlength=MAX_LENGTH + 1)


@dataclasses.dataclass(frozen=True)
class CorpusTally:
    """Counts of tokenized text, in bounded memory; `CorpusTally()` is that of no text.

    `lines` are paragraphs of the input of at least `MIN_LINE_CHARACTERS`, `short_lines` all others.
    `words` are separated by white space, which the scripts of `unspaced_characters` do without;
    `changed_words` of `compared_words` lose marks (`losses`). `bytes` are
    those of the documents in UTF-8, 0 if they are not text. `longest_document` is in tokens. The
    histograms count at index n the documents of n sentences and the sentences of n tokens, at their
    last index all longer ones. The counts of scripts are those of `by_script.ScriptCounts`.
    """

    documents: int = 0
    empty_documents: int = 0
    one_sentence_documents: int = 0
    one_line_documents: int = 0
    sentences: int = 0
    sentence_cuts: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    characters: int = 0
    bytes: int = 0
    words: int = 0
    lines: int = 0
    short_lines: int = 0
    longest_document: int = 0
    longest_sentence: int = 0
    most_sentences: int = 0
    sentences_per_document: Int[np.ndarray, " lengths"] = dataclasses.field(
        default_factory=lambda: counted_lengths(np.zeros(0, np.int64))
    )
    sentence_lengths: Int[np.ndarray, " lengths"] = dataclasses.field(
        default_factory=lambda: counted_lengths(np.zeros(0, np.int64))
    )
    distinct_documents: distinct.Distinct = distinct.Distinct()
    distinct_lines: distinct.Distinct = distinct.Distinct()
    distinct_short_lines: distinct.Distinct = distinct.Distinct()
    repeated_lines: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unspaced_characters: int = 0
    compared_words: int = 0
    changed_words: int = 0
    changes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    script_characters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    script_tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)
    script_unknown_tokens: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unknown_letters: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        *,
        documents: Sequence[str],
        sentences_per_document: Int[np.ndarray, " documents"],
        sentence_lengths: Int[np.ndarray, " sentences"],
        tokens: Int[np.ndarray, " tokens"],
        unk_id: int,
        lost: losses.LostMarks | None = None,
        sentence_cuts: int = 0,
        is_text: bool = True,
        scripts_seen: by_script.ScriptCounts = by_script.NONE,
        unknown_letters: Mapping[str, int] | None = None,
    ) -> CorpusTally:
        """Returns the counts of a block: its documents' plain text, sentences and token ids.

        `lost` has counted what the tokenizer's normalization changes, `scripts_seen` by script.
        """
        counts = np.asarray(sentences_per_document, np.int64)
        sizes = np.asarray(sentence_lengths, np.int64)
        token_ends = np.concatenate([[0], np.cumsum(sizes)])
        sentence_ends = np.cumsum(counts)
        document_sizes = token_ends[sentence_ends] - token_ends[sentence_ends - counts]
        texts = [text for text, count in zip(documents, counts, strict=True) if count]
        all_lines = [line for text in documents for line in text.split("\n") if line]
        lines = [line for line in all_lines if len(line) >= MIN_LINE_CHARACTERS]
        short_lines = [line for line in all_lines if len(line) < MIN_LINE_CHARACTERS]
        line_hashes = distinct.hashes_of(lines)
        return cls(
            documents=len(documents),
            empty_documents=int((counts == 0).sum()),
            one_sentence_documents=int((counts == 1).sum()),
            one_line_documents=sum("\n" not in text for text in texts),
            sentences=len(sizes),
            sentence_cuts=sentence_cuts,
            tokens=len(tokens),
            unknown_tokens=int(np.count_nonzero(np.asarray(tokens) == unk_id)),
            characters=sum(map(len, documents)),
            bytes=sum(map(_utf8_bytes, documents)) if is_text else 0,
            unspaced_characters=sum(map(scripts.unspaced_characters, documents)),
            words=sum(text.count(" ") + text.count("\n") + 1 for text in documents if text),
            lines=len(lines),
            short_lines=len(short_lines),
            longest_document=int(document_sizes.max(initial=0)),
            longest_sentence=int(sizes.max(initial=0)),
            most_sentences=int(counts.max(initial=0)),
            sentences_per_document=counted_lengths(counts),
            sentence_lengths=counted_lengths(sizes),
            distinct_documents=distinct.Distinct.of(distinct.hashes_of(texts)),
            distinct_lines=distinct.Distinct.of(line_hashes),
            distinct_short_lines=distinct.Distinct.of(distinct.hashes_of(short_lines)),
            repeated_lines=distinct.repeated_lines(lines, line_hashes),
            compared_words=lost.words if lost else 0,
            changed_words=lost.changed if lost else 0,
            changes=lost.changes if lost else {},
            script_characters=scripts_seen.characters,
            script_tokens=scripts_seen.tokens,
            script_unknown_tokens=scripts_seen.unknown_tokens,
            unknown_letters=unknown_letters or {},
        )

    def _long_sentence_share(self) -> float:
        """Returns the share of the tokens in sentences of more than `LONG_SENTENCE` tokens."""
        ordinary = self.sentence_lengths[: LONG_SENTENCE + 1] @ np.arange(LONG_SENTENCE + 1)
        return 1 - int(ordinary) / self.tokens

    def _granularity(self) -> dict[str, float]:
        """Returns the tokens of a word, or the characters of a token where no spaces are."""
        if self.unspaced_characters < scripts.UNSPACED_SHARE * self.characters:
            return {"tokens_per_word": self.tokens / max(self.words, 1)}
        return {"characters_per_token": self.characters / self.tokens}

    def merged(self, other: CorpusTally) -> CorpusTally:
        """Returns the counts of both texts together, this one first."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            mine, others = getattr(self, field.name), getattr(other, field.name)
            if field.name in _LARGEST:
                values[field.name] = max(mine, others)
            elif isinstance(mine, distinct.Distinct):
                values[field.name] = mine.merged(others)
            elif isinstance(mine, Mapping):
                values[field.name] = distinct.merged_lines(mine, others)
            else:
                values[field.name] = mine + others
        return CorpusTally(**values)

    def to_json(self) -> dict[str, Any]:
        """Returns a dict for `json.dumps`."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: _plain(value) for name, value in fields.items()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> CorpusTally:
        """Returns what `to_json` described."""
        empty = cls()
        return cls(**{name: _like(getattr(empty, name), value) for name, value in fields.items()})

    def script_statistics(self, vocabulary: tokenizer.Tokenizer) -> dict[str, Any]:
        """Returns the figures of the scripts for the manifest, {} for a text without characters."""
        counts = by_script.ScriptCounts(
            self.script_characters, self.script_tokens, self.script_unknown_tokens
        )
        figures = counts.figures(vocabulary)
        return {"scripts": figures} if figures else {}

    def statistics(self) -> dict[str, Any]:
        """Returns the figures of the text for the manifest; shares lie between 0 and 1."""
        figures: dict[str, Any] = {
            "documents": self.documents,
            "empty_documents": self.empty_documents,
            "sentences": self.sentences,
            "sentence_cuts": self.sentence_cuts,
            "tokens": self.tokens,
            "characters": self.characters,
            "words": self.words,
        }
        if self.bytes:
            figures["bytes"] = self.bytes
        if self.changed_words:
            figures["lost_marks_share"] = self.changed_words / self.compared_words
            figures["lost_marks"] = losses.commonest(self.changes)
        if self.unknown_letters:
            commonest = distinct.most_frequent(self.unknown_letters, LETTERS_SHOWN)
            figures["unknown_letters"] = [list(item) for item in commonest.items()]
        texts = self.documents - self.empty_documents
        if not (texts and self.tokens):
            return figures
        distinct_documents = self.distinct_documents.count()
        long_lines, short_lines = self.distinct_lines.count(), self.distinct_short_lines.count()
        figures |= {
            "one_sentence_document_share": self.one_sentence_documents / texts,
            "one_line_document_share": self.one_line_documents / texts,
            "longest_document_share": self.longest_document / self.tokens,
            "unknown_rate": self.unknown_tokens / self.tokens,
            **self._granularity(),
            "duplicate_document_share": distinct.duplicate_share(distinct_documents, texts),
            "duplicate_line_share": distinct.duplicate_share(long_lines, self.lines),
            # No short line is a copy of a long one.
            "copied_line_share": distinct.duplicate_share(
                long_lines + short_lines, self.lines + self.short_lines
            ),
            "repeated_lines": [
                # A list, because JSON sorts the names of a dict.
                list(item)
                for item in distinct.most_frequent(self.repeated_lines, REPEATED_SHOWN).items()
            ],
            "sentences_per_document": length_figures(
                # An empty document is counted by its own name.
                np.concatenate([[0], self.sentences_per_document[1:]]),
                mean=self.sentences / texts,
                largest=self.most_sentences,
            ),
            "long_sentence_share": self._long_sentence_share(),
            "sentence_length": length_figures(
                self.sentence_lengths,
                mean=self.tokens / self.sentences,
                largest=self.longest_sentence,
            ),
        }
        return figures


class ExampleTally:
    """Counts over batches of finished rows; `statistics()` are the shares that follow.

    `pair_objective` says what a pair label 1 means, and so what its share is called. Where rows
    hold up to `max_sequences_per_row` examples, lengths and pairs are those of the examples.
    """

    def __init__(
        self,
        vocabulary: tokenizer.Tokenizer,
        *,
        max_seq_length: int,
        pair_objective: str = "nsp",
        max_sequences_per_row: int = 0,
    ):
        # Plain numbers, not the vocabulary: tallies travel between processes.
        self._unk_id, self._mask_id = vocabulary.unk_id, vocabulary.mask_id
        self._special_ids = list(vocabulary.special_ids)
        self._pair_objective = pair_objective
        self._most = max_sequences_per_row
        self._counts: dict[str, int] = dict.fromkeys(_EXAMPLE_COUNTS, 0)
        self._lengths = np.zeros(max_seq_length + 1, np.int64)
        self._targets = np.zeros(vocabulary.vocab_size, np.int64)

    def add(self, batch: Mapping[str, np.ndarray]) -> None:
        """Counts a batch of rows; all arrays begin with the batch dimension."""
        ids, numbers = batch["input_ids"], records.sequence_ids(batch)
        real = numbers != 0
        sequences = numbers.max(axis=1)
        sizes = _sequence_lengths(numbers)
        self._lengths += np.bincount(sizes, minlength=len(self._lengths))
        self._count(examples=len(ids), unknown_tokens=np.count_nonzero(ids == self._unk_id))
        self._count(sequences=sequences.sum(), rows_at_limit=(sequences == self._most).sum())
        if records.PAIR_FEATURE in batch:
            second = np.count_nonzero(batch["segment_ids"])
            self._count(
                pairs=len(sizes),
                labelled_pairs=batch[records.PAIR_FEATURE].sum(),
                first_tokens=sizes.sum() - second,
                second_tokens=second,
            )
        if "masked_lm_ids" in batch:
            self._add_masks(batch)
        else:
            # All tokens that could be masked.
            counts = np.bincount(ids[real], minlength=len(self._targets))
            counts[self._special_ids] = 0
            self._targets += counts

    def _add_masks(self, batch: Mapping[str, np.ndarray]) -> None:
        used = batch["masked_lm_weights"] > 0
        targets = batch["masked_lm_ids"][used]
        shown = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], axis=1)[used]
        self._count(
            rows_with_masks=len(used),
            mask_tokens=np.count_nonzero(shown == self._mask_id),
            kept_tokens=np.count_nonzero(shown == targets),
            full_rows=used.all(axis=1).sum(),
        )
        self._targets += np.bincount(targets, minlength=len(self._targets))

    def _count(self, **increments: Any) -> None:
        for name, increment in increments.items():
            self._counts[name] += int(increment)

    def contents(self, documents: distinct.Distinct | None = None) -> contents.RecordSummary:
        """Returns what was counted as records keep it, with the documents that are known."""
        sample = documents and contents.Documents(documents.hashes, documents.halvings)
        return contents.RecordSummary(self._targets.copy(), sample)

    @property
    def sequences_per_row(self) -> float:
        """How many examples a record holds on average: 1 unless they are packed."""
        return self._counts["sequences"] / max(self._counts["examples"], 1) if self._most else 1.0

    def merge(self, other: ExampleTally) -> None:
        """Adds the counts of a tally for the same vocabulary and lengths."""
        self._count(**other._counts)
        self._lengths += other._lengths
        self._targets += other._targets

    def merged(self, other: ExampleTally) -> ExampleTally:
        """Returns the counts of both, and leaves them as they are."""
        total = copy.deepcopy(self)
        total.merge(other)
        return total

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as a dict for `json.dumps`."""
        return {
            "counts": dict(self._counts),
            "lengths": self._lengths.tolist(),
            "targets": self._targets.tolist(),
        }

    def add_json(self, fields: Mapping[str, Any]) -> None:
        """Adds the counts that `to_json` of a tally like this one has described."""
        self._count(**fields["counts"])
        self._lengths += np.array(fields["lengths"], np.int64)
        self._targets += np.array(fields["targets"], np.int64)

    def statistics(self, vocabulary: tokenizer.Tokenizer) -> dict[str, Any]:
        """Returns the counts and shares of everything added.

        `unigram_entropy` (nats) and the frequent tokens are of the `unigram_tokens` tokens that are
        masked, or that could be where no masks are stored.
        """
        examples, max_seq_length = self._counts["examples"], len(self._lengths) - 1
        real_tokens = int(self._lengths @ np.arange(max_seq_length + 1))
        figures: dict[str, Any] = {"examples": examples}
        if not examples:
            return figures
        figures |= {
            "fill": real_tokens / (examples * max_seq_length),
            "example_unknown_rate": self._counts["unknown_tokens"] / max(real_tokens, 1),
            "example_length": example_length_figures(self._lengths),
        }
        if self._most:
            figures |= {
                "sequences": self._counts["sequences"],
                "sequences_per_row": self.sequences_per_row,
                "rows_at_limit_share": self._counts["rows_at_limit"] / examples,
            }
        return (
            figures
            | self._pair_statistics()
            | self._mask_statistics(real_tokens)
            | self._target_statistics(vocabulary)
        )

    def _pair_statistics(self) -> dict[str, Any]:
        counts, pairs = self._counts, self._counts["pairs"]
        if not pairs:
            return {}
        _, label = pairing.labels(self._pair_objective)
        return {
            f"{label}_pair_share": counts["labelled_pairs"] / pairs,
            # Text alone, without [CLS], [SEP] of the first and [SEP] of the second segment.
            "first_segment_length": counts["first_tokens"] / pairs - 2,
            "second_segment_length": counts["second_tokens"] / pairs - 1,
        }

    def _mask_statistics(self, real_tokens: int) -> dict[str, Any]:
        counts, targets = self._counts, int(self._targets.sum())
        if not counts["rows_with_masks"]:
            return {}
        if not targets:
            return {"masked_tokens": 0, "masked_share": 0.0, "masks_per_example": 0.0}
        as_mask, unchanged = counts["mask_tokens"] / targets, counts["kept_tokens"] / targets
        return {
            "masked_tokens": targets,
            "masked_share": targets / real_tokens,
            "masked_as_mask_share": as_mask,
            "masked_kept_share": unchanged,
            "masked_random_share": 1 - as_mask - unchanged,
            "masks_per_example": targets / counts["examples"],
            "full_masks_share": counts["full_rows"] / counts["examples"],
        }

    def _target_statistics(self, vocabulary: tokenizer.Tokenizer) -> dict[str, Any]:
        targets = int(self._targets.sum())
        if not targets:
            return {}
        entropy, share = masking.unigram_baseline(self._targets)
        frequent = np.argsort(-self._targets, kind="stable")[:FREQUENT_SHOWN]
        used, specials = int(np.count_nonzero(self._targets)), len(self._special_ids)
        return {
            "unigram_tokens": targets,
            "unigram_entropy": entropy,
            "most_frequent_token_share": share,
            "most_frequent_token": vocabulary.token(int(frequent[0])),
            "most_frequent_tokens": [
                [vocabulary.token(int(token_id)), int(self._targets[token_id]) / targets]
                for token_id in frequent
                if self._targets[token_id]
            ],
            "vocabulary_used_share": used / (len(self._targets) - specials),
        }


def _sequence_lengths(numbers: Int[np.ndarray, "rows length"]) -> Int[np.ndarray, " sequences"]:
    """Returns the tokens of each sequence, of rows in which they are numbered from 1."""
    most = int(numbers.max(initial=0)) + 1
    of_row = np.arange(len(numbers))[:, None] * most
    counts = np.bincount((of_row + numbers).ravel(), minlength=len(numbers) * most)
    counts = counts.reshape(len(numbers), most)[:, 1:]
    return counts[counts > 0]


_EXAMPLE_COUNTS = (
    *("examples", "sequences", "rows_at_limit", "unknown_tokens", "pairs", "labelled_pairs"),
    *("first_tokens", "second_tokens", "rows_with_masks", "full_rows", "mask_tokens"),
    "kept_tokens",
)
# A merged tally has the larger value of these, not the sum.
_LARGEST = ("longest_document", "longest_sentence", "most_sentences")


def _utf8_bytes(text: str) -> int:
    # Half a surrogate pair may stand in a \u escape of JSON.
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _plain(value: Any) -> Any:
    if isinstance(value, distinct.Distinct):
        return value.to_json()
    if isinstance(value, np.ndarray):
        return np.trim_zeros(value, "b").tolist()
    return dict(value) if isinstance(value, Mapping) else value


def _like(empty: Any, value: Any) -> Any:
    if isinstance(empty, distinct.Distinct):
        return distinct.Distinct.from_json(value)
    if isinstance(empty, np.ndarray):
        return np.pad(np.array(value, np.int64), (0, len(empty) - len(value)))
    return value


def length_figures(
    counts: Int[np.ndarray, " lengths"], *, mean: float, largest: int
) -> dict[str, Any]:
    """Returns a summary of lengths; "counts" are of the lengths from "from" to the next."""
    median = int(np.searchsorted(np.cumsum(counts), counts.sum() / 2))
    # Four bins to a doubling: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...
    octaves = 2 ** np.arange(3, MAX_LENGTH.bit_length())
    starts = np.concatenate([np.arange(8), np.ravel(octaves[:, None] * [1, 1.25, 1.5, 1.75])])
    return {"mean": mean, "median": median, "max": largest} | _binned(counts, starts)


def example_length_figures(counts: Int[np.ndarray, " lengths"]) -> dict[str, Any]:
    """Returns the lengths of examples (tokens, specials included) in about 32 equal bins."""
    width = max(1, (len(counts) - 1) // 32)
    mean = float(counts @ np.arange(len(counts)) / counts.sum())
    # Counted down from the longest: full examples are most and have a bin to themselves.
    starts = np.arange(len(counts) - 1, -1, -width)[::-1]
    return {"mean": mean} | _binned(counts, starts if starts[0] == 0 else np.append(0, starts))


def _binned(
    counts: Int[np.ndarray, " lengths"], starts: Int[np.ndarray, " bins"]
) -> dict[str, list[int]]:
    """Returns the counts of bins that begin at `starts`, without the empty ones at both ends."""
    starts = starts.astype(np.int64)
    bins = np.add.reduceat(counts, starts)
    used = np.flatnonzero(bins)
    inner = slice(used[0], used[-1] + 1) if len(used) else slice(0)
    return {"from": starts[inner].tolist(), "counts": bins[inner].tolist()}
