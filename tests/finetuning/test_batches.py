"""Claims about order and padding: a batch is a function of (seed, step)."""

import itertools

import numpy as np
import pytest

from bertjax.data import padding
from bertjax.finetuning import batches, feature_sets

BUCKETS = (8, 16, 24)
PAD_ID = 99


def feature_set(count=103, *, choices=1, seed=0, token_labels=False):
    """Rows of 3 to 24 tokens; each has its number as every token, its example's as label."""
    lengths = np.random.default_rng(seed).integers(3, 25, count * choices)
    tokens = {
        "input_ids": [np.full(length, row, np.int32) for row, length in enumerate(lengths)],
        "segment_ids": [np.ones(length, np.int32) for length in lengths],
    }
    if token_labels:
        tokens["labels"] = [np.full(length, 7, np.int32) for length in lengths]
    columns = {"end" if token_labels else "labels": np.arange(count, dtype=np.int32)}
    return feature_sets.FeatureSet(tokens, columns, choices=choices, pad_id=PAD_ID)


def training(made, steps, *, size=8, seed=1, start_step=0, buckets=BUCKETS, rows=None):
    found = batches.train_batches(
        made, global_batch_size=size, seed=seed, start_step=start_step, buckets=buckets, rows=rows
    )
    return list(itertools.islice(found, steps))


def evaluation(made, *, size=8, buckets=BUCKETS, rows=None):
    return list(batches.evaluation_batches(made, batch_size=size, buckets=buckets, rows=rows))


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name].dtype == other[name].dtype
            np.testing.assert_array_equal(one[name], other[name])


def positions(found):
    return np.concatenate([batch["record_positions"] for batch in found])


every_order = pytest.mark.parametrize("buckets", [BUCKETS, (24,)])


@every_order
def test_every_example_comes_once_an_epoch_and_any_step_may_be_the_first(buckets):
    for count in (5, 8, 64, 103):
        made = feature_set(count)
        steps = batches.steps_per_epoch(count, 8)
        assert steps == -(-count // 8)
        found = training(made, 3 * steps, buckets=buckets)
        for epoch in range(3):
            seen = positions(found[epoch * steps : (epoch + 1) * steps])
            assert sorted(seen[seen >= 0].tolist()) == list(range(count))
    orders = [*np.split(positions(found), 3), positions(training(made, steps, seed=2))]
    assert len({tuple(order.tolist()) for order in orders}) == 4  # of each epoch and seed
    for start in (1, 12, 13, 14, 30):
        assert_same(training(made, 5, start_step=start, buckets=buckets), found[start : start + 5])


READS = {"training": lambda made, **options: training(made, 30, **options), "once": evaluation}
every_read = pytest.mark.parametrize("read", READS.values(), ids=READS)


@every_read
@pytest.mark.parametrize("choices", [1, 4])
def test_rows_hold_their_tokens_and_padding_to_the_smallest_bucket_on_every_host(read, choices):
    made = feature_set(choices=choices)
    lengths = made.lengths()
    found = read(made)
    for batch in found:
        places = batch["record_positions"]
        longest = lengths[places[places >= 0]].max()
        width = min(bucket for bucket in BUCKETS if bucket >= longest)
        wanted = (8, width) if choices == 1 else (8, choices, width)
        for name in ("input_ids", "input_mask", "segment_ids"):
            assert (batch[name].shape, batch[name].dtype) == (wanted, np.int32)
        for place, example in enumerate(places.tolist()):
            if example < 0:
                continue
            assert batch["labels"][place] == example
            for choice in range(choices):
                row = example * choices + choice
                own = place if choices == 1 else (place, choice)
                length = len(made.tokens["input_ids"][row])
                assert batch["input_ids"][own].tolist() == [row] * length + [PAD_ID] * (
                    width - length
                )
                for name in ("input_mask", "segment_ids"):
                    assert batch[name][own].tolist() == [1] * length + [0] * (width - length)
    assert len({batch["input_ids"].shape for batch in found}) > 1
    parts = [read(made, rows=rows) for rows in (range(0, 2), range(2, 7), range(7, 8))]
    joined = [
        {name: np.concatenate([part[name] for part in step]) for name in step[0]}
        for step in zip(*parts, strict=True)
    ]
    assert_same(joined, found)


def test_batches_of_a_length_save_padding_and_come_in_no_order():
    made = feature_set(800)
    shares = []
    for buckets in (BUCKETS, (24,)):
        masks = [batch["input_mask"] for batch in training(made, 100, buckets=buckets)]
        shares.append(sum(m.sum() for m in masks) / sum(m.size for m in masks))
    assert shares[0] > 0.75 > 0.6 > shares[1]
    widths = [batch["input_ids"].shape[1] for batch in training(made, 64)]
    assert np.count_nonzero(np.diff(widths)) > 10  # sorted, there would be one for each bucket


@pytest.mark.parametrize("read", [lambda made: training(made, 13), evaluation])
def test_only_the_rows_that_fill_up_have_no_weight(read):
    made = feature_set(103, token_labels=True)
    found = read(made)
    weights = np.concatenate([batch["example_weights"] for batch in found])
    assert weights.dtype == np.float32 and weights.sum() == 103
    assert weights.tolist() == (positions(found) >= 0).astype(float).tolist()
    for batch in found:
        is_filler = batch["example_weights"] == 0
        assert (batch["labels"][is_filler] == -1).all()
        # Attention over no token at all would not be a number.
        assert batch["input_mask"].any(axis=1).all()
        scored = batch["labels"][~is_filler] == 7
        np.testing.assert_array_equal(scored, batch["input_mask"][~is_filler] == 1)
        assert set(np.unique(batch["labels"])) <= {-1, 7}


def test_evaluation_reads_every_example_once_and_the_longest_first():
    for count in (1, 8, 103):
        made = feature_set(count)
        found = evaluation(made)
        assert len(found) == -(-count // 8)
        seen = positions(found)
        assert sorted(seen[:count].tolist()) == list(range(count))
        assert (seen[count:] == -1).all()
        assert (np.diff(made.lengths()[seen[:count]]) <= 0).all()
    unlabelled = feature_sets.FeatureSet(made.tokens, {}, pad_id=PAD_ID)
    for one, other in zip(evaluation(unlabelled), found, strict=True):
        assert one.keys() == other.keys() - {"labels"}


def test_buckets_end_with_the_longest_row_and_hold_every_example():
    assert padding.default_buckets(20) == (16, 20)
    lengths = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
    assert padding.default_buckets(1024) == lengths
    with pytest.raises(ValueError, match="longest example has 24 tokens, the last bucket holds 16"):
        batches.train_batches(feature_set(), global_batch_size=8, seed=1, buckets=(8, 16))
    with pytest.raises(ValueError, match="no examples"):
        empty = feature_sets.FeatureSet({"input_ids": []}, {})
        batches.evaluation_batches(empty, batch_size=8, buckets=BUCKETS)
