"""The options of a build: what they are, which values fit, and what they mean for each step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from bertjax.cli import command_line
from bertjax.data import masking, records
from bertjax.files import delimiters, text_encodings
from data_pipelines import workers
from data_pipelines.building import blocks, row_packing
from data_pipelines.documents import deduplication, languages, segmenters, sentences, sources
from data_pipelines.formats import base as format_base
from data_pipelines.objectives import base, packed_sentences, pairing
from data_pipelines.reports import statistics

# Algorithm -> what it knows of an option, where that is not everything; `build` has the builders.
ALGORITHMS: dict[str, Mapping[str, tuple[Any, ...]]] = {
    "fast": {},
    "exact": {
        "pair_objective": ("nsp",),
        "mask": ("token", "whole_word"),
        "balanced_nsp": (False,),
        "packing": ("doc_sentences",),
        "sentence_splitter": ("lines",),
        "segmenter": (segmenters.BY_VOCABULARY,),
        "count_words": (False,),
        "sentence_ends": (False,),
        "split": ("all",),
        "one_document_per_file": (False,),
        "both_strands": (False,),
        "encoding": (text_encodings.UTF8,),
        "deduplicate": (deduplication.KEEP_ALL,),
    },
}
# The mask of records that store none.
NO_MASK = "none"

Part = TypeVar("Part", sources.Reading, base.PairOptions)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a build, named as in the released create_pretraining_data.py."""

    input: str = command_line.option(sources.help_text)
    vocabulary: str = command_line.option("a vocabulary directory, a vocab.txt or a .model")
    output: str = command_line.option("the record directory to make")
    max_seq_length: int = command_line.option("tokens per example", default=128)
    max_predictions_per_seq: int = command_line.option(
        "masked tokens per example at most; 0: max_seq_length * masked_lm_prob", default=0
    )
    masked_lm_prob: float = command_line.option("share of tokens to mask", default=0.15)
    short_seq_prob: float = command_line.option(
        "share of documents cut to shorter examples", default=0.1
    )
    dupe_factor: int = command_line.option(
        "passes over the corpus, each with other pairs and masks", default=10
    )
    random_seed: int = command_line.option("seed of pairs, masks and shuffle", default=12345)
    algorithm: str = command_line.option(
        "exact: the examples of the released script, to the bit; one process, in memory",
        choices=lambda: ALGORITHMS,
        default="fast",
    )
    pair_objective: str = command_line.option(
        pairing.help_text, choices=lambda: pairing.PAIR_OBJECTIVES, default="nsp"
    )
    balanced_nsp: bool = command_line.option(
        "exactly half of the pairs random; as released it is half or more", default=False
    )
    packing: str = command_line.option(
        "what an example of pair_objective none is: whole sentences of one document, or across "
        "documents; best_fit, for all objectives: several examples in a row",
        choices=lambda: packed_sentences.PACKINGS,
        default="doc_sentences",
    )
    max_sequences_per_row: int = command_line.option(
        "for packing best_fit: examples in a row at most; 0: max_seq_length / "
        f"{row_packing.TOKENS_PER_SEQUENCE}",
        default=0,
    )
    mask: str = command_line.option(
        "what is masked together; none: no masks are stored, training draws them",
        choices=lambda: (*masking.MASKERS, NO_MASK),
        default="token",
    )
    do_whole_word_mask: bool = command_line.option(
        "the released name of --mask=whole_word", default=False
    )
    num_shards: int = command_line.option(
        "files to write; 0: a multiple of 32 of at most about 200 MB each, or fewer for a tiny "
        "corpus",
        default=0,
    )
    split: str = command_line.option(
        "which documents to take", choices=lambda: format_base.SPLITS, default="all"
    )
    heldout_fraction: float = command_line.option(
        "share of documents held out, chosen by a hash of the text, or of the name of an article, "
        "example or docstring",
        default=0.02,
    )
    sentence_splitter: str = command_line.option(
        "how paragraphs become sentences: rules; lines, where every line is one already; "
        "sentencex (by the language that is named) or sentencex:LANGUAGE; unset: rules, for "
        "algorithm exact lines. All but lines cut text without sentence ends at half of "
        "max_seq_length",
        default="",
    )
    segmenter: str = command_line.option(
        "which tokens are one word, for masks of whole words, n-grams and spans: those that the "
        "vocabulary joins; or, where a script writes no spaces, characters, or the words of jieba "
        "(Chinese), fugashi (Japanese), pythainlp (Thai) or icu (all), each of an extra",
        choices=lambda: (segmenters.BY_VOCABULARY, *segmenters.SEGMENTERS),
        default=segmenters.BY_VOCABULARY,
    )
    count_words: bool = command_line.option(
        "store with each row how many words (between white space) begin in it: training then "
        "counts them, and may save by them",
        default=False,
    )
    sentence_ends: bool = command_line.option(
        "store which tokens end a sentence: training may then exchange sentences, as BART does",
        default=False,
    )
    one_document_per_file: bool = command_line.option(
        lambda: (
            f"files ({sources.formats_that_use('one_document_per_file')}) are documents; "
            "otherwise blank lines separate them"
        ),
        default=False,
    )
    text_field: str = command_line.option(
        lambda: (
            f"the field that holds the text of a record ({sources.formats_that_use('text_field')})"
        ),
        default="text",
    )
    language: str = command_line.option(
        "the language of the input, such as de; INPUT=LANGUAGE is for inputs in several", default=""
    )
    language_field: str = command_line.option(
        lambda: (
            "the field that holds the language of a record "
            f"({sources.formats_that_use('language_field')})"
        ),
        default="",
    )
    both_strands: bool = command_line.option(
        lambda: (
            "take each sequence of DNA and its reverse complement, on one side of the split "
            f"({sources.formats_that_use('both_strands')})"
        ),
        default=False,
    )
    delimiter: str = command_line.option(delimiters.HELP, default=delimiters.AUTO)
    encoding: str = command_line.option(text_encodings.HELP, default=text_encodings.UTF8)
    deduplicate: str = command_line.option(
        "leave out copies: documents whose text came before, or lines of "
        f"{statistics.MIN_LINE_CHARACTERS} characters and more that did",
        choices=lambda: (deduplication.KEEP_ALL, *deduplication.RULES),
        default=deduplication.KEEP_ALL,
    )
    do_lower_case: bool | None = command_line.option(
        "lower-case the text; unset: as the vocabulary directory says, true for a vocab.txt",
        default=None,
    )
    num_workers: int = command_line.option("processes; 0: one for each core", default=0)
    scratch: str = command_line.option(
        "a local directory for intermediate files; unset: OUTPUT.partial", default=""
    )
    strict: bool = command_line.option(
        "warnings of the health report are errors, before anything is written", default=False
    )
    overwrite: bool = command_line.option("replace the records in output", default=False)

    @property
    def reading(self) -> sources.Reading:
        """How the input is read."""
        return self._part(sources.Reading)

    @property
    def pairs(self) -> base.PairOptions:
        """How documents become examples."""
        return self._part(base.PairOptions)

    def _part(self, kind: type[Part]) -> Part:
        """Returns the options of one step, which have the same names there."""
        return kind(**{name: getattr(self, name) for name in kind.__dataclass_fields__})

    @property
    def are_translations(self) -> bool:
        """Whether the input holds texts with their translations."""
        return languages.is_pair(self.language)

    @property
    def masking(self) -> masking.MaskingOptions | None:
        """How tokens are masked; None where training draws the masks."""
        if self.mask == NO_MASK:
            return None
        return masking.MaskingOptions(self.masked_lm_prob, self.max_predictions_per_seq, self.mask)

    @property
    def separates_documents(self) -> bool:
        """Whether segments cross documents, with a [SEP] between them."""
        return pairing.separates_documents(self.pairs)

    @property
    def longest_sentence(self) -> int:
        """Where a sentence without a known end is cut: two pieces are an example; 0: never."""
        return 0 if self.sentence_splitter == "lines" else self.pairs.budget(2) // 2

    def tokenization(self, vocabulary: blocks.Vocabulary) -> blocks.Tokenization:
        """How text becomes tokens."""
        return blocks.Tokenization(
            vocabulary,
            self.sentence_splitter,
            self.separates_documents,
            self.longest_sentence,
            self.segmenter,
            self.count_words,
            self.sentence_ends,
        )

    @property
    def stores_words(self) -> bool:
        """Whether the records tell which tokens continue a word."""
        return self.segmenter != segmenters.BY_VOCABULARY

    def content(self) -> dict[str, Any]:
        """Returns the options that decide what the records hold, as manifests keep them."""
        arguments = dataclasses.asdict(self)
        for name in ("output", "overwrite", "num_workers", "scratch", "strict"):
            del arguments[name]
        return arguments


def checked(options: Options) -> Options:
    """Returns the options with their defaults filled in."""
    faults = []
    if options.do_whole_word_mask:
        if options.mask not in ("token", "whole_word"):
            faults.append(f"do_whole_word_mask contradicts mask {options.mask!r}; drop one of them")
        options = dataclasses.replace(options, mask="whole_word", do_whole_word_mask=False)
    if not options.sentence_splitter:
        splitter = "lines" if options.algorithm == "exact" else "rules"
        options = dataclasses.replace(options, sentence_splitter=splitter)
    faults += [*_faults(options), *_contradictions(options)]
    if faults:
        raise ValueError("the options do not fit:\n  " + "\n  ".join(faults))
    if options.pairs.is_packed and not options.max_sequences_per_row:
        most = row_packing.default_most(options.max_seq_length)
        options = dataclasses.replace(options, max_sequences_per_row=most)
    default = masking.default_max_predictions(
        options.max_seq_length, options.masked_lm_prob, options.max_sequences_per_row
    )
    predictions = options.max_predictions_per_seq or default
    return dataclasses.replace(
        options,
        max_predictions_per_seq=0 if options.mask == NO_MASK else predictions,
        num_workers=options.num_workers or workers.available_cores(),
    )


def _faults(options: Options) -> list[str]:
    return [
        f"{name} is {getattr(options, name)!r}; it must be {requirement}"
        for name, holds, requirement in (
            (
                "max_seq_length",
                8 <= options.max_seq_length <= records.MOST_TOKENS,
                f"between 8 and {records.MOST_TOKENS:,}",
            ),
            ("max_predictions_per_seq", options.max_predictions_per_seq >= 0, "at least 0"),
            ("masked_lm_prob", 0 < options.masked_lm_prob < 1, "between 0 and 1"),
            ("short_seq_prob", 0 <= options.short_seq_prob <= 1, "between 0 and 1"),
            ("dupe_factor", options.dupe_factor >= 1, "at least 1"),
            ("random_seed", options.random_seed >= 0, "at least 0"),
            ("num_shards", options.num_shards >= 0, "at least 0"),
            ("num_workers", options.num_workers >= 0, "at least 0"),
            (
                "max_sequences_per_row",
                options.max_sequences_per_row != 1 and options.max_sequences_per_row >= 0,
                "at least 2, or 0 to have it chosen",
            ),
            ("heldout_fraction", 0 <= options.heldout_fraction < 1, "at least 0 and below 1"),
            *(
                (name, getattr(options, name) in allowed, f"one of {', '.join(allowed)}")
                for name, allowed in command_line.choices(Options).items()
            ),
        )
        if not holds
    ]


def _contradictions(options: Options) -> list[str]:
    """Returns the errors of options that contradict each other."""
    faults = []
    try:
        sentences.splitter(options.sentence_splitter)
    except ValueError as error:
        faults.append(str(error))
    if options.language and (fault := languages.fault(options.language)):
        faults.append(f"language {fault}")
    if options.segmenter in segmenters.SEGMENTERS:
        try:
            segmenters.segmenter(options.segmenter)
        except ValueError as error:
            faults.append(str(error))
    masker = masking.MASKERS.get(options.mask)
    if options.stores_words and masker is not None and not masker.needs_words:
        of_words = [name for name, it in masking.MASKERS.items() if it.needs_words]
        faults.append(
            f"segmenter is {options.segmenter!r}, but mask {options.mask!r} takes each token by "
            f"itself: set mask to {', '.join(of_words)}, or to {NO_MASK} for masks of training"
        )
    faults += _of_other_objectives(options)
    if options.max_sequences_per_row and not options.pairs.is_packed:
        faults.append(
            f"max_sequences_per_row is {options.max_sequences_per_row}, but packing is "
            f"{options.packing!r}, which puts one example in a row: use --packing=best_fit"
        )
    faults += [
        f"{name} is {getattr(options, name)!r}, but algorithm {options.algorithm} only knows "
        f"{' and '.join(map(str, allowed))}: set it, or use --algorithm=fast"
        for name, allowed in ALGORITHMS.get(options.algorithm, {}).items()
        if getattr(options, name) not in allowed
    ]
    return faults


def _of_other_objectives(options: Options) -> list[str]:
    """Returns the errors of options that the chosen pair objective does not use."""
    faults = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        knowing = [
            name
            for name, objective in pairing.PAIR_OBJECTIVES.items()
            if value in objective.own_options.get(field.name, ())
        ]
        if knowing and value != field.default and options.pair_objective not in knowing:
            faults.append(
                f"{field.name} is {value!r}, which is for pair_objective {' or '.join(knowing)}, "
                f"not for {options.pair_objective!r}: leave it at {field.default!r}"
            )
    return faults
