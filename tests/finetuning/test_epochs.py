"""Which examples share a batch: every one once, no text twice, files by their weights."""

import collections
import itertools

import numpy as np
import pytest

from bertjax.finetuning import batches, feature_sets

BATCH = 8


def make_features(texts=None, *, count=50, parts=(), seed=0):
    rng = np.random.default_rng(seed)
    count = count if texts is None else len(texts)
    rows = [np.full(length, 7, np.int32) for length in rng.integers(3, 30, count)]
    tokens = {"input_ids": rows, "segment_ids": [row * 0 for row in rows]}
    apart = None if texts is None else np.asarray(texts)
    return feature_sets.FeatureSet(tokens, {}, parts=parts, apart=apart)


def crowded(examples=200, texts=60, seed=0):
    """Pairs of which most share a text with others, some with themselves."""
    return np.random.default_rng(seed).integers(0, texts, (examples, 2))


def shown(order):
    return order[order != batches.FILLER]


@pytest.mark.parametrize("by_length", [True, False])
@pytest.mark.parametrize("texts", [crowded(), crowded(203, 1000), crowded(40, 3)])
def test_no_text_stands_twice_in_a_batch_and_every_example_once_in_an_epoch(texts, by_length):
    made = batches.Epochs(make_features(texts), BATCH, 0, by_length=by_length)
    for epoch in range(3):
        order = made.order(epoch)
        assert sorted(shown(order)) == list(range(len(texts)))
        fillers = (order == batches.FILLER).astype(int)
        assert (np.diff(fillers, axis=1) >= 0).all() and not fillers[:, 0].any()  # the last rows
        for batch in order:
            of_batch = [set(texts[example].tolist()) for example in shown(batch)]
            assert sum(map(len, of_batch)) == len(set().union(*of_batch))


def test_a_text_in_many_examples_makes_smaller_batches_at_the_end_and_is_told(caplog):
    texts = np.arange(120).reshape(60, 2)
    texts[:20, 1] = 999
    made = batches.Epochs(make_features(texts), BATCH, 0)
    with caplog.at_level("WARNING", logger="absl"):
        order = made.order(0)
    assert len(order) == 20  # one for each example with that text, where 8 would hold all
    sizes = (order != batches.FILLER).sum(axis=1)
    assert set(sizes[8:]) == {1} and "An epoch has 20 batches, 8 would hold" in caplog.text


def test_what_repeats_little_costs_no_batch_more():
    made = batches.Epochs(make_features(crowded(800, 1500)), BATCH, 0)
    assert len(made.order(0)) == 100 and (made.order(0) != batches.FILLER).all()
    # An example whose own texts are equal is allowed.
    texts = np.repeat(np.arange(16)[:, None], 2, axis=1)
    assert len(batches.Epochs(make_features(texts), BATCH, 0).order(0)) == 2


def test_batches_depend_on_seed_and_epoch_alone_and_differ_between_them():
    features = make_features(crowded())
    orders = [
        batches.Epochs(features, BATCH, seed).order(epoch) for seed in (0, 1) for epoch in (0, 1)
    ]
    again = batches.Epochs(features, BATCH, 0)
    again.order(1)
    np.testing.assert_array_equal(again.order(0), orders[0])
    for left, right in itertools.combinations(orders, 2):
        assert left.shape != right.shape or (left != right).any()
    features = make_features(crowded(196, 40))
    from_zero = list(itertools.islice(batches.Epochs(features, BATCH, 3).from_step(0), 80))
    for start in (0, 1, 24, 25, 26, 70):
        later = itertools.islice(batches.Epochs(features, BATCH, 3).from_step(start), 80 - start)
        np.testing.assert_array_equal(np.stack(list(later)), np.stack(from_zero[start:]))


def test_the_steps_of_epochs_are_those_that_are_made():
    features = make_features(crowded(196, 40))
    made = batches.Epochs(features, BATCH, 3)
    counts = [len(made.order(epoch)) for epoch in range(3)]
    fresh = batches.Epochs(features, BATCH, 3)
    assert fresh.steps_in(2.0) == sum(counts[:2])
    assert fresh.steps_in(2.5) == sum(counts[:2]) + -(-counts[2] // 2)
    plain = batches.Epochs(make_features(count=50), BATCH, 0)
    assert plain.steps_in(2.5) == 18  # 2.5 x 7, rounded up once


def test_rows_of_a_batch_are_of_similar_length():
    """Moved examples among them: at most a third more padding than without."""
    texts = crowded(2000, 2500)
    features = make_features(texts)
    lengths = features.lengths()

    def tokens(order):
        return sum(lengths[shown(batch)].max() * len(batch) for batch in order)

    plain = batches.epoch_order(lengths, np.arange(len(lengths)), batch_size=BATCH, seed=0, epoch=0)
    assert tokens(batches.Epochs(features, BATCH, 0).order(0)) < 1.33 * tokens(plain)


def test_a_file_of_half_the_weight_is_seen_in_two_epochs_and_one_of_twice_twice_in_each():
    parts = tuple(feature_sets.Part(*it) for it in [(20, 1.0), (10, 0.5), (6, 2.0), (7, 1.5)])
    features = make_features(count=43, parts=parts)
    made = batches.Epochs(features, BATCH, 0)
    counts = [collections.Counter(shown(made.order(epoch)).tolist()) for epoch in range(2)]
    assert features.epoch_size == sum(counts[0].values()) == 20 + 5 + 12 + 10
    assert all(count[example] == 1 for count in counts for example in range(20))
    halves = [{it for it in count if 20 <= it < 30} for count in counts]
    assert len(halves[0]) == 5 and halves[0] | halves[1] == set(range(20, 30))
    assert all(count[example] == 2 for count in counts for example in range(30, 36))
    # One and a half: three times in two epochs.
    both = counts[0] + counts[1]
    assert 19 <= sum(both[example] for example in range(36, 43)) <= 21
    texts = np.arange(40).reshape(20, 2)
    features = make_features(texts, parts=(feature_sets.Part(20, 2.0),))
    for batch in batches.Epochs(features, BATCH, 0).order(0):
        assert len(set(shown(batch))) == len(shown(batch))


def test_filled_up_batches_have_weights_of_0_where_rows_are_missing():
    texts = np.arange(40).reshape(20, 2)
    texts[:, 1] = 5
    made = batches.train_batches(
        make_features(texts), global_batch_size=BATCH, seed=0, buckets=(32,)
    )
    found = next(made)
    assert found["example_weights"].tolist() == [1.0] + [0.0] * 7
    assert found["input_mask"].sum(axis=1).min() > 0
