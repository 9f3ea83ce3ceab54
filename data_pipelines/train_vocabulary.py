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
import io
import itertools
import json
import threading
import time
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
import tokenizers
from absl import logging
from etils import epath

from bertjax.data import (
    byte_bpe,
    delimiters,
    directories,
    normalization,
    sentence_piece,
    text_encodings,
    tokenizer,
    wordpiece,
)
from data_pipelines import command_line, progress, scripts, sources
from data_pipelines.reports import health, losses

SPECIALS = (wordpiece.PAD, wordpiece.UNK, wordpiece.CLS, wordpiece.SEP, wordpiece.MASK)
# Characters beyond the thousand most frequent, and beyond those that this share of the text
# consists of, become [UNK] rather than entries. (The share is sentencepiece's default.)
ALPHABET_SIZE = 1000
CHARACTER_COVERAGE = 0.9995
MINIMUM_PAIR_FREQUENCY = 2

# The share of combining marks from which on cutting before them costs much: Vietnamese in NFC has
# none, Hindi 35%.
MUCH_MARKS = 0.02

# Bounds of memory. English has 3 million characters of distinct words in 60 MB of novels.
FOLD_CHARACTERS = 2**24
MAX_DISTINCT_CHARACTERS = 2**25
# Text without white space is cut into units of this number of characters, for sentencepiece.
MAX_UNIT_CHARACTERS = 1000

AUTO = "auto"
# The characters of a text from which on it has an automatic size; a word of English has six.
SIZES = {0: 4_096, 5_000_000: 8_192, 50_000_000: 16_384, 500_000_000: 32_768}
MOST_ENTRIES = 10_000_000  # the trainers take memory for all of them before they begin
SAMPLE_CHARACTERS = 1_000_000  # of the first documents, which decide the automatic kind

SECONDS_SHOWN = 1.0  # between two looks at the clock

MODEL_TYPES = ("unigram", "bpe")
# The sums that sentencepiece makes depend on the number of threads that share them, so this is
# not the number of cores.
SENTENCEPIECE_THREADS = 2


@dataclasses.dataclass(frozen=True)
class Options:
    """The input and the kind of vocabulary."""

    input: str = command_line.option(sources.help_text)
    output: str = command_line.option("the directory for vocabulary and tokenizer_config.json")
    kind: str = command_line.option(
        "wordpiece as BERT has it, a sentencepiece model, or byte_bpe as RoBERTa has it; auto: "
        "sentencepiece where the text writes no spaces between words, else wordpiece",
        choices=lambda: (*TRAINERS, AUTO),
        default="wordpiece",
    )
    model_type: str = command_line.option(
        "the kind of sentencepiece model", choices=lambda: MODEL_TYPES, default="unigram"
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
    heldout_fraction: float = command_line.option(
        "share of documents to measure on and not to train on, chosen by a hash of their id",
        default=0.02,
    )
    one_document_per_file: bool = command_line.option(
        lambda: (
            f"files ({sources.formats_that_heed('one_document_per_file')}) are documents; "
            "otherwise blank lines separate them"
        ),
        default=False,
    )
    text_field: str = command_line.option(
        lambda: f"the field with the text of a record ({sources.formats_that_heed('text_field')})",
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


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How a vocabulary does on a text: [UNK] per token, and tokens per white-space word.

    `characters_per_token` is 0 unless the script writes no spaces between words: then it is shown.
    `mark_share` is the share of the characters that combine with the letter before them.
    """

    words: int
    fertility: float
    unknown_rate: float
    characters_per_token: float = 0.0
    mark_share: float = 0.0

    @property
    def granularity(self) -> str:
        """The size of tokens, in words."""
        if self.characters_per_token:
            return f"{self.characters_per_token:.2f} characters per token"
        return f"{self.fertility:.3f} tokens per word"


class Counts:
    """How often each unit stands in a text, in bounded memory.

    `split` turns what stands between white space, as `rule` judges it, into units, for example
    words and punctuation. `lost` counts what the rules for a text lose.
    Beyond `MAX_DISTINCT_CHARACTERS` a growing share of the rarest units is forgotten, chosen by a
    hash of the unit.
    """

    def __init__(
        self,
        split: Callable[[str], Iterable[str]],
        lost: losses.LostMarks | None = None,
        rule: str = normalization.RELEASED,
    ):
        self._split, self._lost, self._rule = split, lost, rule
        self._chunks: collections.Counter[str] = collections.Counter()
        self._units: collections.Counter[str] = collections.Counter()
        self._characters = 0
        self._forgetting = 0

    def add(self, text: str) -> None:
        """Counts a text."""
        self._chunks.update(wordpiece.chunks(text, self._rule))
        self._characters += len(text)
        if self._characters >= FOLD_CHARACTERS:
            self.units()

    def units(self) -> Mapping[str, int]:
        """Returns the counts, in an order that the text alone decides."""
        for chunk, count in self._chunks.items():
            for unit in self._split(chunk):
                self._units[unit] += count
            if self._lost:
                self._lost.add(chunk, count)
        self._chunks.clear()
        self._characters = 0
        if _size(self._units) > MAX_DISTINCT_CHARACTERS:
            self._forget()
        return self._units

    def _forget(self) -> None:
        # Units that came since the last time are dropped at the share of that time, and more of
        # them if that is too few.
        share = 2**self._forgetting
        self._units = collections.Counter(
            {
                unit: count
                for unit, count in self._units.items()
                if count >= share or zlib.crc32(unit.encode()) % share == 0
            }
        )
        if _size(self._units) > MAX_DISTINCT_CHARACTERS // 2:
            self._forgetting += 1
            self._forget()


def _size(counts: Mapping[str, int]) -> int:
    return sum(map(len, counts))


def wordpiece_entries(word_counts: Mapping[str, int], size: int, rule: str) -> list[str]:
    """Returns at most `size` entries for words with these counts, normalized by `rule`.

    The specials, the characters and their continuation forms in code point order, then merged
    pieces by frequency.

    Raises:
      ValueError: if there is no word or `size` does not hold the characters.
    """
    alphabet = _alphabet(_character_counts(word_counts))
    # The trainer of tokenizers 0.23 numbers continuation characters in hash order, which decides
    # ties between merges. Seeded as special tokens in sorted order they have fixed numbers.
    # Neither punctuation nor CJK continues a word.
    inner = [
        one for one in alphabet if len(wordpiece.split_words(f"a{one}", normalization=rule)) == 1
    ]
    seeds = [*SPECIALS, *alphabet, *(f"{wordpiece.CONTINUATION}{one}" for one in inner)]
    if len(seeds) > size:
        raise ValueError(
            f"size is {size}, but the text has {len(alphabet)} characters, which with their "
            f"continuation forms and the special tokens take {len(seeds)} entries: give a larger "
            "size"
        )
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=MINIMUM_PAIR_FREQUENCY,
        special_tokens=seeds,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    trained = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=wordpiece.UNK))
    trained.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trained.train_from_iterator(_repeated(word_counts), trainer)
    ids = trained.get_vocab(with_added_tokens=False)
    return sorted(ids, key=lambda entry: ids[entry])


def sentencepiece_model(
    unit_counts: Mapping[str, int], size: int, model_type: str, rule: str
) -> bytes:
    """Returns a model of at most `size` pieces for units with these counts.

    The special tokens have the ids and names of a WordPiece vocabulary made here. By the released
    rule the model normalizes the text itself; by any other it leaves it as it is.

    Raises:
      ValueError: if sentencepiece cannot make a model of them.
    """
    characters = _character_counts(unit_counts)
    covered = sum(characters[character] for character in _alphabet(characters))
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{unit}\t{count}" for unit, count in unit_counts.items()),
            input_format="tsv",
            model_writer=written,
            model_type=model_type,
            normalization_rule_name=(
                sentence_piece.FOLDED_LATER[0]
                if rule == normalization.RELEASED
                else sentence_piece.IDENTITY
            ),
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=covered / characters.total(),
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=wordpiece.PAD,
            unk_piece=wordpiece.UNK,
            control_symbols=list(SPECIALS[2:]),
            max_sentence_length=8 * MAX_UNIT_CHARACTERS,
            num_threads=SENTENCEPIECE_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(f"size is {size}; sentencepiece says: {error}") from error
    return written.getvalue()


def byte_bpe_merges(
    unit_counts: Mapping[str, int], size: int
) -> tuple[list[str], list[byte_bpe.Merge]]:
    """Returns at most `size` entries, and the merges, for units with these counts.

    The specials in RoBERTa's order, the 256 bytes, then the merged pieces, the most frequent first.

    Raises:
      ValueError: if there is no unit or `size` does not hold the bytes.
    """
    least = len(byte_bpe.SPECIALS) + len(byte_bpe.BYTES)
    if size < least:
        raise ValueError(
            f"size is {size}; it must be at least {least}, for the {len(byte_bpe.BYTES)} bytes and "
            f"the {len(byte_bpe.SPECIALS)} special tokens"
        )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=MINIMUM_PAIR_FREQUENCY,
        special_tokens=list(byte_bpe.SPECIALS),
        initial_alphabet=sorted(byte_bpe.BYTES),
        show_progress=False,
    )
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            tokenizers.pre_tokenizers.Split("\n", behavior="removed"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trained.train_from_iterator(_repeated(unit_counts, "\n"), trainer)
    model = json.loads(trained.to_str())["model"]
    return byte_bpe.entries(model["vocab"]), byte_bpe.merges_of(model["merges"])


def coverage(vocabulary: tokenizer.Tokenizer, chunk_counts: Mapping[str, int]) -> Coverage:
    """Returns the coverage of white-space-separated words with these counts."""
    counts = np.fromiter(chunk_counts.values(), np.int64, len(chunk_counts))
    blank = " " if vocabulary.keeps_blanks else ""
    ids, lengths = vocabulary.encode_flat([f"{blank}{chunk}" for chunk in chunk_counts])
    words, tokens = int(counts.sum()), int(lengths @ counts)
    unknown = int((ids == vocabulary.unk_id) @ np.repeat(counts, lengths))
    characters, unspaced, marks = (
        sum(count * of(chunk) for chunk, count in chunk_counts.items())
        for of in (len, scripts.unspaced_characters, scripts.marks)
    )
    has_spaces = unspaced < scripts.UNSPACED_SHARE * characters
    return Coverage(
        words,
        fertility=tokens / max(words, 1),
        unknown_rate=unknown / max(tokens, 1),
        characters_per_token=0.0 if has_spaces else characters / max(tokens, 1),
        mark_share=marks / max(characters, 1),
    )


def train_vocabulary(
    options: Options,
) -> tuple[tokenizer.Tokenizer, Coverage, losses.LostMarks]:
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
    output = epath.Path(options.output)
    options = _with_kind(options)
    _check_normalization(options)
    kinds = tokenizer.TOKENIZERS.values()
    names = [name for kind in kinds for name in (kind.file, *kind.companions)]
    names.append(wordpiece.CONFIG_FILE)
    existing = [name for name in dict.fromkeys(names) if (output / name).exists()]
    if existing and not options.overwrite:
        raise FileExistsError(
            f"{output / existing[0]} exists; choose another output or replace it with --overwrite"
        )
    # Beside files of others, but never in the place of a vocabulary of others.
    is_new = directories.check_free(output, "vocabulary", existing, advice="give another --output")
    lost = losses.LostMarks(
        TRAINERS[options.kind].kept(options.rules),
        lowercase=options.rules.get("lowercase", False),
        language=options.language,
    )
    is_lossless = options.normalization in losses.KEEPS_ALL
    seen, unseen = _counted(options, None if is_lossless else lost)
    options = _with_size(options, seen)
    with _timed(f"training a vocabulary of the kind {options.kind}"):
        trained = TRAINERS[options.kind].train(seen, options)
    _save(trained, output, existing)
    if is_new:
        directories.mark(output, "vocabulary")
    return trained, coverage(trained, unseen), lost


def _save(trained: tokenizer.Tokenizer, output: epath.Path, existing: Sequence[str]) -> None:
    """Saves a vocabulary in place of the files `existing`, which stay until all new ones are there.

    Raises:
      OSError: naming the directory, if the disk is full.
    """
    try:
        with directories.drafting(output) as draft:
            trained.save(draft)
            output.mkdir(parents=True, exist_ok=True)
            written = {path.name: path for path in draft.iterdir()}
            for name, path in written.items():
                path.replace(output / name)
    except OSError as error:
        if error.filename is None and error.errno is not None:
            hint = f"{error.strerror}; nothing was saved or replaced"
            raise OSError(error.errno, hint, str(output)) from error
        raise
    for name in {*existing} - written.keys():
        (output / name).unlink()


def main(options: Options) -> None:
    """Trains and prints the size and the held-out coverage."""
    options = _with_kind(options)
    if why := TRAINERS[options.kind].export_fault(options):
        logging.warning("transformers cannot have this vocabulary: %s", why)
    trained, measured, lost = train_vocabulary(options)
    print(f"vocabulary of {trained.vocab_size:,} entries in {options.output}")
    print(
        f"on {measured.words:,} held-out words: {measured.granularity}, "
        f"{measured.unknown_rate:.4%} of the tokens unknown"
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
        log(
            "%s: --normalization=nfc keeps them",
            losses.described(share, losses.commonest(lost.changes)),
        )
    if trained.vocab_size < options.size:
        print(f"fewer than the {options.size:,} asked for: the text has no more pieces")


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
    options: Options, lost: losses.LostMarks | None
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Returns the units to train on, and the white-space-separated words to measure on."""
    rule = _rule(options)
    seen = Counts(TRAINERS[options.kind].splitter(options), lost, rule)
    unseen = Counts(lambda chunk: [chunk], lost, rule)
    last, log = "", sources.Log()
    num_documents = num_lines = 0
    documents = sources.documents(options.input, _reading(options), log)
    with progress.Progress("reading", 0, "B") as shown:
        for document in documents:
            text = sources.prose(document, log)
            num_documents, num_lines = num_documents + 1, num_lines + 1 + text.count("\n")
            if document.held_out:
                unseen.add(text)
            else:
                seen.add(text)
                last = text if text.strip() else last
            shown.at(log.bytes_read)
    for warning in health.reading(log.statistics(), num_documents, num_lines):
        logging.warning("%s", warning.text)
    if not last:
        raise ValueError(f"input {options.input!r} holds no text to train on; give other files")
    if not unseen.units():
        unseen = Counts(lambda chunk: [chunk], rule=rule)  # Its losses are counted already.
        unseen.add(last)
    return seen.units(), unseen.units()


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

    def split(chunk: str) -> Iterator[str]:
        for word in wordpiece.split_words(chunk, **whole):
            if len(word) <= wordpiece.MAX_INPUT_CHARS_PER_WORD:  # Longer ones are [UNK] anyhow.
                yield word

    return split


def _unit_splitter(options: Options) -> Callable[[str], Iterable[str]]:
    whole = _of_tokenizer(options.rules)

    def split(chunk: str) -> Iterator[str]:
        folded = sentence_piece.fold(chunk, **whole).strip()
        for first in range(0, len(folded), MAX_UNIT_CHARACTERS):
            yield folded[first : first + MAX_UNIT_CHARACTERS]

    return split


def _piece_splitter(options: Options) -> Callable[[str], Iterable[str]]:
    rules = options.rules
    cut = byte_bpe.cutter(keeps_marks=options.keep_marks).pre_tokenize_str

    def split(chunk: str) -> Iterator[str]:
        text = f" {normalization.in_form(rules['normalization'], chunk)}"
        for _, (start, end) in cut(text):
            yield text[start:end]

    return split


def _kept_by_pieces(rules: Mapping[str, Any]) -> Callable[[str], str]:
    whole = _of_tokenizer(rules)
    if "normalization" in rules:
        return functools.partial(sentence_piece.fold, **whole)
    # The model's own normalization is Unicode's NFKC but for single characters.
    return lambda text: unicodedata.normalize("NFKC", sentence_piece.fold(text, **whole))


def _rule(options: Options) -> str:
    return options.rules.get("normalization", normalization.RELEASED)


def _character_counts(unit_counts: Mapping[str, int]) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter()
    for unit, count in unit_counts.items():
        for character in unit:
            counts[character] += count
    return counts


def _alphabet(characters: collections.Counter[str]) -> list[str]:
    """Returns the most frequent of the counted characters, in code point order."""
    if not any(character.isprintable() for character in characters):
        raise ValueError("the text holds no visible characters; a vocabulary needs some")
    by_frequency = sorted(characters, key=lambda character: (-characters[character], character))
    shares = itertools.accumulate(characters[character] for character in by_frequency)
    enough = sum(share < CHARACTER_COVERAGE * characters.total() for share in shares) + 1
    return sorted(by_frequency[: max(enough, ALPHABET_SIZE)])


def _repeated(word_counts: Mapping[str, int], separator: str = " ") -> Iterator[str]:
    """Yields every word as often as it occurs, in strings of at most 2^16 copies."""
    for word, count in word_counts.items():
        for start in range(0, count, 2**16):
            yield f"{word}{separator}" * min(2**16, count - start)


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
            wordpiece_entries(counts, options.size, _rule(options)), **options.rules
        ),
        kept=lambda rules: functools.partial(wordpiece.fold, **_of_tokenizer(rules)),
    ),
    "sentencepiece": Trainer(
        _unit_splitter,
        lambda counts, options: sentence_piece.SentencePieceTokenizer(
            sentencepiece_model(counts, options.size, options.model_type, _rule(options)),
            **options.rules,
        ),
        kept=_kept_by_pieces,
        export_fault=lambda options: sentence_piece.type_export_fault(options.model_type),
    ),
    "byte_bpe": Trainer(
        _piece_splitter,
        lambda counts, options: byte_bpe.ByteBpeTokenizer(
            *byte_bpe_merges(counts, options.size),
            add_prefix_space=options.add_prefix_space,
            keeps_marks=options.keep_marks,
            **options.rules,
        ),
        kept=lambda rules: functools.partial(normalization.in_form, rules["normalization"]),
        normalizations=tuple(normalization.FORMS),
    ),
}


if __name__ == "__main__":
    command_line.run(Options, main)
