"""Rows of several sequences: as records, in streams, and the masks drawn for them."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from bertjax.data import masking, records, streams
from tests import small_packed

LENGTH, MOST, VOCABULARY = 24, 4, 96
SPECIALS = (0, 1, 2, 3, 4)
CONTINUES_WORD = np.arange(VOCABULARY) >= 50
# Rows of each of eight shards.
SHARDS = [[[7, 9, 4], [24], [3, 3, 3, 3], [5, 12]][: 2 + shard % 3] for shard in range(8)]


@pytest.fixture(scope="module")
def record_set(tmp_path_factory):
    directory = tmp_path_factory.mktemp("packed") / "records"
    return small_packed.write(directory, SHARDS, length=LENGTH, most=MOST)


def draw_masks(batch, rng, share=0.3, strategy="token", most=None):
    most = most or masking.default_max_predictions(LENGTH, share, MOST)
    return masking.mask_tokens(
        batch["input_ids"],
        records.sequence_ids(batch),
        options=masking.MaskingOptions(share, most, strategy),
        vocab_size=VOCABULARY,
        mask_id=4,
        special_ids=SPECIALS,
        continues_word=CONTINUES_WORD,
        rng=rng,
    )


def test_every_packed_row_is_read_as_it_was_written(record_set):
    sizes = [shard.examples for shard in record_set.manifest.shards]
    every = list(streams.evaluation_batches(record_set, batch_size=5))
    seen = np.concatenate([it["record_positions"][it["example_weights"] > 0] for it in every])
    assert len({tuple(place) for place in seen.tolist()}) == len(seen) == sum(sizes)
    batch = every[0]
    np.testing.assert_array_equal(batch["input_mask"], batch["sequence_ids"] != 0)
    packed, _ = small_packed.rows(SHARDS[0], LENGTH, most=MOST, seed=0)
    for name, values in packed.items():
        np.testing.assert_array_equal(batch[name][: len(values)], values)
    # Two hosts draw the masks of one.
    order = streams.Order(8, seed=3, max_streams=4)
    whole, *parts = (
        next(streams.train_batches(record_set, order, rows=rows, draw_masks=draw_masks))
        for rows in (None, range(2), range(2, 8))
    )
    for name, values in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)


def test_sequences_that_are_not_numbered_one_after_the_other_do_not_fit(record_set):
    for numbers in ([2, 2, 0], [1, 3, 3], [1, 0, 1], [1, 2, 1], [0, 1, 1], [1, 1, 5]):
        batch = {"sequence_ids": np.array([[1, 2, 0], numbers])}
        row, fault = records.first_misfit(batch, record_set.manifest)
        assert row == 1 and "sequence" in fault
    fine = np.array([[1, 2, 0], [1, 1, 1], [1, 2, 3], [1, 0, 0]])
    assert records.first_misfit({"sequence_ids": fine}, record_set.manifest) is None


def sequences_of(batch):
    """Yields the row, the begin and the end of each sequence."""
    for row, numbers in enumerate(batch["sequence_ids"]):
        for number in range(1, numbers.max() + 1):
            places = np.flatnonzero(numbers == number)
            yield row, places[0], places[-1] + 1


@hypothesis.settings(deadline=None, derandomize=True, max_examples=25)
@hypothesis.given(
    strategies.lists(
        strategies.lists(strategies.integers(3, 24), min_size=1, max_size=MOST),
        min_size=1,
        max_size=6,
    ),
    strategies.sampled_from([0.05, 0.15, 0.3, 0.6]),
    strategies.sampled_from(sorted(masking.MASKERS)),
)
def test_every_sequence_has_its_own_number_of_masks_and_keeps_its_frame(lengths, share, strategy):
    lengths = [its[: max(1, np.searchsorted(np.cumsum(its), LENGTH, "right"))] for its in lengths]
    batch, _ = small_packed.rows(lengths, LENGTH, most=MOST)
    masked = draw_masks(batch, np.random.default_rng(1), share, strategy)
    used = masked["masked_lm_weights"] > 0
    is_chosen = np.zeros(batch["input_ids"].shape, bool)
    rows = np.nonzero(used)[0]
    is_chosen[rows, masked["masked_lm_positions"][used]] = True
    maskable = (batch["sequence_ids"] != 0) & ~np.isin(batch["input_ids"], SPECIALS)
    assert not (is_chosen & ~maskable).any() and is_chosen.sum() == used.sum()
    for row, begin, end in sequences_of(batch):
        wanted = max(1, round((end - begin) * share))
        found = is_chosen[row, begin:end].sum()
        if strategy == "token":
            assert found == min(wanted, maskable[row, begin:end].sum())
        assert found <= wanted
        if strategy == "whole_word":
            ids = batch["input_ids"][row]
            for place in range(begin + 2, end):
                if maskable[row, place - 1 : place + 1].all() and CONTINUES_WORD[ids[place]]:
                    assert is_chosen[row, place] == is_chosen[row, place - 1]


def test_masks_fall_on_every_place_of_a_sequence_alike_wherever_it_stands():
    lengths = [[12, 5, 7]] * 4000
    batch, _ = small_packed.rows(lengths, LENGTH, most=MOST)
    ids = np.where(batch["sequence_ids"] > 0, 9, 0)
    for begin, end in ((0, 12), (12, 17), (17, 24)):
        ids[:, begin], ids[:, end - 1] = small_packed.CLS, small_packed.SEP
    masked = draw_masks({**batch, "input_ids": ids}, np.random.default_rng(0), 0.2)
    used = masked["masked_lm_weights"] > 0
    counts = np.bincount(masked["masked_lm_positions"][used], minlength=LENGTH) / 4000
    for begin, end, wanted in ((0, 12, 2), (12, 17, 1), (17, 24, 1)):
        share = wanted / (end - begin - 2)
        np.testing.assert_allclose(counts[begin + 1 : end - 1], share, atol=0.04)


def test_a_row_without_places_for_all_masks_leaves_some_of_its_last_sequences_out():
    batch, _ = small_packed.rows([[8, 8, 8], [24]], LENGTH, most=MOST)
    masked = draw_masks(batch, np.random.default_rng(0), 0.5, most=6)
    used = masked["masked_lm_weights"] > 0
    assert used.sum(axis=1).tolist() == [6, 6]
    numbers = np.take_along_axis(batch["sequence_ids"], masked["masked_lm_positions"], axis=1)
    assert np.bincount(numbers[0][used[0]]).tolist() == [0, 4, 2]
