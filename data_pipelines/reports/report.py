"""The health report in words: the figures of a manifest, warnings, and decoded examples."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from bertjax.data import record_files, records
from bertjax.tokenization import letters, tokenizer
from data_pipelines.objectives import pairing
from data_pipelines.reports import by_script, health, losses
from data_pipelines.reports import statistics as statistics_lib

LABEL_WIDTH, LINE_WIDTH = 24, 100

# How `DecodedExample` shows the hidden tokens.
LEGEND = "«word» hidden by [MASK], «word→other» by another token, «word=» shown as it is"

_LONG_LINES = f"{{:.2%}} of those of {statistics_lib.MIN_LINE_CHARACTERS} characters and more"

# Figures of prose, which sequences of letters are not.
_OF_PROSE = {
    "sentences",
    "sentences_per_document",
    "sentence_cuts",
    "sentence_length",
    "words",
    "tokens_per_word",
    "one_sentence_document_share",
    "one_line_document_share",
    "scripts",
    "copied_line_share",
    "duplicate_line_share",
    "repeated_lines",
}

# A title, and labels with their figures in words.
Group = tuple[str, list[tuple[str, str]]]


def lines(
    manifest: records.Manifest, warnings: Sequence[health.Warning] | None = None
) -> Iterator[str]:
    """Yields the report of a record directory, line by line.

    The `warnings` come last, by default those of the manifest.
    """
    for title, rows in groups(manifest):
        yield title
        for label, text in rows:
            yield f"  {label:{LABEL_WIDTH}}{text}"
    warnings = health.of_manifest(manifest) if warnings is None else warnings
    yield f"Warnings: {len(warnings) or 'none'}"
    for warning in warnings:
        text = f"{warning.name.replace('_', ' ')}: {warning.text}"
        yield from textwrap.wrap(
            text,
            LINE_WIDTH,
            initial_indent="  ! ",
            subsequent_indent="    ",
            # Options and file names are to be copied whole.
            break_on_hyphens=False,
            break_long_words=False,
        )


def groups(manifest: records.Manifest) -> list[Group]:
    """Returns the figures that a manifest has, each in words and with its unit."""
    statistics = shown_statistics(manifest)
    sections = [
        ("Records", _record_rows(manifest)),
        ("Languages", _language_rows(manifest)),
        ("Text", _text_rows(statistics)),
        (by_script.TITLE, by_script.rows(statistics.get("scripts") or ())),
        (
            "Reading problems",
            [
                (kind.replace("_", " "), f"{it['count']:,}, first: {', '.join(it['first'])}")
                for kind, it in (statistics.get("reading_problems") or {}).items()
            ],
        ),
        ("Examples", _example_rows(manifest)),
        ("What is to be predicted", _target_rows(statistics)),
    ]
    return [(title, rows) for title, rows in sections if rows]


def shown_statistics(manifest: records.Manifest) -> Mapping[str, Any]:
    """Returns the statistics of a manifest that say something about its kind of text."""
    left_out = _OF_PROSE if letters.FIELD in manifest.tokenizer else ()
    return {name: value for name, value in manifest.statistics.items() if name not in left_out}


def _record_rows(manifest: records.Manifest) -> list[tuple[str, str]]:
    size = sum(shard.bytes for shard in manifest.shards) / 1e6
    described, labels = manifest.tokenizer, pairing.labels(manifest.pair_objective)
    casing = ", lower-cased" if described.get("lowercase") else ", cased"
    casing += f", {described['normalization']}" if "normalization" in described else ""
    masks = f"at most {manifest.max_predictions_per_seq} of {manifest.max_seq_length} tokens"
    return [
        *_row_count(manifest),
        ("shards", f"{len(manifest.shards):,}, {size:,.1f} MB"),
        ("max_seq_length", f"{manifest.max_seq_length} tokens"),
        ("masks", masks if manifest.has_static_masks else "drawn while training"),
        ("pairs", f"{manifest.pair_objective} ({' or '.join(labels)})" if labels else "none"),
        ("vocabulary", f"{described['vocab_size']:,} entries, {described['kind']}{casing}"),
        *_segmenter_rows(manifest),
        *_split_rows(manifest.arguments, manifest.statistics.get("pipes", {})),
    ]


def _segmenter_rows(manifest: records.Manifest) -> list[tuple[str, str]]:
    if (versions := manifest.statistics.get("segmenter")) is None:
        return []
    packages = ", ".join(" ".join(it) for it in versions.items())
    return [("segmenter", f"{manifest.arguments['segmenter']} ({packages or 'by rule'})")]


def _language_rows(manifest: records.Manifest) -> list[tuple[str, str]]:
    total = sum(one["tokens"] for one in manifest.languages.values())
    return [
        (
            name,
            f"{one['tokens'] / max(total, 1):.2%}: {one['documents']:,} documents, "
            f"{one['tokens']:,} tokens, {one['bytes']:,} bytes, {one['examples']:,} examples",
        )
        for name, one in manifest.languages.items()
    ]


def _row_count(manifest: records.Manifest) -> Iterator[tuple[str, str]]:
    if not manifest.is_packed:
        yield "examples", f"{manifest.num_examples:,}"
        return
    yield "rows", f"{manifest.num_examples:,}, several examples in each"
    rows = _Rows(manifest.statistics)
    most = manifest.max_sequences_per_row
    each = rows.text("sequences_per_row", f", {{:.1f}} a row, at most {most}")
    rows.add("examples", "sequences", "{:,}" + each)
    rows.add("rows with the most", "rows_at_limit_share", f"{{:.1%}} hold {most} examples")
    yield from rows.found


def _split_rows(
    arguments: Mapping[str, Any], pipes: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    if "split" not in arguments:  # Records that were adopted.
        return
    yield "input", arguments["input"]
    if pipes:
        yield "pipes", f"{pipes['count']:,}, {pipes['bytes']:,} bytes, read once and whole"
    if arguments["split"] == "all":
        yield "documents taken", "all: none is held out"
        return
    share = f"{arguments['heldout_fraction']:.1%} are held out, by a hash of the text"
    yield "documents taken", f"split {arguments['split']}: {share}"


def _text_rows(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = _Rows(statistics)
    empty = statistics.get("empty_documents")
    changes = ", ".join(statistics.get("lost_marks") or ())
    lost = f"{losses.percent(statistics.get('lost_marks_share') or 0)}, as {changes}"
    rows.add("documents", "documents", "{:,}" + (f", {empty:,} of them empty" if empty else ""))
    rows.add("sentences", "sentences", "{:,}" + rows.lengths("sentences_per_document", "document"))
    if statistics.get("sentence_cuts"):
        rows.add("cut sentences", "sentence_cuts", "{:,} cuts in text without known sentence ends")
    rows.add("tokens", "tokens", "{:,}" + rows.lengths("sentence_length", "sentence"))
    rows.add("words", "words", "{:,}" + rows.text("tokens_per_word", ", {:.2f} tokens each"))
    each = rows.text("characters_per_token", ", {:.2f} in a token")
    size = rows.text("bytes", ", {:,} bytes of UTF-8")
    rows.add("characters", "characters", "{:,}" + each + size)
    rows.add("unknown tokens", "unknown_rate", "{:.3%}")
    if unknown := statistics.get("unknown_letters"):
        rows.found.append(("letters read as unknown", letters.table(dict(unknown))))
    rows.add(
        "words that lose marks", "lost_marks_share", lost.replace("{", "{{").replace("}", "}}")
    )
    rows.add("one-sentence documents", "one_sentence_document_share", "{:.2%}")
    rows.add("one-line documents", "one_line_document_share", "{:.2%}")
    rows.add("longest document", "longest_document_share", "{:.2%} of the tokens")
    if removed := statistics.get("removed_copies"):
        texts = (f"{count:,} {kind}" for kind, count in sorted(removed.items()))
        rows.found.append(("copies removed", ", ".join(texts)))
    rows.add("copies of documents", "duplicate_document_share", "{:.2%}")
    rows.add("copies of lines", "copied_line_share", "{:.2%}")
    rows.add("copies of long lines", "duplicate_line_share", _LONG_LINES)
    for index, (line, count) in enumerate(statistics.get("repeated_lines") or []):
        label = "" if index else "repeated lines"
        rows.found.append((label, f"{count:,} times: {line}"))
    return rows.found


def _example_rows(manifest: records.Manifest) -> list[tuple[str, str]]:
    statistics, max_seq_length = manifest.statistics, manifest.max_seq_length
    rows = _Rows(statistics)
    if "fill" in statistics:
        mean = statistics["fill"] * max_seq_length
        rows.add("fill", "fill", "{:.2%}" + f", {mean:.1f} of {max_seq_length} tokens")
    rows.add("tokens used", "used_token_share", "{:.2%} of the text's, in all passes together")
    rows.add("unknown tokens", "example_unknown_rate", "{:.3%}")
    for label in pairing.labels(manifest.pair_objective)[1:]:
        forced = rows.text("forced_random_share", ", {:.2%} because a chunk was one sentence")
        wording = "{:.2%}" + (forced if label == "random" else "")
        rows.add(f"{label} pairs", f"{label}_pair_share", wording)
    if statistics.get("dropped_pair_share"):
        rows.add("pairs left out", "dropped_pair_share", "{:.2%}, to balance the labels")
    second = rows.text("second_segment_length", " and {:.1f} tokens")
    rows.add("mean segments", "first_segment_length", "{:.1f}" + second)
    return rows.found


def _target_rows(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = _Rows(statistics)
    share = rows.text("masked_share", ", {:.2%} of all")
    each = rows.text("masks_per_example", ", {:.1f} per example")
    rows.add("masked tokens", "masked_tokens", "{:,}" + share + each)
    others = rows.text("masked_random_share", ", {:.2%} another token")
    others += rows.text("masked_kept_share", ", {:.2%} themselves")
    rows.add("shown as", "masked_as_mask_share", "{:.2%} [MASK]" + others)
    rows.add("unigram entropy", "unigram_entropy", "{:.4f} nats: the loss without any context")
    frequent = statistics.get("most_frequent_tokens") or []
    if frequent:
        rows.found.append(("most frequent", "  ".join(f"{t} {share:.2%}" for t, share in frequent)))
    else:
        rows.add("most frequent", "most_frequent_token_share", "{:.2%}")
    rows.add("vocabulary that occurs", "vocabulary_used_share", "{:.2%} of its entries")
    return rows.found


class _Rows:
    """Rows of a group; what the statistics lack is left out."""

    def __init__(self, statistics: Mapping[str, Any]):
        self._statistics = statistics
        self.found: list[tuple[str, str]] = []

    def add(self, label: str, name: str, wording: str) -> None:
        if name in self._statistics:
            self.found.append((label, wording.format(self._statistics[name])))

    def text(self, name: str, wording: str) -> str:
        value = self._statistics.get(name)
        return "" if value is None else wording.format(value)

    def lengths(self, name: str, per: str) -> str:
        figures = self._statistics.get(name)
        if not figures:
            return ""
        return (
            f", {figures['mean']:,.1f} per {per} (median {figures['median']:,}, "
            f"at most {figures['max']:,})"
        )


@dataclasses.dataclass(frozen=True)
class Piece:
    """A token as text.

    `hidden` says what the model sees in its place: "" the token itself, which it need not predict,
    "mask", "random" (namely `shown`) or "kept". `joined` is whether it continues the word before.
    """

    text: str
    hidden: str = ""
    shown: str = ""
    joined: bool = False

    def __str__(self) -> str:
        marks = {"mask": f"«{self.text}»", "kept": f"«{self.text}=»"}
        return marks.get(self.hidden, f"«{self.text}→{self.shown}»" if self.hidden else self.text)


@dataclasses.dataclass(frozen=True)
class DecodedExample:
    """An example as text: its segments before masking, its pair label, its length in tokens.

    `place` says where it stands if its row holds several.
    """

    segments: tuple[tuple[Piece, ...], ...]
    label: str
    length: int
    place: str = ""

    @property
    def title(self) -> str:
        """Where it stands, and how long it is."""
        return f"{self.place}{self.length} tokens"

    def __str__(self) -> str:
        parts = (
            "".join(f"{'' if piece.joined else ' '}{piece}" for piece in segment).strip()
            for segment in self.segments
        )
        title = f"{self.title}{f', second segment {self.label}' if self.label else ''}"
        return "\n".join([title, *(f"  | {part}" for part in parts)])


def decoded(
    directory: epath.PathLike,
    manifest: records.Manifest,
    vocabulary: tokenizer.Tokenizer,
    number: int,
) -> Iterator[DecodedExample]:
    """Yields the examples of the first rows of a record directory as text."""
    if number < 1 or not manifest.shards:
        return
    path = epath.Path(directory) / manifest.shards[0].file
    for batch in itertools.islice(read_batches(path, manifest, number), 1):
        for row in range(len(batch["input_ids"])):
            example = {name: values[row] for name, values in batch.items()}
            for place, one in _apart(example, row):
                example_text = decoded_row(one, manifest, vocabulary)
                yield dataclasses.replace(example_text, place=place)


def _apart(
    example: Mapping[str, np.ndarray], row: int
) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
    """Yields the examples of a row as if each had a row of its own, and where they stand in it."""
    if "sequence_ids" not in example:
        yield "", example
        return
    numbers = example["sequence_ids"]
    for number in range(1, int(numbers.max()) + 1):
        begin, end = np.flatnonzero(numbers == number)[[0, -1]] + [0, 1]
        one = {name: example[name][begin:end] for name in records.TOKEN_FEATURES}
        if "masked_lm_ids" in example:
            positions = example["masked_lm_positions"]
            is_here = (positions >= begin) & (positions < end)
            one["masked_lm_weights"] = example["masked_lm_weights"] * is_here
            one["masked_lm_positions"] = positions - begin
            one["masked_lm_ids"] = example["masked_lm_ids"]
        if records.PAIR_FEATURE in example:
            one[records.PAIR_FEATURE] = example[records.PAIR_FEATURE][number - 1]
        yield f"row {row}, example {number} of {int(numbers.max())}: ", one


def decoded_row(
    example: Mapping[str, np.ndarray], manifest: records.Manifest, vocabulary: tokenizer.Tokenizer
) -> DecodedExample:
    """Returns one example, its features as records hold them, as text."""
    length = int(np.count_nonzero(example["input_mask"]))
    hidden = _hidden(example)
    ids = example["input_ids"][:length].tolist()
    segment_ids = example["segment_ids"][:length].tolist()
    segments: dict[int, list[Piece]] = {}
    for place, (token_id, segment) in enumerate(zip(ids, segment_ids, strict=True)):
        ends = place + 1 == length or segment_ids[place + 1] != segment
        begins_frame = place == 0 and token_id == vocabulary.cls_id
        if not (begins_frame or (ends and token_id == vocabulary.sep_id)):
            piece = _piece(token_id, hidden.get(place), vocabulary)
            segments.setdefault(segment, []).append(piece)
    label = ""
    if records.PAIR_FEATURE in example:
        label = pairing.labels(manifest.pair_objective)[int(example[records.PAIR_FEATURE])]
    return DecodedExample(tuple(map(tuple, segments.values())), label, length)


def _hidden(example: Mapping[str, np.ndarray]) -> dict[int, int]:
    """Returns the ids that are to be predicted, by position."""
    if "masked_lm_ids" not in example:
        return {}
    used = example["masked_lm_weights"] > 0
    positions = example["masked_lm_positions"][used].tolist()
    return dict(zip(positions, example["masked_lm_ids"][used].tolist(), strict=True))


def _piece(shown_id: int, hidden_id: int | None, vocabulary: tokenizer.Tokenizer) -> Piece:
    token_id = shown_id if hidden_id is None else hidden_id
    text, joined = _surface(token_id, vocabulary), bool(vocabulary.continues_word[token_id])
    if hidden_id is None:
        return Piece(text, joined=joined)
    if shown_id == vocabulary.mask_id:
        return Piece(text, "mask", joined=joined)
    if shown_id == hidden_id:
        return Piece(text, "kept", joined=joined)
    return Piece(text, "random", _surface(shown_id, vocabulary), joined)


def _surface(token_id: int, vocabulary: tokenizer.Tokenizer) -> str:
    """Returns a token without the mark of its tokenizer for where words begin or continue."""
    token = vocabulary.token(token_id)
    if vocabulary.keeps_blanks:
        shown = vocabulary.surface(token_id).removeprefix(" ")
        return token if not shown.strip() or "\ufffd" in shown else shown
    bare = token.removeprefix("##") if vocabulary.continues_word[token_id] else token
    return bare.removeprefix("\u2581") or token


def read_batches(
    path: epath.PathLike, manifest: records.Manifest, batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the features of all records of a shard in order, in batches."""
    tf = records.import_tensorflow()
    try:
        for serialized in record_files.serialized(path).batch(batch_size):
            parsed = records.parse_batch(serialized, manifest)
            yield {name: values.numpy() for name, values in parsed.items()}
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        raise ValueError(
            f"{path} does not hold records of max_seq_length {manifest.max_seq_length} and "
            f"max_predictions_per_seq {manifest.max_predictions_per_seq}, or is damaged "
            f"({error.message}); copy or make it again"
        ) from error
