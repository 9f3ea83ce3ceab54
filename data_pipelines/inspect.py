"""Shows a record directory: its health report and a few examples as text; adopts foreign records.

    python -m data_pipelines.inspect DIR
    python -m data_pipelines.inspect DIR --adopt --vocabulary=vocab.txt

Adopting reads TFRecord files of the original BERT script once and writes the manifest and the
vocabulary beside them, so that they can be trained on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from etils import epath

from bertjax.data import records, tokenizer
from data_pipelines import command_line, report

BATCH_SIZE = 1024


@dataclasses.dataclass(frozen=True)
class Options:
    """Which records to show, or to adopt."""

    directory: str = command_line.option("the record directory")
    examples: int = command_line.option("how many examples to print", default=3)
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
      ValueError: if a record is corrupt, or of other features, lengths or vocabulary.
    """
    directory = epath.Path(options.directory)
    if (directory / records.MANIFEST_FILE).exists():
        raise FileExistsError(f"{directory} has a {records.MANIFEST_FILE}; nothing is to adopt")
    if not options.vocabulary:
        raise ValueError("--adopt needs --vocabulary: the one that the records were made with")
    vocabulary = tokenizer.load(options.vocabulary, lowercase=options.do_lower_case)
    paths = sorted(path for path in directory.glob(options.pattern) if path.is_file())
    if not paths:
        raise FileNotFoundError(
            f"{directory} has no files named {options.pattern!r}; give their --pattern"
        )
    manifest = _manifest_like_first(paths[0], options, vocabulary)
    tally = report.Tally(vocabulary)
    shards = tuple(_adopted_shard(path, manifest, vocabulary, tally) for path in paths)
    manifest = dataclasses.replace(manifest, shards=shards, statistics=tally.statistics())
    vocabulary.save(directory)
    manifest.save(directory)
    return manifest


def decoded(manifest: records.Manifest, vocabulary: tokenizer.Tokenizer, batch: Any) -> Iterator:
    """Yields each example of a batch as text, with what is hidden and the pair label."""
    for row in range(len(batch["input_ids"])):
        length = int(batch["input_mask"][row].sum())
        text = vocabulary.decode(batch["input_ids"][row, :length].tolist())
        if manifest.has_static_masks:
            used = batch["masked_lm_weights"][row] > 0
            hidden = [vocabulary.token(int(i)) for i in batch["masked_lm_ids"][row][used]]
            text += f"\n    hidden: {' '.join(hidden)}"
        if records.PAIR_FEATURE in batch:
            label = "random" if batch[records.PAIR_FEATURE][row] else "next"
            text += f"\n    second segment: {label}"
        yield text


def main(options: Options) -> None:
    """Prints the report and the first examples, after adopting if that is asked for."""
    if options.adopt:
        adopt(options)
    record_set = records.open(options.directory)
    manifest = record_set.manifest
    print("\n".join(report.lines(manifest)))
    if options.examples < 1:
        return
    vocabulary = tokenizer.load(options.directory)
    batch = next(_parsed_batches(record_set.shard_paths[0], manifest, options.examples))
    for text in decoded(manifest, vocabulary, batch):
        print(f"\n{text}")


def _parsed_batches(
    path: epath.PathLike, manifest: records.Manifest, batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    tf = records.import_tensorflow()
    try:
        for serialized in tf.data.TFRecordDataset(str(path)).batch(batch_size):
            parsed = records.parse_batch(serialized, manifest)
            yield {name: values.numpy() for name, values in parsed.items()}
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        raise ValueError(
            f"{path} does not hold records of max_seq_length {manifest.max_seq_length} and "
            f"max_predictions_per_seq {manifest.max_predictions_per_seq}, or is damaged "
            f"({error.message}); copy or make it again"
        ) from error


def _manifest_like_first(
    path: epath.Path, options: Options, vocabulary: tokenizer.Tokenizer
) -> records.Manifest:
    """Returns a manifest without shards, with the lengths of the first record of a file."""
    tf = records.import_tensorflow()
    try:
        serialized = next(iter(tf.data.TFRecordDataset(str(path)).take(1)), None)
        example = tf.train.Example.FromString(serialized.numpy() if serialized is not None else b"")
    except (tf.errors.DataLossError, ValueError, *_decode_errors()) as error:
        raise ValueError(f"{path} is not a TFRecord file of examples: {error}") from error
    found = example.features.feature
    missing = [
        name for name in (*records.TOKEN_FEATURES, *records.MASK_FEATURES) if name not in found
    ]
    if missing:
        raise ValueError(
            f"the first record of {path} lacks {', '.join(missing)}; records of the original "
            f"create_pretraining_data.py hold them (found: {', '.join(sorted(found)) or 'none'})"
        )
    arguments = dataclasses.asdict(options)
    return records.Manifest(
        tokenizer=vocabulary.describe(),
        max_seq_length=len(found["input_ids"].int64_list.value),
        max_predictions_per_seq=len(found["masked_lm_ids"].int64_list.value),
        masked_lm_prob=options.masked_lm_prob,
        pair_objective="nsp" if records.PAIR_FEATURE in found else "none",
        shards=(),
        seed=0,
        arguments=arguments,
        statistics={},
    )


def _adopted_shard(
    path: epath.Path,
    manifest: records.Manifest,
    vocabulary: tokenizer.Tokenizer,
    tally: report.Tally,
) -> records.Shard:
    count = 0
    for batch in _parsed_batches(path, manifest, BATCH_SIZE):
        for name in ("input_ids", "masked_lm_ids"):
            largest = int(batch[name].max())
            if largest >= vocabulary.vocab_size:
                raise ValueError(
                    f"{path} has the id {largest} in {name}, but the vocabulary has "
                    f"{vocabulary.vocab_size} entries; give the --vocabulary of the records"
                )
        if (batch["input_ids"][:, 0] != vocabulary.cls_id).any():
            raise ValueError(
                f"{path} has examples that do not begin with id {vocabulary.cls_id}, the "
                "vocabulary's [CLS]; give the --vocabulary of the records"
            )
        tally.add(batch)
        count += len(batch["input_ids"])
    return records.Shard(file=path.name, examples=count, bytes=path.stat().length)


def _decode_errors() -> tuple[type[Exception], ...]:
    from google.protobuf import message

    return (message.DecodeError,)


if __name__ == "__main__":
    command_line.run(Options, main, positional="directory")
