"""Trains a vocabulary, and says how well it covers text that it has not seen.

    python -m data_pipelines.train_vocabulary --input='corpus/*.txt' --output=DIR --size=30522

The text is read once and counted; the trainers see words and how often they stand there. The same
input and options give the same bytes, on any number of cores.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import tempfile
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from absl import logging
from etils import epath

from bertjax.cli import command_line
from bertjax.data import mixtures
from bertjax.files import delimiters, output, text_encodings
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
from data_pipelines import progress
from data_pipelines.documents import segmenters, sources
from data_pipelines.reports import by_script, health, losses, scripts
from data_pipelines.vocabulary import (
    coverage,
    unit_counts,
    vocabulary_entries,
    vocabulary_extension,
)

# The share of combining marks from which on cutting before them costs much: Vietnamese in NFC has
# none, Hindi 35%.
MUCH_MARKS = 0.02

AUTO = "auto"
ALL = ""  # the coverage of the text in all languages
# The characters of a text from which on it has an automatic size; a word of English has six.
SIZES = {0: 4_096, 5_000_000: 8_192, 50_000_000: 16_384, 500_000_000: 32_768}
MOST_ENTRIES = 10_000_000  # the trainers take memory for all of them before they begin
SAMPLE_CHARACTERS = 1_000_000  # of the first documents, which decide the automatic kind

SECONDS_SHOWN = 1.0  # between two looks at the clock

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
        "names and ids of the special tokens of a sentencepiece model: the recipe xlm_r needs "
        "those of xlm-roberta, camembert those of camembert",
        choices=lambda: (vocabulary_entries.BERT, *sentence_piece.PIECES),
        default=vocabulary_entries.BERT,
    )
    alphabet: str = command_line.option(
        "letters: those of the text, of ESM-2 (proteins), or of DNA, single or six in an entry",
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
        "what is done to the text: none, its Unicode form (nfc keeps all marks, nfkc also unifies "
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


def train_vocabulary(
    options: Options,
) -> tuple[tokenizer.Tokenizer, coverage.Coverage, losses.LostMarks]:
    """Trains, saves into `options.output` and returns the tokenizer and its held-out coverage.

    The third is what its normalization loses of the text.

    Where the hash holds out no document, coverage is that of the last one, which is then trained
    on as well.

    Raises:
      FileNotFoundError: if there is no input.
      FileExistsError: if there is a vocabulary already and it is not to be overwritten, or is not
        one that was trained here.
      ValueError: if options or text do not allow a vocabulary.
    """
    if options.extend:
        return _extended(options)
    options = _with_kind(options)
    _check_special_tokens(options)
    _check_segmenter(options)
    _check_normalization(options)
    if options.language_alpha < 0:
        raise ValueError(f"--language_alpha is {options.language_alpha}; it must be at least 0")
    target = _output(options)
    lost = losses.LostMarks(
        TRAINERS[options.kind].kept(options.rules),
        lowercase=options.rules.get("lowercase", False),
        language=options.language,
    )
    is_lossless = options.normalization in losses.KEEPS_ALL
    splitter = TRAINERS[options.kind].splitter(options)
    seen, unseen = _counted(options, splitter, _rule(options), None if is_lossless else lost)
    options = _with_size(options, seen)
    with _timed(f"training a vocabulary of the kind {options.kind}"):
        trained = TRAINERS[options.kind].train(seen, options)
    _save(trained, target)
    return trained, _covered(trained, unseen), lost


def _extended(
    options: Options,
) -> tuple[tokenizer.Tokenizer, coverage.Coverage, losses.LostMarks]:
    """Returns what `train_vocabulary` does, of a vocabulary that is extended."""
    _check_rules_are_those_of_extended(options)
    target = _output(options)
    known = vocabulary_extension.load(options.extend)
    counted = losses.LostMarks.of(known)
    lost = counted or losses.LostMarks(known.kept, known.lowercase, known.language)
    splitter = vocabulary_extension.splitter(known)
    seen, unseen = _counted(options, splitter, known.normalization, counted)
    trained = vocabulary_extension.extended(known, seen, options.size)
    before = coverage.measured(known, unseen[ALL])
    logging.info("%s before, %.4f%% unknown", before.granularity, 100 * before.unknown_rate)
    _save(trained, target)
    return trained, _covered(trained, unseen), lost


def _covered(
    trained: tokenizer.Tokenizer, unseen: Mapping[str, Mapping[str, int]]
) -> coverage.Coverage:
    covered = {name: coverage.measured(trained, words) for name, words in unseen.items()}
    of_all = covered.pop(ALL)
    return dataclasses.replace(of_all, languages=covered)


def _check_rules_are_those_of_extended(options: Options) -> None:
    """Raises a ValueError if an option is given that says what the extended vocabulary says."""
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


def _output(options: Options) -> output.FilesOutput:
    kinds = tokenizer.TOKENIZERS.values()
    names = [name for kind in kinds for name in (kind.file, *kind.companions)]
    names = dict.fromkeys([*names, wordpiece.CONFIG_FILE])
    return output.FilesOutput(
        options.output, "vocabulary", names=[*names], overwrite=options.overwrite
    )


def _save(trained: tokenizer.Tokenizer, target: output.FilesOutput) -> None:
    """Saves a vocabulary; files that it replaces stay until all new ones are there."""
    try:
        with target.draft() as draft:
            trained.save(draft)
            target.publish(draft)
    except OSError as error:
        if error.filename is None and error.errno is not None:
            hint = f"{error.strerror}; nothing was saved or replaced"
            raise OSError(error.errno, hint, str(target.path)) from error
        raise


def main(options: Options) -> None:
    """Trains and prints the size and the held-out coverage."""
    options = options if options.extend else _with_kind(options)
    if why := TRAINERS[options.kind].export_fault(options):
        logging.warning("transformers cannot have this vocabulary: %s", why)
    trained, measured, lost = train_vocabulary(options)
    command_line.print_report(f"vocabulary of {trained.vocab_size:,} entries in {options.output}")
    command_line.print_report(
        f"on {measured.words:,} held-out words: {measured.granularity}, "
        f"{measured.unknown_rate:.4%} of the tokens unknown",
        *(f"  {script:14}{figures}" for script, figures in by_script.rows(measured.scripts)),
        *(
            f"  {name:14}{one.words:,} words: {one.granularity}, {one.unknown_rate:.4%} unknown"
            for name, one in sorted(measured.languages.items())
        ),
    )
    if options.kind == "wordpiece" and measured.characters_per_token:
        logging.warning(
            "The text writes no spaces between words. WordPiece takes each Chinese character for a "
            "word, and a whole clause of Thai or kana for one: --kind=sentencepiece finds words"
        )
    if options.kind == "byte_bpe" and not options.keep_marks and measured.mark_share > MUCH_MARKS:
        logging.warning(
            "%.0f%% of the characters are marks of the letter before them, and the kind byte_bpe "
            "cuts a word before each: --keep_marks keeps words whole", 100 * measured.mark_share
        )  # fmt: skip
    if lost.changed:
        share = lost.changed / lost.words
        log = logging.warning if share >= losses.MUCH else logging.info
        remedy = "--normalization=nfc keeps them"
        if options.extend:
            remedy = "that is a rule of the vocabulary which was extended"
        log("%s: %s", losses.described(share, losses.commonest(lost.changes)), remedy)
    if trained.vocab_size < options.size and not options.extend:
        command_line.print_report(
            f"fewer than the {options.size:,} asked for: the text has no more pieces"
        )


def _with_kind(options: Options) -> Options:
    """Returns the options with a kind; a sample of the text chooses it where it is auto."""
    if options.kind != AUTO:
        return options
    characters = unspaced = 0
    for document in sources.documents(options.input, _reading(options)):
        text = sources.prose(document)
        characters, unspaced = characters + len(text), unspaced + scripts.unspaced_characters(text)
        if characters >= SAMPLE_CHARACTERS:
            break
    is_unspaced = unspaced >= scripts.UNSPACED_SHARE * max(characters, 1)
    kind = "sentencepiece" if is_unspaced else "wordpiece"
    how = "no spaces" if is_unspaced else "spaces"
    logging.info("The text writes %s between words: --kind=%s", how, kind)
    return dataclasses.replace(options, kind=kind)


def _with_size(options: Options, unit_counts: Mapping[str, int]) -> Options:
    """Returns the options with a size, which the length of the text decides where it is 0."""
    if options.size > MOST_ENTRIES:
        raise ValueError(f"--size is {options.size:,}; it must be at most {MOST_ENTRIES:,}")
    if options.size:
        return options
    characters = sum(len(unit) * count for unit, count in unit_counts.items())
    size = max(entries for least, entries in SIZES.items() if characters >= least)
    return dataclasses.replace(options, size=size)


def _reading(options: Options) -> sources.Reading:
    return sources.Reading(
        one_document_per_file=options.one_document_per_file,
        text_field=options.text_field,
        delimiter=options.delimiter,
        encoding=options.encoding,
        heldout_fraction=options.heldout_fraction,
    )


def _counted(
    options: Options,
    splitter: Callable[[str], Iterable[str]],
    rule: str,
    lost: losses.LostMarks | None,
) -> tuple[Mapping[str, int], dict[str, Mapping[str, int]]]:
    """Returns the units to train on, and by language the words to measure on, ALL among them."""
    weights = _weights(options)
    seen = unit_counts.Counts(splitter, lost, rule)
    unseen = collections.defaultdict(lambda: unit_counts.Counts(lambda it: [it], rule=rule))
    unseen[ALL] = unit_counts.Counts(lambda it: [it], lost, rule)
    last, log = "", sources.Log()
    num_documents = num_lines = 0
    with _documents(options, log) as documents, progress.Progress("reading", 0, "B") as shown:
        for document in documents:
            text = sources.prose(document, log)
            num_documents, num_lines = num_documents + 1, num_lines + 1 + text.count("\n")
            if document.held_out:
                for name in dict.fromkeys((ALL, document.language or ALL)):
                    unseen[name].add(text)
            else:
                seen.add(text, weights.get(document.language, 1.0))
                last = text if text.strip() else last
            shown.at(log.bytes_read)
    for warning in health.reading(log.statistics(), num_documents, num_lines):
        logging.warning("%s", warning.text)
    if not last:
        raise ValueError(f"input {options.input!r} holds no text to train on; give other files")
    if not unseen[ALL].units():
        # Its losses are counted already.
        unseen[ALL] = unit_counts.Counts(lambda it: [it], rule=rule)
        unseen[ALL].add(last)
    # A rare word of a language that counts less stays: its letters may be nowhere else.
    counts = {unit: max(1, round(count)) for unit, count in seen.units().items()}
    words = {name: of_name.units() for name, of_name in unseen.items()}
    return counts, {name: {it: int(n) for it, n in of.items()} for name, of in words.items()}


@contextlib.contextmanager
def _documents(options: Options, log: sources.Log) -> Iterator[Iterator[sources.Document]]:
    """Gives the documents of the input, with their languages where a column has them."""
    reading = _reading(options)
    if not options.language_field:
        yield sources.documents(options.input, reading, log)
        return
    units = sources.units(options.input)
    sources.check_units(units, reading)
    with tempfile.TemporaryDirectory(prefix="bertjax_input_") as scratch:
        units = sources.by_field(units, reading, options.language_field, epath.Path(scratch))
        yield (document for unit in units for document in sources.read_unit(unit, reading, log))


def _weights(options: Options) -> dict[str, float]:
    """Returns how often a text of each language counts, {} where each counts once.

    Shares of languages are proportional to their bytes^alpha, as no tokens are known yet.
    """
    if options.language_alpha == 1:
        return {}
    sizes: collections.Counter[str] = collections.Counter()
    with _documents(options, sources.Log()) as documents:
        for document in documents:
            if not document.held_out:
                text = sources.prose(document)
                sizes[document.language] += len(text.encode("utf-8", "surrogatepass"))
    if "" in sizes or len(sizes) < 2:
        raise ValueError(
            f"--language_alpha is {options.language_alpha:g}, but the input "
            f"{options.input!r} does not name several languages: give INPUT=LANGUAGE pairs, "
            "{language} in a path or --language_field"
        )
    shares = mixtures.shares(sizes, options.language_alpha)
    total = sum(sizes.values())
    for name, share in shares.items():
        logging.info(
            "%s: %.2f%% of the bytes, %.2f%% for the vocabulary",
            name, 100 * sizes[name] / total, 100 * share,
        )  # fmt: skip
    return {name: share * total / sizes[name] for name, share in shares.items() if sizes[name]}


@contextlib.contextmanager
def _timed(label: str) -> Iterator[None]:
    """Shows the seconds that something takes which shows nothing itself."""
    start, done = time.monotonic(), threading.Event()

    def show() -> None:
        while not done.wait(SECONDS_SHOWN):
            shown.at(round(time.monotonic() - start))

    with progress.Progress(label, 0, " s") as shown:
        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _check_special_tokens(options: Options) -> None:
    if options.special_tokens != vocabulary_entries.BERT and options.kind != "sentencepiece":
        raise ValueError(
            f"--special_tokens is {options.special_tokens}, but a vocabulary of the kind "
            f"{options.kind} has its own: add --kind=sentencepiece, or leave it out"
        )


def _check_segmenter(options: Options) -> None:
    if options.segmenter != NO_SEGMENTER and options.kind != "sentencepiece":
        raise ValueError(
            f"--segmenter is {options.segmenter}, but words bound the pieces of a sentencepiece "
            f"model alone, and the kind is {options.kind}: add --kind=sentencepiece, or leave it "
            "out"
        )
    if options.segmenter != NO_SEGMENTER:
        segmenters.segmenter(options.segmenter)


def _check_normalization(options: Options) -> None:
    normalizations = TRAINERS[options.kind].normalizations
    if options.normalization not in normalizations:
        others = [
            name for name, kind in TRAINERS.items() if options.normalization in kind.normalizations
        ]
        raise ValueError(
            f"--normalization is {options.normalization}, but a vocabulary of the kind "
            f"{options.kind} can have {', '.join(normalizations)}: choose one of them, or another "
            f"--kind ({', '.join(others)})"
        )
    is_lowercase = options.rules.get("lowercase", False)
    try:
        normalization.check(
            _rule(options),
            lowercase=is_lowercase,
            strip_accents=is_lowercase,
            language=options.language,
        )
    except ValueError as error:
        raise ValueError(f"--normalization and --language do not fit: {error}") from error


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
    yield from chunk.upper()


def _of_letters(counts: Mapping[str, int], options: Options) -> tokenizer.Tokenizer:
    is_esm2 = options.alphabet == "esm2"
    return library_tokenizer.of_letters(
        letters.entries(options.alphabet, counts.keys()),
        {},
        # ESM-2's own rule: a small letter is unknown.
        tokenizer_class=letters.CLASS if is_esm2 else token_ids.LIBRARY_CLASS,
        is_uppercased=not is_esm2,
    )


def _composed(text: str, options: Options) -> str:
    """Returns what a sentencepiece model gets of a folded text."""
    is_released = _rule(options) == normalization.RELEASED
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


def _rule(options: Options) -> str:
    return options.rules.get("normalization", normalization.RELEASED)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """How vocabularies of a kind are made, and the `normalizations` that they can have.

    `splitter(options)` returns the function that cuts a chunk without white space into the units to
    be counted, `train(counts, options)` the tokenizer for these counts, `kept(rules)` what is left
    of a text. `export_fault(options)` tells why transformers cannot have the vocabulary, "" if it
    can.
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
            vocabulary_entries.of_wordpiece(counts, options.size, _rule(options)),
            cuts_long_words=True,
            **options.rules,
        ),
        kept=lambda rules: functools.partial(wordpiece.fold, **_of_tokenizer(rules)),
    ),
    "sentencepiece": Trainer(
        _unit_splitter,
        lambda counts, options: sentence_piece.SentencePieceTokenizer(
            vocabulary_entries.sentencepiece_model(
                counts, options.size, options.model_type, _rule(options), options.special_tokens
            ),
            composes=_rule(options) == normalization.RELEASED,
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


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
