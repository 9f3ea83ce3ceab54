import numpy as np
import pytest

from bertjax.data import masking

PAD, UNK, CLS, SEP, MASK = SPECIAL_IDS = (0, 1, 2, 3, 4)
VOCAB_SIZE = 1000
CONTINUES_WORD = np.arange(VOCAB_SIZE) >= 700  # in tests, entries from 700 on are "##" pieces
STRATEGIES = sorted(masking.MASKERS)


def sequences(count=400, length=64, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, length + 1, count)
    input_ids = rng.integers(5, VOCAB_SIZE, (count, length)).astype(np.int32)
    input_mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    input_ids[:, 0] = CLS
    input_ids[np.arange(count), lengths - 1] = SEP
    return input_ids * input_mask, input_mask, lengths


def mask(input_ids, input_mask, *, seed=1, **options):
    return masking.mask_tokens(
        input_ids,
        input_mask,
        options=masking.MaskingOptions(**options),
        vocab_size=VOCAB_SIZE,
        mask_id=MASK,
        special_ids=SPECIAL_IDS,
        continues_word=CONTINUES_WORD,
        rng=np.random.default_rng(seed),
    )


def test_each_row_gets_the_released_number_of_predictions():
    input_ids, input_mask, lengths = sequences()
    for share in (0.05, 0.15):
        masked = mask(input_ids, input_mask, masked_lm_prob=share, max_predictions_per_seq=7)
        expected = [min(7, max(1, round(length * share))) for length in lengths.tolist()]
        np.testing.assert_array_equal(masked["masked_lm_weights"].sum(axis=1), expected)
    # Source: the released README.
    assert masking.default_max_predictions(128, 0.15) == 20
    assert masking.default_max_predictions(512, 0.15) == 77


def test_a_row_with_few_maskable_tokens_gets_as_many_as_it_has():
    input_ids = np.array([[CLS, SEP, PAD, PAD], [CLS, 7, SEP, PAD], [CLS, UNK, 9, SEP]])
    masked = mask(input_ids, (input_ids != PAD).astype(np.int32), masked_lm_prob=0.9)
    np.testing.assert_array_equal(masked["masked_lm_weights"].sum(axis=1), [0, 1, 1])
    np.testing.assert_array_equal(masked["masked_lm_ids"][:, 0], [0, 7, 9])
    np.testing.assert_array_equal(masked["masked_lm_positions"][:, 0], [0, 1, 2])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_positions_hold_the_original_ids_never_special_ones_and_the_rest_is_unchanged(strategy):
    input_ids, input_mask, _ = sequences()
    masked, again, other = (
        mask(input_ids, input_mask, seed=seed, strategy=strategy) for seed in (1, 1, 2)
    )
    for name in masked:  # by the generator alone
        np.testing.assert_array_equal(masked[name], again[name])
    assert (masked["masked_lm_positions"] != other["masked_lm_positions"]).any()
    options = {"masked_lm_prob": 0.9, "max_predictions_per_seq": 64, "strategy": strategy}
    for each in (masked, mask(input_ids, input_mask, **options)):
        positions, ids = each["masked_lm_positions"], each["masked_lm_ids"]
        used = each["masked_lm_weights"] == 1
        assert (np.diff(positions, axis=1) > 0)[used[:, 1:]].all()
        originals = np.take_along_axis(input_ids, positions, axis=1)
        np.testing.assert_array_equal(ids, np.where(used, originals, 0))
        assert not positions[~used].any() and not np.isin(ids[used], SPECIAL_IDS).any()
        restored = each["input_ids"].copy()
        restored[np.nonzero(used)[0], positions[used]] = ids[used]
        np.testing.assert_array_equal(restored, input_ids)


@pytest.mark.parametrize("strategy", ["token", "span"])  # a span shares its fate
def test_four_fifths_become_mask_a_tenth_stays_a_tenth_is_random(strategy):
    input_ids, input_mask, _ = sequences(count=4000)
    masked = mask(input_ids, input_mask, strategy=strategy)
    used = masked["masked_lm_weights"] == 1
    found = np.take_along_axis(masked["input_ids"], masked["masked_lm_positions"], axis=1)[used]
    originals = masked["masked_lm_ids"][used]
    assert len(found) > 15_000
    assert np.mean(found == MASK) == pytest.approx(0.8, abs=0.015)
    assert np.mean(found == originals) == pytest.approx(0.1, abs=0.01)
    substitutes = found[(found != MASK) & (found != originals)]
    assert substitutes.mean() == pytest.approx(VOCAB_SIZE / 2, rel=0.05)
    assert substitutes.min() < 5 and substitutes.max() > VOCAB_SIZE - 5


def test_shares_of_its_own_replace_as_they_say_and_none_at_random():
    input_ids, input_mask, _ = sequences(count=4000)
    masked = mask(input_ids, input_mask, mask_share=0.85, keep_share=0.15)
    used = masked["masked_lm_weights"] == 1
    found = np.take_along_axis(masked["input_ids"], masked["masked_lm_positions"], axis=1)[used]
    assert np.mean(found == MASK) == pytest.approx(0.85, abs=0.015)
    assert ((found == MASK) | (found == masked["masked_lm_ids"][used])).all()
    with pytest.raises(ValueError, match="mask_share is 0.9 and keep_share 0.2; .* at most 1"):
        masking.MaskingOptions(mask_share=0.9, keep_share=0.2)


def test_every_set_of_tokens_is_equally_likely():
    input_ids = np.tile([CLS, *range(10, 16), SEP], (20_000, 1))
    masked = mask(input_ids, np.ones_like(input_ids), masked_lm_prob=0.25)
    assert (masked["masked_lm_weights"].sum(axis=1) == 2).all()
    pairs, counts = np.unique(masked["masked_lm_positions"][:, :2], axis=0, return_counts=True)
    assert len(pairs) == 15
    np.testing.assert_allclose(counts / counts.sum(), 1 / 15, atol=0.007)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_batch_without_rows_or_with_nothing_to_mask_is_no_error(strategy):
    for input_ids in (np.zeros((0, 8), np.int32), np.array([[CLS, SEP, PAD]])):
        masked = mask(input_ids, (input_ids != PAD).astype(np.int32), strategy=strategy)
        assert not masked["masked_lm_weights"].any()
        np.testing.assert_array_equal(masked["input_ids"], input_ids)


def test_unigram_scores_are_by_the_counts_trained_on_smoothed():
    trained, asked = np.array([6, 3, 1, 0, 0]), np.array([2, 0, 1, 1, 0])
    # Three of five entries were seen, in ten tokens: each unseen one has half of 3 / 13.
    shares = np.array([6, 3, 1, 1.5, 1.5]) / 13
    assert shares.sum() == pytest.approx(1)
    loss, accuracy = masking.unigram_scores(trained, asked)
    assert loss == pytest.approx(-(2 * np.log(shares[0]) + np.log(shares[2] * shares[3])) / 4)
    assert accuracy == 0.5
    whole = np.array([5, 4, 1])
    assert masking.unigram_scores(whole, whole)[0] == pytest.approx(
        masking.unigram_baseline(whole)[0]
    )
    assert masking.unigram_scores(np.zeros(4, np.int64), np.ones(4, np.int64))[0] == pytest.approx(
        np.log(4)
    )


def test_unigram_baseline_of_known_distributions():
    entropy, share = masking.unigram_baseline(np.array([5, 5, 0, 5, 5]))
    assert (entropy, share) == pytest.approx((np.log(4), 0.25))
    entropy, share = masking.unigram_baseline(np.array([6, 1, 1]))
    assert share == 0.75
    assert entropy == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.125))


def test_an_impossible_option_is_named():
    for fault in ({"masked_lm_prob": 1.5}, {"max_predictions_per_seq": 0}, {"strategy": "tokens"}):
        with pytest.raises(ValueError, match=next(iter(fault))):
            masking.MaskingOptions(**fault)
