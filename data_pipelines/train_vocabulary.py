"""Trains a vocabulary, and says how well it covers text that it has not seen.

    python -m data_pipelines.train_vocabulary --input='corpus/*.txt' --output=DIR --size=30522

The text is read once and counted; the trainers see words and how often they stand there. The same
input and options give the same bytes, on any number of cores.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from absl import logging
from etils import epath

from bertjax.cli import command_line
from bertjax.data import mixtures
from bertjax.files import output
from bertjax.tokenization import tokenizer, wordpiece
from data_pipelines import progress
from data_pipelines.documents import sources
from data_pipelines.reports import by_script, health, losses, scripts
from data_pipelines.vocabulary import coverage, trainers, unit_counts, vocabulary_extension
from data_pipelines.vocabulary.trainers import TRAINERS, Options

# The share of combining marks from which on cutting before them costs much: Vietnamese in NFC has
# none, Hindi 35%.
MUCH_MARKS = 0.02

ALL = ""  # the coverage of the text in all languages
# The characters of a text from which on it has an automatic size; a word of English has six.
SIZES = {0: 4_096, 5_000_000: 8_192, 50_000_000: 16_384, 500_000_000: 32_768}
SAMPLE_CHARACTERS = 1_000_000  # of the first documents, which decide the automatic kind

SECONDS_SHOWN = 1.0  # between two looks at the clock


def train_vocabulary(
    options: Options,
) -> tuple[tokenizer.Tokenizer, coverage.Coverage, losses.LostMarks]:
    """Trains, saves into `options.output` and returns the tokenizer and its held-out coverage.

    The third is what its normalization loses of the text.

    Where the hash holds out no document, coverage is measured on the last one, which is also
    trained on.

    Raises:
      FileNotFoundError: if there is no input.
      FileExistsError: if there is a vocabulary already and it is not to be overwritten, or is not
        one that was trained here.
      ValueError: if options or text do not allow a vocabulary.
    """
    if options.extend:
        return _extended(options)
    options = _with_kind(options)
    trainers.check(options)
    target = _output(options)
    lost = losses.LostMarks(
        TRAINERS[options.kind].kept(options.rules),
        lowercase=options.rules.get("lowercase", False),
        language=options.language,
    )
    is_lossless = options.normalization in losses.KEEPS_ALL
    splitter = TRAINERS[options.kind].splitter(options)
    seen, unseen = _counted(options, splitter, options.rule, None if is_lossless else lost)
    options = _with_size(options, seen)
    with _timed(f"training a vocabulary of the kind {options.kind}"):
        trained = TRAINERS[options.kind].train(seen, options)
    _save(trained, target)
    return trained, _covered(trained, unseen), lost


def _extended(
    options: Options,
) -> tuple[tokenizer.Tokenizer, coverage.Coverage, losses.LostMarks]:
    """Returns what `train_vocabulary` does, of a vocabulary that is extended."""
    trainers.check(options)
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
    if trained.letters:
        share, held_out = measured.unknown_rate, f"{measured.words:,} held-out sequences"
        return command_line.print_report(f"on {held_out}: {share:.4%} of the letters unknown")
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
    if options.kind != trainers.AUTO:
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


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
