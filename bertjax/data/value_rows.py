"""The rows of values in records, whole, in file order: what predictions and vectors are made of."""

from __future__ import annotations

import numpy as np

from bertjax.data import records, streams, value_masking

READ_AT_ONCE = 1_024
COLUMNS = (records.VALUES_FEATURE, records.OBSERVED_FEATURE, records.LABELS_FEATURE)


def check(record_set: records.RecordSet) -> None:
    """Raises a ValueError if records hold no values."""
    features = record_set.manifest.features
    if records.VALUES_FEATURE not in value_masking.features(record_set.manifest):
        raise ValueError(
            f"the records in {record_set.directory} hold {', '.join(features)}, and no values: "
            "give those of data_pipelines.build_series, build_tables or build_images"
        )


def columns(record_set: records.RecordSet) -> dict[str, np.ndarray]:
    """Returns `values` and `observed` [rows, length, width], and `labels` if there are any."""
    check(record_set)
    draw = value_masking.shown(value_masking.scaling_of(record_set.manifest))
    kept: dict[str, list[np.ndarray]] = {}
    # A batch is filled up with rows that are drawn as well.
    size = min(READ_AT_ONCE, record_set.manifest.num_examples)
    batches = streams.evaluation_batches(record_set, batch_size=size, draw_masks=draw)
    for batch in batches:
        is_there = batch["example_weights"] > 0
        for name in COLUMNS:
            if name in batch:
                kept.setdefault(name, []).append(batch[name][is_there])
    return {name: np.concatenate(parts) for name, parts in kept.items()}


def as_arrays(record_set: records.RecordSet) -> list[np.ndarray]:
    """Returns the values of each row [length, width], with nan where no value was observed."""
    taken = columns(record_set)
    seen = taken[records.OBSERVED_FEATURE] != 0
    return [*np.where(seen, taken[records.VALUES_FEATURE], np.nan)]
