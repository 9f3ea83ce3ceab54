"""Warnings about the figures of a corpus and its records: the fault, its harm, the remedy.

`warnings` ignores missing figures, so that a build can ask before it pays for the next step. Every
bound is a named constant with its reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.data import masking, records
from bertjax.tokenization import letters, tokenizer
from data_pipelines.objectives import pairing
from data_pipelines.reports import losses

# English under its own vocabulary has below 0.1%: a few emoji and foreign letters.
UNKNOWN_RATE, HIGH_UNKNOWN_RATE = 0.01, 0.05
# With the released rules and ordinary documents 85-95% of the places hold tokens.
MIN_FILL = 0.7
# Packed rows with less fill are seldom full of examples.
PACKED_FILL, ROWS_AT_LIMIT = 0.95, 0.1
# English novels in examples of 128 tokens have 92% in one pass and 99.7% in ten.
USED_TOKEN_SHARE = 0.8
# Half is wanted; the released rules give 53-66% where documents are short or sentences long.
# Shares of few pairs: the number of standard deviations of as many coins that is chance.
RANDOM_PAIR_SHARES, PAIR_CHANCE = (0.4, 0.6), 3
# Beyond that, what the label teaches is mostly which chunks were a single sentence.
FORCED_RANDOM_SHARE = 0.3
# The share of pairs left out to balance the labels; that share of the corpus is never read.
DROPPED_PAIR_SHARE = 0.3
# The share of documents of one sentence: articles and books have below 10%. And of one line: a
# paragraph has about five sentences, an article many more.
ONE_SENTENCE_SHARE = 0.5
ONE_LINE_SHARE, SENTENCES_PER_LINE = 0.9, 8
# Exact copies. Carefully made corpora have below 1% (documents) and 5% (lines).
DUPLICATE_DOCUMENT_SHARE, DUPLICATE_LINE_SHARE = 0.05, 0.1
MIN_DOCUMENTS = 10
LONGEST_DOCUMENT_SHARE = 0.5
EMPTY_DOCUMENT_SHARE = 0.01
# English under its own vocabulary has 1.2-1.5 tokens per word, a rich morphology up to 2.
TOKENS_PER_WORD = 2.5
# Chinese and Japanese under their own vocabulary have 1.2-2 characters per token, Thai 3.
CHARACTERS_PER_TOKEN = 1.0
# Where "words" are longer, white space does not separate words: Chinese, Thai, proteins.
CHARACTERS_PER_WORD = 15
# Prose has 15-40 tokens per sentence, statutes up to 60. In novels 4% of the
# tokens stand in sentences of more than 100.
MEAN_SENTENCE_LENGTH, LONG_SENTENCE_SHARE = 4, 0.4
# 40 batches of 256, the batch of the paper: a network for language does not learn from that.
MIN_EXAMPLES = 10_000
# Judged if every entry could have occurred this number of times on average.
UNUSED_VOCABULARY_SHARE, TOKENS_PER_ENTRY = 0.5, 50
# "," or "the" is 5% of English; above this it is markup or a filler. In a small alphabet, such as
# DNA's, the share of this number of entries.
FREQUENT_TOKEN_SHARE, FREQUENT_ENTRIES = 0.15, 5
# Absolute error of the mask shares, relative error of the share of masked tokens; judged from this
# number of masked tokens on, where chance is well below that.
MASK_SHARE_ERROR, MASKED_SHARE_ERROR, MIN_MASKED_TOKENS = 0.05, 0.2, 2000
# So many masks are expected that chance leaves out no fifth of them; an example has at least one.
MIN_EXPECTED_MASKS = 100
# A share of the documents or sentences: every large corpus has a few bad lines.
READING_PROBLEM_SHARE = 0.001

# Each kind of problem -> its handling while reading, and the remedy for the user.
READING_PROBLEMS = {
    "invalid_utf8_lines": "lines that are not UTF-8, or not in the given --encoding, were skipped; "
    "mend them, or name their encoding",
    "c1_controls": "lines held C1 controls (U+0080 to U+009F), which were removed, as if cp1252 "
    "had been read as latin1: convert them again from the file that they come from, or give that "
    "file with --encoding=cp1252",
    "carriage_returns": "lines hold carriage returns, which end no line in a file that has line "
    "feeds; if they should, convert the file with `tr '\\r' '\\n'`",
    "control_characters": "lines held NUL or control characters, which were removed without a "
    "space in their place; look whether the files are text",
    "long_lines": "lines of a megabyte and more were cut into pieces or, as JSON, left out; look "
    "whether the files are text, with a paragraph or a record per line",
    "long_documents": "very long documents were cut in several; separate documents by blank lines",
    "empty_files": "files are empty; look whether they were copied to their end",
    "empty_documents": "documents hold no text and were left out",
    "invalid_json_lines": "lines are not JSON and were left out; give a record per line",
    "records_without_text": "records have no text in --text_field and were left out",
    "pairs_without_text": "lines or rows lack a text or its translation and were left out",
    "torn_rows": "rows have another number of fields than the first line and were left out; put "
    "quotes around texts with commas",
    "invalid_utf8_records": "records hold a text that is not UTF-8 and were left out",
    "unparsable_pages": "pages could not be parsed and were skipped",
}
# Counted in the report, and no reason to change the text.
HARMLESS = {"controls_as_spaces"}


@dataclasses.dataclass(frozen=True)
class Warning:
    """One thing that is off: `name` stays the same, `text` is for the user."""

    name: str
    text: str


@dataclasses.dataclass(frozen=True)
class _Facts:
    """The figures so far; `of` returns None for a figure that was not counted."""

    statistics: Mapping[str, Any]
    max_seq_length: int
    pair_objective: str
    vocab_size: int
    masked_lm_prob: float | None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def advice(self, *options: str) -> str:
        """Returns the options, "--name=value", that were not given: "use A, B or C", "" if none."""
        new = [it for it in options if it not in self._given]
        listed = ", ".join(new[:-1])
        return f"use {listed}{' or ' if listed else ''}{new[-1]}" if new else ""

    @property
    def has_pairs(self) -> bool:
        return bool(pairing.labels(self.pair_objective))

    @property
    def _given(self) -> list[str]:
        return [f"--{name}={value}" for name, value in self.options.items()]

    def of(self, name: str) -> Any:
        return self.statistics.get(name)

    def is_below(self, name: str, bound: float) -> bool:
        return self.of(name) is not None and self.of(name) < bound

    def exceeds(self, name: str, bound: float) -> bool:
        return self.of(name) is not None and self.of(name) > bound


# A check yields name and text of each warning.
_Found = Iterator[tuple[str, str]]


def warnings(
    statistics: Mapping[str, Any],
    *,
    max_seq_length: int,
    pair_objective: str,
    vocab_size: int,
    masked_lm_prob: float | None = None,
    split: str = "all",
    kind: str = "",
    options: Mapping[str, Any] | None = None,
) -> list[Warning]:
    """Returns the warnings about the statistics of a manifest, or about the part that is known.

    A held-out split may be small. `kind` is from `kind_of`: integers and letters have no words and
    sentences. The `options` of the build are not advised again.
    """
    facts = _Facts(
        *(statistics, max_seq_length, pair_objective, vocab_size, masked_lm_prob),
        {"pair_objective": pair_objective, **(options or {})},
    )
    checks = _CHECKS_OF.get(kind, _CHECKS)
    all_warnings = [Warning(name, text) for check in checks for name, text in check(facts)]
    # The training part is of the same input.
    passed_over = ("few_documents", "few_examples", *READING_PROBLEMS) if split == "heldout" else ()
    return [warning for warning in all_warnings if warning.name not in passed_over]


def of_manifest(manifest: records.Manifest) -> list[Warning]:
    """Returns the warnings about the records that a manifest describes."""
    return warnings(
        manifest.statistics,
        max_seq_length=manifest.max_seq_length,
        pair_objective=manifest.pair_objective,
        vocab_size=manifest.tokenizer["vocab_size"],
        masked_lm_prob=manifest.masked_lm_prob,
        split=manifest.arguments.get("split", "all"),
        kind=kind_of(manifest.tokenizer),
        options=manifest.arguments,
    )


def kind_of(described: Mapping[str, Any]) -> str:
    """Returns which checks the records of a tokenizer have, by what manifests keep of it."""
    return letters.FIELD if described.get(letters.FIELD) else described.get("kind", "")


def reading(statistics: Mapping[str, Any], documents: int, lines: int) -> list[Warning]:
    """Returns the warnings about the problems of reading in `statistics` of a log.

    Lines stand for sentences, which are not known before a build.
    """
    counted = {**statistics, "documents": documents, "sentences": lines}
    return [Warning(name, text) for name, text in _reading(_Facts(counted, 0, "none", 0, None))]


# How the names of those problems end that are counted by the document.
_OF_DOCUMENTS = ("documents", "pages", "records", "rows")


def _reading(facts: _Facts) -> _Found:
    for kind, problem in (facts.of("reading_problems") or {}).items():
        counted = "documents" if kind.endswith(_OF_DOCUMENTS) else "sentences"
        total = facts.of(counted)
        is_rare = total is None or problem["count"] <= READING_PROBLEM_SHARE * total
        if kind in HARMLESS or (is_rare and kind != "empty_files"):
            continue
        what = READING_PROBLEMS.get(kind, f"{kind.replace('_', ' ')} were met")
        yield kind, f"{problem['count']:,} {what} (first: {', '.join(problem['first'])})"


def _documents(facts: _Facts) -> _Found:
    documents, empty = facts.of("documents"), facts.of("empty_documents")
    if facts.is_below("documents", MIN_DOCUMENTS):
        without_pairs = facts.advice("--pair_objective=none")
        pairs = (
            "a random segment then comes from one of very few others, and the topic gives the pair "
            "label away, and "
        )
        yield (
            "few_documents",
            f"the corpus has only {documents} documents; {pairs if without_pairs else ''}hardly "
            "any can be held out: separate documents by blank lines (without "
            f"--one_document_per_file), or {without_pairs or 'give more text'}",
        )
    elif facts.exceeds("longest_document_share", LONGEST_DOCUMENT_SHARE):
        partners = "its segments rarely get a partner from elsewhere that is like them"
        harm = partners if facts.has_pairs else "it is held out as a whole or not at all"
        yield (
            "giant_document",
            f"one document holds {facts.of('longest_document_share'):.0%} of all tokens, as if "
            f"blank lines were missing in it; {harm}: separate its parts by blank lines",
        )
    if documents and empty and empty > EMPTY_DOCUMENT_SHARE * documents:
        yield (
            "empty_documents",
            f"{empty:,} of {documents:,} documents hold no token and were left out: look at the "
            "input, and whether its text is in another field or file",
        )
    if _has_blank_lines(facts):
        yield "blank_lines", _blank_lines_text(facts)


def _has_blank_lines(facts: _Facts) -> bool:
    """Returns whether documents look as if a blank line were behind every line of the input."""
    if facts.exceeds("one_sentence_document_share", ONE_SENTENCE_SHARE):
        return True
    sentences = facts.of("sentences_per_document")
    are_short = bool(sentences) and sentences["mean"] < SENTENCES_PER_LINE
    return are_short and facts.exceeds("one_line_document_share", ONE_LINE_SHARE)


def _blank_lines_text(facts: _Facts) -> str:
    what = (
        f"{facts.of('one_sentence_document_share'):.0%} of the documents are a single sentence"
        if facts.exceeds("one_sentence_document_share", ONE_SENTENCE_SHARE)
        else f"{facts.of('one_line_document_share'):.0%} of the documents are a single line"
    )
    harm = (
        "most segments then have no next sentence, so that most pairs are random and the label "
        "teaches little"
        if facts.has_pairs
        else "an example then is a few sentences and much padding, with little context"
    )
    # A document of each file is advised if that leaves enough of them.
    files, per_file = facts.of("text_files"), ""
    if not facts.options.get("one_document_per_file") and (files is None or files >= MIN_DOCUMENTS):
        if_many = " if there are many files" if files is None else ""
        per_file = f"use --one_document_per_file{if_many}"
    packing = ("--pair_objective=none", "--packing=full_sentences")
    new = " ".join(option for option in packing if facts.advice(option))
    packed = f"or, where texts are that short, use {new}" if new else ""
    remedies = ("leave blank lines between documents only", per_file, packed)
    return (
        f"{what}, as if there were a blank line after every line; {harm}: "
        f"{', '.join(it for it in remedies if it)}"
    )


def _copied_documents(facts: _Facts) -> _Found:
    if facts.exceeds("duplicate_document_share", DUPLICATE_DOCUMENT_SHARE):
        pairs = ", and a random segment may really be the next one" if facts.has_pairs else ""
        yield (
            "duplicate_documents",
            f"{facts.of('duplicate_document_share'):.1%} of the documents are copies of another "
            f"one; the model learns them by heart{pairs}: build with --deduplicate=documents, "
            "which leaves the copies out",
        )


def _copied_lines(facts: _Facts) -> _Found:
    if facts.exceeds("duplicate_line_share", DUPLICATE_LINE_SHARE):
        lines = facts.of("repeated_lines") or []
        most = "; ".join(f"{line!r} {count:,} times" for line, count in lines[:3])
        yield (
            "duplicate_lines",
            f"{facts.of('duplicate_line_share'):.1%} of the long lines came before, like the "
            "headers, licences and menus that web pages repeat; the model spends its training on "
            f"them{f' (at least: {most})' if most else ''}: build with --deduplicate=lines, which "
            "keeps the first of each, or remove what is not text of the document",
        )


def _letters(facts: _Facts) -> _Found:
    if facts.exceeds("unknown_rate", UNKNOWN_RATE):
        yield (
            "unknown_letters",
            f"{facts.of('unknown_rate'):.1%} of the letters are unknown to the vocabulary, as "
            f"{letters.table(dict(facts.of('unknown_letters') or ()))}: look whether these are "
            "sequences of its alphabet (`train_vocabulary --alphabet`)",
        )


def _vocabulary(facts: _Facts) -> _Found:
    # The rate of the examples only if that of the text is unknown: masking hides some tokens.
    rate = facts.of("unknown_rate")
    rate = facts.of("example_unknown_rate") if rate is None else rate
    if rate is not None and rate > UNKNOWN_RATE:
        degree = "the vocabulary is hardly this text's" if rate > HIGH_UNKNOWN_RATE else "too many"
        yield (
            "unknown_tokens",
            f"{rate:.1%} of the tokens are [UNK] ({degree}); the model can neither read nor "
            "predict what they stand for: use a vocabulary of this language and spelling, or make "
            "one with `python -m data_pipelines.train_vocabulary`",
        )
    if facts.exceeds("lost_marks_share", losses.MUCH):
        lost = losses.described(facts.of("lost_marks_share") or 0, facts.of("lost_marks") or ())
        yield (
            "lost_marks",
            f"{lost}: the vocabulary's normalization drops them, and words that differ in them "
            "become one; make a vocabulary with --normalization=nfc, which keeps them",
        )
    used = facts.of("vocabulary_used_share")
    counted = facts.of("unigram_tokens") or 0
    if (
        used is not None
        and counted >= TOKENS_PER_ENTRY * facts.vocab_size
        and used < 1 - UNUSED_VOCABULARY_SHARE
    ):
        yield (
            "unused_vocabulary",
            f"only {used:.0%} of the {facts.vocab_size:,} vocabulary entries ever occur; the "
            "others cost memory and time in every step and learn nothing, while words of this text "
            "are cut in pieces: make a vocabulary of this text",
        )
    words, characters = facts.of("words") or 0, facts.of("characters") or 0
    has_words = characters < CHARACTERS_PER_WORD * words
    if has_words and facts.exceeds("tokens_per_word", TOKENS_PER_WORD):
        yield (
            "tokens_per_word",
            f"a word takes {facts.of('tokens_per_word'):.1f} tokens on average, as if the "
            "vocabulary were of another language; sequences hold little text, and words have to "
            "be learnt from fragments: make a vocabulary of this text",
        )
    per_token = facts.of("characters_per_token")
    if per_token is not None and per_token < CHARACTERS_PER_TOKEN:
        yield (
            "characters_per_token",
            f"a token holds {per_token:.1f} characters on average, as if the vocabulary were of "
            "another script; sequences hold little text: make a vocabulary of this text",
        )


def _sentences(facts: _Facts) -> _Found:
    lengths = facts.of("sentence_length")
    if not lengths:
        return
    if facts.exceeds("long_sentence_share", LONG_SENTENCE_SHARE):
        lines = "--sentence_splitter=lines"
        pairs = ", and most pairs become random" if facts.has_pairs else ""
        yield (
            "long_sentences",
            f"{facts.of('long_sentence_share'):.0%} of the tokens stand in sentences of more than "
            "100 tokens, as if sentence ends were not found; segments then begin and end "
            f"anywhere{pairs}: choose another --sentence_splitter (sentencex knows the "
            "abbreviations of more languages), or give one sentence per line"
            + (f" and {lines}" if facts.advice(lines) else ""),
        )
    elif lengths["mean"] < MEAN_SENTENCE_LENGTH:
        pairs = "; pairs are then cut inside of sentences" if facts.has_pairs else ""
        yield (
            "short_sentences",
            f"a sentence has {lengths['mean']:.1f} tokens on average, as if lines were single "
            f"words or cut everywhere{pairs}: give a paragraph or "
            "a sentence per line, or choose another --sentence_splitter",
        )


def _used(facts: _Facts) -> _Found:
    share = facts.of("used_token_share")
    if share is not None and share < USED_TOKEN_SHARE:
        yield (
            "used_tokens",
            f"only {share:.0%} of the text's tokens stand in an example: the rest was cut off from "
            "segments that are longer than an example. Find the ends of sentences with another "
            "--sentence_splitter, or "
            + facts.advice("a longer --max_seq_length", "--pair_objective=none"),
        )


def _pairs(facts: _Facts) -> _Found:
    # Blank lines are the cause of what follows, and have a warning of their own.
    if _has_blank_lines(facts) or not facts.of("examples"):
        return
    # The share of few pairs is far from a half by chance alone.
    chance = PAIR_CHANCE * 0.5 / math.sqrt(facts.of("examples"))
    least, most = (
        min(RANDOM_PAIR_SHARES[0], 0.5 - chance),
        max(RANDOM_PAIR_SHARES[1], 0.5 + chance),
    )
    share, forced = facts.of("random_pair_share"), facts.of("forced_random_share")
    if share is not None and not least <= share <= most:
        cause = f", {forced:.0%} because a chunk was a single sentence" if forced else ""
        yield (
            "random_pairs",
            f"{share:.0%} of the pairs are random{cause}; a model that always answers "
            f"{'random' if share > 0.5 else 'next'!r} is right that often without reading: use "
            "--balanced_nsp, a longer --max_seq_length, or --pair_objective=sop",
        )
    elif forced is not None and forced > FORCED_RANDOM_SHARE:
        yield (
            "forced_random",
            f"{forced:.0%} of the pairs are random because a chunk was a single sentence; a first "
            "segment of one whole sentence then tells the label: use a longer --max_seq_length, a "
            "finer --sentence_splitter, or --pair_objective=none",
        )
    if facts.exceeds("dropped_pair_share", DROPPED_PAIR_SHARE):
        yield (
            "dropped_pairs",
            f"{facts.of('dropped_pair_share'):.0%} of the pairs were left out to make half of the "
            "labels random; as much of the text is not read in each pass: use a longer "
            "--max_seq_length, or --pair_objective=sop or none",
        )
    swapped = facts.of("swapped_pair_share")
    if swapped is not None and not least <= swapped <= most:
        yield (
            "swapped_pairs",
            f"{swapped:.0%} of the pairs are swapped; half should be, or the label can be guessed "
            "without reading. A chunk of one sentence cannot be cut in two and counts as swapped: "
            "use a longer --max_seq_length, a finer --sentence_splitter, or --pair_objective=none",
        )


def _examples(facts: _Facts) -> _Found:
    examples, fill = facts.of("examples"), facts.of("fill")
    if facts.is_below("examples", MIN_EXAMPLES):
        yield (
            "few_examples",
            f"there are only {examples:,} examples; a model soon knows them by heart: give more "
            "text, or use them to try things out",
        )
    if facts.is_below("fill", MIN_FILL) and facts.of("sequences") is None:
        length = fill * facts.max_seq_length
        yield (
            "padding",
            f"fill is {fill:.0%}: an example has {length:.0f} of {facts.max_seq_length} tokens, "
            "the rest of the computation is spent on padding: use --packing=best_fit, which puts "
            "several examples in a row, or a smaller --max_seq_length or --short_seq_prob",
        )
    if facts.exceeds("rows_at_limit_share", ROWS_AT_LIMIT) and facts.is_below("fill", PACKED_FILL):
        yield (
            "row_limit",
            f"fill is {fill:.0%} of packed rows, and {facts.of('rows_at_limit_share'):.0%} of them "
            "hold as many examples as they may: raise --max_sequences_per_row",
        )
    if facts.exceeds(
        "most_frequent_token_share", max(FREQUENT_TOKEN_SHARE, FREQUENT_ENTRIES / facts.vocab_size)
    ):
        yield (
            "frequent_token",
            f"{facts.of('most_frequent_token_share'):.0%} of what is to be predicted is "
            f"{facts.of('most_frequent_token')!r}; a model that always answers it looks good and "
            "knows nothing: remove fillers, as markup, tables and runs of one letter",
        )


def _masks(facts: _Facts) -> _Found:
    if (facts.of("masked_tokens") or 0) < MIN_MASKED_TOKENS:
        return
    shares = [facts.of(f"masked_{what}_share") for what in ("as_mask", "random", "kept")]
    paper = (masking.MASK_SHARE, 1 - masking.MASK_SHARE - masking.KEEP_SHARE, masking.KEEP_SHARE)
    if None not in shares and any(
        abs(a - b) > MASK_SHARE_ERROR for a, b in zip(shares, paper, strict=True)
    ):
        yield (
            "mask_shares",
            "of the masked tokens {:.0%} show [MASK], {:.0%} another token, {:.0%} themselves, not "
            "80, 10 and 10%; finetuning never shows [MASK], and the other two are there to bridge "
            "that: look how these records were made".format(*shares),
        )
    share, target = facts.of("masked_share"), facts.masked_lm_prob
    full = facts.of("full_masks_share") or 0
    is_more = bool(share and target) and share / target - 1 > MASKED_SHARE_ERROR
    if is_more or (_has_few_masks(facts) and full > 0.5):
        cause = f"; {full:.0%} of the examples have all the masks they may" if full > 0.5 else ""
        yield (
            "masked_share",
            f"{share:.1%} of the tokens are masked, not {target:.0%} (masked_lm_prob){cause}; "
            "fewer teach less per step, more leave less context: choose --max_predictions_per_seq "
            "as masked_lm_prob x max_seq_length",
        )


def _has_few_masks(facts: _Facts) -> bool:
    """Returns whether far fewer tokens are masked than there should be, in a corpus of any size."""
    share, target, fill = facts.of("masked_share"), facts.masked_lm_prob, facts.of("fill")
    if share is None or not target or fill is None:
        return False
    expected = target * fill * facts.max_seq_length * (facts.of("examples") or 0)
    return expected >= MIN_EXPECTED_MASKS and share < (1 - MASKED_SHARE_ERROR) * target


def _long_words(facts: _Facts) -> _Found:
    """Yields a warning if few tokens are masked and few examples have all the masks they may."""
    if _has_few_masks(facts) and (facts.of("full_masks_share") or 0) <= 0.5:
        most = facts.options.get("max_predictions_per_seq")
        yield (
            "long_words",
            f"{facts.of('masked_share'):.2%} of the tokens are masked, not "
            f"{facts.masked_lm_prob:.0%} (masked_lm_prob): words of "
            f"more tokens than an example may mask{f', {most},' if most else ''} are never masked; "
            "use --mask=token, a longer --max_seq_length, or a vocabulary of this text",
        )


_CHECKS = (
    *(_reading, _documents, _copied_documents, _copied_lines, _vocabulary, _sentences, _used),
    *(_pairs, _examples, _masks, _long_words),
)
# Kind of a tokenizer -> the checks of text that is not prose.
_CHECKS_OF = {
    tokenizer.IntegerTokenizer.kind: (
        _reading,
        _copied_documents,
        _copied_lines,
        _pairs,
        _examples,
        _masks,
    ),
    letters.FIELD: (_reading, _copied_documents, _letters, _pairs, _examples, _masks),
}
