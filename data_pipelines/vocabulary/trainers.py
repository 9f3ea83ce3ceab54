"""The kinds of vocabularies that can be trained, and the options of `train_vocabulary`."""

from __future__ import annotations

import dataclasses
import functools
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bertjax.cli import command_line
from bertjax.files import delimiters, text_encodings
from bertjax.options import faults
from bertjax.tokenization import (
    byte_bpe,
    letters,
    library_tokenizer,
    normalization,
    sentence_piece,
    token_ids,
    tokenizer,
    wordpiece,
)
from data_pipelines.documents import segmenters, sources
from data_pipelines.vocabulary import vocabulary_entries

AUTO = "auto"
MOST_ENTRIES = 10_000_000  # the trainers take memory for all of them at once
MODEL_TYPES = ("unigram", "bpe")
NO_SEGMENTER = "none"


@dataclasses.dataclass(frozen=True)
class Options:
    """The input and the kind of vocabulary."""

    input: str = command_line.option(sources.help_text)
    output: str = command_line.option("the directory for vocabulary and tokenizer_config.json")
    kind: str = command_line.option(
        "wordpiece as BERT has it, a sentencepiece model, byte_bpe as RoBERTa has it, or the "
        "letters of proteins and DNA; auto: "
        "sentencepiece where the text writes no spaces between words, else wordpiece",
        choices=lambda: (*TRAINERS, AUTO),
        default="wordpiece",
    )
    model_type: str = command_line.option(
        "the kind of sentencepiece model", choices=lambda: MODEL_TYPES, default="unigram"
    )
    special_tokens: str = command_line.option(
        "names and ids of the special tokens of a sentencepiece model: xlm-roberta for the recipe "
        "xlm_r, camembert for camembert",
        choices=lambda: (vocabulary_entries.BERT, *sentence_piece.PIECES),
        default=vocabulary_entries.BERT,
    )
    alphabet: str = command_line.option(
        "letters: of the text, of ESM-2 (proteins), or of DNA, single or six in an entry",
        choices=lambda: (letters.TEXT, *letters.ALPHABETS),
        default=letters.TEXT,
    )
    extend: str = command_line.option(
        "a finished WordPiece vocabulary: the words of the text that it cuts most often "
        "take the places of its unused entries ([unused1]), and follow at its end up to size",
        default="",
    )
    size: int = command_line.option(
        "entries at most, specials included; 0: 4,096 to 32,768, by the length of the text",
        default=30522,
    )
    normalization: str = command_line.option(
        "the rule for the text: none, its Unicode form (nfc keeps all marks, nfkc also unifies "
        "wide and narrow forms), or the rule of the released cased or uncased BERT; bert_uncased "
        "lower-cases and loses accents and other marks",
        choices=lambda: normalization.CHOICES,
        default="nfc",
    )
    language: str = command_line.option(
        "tr or az: bert_uncased makes I to ı and İ to i", default=""
    )
    add_prefix_space: bool = command_line.option(
        "byte_bpe: give texts that begin without a blank one", default=False
    )
    keep_marks: bool = command_line.option(
        "byte_bpe: cut no word before its marks (vowel signs, tones), as GPT-2's rule does",
        default=False,
    )
    segmenter: str = command_line.option(
        "sentencepiece: the words, where a script writes no spaces, over whose ends no piece "
        "reaches, as --segmenter of data_pipelines.build",
        choices=lambda: (NO_SEGMENTER, *segmenters.SEGMENTERS),
        default=NO_SEGMENTER,
    )
    language_field: str = command_line.option(
        lambda: (
            "the field that holds the language of a record "
            f"({sources.formats_that_use('language_field')})"
        ),
        default="",
    )
    language_alpha: float = command_line.option(
        "the share of a language is its bytes to this power (mBERT: 0.7); 1: as the input has it",
        default=1.0,
    )
    heldout_fraction: float = command_line.option(
        "share of documents to measure on and not to train on, chosen by a hash of their id",
        default=0.02,
    )
    one_document_per_file: bool = command_line.option(
        lambda: (
            f"files ({sources.formats_that_use('one_document_per_file')}) are documents; "
            "otherwise blank lines separate them"
        ),
        default=False,
    )
    text_field: str = command_line.option(
        lambda: f"the field with the text of a record ({sources.formats_that_use('text_field')})",
        default="text",
    )
    delimiter: str = command_line.option(delimiters.HELP, default=delimiters.AUTO)
    encoding: str = command_line.option(text_encodings.HELP, default=text_encodings.UTF8)
    overwrite: bool = command_line.option("replace the vocabulary in output", default=False)

    @property
    def rules(self) -> dict[str, Any]:
        """The rules for the text, as arguments of a tokenizer."""
        of_language = {"language": self.language} if self.language else {}
        return dict(normalization.CHOICES[self.normalization]) | of_language

    @property
    def rule(self) -> str:
        """The normalization among the rules."""
        return self.rules.get("normalization", normalization.RELEASED)


def check(options: Options) -> None:
    """Raises a ValueError if options do not fit each other; `kind` is not AUTO."""
    if options.extend:
        return _check_extended(options)
    if options.size > MOST_ENTRIES:
        raise faults.wrong("--size", options.size, f"at most {MOST_ENTRIES:,}")
    if options.language_alpha < 0:
        raise faults.wrong("--language_alpha", options.language_alpha, "at least 0")
    kind = TRAINERS[options.kind]
    if options.kind != "sentencepiece":
        for name in ("special_tokens", "segmenter"):
            value, default = getattr(options, name), getattr(Options, name)
            if value != default:
                why = f"the kind is {options.kind}, and --kind=sentencepiece alone reads it"
                raise faults.unread(f"--{name}", value, why, default)
    if options.segmenter != NO_SEGMENTER:
        segmenters.segmenter(options.segmenter)
    if options.normalization not in kind.normalizations:
        others = [
            name for name, one in TRAINERS.items() if options.normalization in one.normalizations
        ]
        raise faults.wrong(
            "--normalization",
            options.normalization,
            f"one of {', '.join(kind.normalizations)} for the kind {options.kind}",
            f"choose one of them, or another --kind ({', '.join(others)})",
        )
    is_lowercase = options.rules.get("lowercase", False)
    try:
        normalization.check(
            options.rule,
            lowercase=is_lowercase,
            strip_accents=is_lowercase,
            language=options.language,
        )
    except ValueError as error:
        raise ValueError(f"--normalization and --language do not fit: {error}") from error


def _check_extended(options: Options) -> None:
    names = ("kind", "model_type", "special_tokens", "normalization", "language", "segmenter")
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    changed = [
        f"--{name}"
        for name in (*names, "add_prefix_space", "keep_marks")
        if getattr(options, name) != defaults[name]
    ]
    if changed:
        raise ValueError(
            f"--extend is {options.extend}, whose kind and rules stay as they are: leave out "
            f"{', '.join(changed)}"
        )


def _of_tokenizer(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rules with accents that go where case goes."""
    return {"strip_accents": rules.get("lowercase", False), **rules}


def _word_splitter(options: Options) -> Callable[[str], Iterable[str]]:
    whole = _of_tokenizer(options.rules)
    return functools.partial(wordpiece.split_words, **whole, cuts_long_words=True)


def _unit_splitter(options: Options) -> Callable[[str], Iterable[str]]:
    whole = _of_tokenizer(options.rules)
    has_words = options.segmenter != NO_SEGMENTER
    segment = segmenters.segmenter(options.segmenter) if has_words else None

    def split(chunk: str) -> Iterator[str]:
        folded = _composed(sentence_piece.fold(chunk, **whole), options).strip()
        for first in range(0, len(folded), vocabulary_entries.MAX_UNIT_CHARACTERS):
            unit = folded[first : first + vocabulary_entries.MAX_UNIT_CHARACTERS]
            yield segmenters.marked(unit, segment) if segment else unit

    return split


def _letters_of(chunk: str) -> Iterator[str]:
    yield from letters.cleaned(chunk)


def _of_letters(counts: Mapping[str, int], options: Options) -> tokenizer.Tokenizer:
    is_esm2 = options.alphabet == "esm2"
    return library_tokenizer.of_letters(
        letters.entries(options.alphabet, counts.keys()),
        {},
        tokenizer_class=letters.CLASS if is_esm2 else token_ids.LIBRARY_CLASS,
    )


def _composed(text: str, options: Options) -> str:
    """Returns what a sentencepiece model gets of a folded text."""
    is_released = options.rule == normalization.RELEASED
    return unicodedata.normalize("NFKC", text) if is_released else text


def _piece_splitter(options: Options) -> Callable[[str], Iterable[str]]:
    rules = options.rules
    cut = byte_bpe.cutter(keeps_marks=options.keep_marks).pre_tokenize_str

    def split(chunk: str) -> Iterator[str]:
        text = f" {normalization.in_form(rules['normalization'], chunk)}"
        for _, (start, end) in cut(text):
            for first in range(start, end, vocabulary_entries.MAX_UNIT_CHARACTERS):
                yield text[first : min(end, first + vocabulary_entries.MAX_UNIT_CHARACTERS)]

    return split


def _kept_by_pieces(rules: Mapping[str, Any]) -> Callable[[str], str]:
    whole = _of_tokenizer(rules)
    if "normalization" in rules:
        return functools.partial(sentence_piece.fold, **whole)
    # The model's own normalization is Unicode's NFKC but for single characters.
    return lambda text: unicodedata.normalize("NFKC", sentence_piece.fold(text, **whole))


@dataclasses.dataclass(frozen=True)
class Trainer:
    """How vocabularies of a kind are made, and the `normalizations` that they can have.

    `splitter(options)` returns the function that cuts a chunk without white space into the units to
    be counted, `train(counts, options)` the tokenizer for these counts, `kept(rules)` what is left
    of a text. `export_fault(options)` returns why transformers cannot have the vocabulary, "" if
    it can.
    """

    splitter: Callable[[Options], Callable[[str], Iterable[str]]]
    train: Callable[[Mapping[str, int], Options], tokenizer.Tokenizer]
    kept: Callable[[Mapping[str, Any]], Callable[[str], str]]
    normalizations: tuple[str, ...] = tuple(normalization.CHOICES)
    export_fault: Callable[[Options], str] = lambda options: ""


TRAINERS = {
    "wordpiece": Trainer(
        _word_splitter,
        lambda counts, options: wordpiece.WordPieceTokenizer(
            vocabulary_entries.of_wordpiece(counts, options.size, options.rule),
            cuts_long_words=True,
            **options.rules,
        ),
        kept=lambda rules: functools.partial(wordpiece.fold, **_of_tokenizer(rules)),
    ),
    "sentencepiece": Trainer(
        _unit_splitter,
        lambda counts, options: sentence_piece.SentencePieceTokenizer(
            vocabulary_entries.sentencepiece_model(
                counts, options.size, options.model_type, options.rule, options.special_tokens
            ),
            composes=options.rule == normalization.RELEASED,
            **options.rules,
        ),
        kept=_kept_by_pieces,
        export_fault=lambda options: sentence_piece.type_export_fault(options.model_type),
    ),
    "byte_bpe": Trainer(
        _piece_splitter,
        lambda counts, options: byte_bpe.ByteBpeTokenizer(
            *vocabulary_entries.of_byte_bpe(counts, options.size),
            add_prefix_space=options.add_prefix_space,
            keeps_marks=options.keep_marks,
            **options.rules,
        ),
        kept=lambda rules: functools.partial(normalization.in_form, rules["normalization"]),
        normalizations=tuple(normalization.FORMS),
    ),
    "letters": Trainer(
        lambda options: _letters_of,
        _of_letters,
        kept=lambda rules: str,
        normalizations=tuple(normalization.FORMS),
    ),
}
