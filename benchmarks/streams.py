"""How many records a second one core reads from disk, shuffles, parses and (if dynamic) masks.

    python benchmarks/streams.py [--seconds=3] [--repetitions=5]

Writes 16 shards of 128-token records (20 predictions) into a temporary folder, pins itself to one
core and reads batches of 256 with static and with dynamic masks in turn. Prints the median records
per second of each; the target is 20,000. Linux only: the pinning is.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

import numpy as np
import report

from bertjax.data import encoding, masking, record_files, records, streams

BATCH_SIZE = 256
LENGTH = 128
PREDICTIONS = 20
SHARDS = 16
EXAMPLES_PER_SHARD = 2048
VOCAB_SIZE = 30522
MASK_ID = 103
SPECIAL_IDS = (0, 100, 101, 102, MASK_ID)
TARGET = 20_000


def write_records(directory: pathlib.Path, *, predictions: int) -> records.RecordSet:
    """Writes records of random tokens, static masks among them where `predictions` is not 0."""
    rng = np.random.default_rng(0)

    def example() -> dict[str, np.ndarray]:
        features = {
            "input_ids": rng.integers(1000, VOCAB_SIZE, LENGTH),
            "input_mask": np.ones(LENGTH, np.int64),
            "segment_ids": np.arange(LENGTH) // (LENGTH // 2),
            "next_sentence_labels": rng.integers(0, 2, 1),
        }
        if predictions:
            positions = rng.permutation(np.arange(1, LENGTH - 1))[:predictions]
            features["masked_lm_positions"] = np.sort(positions)
            features["masked_lm_ids"] = rng.integers(1000, VOCAB_SIZE, predictions)
            features["masked_lm_weights"] = np.ones(predictions, np.float32)
        return features

    examples = [example() for _ in range(EXAMPLES_PER_SHARD)]
    columns = {name: np.stack([one[name] for one in examples]) for name in examples[0]}
    serialized = encoding.encode_batch(columns)
    shards = [
        record_files.write_shard(directory / f"records-{shard:05d}.tfrecord", serialized)
        for shard in range(SHARDS)
    ]
    records.Manifest(
        tokenizer={"vocab_size": VOCAB_SIZE, "sha256": ""},
        max_seq_length=LENGTH,
        max_predictions_per_seq=predictions,
        masked_lm_prob=0.15,
        pair_objective="nsp",
        shards=tuple(shards),
        seed=0,
        arguments={},
        statistics={},
    ).save(directory)
    return records.open(directory)


def records_per_second(batches: Iterator[dict[str, np.ndarray]], seconds: float) -> float:
    """Reads for about `seconds`, after one shard's worth of warm-up."""
    for _ in range(SHARDS * EXAMPLES_PER_SHARD // BATCH_SIZE // 4):
        next(batches)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        count += len(next(batches)["input_ids"])
    return count / elapsed


def main(argv: Sequence[str] | None = None) -> int:
    """Measures both kinds in turn and prints their medians."""
    parser = argparse.ArgumentParser(description="Records per second on one core.")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one reading")
    parser.add_argument("--repetitions", type=int, default=5, help="readings of each kind")
    options = parser.parse_args(argv)
    # Before TensorFlow starts, so that it counts one core and sizes its thread pools for it.
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    tf = records.import_tensorflow()
    print(f"{report.machine()}, tensorflow {tf.__version__}, numpy {np.__version__}")
    draw_masks = functools.partial(
        masking.mask_tokens,
        options=masking.MaskingOptions(max_predictions_per_seq=PREDICTIONS),
        vocab_size=VOCAB_SIZE,
        mask_id=MASK_ID,
        special_ids=SPECIAL_IDS,
    )
    draws = {
        "static": None,
        "dynamic": lambda batch, rng: draw_masks(batch["input_ids"], batch["input_mask"], rng=rng),
    }
    with tempfile.TemporaryDirectory() as folder:
        sets = {}
        for kind in draws:
            directory = pathlib.Path(folder) / kind
            directory.mkdir()
            predictions = PREDICTIONS if kind == "static" else 0
            sets[kind] = write_records(directory, predictions=predictions)
        seeds = dict.fromkeys(sets, 0)

        def speed(kind: str) -> float:
            order = streams.Order(BATCH_SIZE, seeds[kind])
            seeds[kind] += 1
            # Its threads end with it, and do not read ahead while the next is measured.
            return records_per_second(
                streams.train_batches(sets[kind], order, draw_masks=draws[kind]), options.seconds
            )

        speeds = report.take_turns(
            {kind: functools.partial(speed, kind) for kind in sets}, options.repetitions
        )
    for kind, values in speeds.items():
        print(
            f"{kind} masks: {report.median(values, ',.0f')} records/s on core {core}, "
            f"{len(values)} readings; target {TARGET:,}: "
            f"{report.target(statistics.median(values) >= TARGET)}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
