r"""Text to records: sentences, tokens, examples, masks, a global shuffle, shards and a manifest.

    python -m data_pipelines.build --input='corpus/*.txt' --vocabulary=DIR_OR_VOCAB_TXT \
        --output=DIR --max_seq_length=128

The output is a function of input, vocabulary and options, whatever the number of processes. It
appears under its name only when it is complete; until then the work lies in `DIR.partial`, and the
same command continues it.
"""

from __future__ import annotations

import errno
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from bertjax.cli import command_line
from bertjax.data import fasta, records
from bertjax.tokenization import letters, tokenizer
from data_pipelines.building import blocks, builders, exact, fast, language_builds, tfds_metadata
from data_pipelines.building.options import Options, checked
from data_pipelines.documents import deduplication, segmenters, sources
from data_pipelines.formats import input_files
from data_pipelines.partial_output import PartialOutput
from data_pipelines.reports import health, report, report_html

REPORT_FILE = "report.html"
HEAD_BYTES = 1 << 10
SHOWN_EXAMPLES = 10

# The options that decide the tokens; the others decide the examples.
TOKEN_OPTIONS = (
    *("algorithm", "input", "split", "heldout_fraction", "sentence_splitter", "segmenter"),
    *("count_words", "sentence_ends"),
    *(
        "text_field",
        "delimiter",
        "encoding",
        "deduplicate",
        "language",
        "language_field",
        "one_document_per_file",
        "do_lower_case",
    ),
)


# Algorithm -> what writes the shards. The Beam pipeline is another for "fast", with the same bytes.
BUILDERS: dict[str, builders.Builder] = {"fast": fast.build, "exact": exact.build}


def build(options: Options, make: builders.Builder | None = None) -> records.Manifest:
    """Writes the record directory that `options` describe and returns its manifest.

    `make` writes the shards; by default the algorithm of the options does.

    Raises:
      FileNotFoundError: if there is no input or no vocabulary.
      FileExistsError: if the output exists and is not to be overwritten.
      ValueError: if options, vocabulary or text do not allow a single correct record; with
        `strict`, if there is something to warn of.
      OSError: if the disk is full; finished work is kept, and the same command continues.
    """
    options = checked(options)
    with PartialOutput(
        options.output, scratch=options.scratch, overwrite=options.overwrite
    ) as output:
        try:
            return _build(options, output, make)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            # A full disk does not always say where it is.
            hint = f"{error.strerror}, with what is finished kept for the same command"
            raise OSError(error.errno, hint, error.filename or str(output.scratch)) from error


def _build(
    options: Options, output: PartialOutput, make: builders.Builder | None
) -> records.Manifest:
    vocabulary = blocks.Vocabulary.of(options.vocabulary, options.do_lower_case)
    units = sources.stored(sources.units(options.input), output.input)
    sources.check_units(units, options.reading)
    stamps = sources.stamps(units)
    _check_kinds(units, options.reading, vocabulary)
    of_text = {
        "segmenter": options.stores_words,
        "count_words": options.count_words,
        "sentence_ends": options.sentence_ends,
    }
    given = [name for name, is_given in of_text.items() if is_given]
    if given and vocabulary.load().kind == tokenizer.IntegerTokenizer.kind:
        raise ValueError(
            f"{given[0]} is {getattr(options, given[0])!r}, but the vocabulary {vocabulary.path} "
            "is one of integers, which have no words or sentences: leave it out"
        )
    if fault := deduplication.fault(options.deduplicate, units):
        raise ValueError(fault)
    output.begin(*_keys(options, vocabulary, stamps))
    of_languages = language_builds.units_by_language(units, options, output.input)
    one = functools.partial(_records, vocabulary=vocabulary, make=make)
    if len(of_languages) > 1:
        manifest = language_builds.build(of_languages, options, output, one, vocabulary.load())
        _write_report(output.records, manifest, vocabulary.load())
    else:
        ((language, of_language),) = of_languages.items()
        manifest = one(language_builds.in_language(options, language), of_language, output)
    sources.check_unchanged(units, stamps)
    output.publish()
    return manifest


def _records(
    options: Options,
    units: Sequence[sources.Unit],
    output: PartialOutput,
    *,
    vocabulary: blocks.Vocabulary,
    make: builders.Builder | None,
) -> records.Manifest:
    """Writes the records of one language, or of text of unknown language, into `output.records`."""
    # The number of files that could be a document each.
    forms = [sources.FORMATS[unit.format] for unit in units]
    text_files = sum("one_document_per_file" in form.uses for form in forms)
    judge, loaded = _Judge(options, vocabulary, text_files), vocabulary.load()
    make = make or BUILDERS[options.algorithm]
    content = make(options, vocabulary, units, output, judge)
    judge(content.statistics)
    figures = {**content.statistics, "text_files": text_files}
    if pipes := [unit for unit in units if unit.sha256]:
        figures["pipes"] = {"count": len(pipes), "bytes": sum(unit.bytes for unit in pipes)}
    if options.stores_words:
        figures["segmenter"] = segmenters.versions(options.segmenter)
    manifest = records.Manifest(
        tokenizer=loaded.describe(),
        max_seq_length=options.max_seq_length,
        max_predictions_per_seq=options.max_predictions_per_seq,
        masked_lm_prob=options.masked_lm_prob,
        pair_objective=options.pair_objective,
        shards=content.shards,
        seed=options.random_seed,
        arguments=options.content(),
        statistics=figures,
        max_sequences_per_row=options.max_sequences_per_row,
        features=records.text_features(
            max_predictions_per_seq=options.max_predictions_per_seq,
            pair_objective=options.pair_objective,
            max_sequences_per_row=options.max_sequences_per_row,
            stores_words=options.stores_words,
            counts_words=options.count_words,
            stores_sentence_ends=options.sentence_ends,
        ),
        languages=language_builds.figures(options.language, figures, content.shards),
    )
    for part in (content.contents, loaded, manifest):
        part.save(output.records)
    tfds_metadata.write(output.records, manifest)
    _write_report(output.records, manifest, loaded)
    return manifest


def _write_report(
    directory: epath.Path, manifest: records.Manifest, vocabulary: tokenizer.Tokenizer
) -> None:
    """Writes report.html of a finished record directory into it."""
    shown = report.decoded(directory, manifest, vocabulary, SHOWN_EXAMPLES)
    page = report_html.page(manifest, list(shown))
    (directory / REPORT_FILE).write_bytes(page.encode())


def main(options: Options) -> None:
    """Builds and prints the health report."""
    command_line.print_report(*report.lines(build(options)))


class _Judge:
    """Logs each warning about the figures so far once; with --strict raises ValueError."""

    def __init__(self, options: Options, vocabulary: blocks.Vocabulary, text_files: int):
        self._options, self._vocabulary, self._text_files = options, vocabulary, text_files
        self._said: set[str] = set()

    def __call__(self, statistics: Mapping[str, Any]) -> None:
        warnings = health.warnings(
            {**statistics, "text_files": self._text_files},
            max_seq_length=self._options.max_seq_length,
            pair_objective=self._options.pair_objective,
            vocab_size=self._vocabulary.vocab_size,
            masked_lm_prob=self._options.masked_lm_prob,
            split=self._options.split,
            kind=health.kind_of(self._vocabulary.load().describe()),
            options=self._options.content(),
        )
        if warnings and self._options.strict:
            texts = "\n  ".join(warning.text for warning in warnings)
            raise ValueError(
                f"nothing is written, because --strict makes an error of each warning:\n  {texts}"
            )
        for warning in warnings:
            if warning.name not in self._said:
                of_language = f"{self._options.language}: " if self._options.language else ""
                logging.warning("%s%s", of_language, warning.text)
                self._said.add(warning.name)


def _check_kinds(
    units: Sequence[sources.Unit], reading: sources.Reading, vocabulary: blocks.Vocabulary
) -> None:
    """Raises ValueError if token ids were to be read as text, or small letters as capitals."""
    alphabet = vocabulary.load().letters
    for unit in units:
        if unit.format == "fasta" and alphabet - {*letters.cleaned("".join(alphabet) + "A")}:
            raise ValueError(
                f"{unit.location} is FASTA, which is read as capitals without digits, and the "
                f"vocabulary {vocabulary.path} has others: give the sequences as .txt"
            )
        is_text = alphabet and unit.format == sources.TEXT
        if is_text and fasta.begins(input_files.head(unit.location, HEAD_BYTES)):
            raise ValueError(
                f"{unit.location} looks like FASTA or FASTQ: name the file .fasta or .fastq"
            )
    if vocabulary.load().kind == tokenizer.IntegerTokenizer.kind:
        return
    for unit in units:
        if sources.FORMATS[unit.format].holds_integers(unit.location, reading):
            raise ValueError(
                f"{unit.location} holds integers, but the vocabulary {vocabulary.path} is one of "
                f"text ({vocabulary.load().kind}): give an integers.json, which names vocab_size "
                "and the special ids (docs/data.md)"
            )


def _keys(
    options: Options, vocabulary: blocks.Vocabulary, stamps: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what the tokens, and what the examples, of an unfinished build must have been for."""
    content = options.content()
    listing = hashlib.blake2b(digest_size=8)
    for location, stamp in stamps.items():
        listing.update(f"{location} {stamp}\n".encode("utf-8", "surrogateescape"))
    tokens = {name: content[name] for name in TOKEN_OPTIONS} | {
        "vocabulary": vocabulary.sha256,
        "input files": listing.hexdigest(),
        "separators": options.separates_documents,
        "longest sentence": options.longest_sentence,
    }
    return tokens, content


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
