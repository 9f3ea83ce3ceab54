"""Shows a record directory: its health report and a few examples as text; adopts foreign records.

    python -m data_pipelines.inspect_records DIR
    python -m data_pipelines.inspect_records DIR --recount --strict
    python -m data_pipelines.inspect_records DIR --adopt --vocabulary=vocab.txt

The figures are those of the manifest; `--recount` reads every record instead, and writes the counts
of tokens of records that have none. Adopting reads TFRecord files of the original BERT script once
and writes the manifest, the vocabulary and the counts into their directory, so that they can be
trained on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from etils import epath

from bertjax.cli import command_line
from bertjax.data import contents, record_files, records
from bertjax.files import atomic
from bertjax.tokenization import tokenizer
from data_pipelines.reports import health, report, report_html, statistics, value_report

BATCH_SIZE = 1024


@dataclasses.dataclass(frozen=True)
class Options:
    """Which records to show, or to adopt."""

    directory: str = command_line.option("the record directory", positional=True)
    examples: int = command_line.option("how many examples to show", default=10)
    recount: bool = command_line.option(
        "read every record and count anew, instead of trusting the manifest; writes "
        f"{contents.FILE} where there is none",
        default=False,
    )
    strict: bool = command_line.option("fail if there is anything to warn of", default=False)
    html: str = command_line.option("write the report with plots to this file", default="")
    adopt: bool = command_line.option("write a manifest for records that have none", default=False)
    vocabulary: str = command_line.option(
        "for adopt: the vocab.txt or directory that the records were made with", default=""
    )
    do_lower_case: bool | None = command_line.option(
        "for adopt: as the records were made; unset: as the vocabulary says", default=None
    )
    pattern: str = command_line.option("for adopt: the files to take", default="*tfrecord*")
    masked_lm_prob: float = command_line.option("for adopt: as the records were made", default=0.15)


def adopt(options: Options) -> records.Manifest:
    """Reads all records of a directory without manifest and writes manifest and vocabulary.

    Raises:
      FileNotFoundError: if there are no records or no vocabulary.
      FileExistsError: if there is a manifest already.
      ValueError: if a record is corrupt, or of other features, lengths or vocabulary; with
        `strict`, if there is anything to warn of.
    """
    directory = epath.Path(options.directory)
    if (directory / records.MANIFEST_FILE).exists():
        raise FileExistsError(f"{directory} has a {records.MANIFEST_FILE}; nothing is to adopt")
    if not options.vocabulary:
        raise ValueError("--adopt needs --vocabulary: the one that the records were made with")
    vocabulary = tokenizer.load(options.vocabulary, lowercase=options.do_lower_case)
    matches = (path for path in directory.glob(options.pattern) if path.is_file())
    paths = sorted(path for path in matches if path.suffix != atomic.DRAFT_SUFFIX)
    if not paths:
        raise FileNotFoundError(
            f"{directory} has no files named {options.pattern!r}; give their --pattern"
        )
    manifest = _manifest_like_first(paths[0], options, vocabulary)
    tally = _new_tally(manifest, vocabulary)
    shards = tuple(_counted_shard(path, manifest, vocabulary, tally) for path in paths)
    manifest = dataclasses.replace(manifest, shards=shards, statistics=tally.statistics(vocabulary))
    if options.strict:
        _fail_if_any(health.of_manifest(manifest))
    vocabulary.save(directory)
    tally.contents().save(directory)
    manifest.save(directory)
    return manifest


def recounted(
    record_set: records.RecordSet, vocabulary: tokenizer.Tokenizer
) -> tuple[records.Manifest, list[health.Warning]]:
    """Returns the manifest with the figures of its records as they are, and how they differ.

    What records do not tell, the figures of the text for example, is kept. All checksums are
    verified on the way. Counts of tokens that are missing are written.

    Raises:
      ValueError: if a record is damaged, or a shard not the one that the manifest describes.
    """
    manifest = record_set.manifest
    tally = _new_tally(manifest, vocabulary)
    for path, expected in zip(record_set.shard_paths, manifest.shards, strict=True):
        shard = _counted_shard(epath.Path(path), manifest, vocabulary, tally)
        if dataclasses.replace(shard, file=expected.file) != expected:
            raise ValueError(
                f"{path} has {shard.examples} examples, the manifest says {expected.examples}; "
                "copy the directory or build it again"
            )
    counted = tally.statistics(vocabulary)
    changed = [
        name
        for name, value in counted.items()
        if name in manifest.statistics and not _is_same(value, manifest.statistics[name])
    ]
    differing = "; ".join(
        f"{name}: {manifest.statistics[name]}, now {counted[name]}" for name in changed
    )
    warning = health.Warning(
        "manifest_differs",
        f"the records are not those that the manifest counted ({differing}); what it says of the "
        "text need not hold either: build the directory again",
    )
    united = dataclasses.replace(manifest, statistics={**manifest.statistics, **counted})
    warnings = [warning] if changed else []
    return united, warnings + list(_recounted_contents(record_set.directory, tally.contents()))


def _recounted_contents(
    directory: epath.Path, counted: contents.RecordSummary
) -> Iterator[health.Warning]:
    """Writes the counts of tokens if there are none, else yields how those that are there differ.

    The documents are not known here: what is there is never replaced by less.
    """
    name = "contents_differ"
    try:
        summary = contents.load(directory)
    except ValueError as error:
        yield health.Warning(name, str(error))
        return
    if summary is None:
        try:
            counted.save(directory)
        except OSError as error:
            yield health.Warning(name, f"{contents.FILE} could not be written: {error}")
    elif not np.array_equal(summary.token_counts, counted.token_counts):
        yield health.Warning(
            name,
            f"{directory / contents.FILE} tells other counts of tokens than the records have, so "
            "unigram_loss would be wrong: build the directory again, or remove the file and count "
            "again (the hashes of its documents are lost then)",
        )


def main(options: Options) -> None:
    """Prints the report and the first examples, after adopting if that is asked for.

    Raises:
      ValueError: if the records are damaged; with `strict`, if there is anything to warn of.
    """
    if options.adopt:
        adopt(options)
    record_set = records.open(options.directory)
    if not record_set.manifest.tokenizer:
        _show_values(options, record_set)
        return
    manifest, warnings = record_set.manifest, []
    vocabulary = tokenizer.load(options.directory)
    if options.recount:
        if vocabulary.describe()["sha256"] != manifest.tokenizer_sha256:
            raise ValueError(
                f"the vocabulary in {options.directory} is not the one that its manifest names: "
                "put that back"
            )
        manifest, warnings = recounted(record_set, vocabulary)
    warnings += health.of_manifest(manifest)
    shown = list(report.decoded(options.directory, manifest, vocabulary, options.examples))
    command_line.print_report(*report.lines(manifest, warnings))
    if shown:
        command_line.print_report("", f"Examples: {report.LEGEND}", *map(str, shown))
    if options.html:
        epath.Path(options.html).write_text(report_html.page(manifest, shown, warnings))
    if options.strict:
        _fail_if_any(warnings)


def _show_values(options: Options, record_set: records.RecordSet) -> None:
    """Prints what records of values hold, and draws some rows where a page is asked for."""
    if options.recount:
        raise ValueError(
            f"--recount counts tokens, and {options.directory} holds none: leave it out"
        )
    command_line.print_report(*value_report.lines(record_set.manifest))
    if options.html:
        rows = max(min(options.examples, record_set.manifest.num_examples), 1)
        drawn = value_report.picture(record_set, rows)
        epath.Path(options.html).write_text(value_report.page(record_set.manifest, drawn))


def _fail_if_any(warnings: list[health.Warning]) -> None:
    if warnings:
        texts = "\n  ".join(warning.text for warning in warnings)
        raise ValueError(f"with --strict no warnings may be left, but:\n  {texts}")


def _new_tally(
    manifest: records.Manifest, vocabulary: tokenizer.Tokenizer
) -> statistics.ExampleTally:
    return statistics.ExampleTally(
        vocabulary,
        max_seq_length=manifest.max_seq_length,
        pair_objective=manifest.pair_objective,
        max_sequences_per_row=manifest.max_sequences_per_row,
    )


def _is_same(value: Any, other: Any) -> bool:
    """Returns whether two figures are equal but for what JSON and summing do to them."""
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(_is_same(value[k], other[k]) for k in value)
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_is_same, value, other))
    return value == other


def _manifest_like_first(
    path: epath.Path, options: Options, vocabulary: tokenizer.Tokenizer
) -> records.Manifest:
    """Returns a manifest without shards, with the lengths of the first record of a file."""
    tf = records.import_tensorflow()
    from google.protobuf import message

    try:
        serialized = next(iter(record_files.serialized(path).take(1)), None)
        example = tf.train.Example.FromString(serialized.numpy() if serialized is not None else b"")
    except (tf.errors.DataLossError, ValueError, message.DecodeError) as error:
        raise ValueError(f"{path} is not a TFRecord file of examples: {error}") from error
    features = example.features.feature
    missing = [
        name for name in (*records.TOKEN_FEATURES, *records.MASK_FEATURES) if name not in features
    ]
    if missing:
        raise ValueError(
            f"the first record of {path} lacks {', '.join(missing)}; records of the original "
            f"create_pretraining_data.py hold them (found: {', '.join(sorted(features)) or 'none'})"
        )
    arguments = dataclasses.asdict(options)
    return records.Manifest(
        tokenizer=vocabulary.describe(),
        max_seq_length=len(features["input_ids"].int64_list.value),
        max_predictions_per_seq=len(features["masked_lm_ids"].int64_list.value),
        masked_lm_prob=options.masked_lm_prob,
        pair_objective="nsp" if records.PAIR_FEATURE in features else "none",
        shards=(),
        seed=0,
        arguments=arguments,
        statistics={},
    )


def _counted_shard(
    path: epath.Path,
    manifest: records.Manifest,
    vocabulary: tokenizer.Tokenizer,
    tally: statistics.ExampleTally,
) -> records.Shard:
    count = 0
    for batch in report.read_batches(path, manifest, BATCH_SIZE):
        misfit = records.first_misfit(batch, manifest)
        if misfit is not None:
            row, fault = misfit
            raise ValueError(
                f"record {count + row} (from 0) of {path} does not fit: {fault}; give the "
                "--vocabulary of the records, or make them again"
            )
        if (batch["input_ids"][:, 0] != vocabulary.cls_id).any():
            raise ValueError(
                f"{path} has examples that do not begin with id {vocabulary.cls_id}, the "
                "vocabulary's [CLS]; give the --vocabulary of the records"
            )
        tally.add(batch)
        count += len(batch["input_ids"])
    return records.Shard(file=path.name, examples=count, bytes=path.stat().length)


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
