"""Record directories as arrays, by the trainer's own parser, and as bytes."""

import pathlib

from bertjax.data import records


def read(directory):
    """All records of a directory."""
    tf = records.import_tensorflow()
    record_set = records.open(directory)
    dataset = tf.data.TFRecordDataset(record_set.shard_paths).batch(1 << 20)
    parsed = records.parse_batch(next(iter(dataset)), record_set.manifest)
    return {name: values.numpy() for name, values in parsed.items()}


def files(directory, pattern="*"):
    """The bytes of the files of a directory whose names fit a pattern."""
    directory = pathlib.Path(directory)
    paths = sorted(path for path in directory.glob(pattern) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def restored(batch):
    """The ids before masking."""
    ids = batch["input_ids"].copy()
    if "masked_lm_weights" in batch:
        rows, slots = batch["masked_lm_weights"].nonzero()
        ids[rows, batch["masked_lm_positions"][rows, slots]] = batch["masked_lm_ids"][rows, slots]
    return ids
