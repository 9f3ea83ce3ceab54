"""Claims about which words are masked, compared with plain versions of the released codes.

The plain versions work on one row at a time, as those do, and are written from their
descriptions: google-research/bert and google-research/albert (create_pretraining_data.py),
SpanBERT (Joshi et al. 2020, section 3.1).
"""

import collections
import itertools
import math
import random

import numpy as np
import pytest

from bertjax.data import masking, word_masking

PAD, UNK, CLS, SEP, MASK = SPECIAL_IDS = (0, 1, 2, 3, 4)
VOCAB_SIZE = 1000
CONTINUES_WORD = np.arange(VOCAB_SIZE) >= 500
WORD_STRATEGIES = ("whole_word", "ngram", "span")


def row(*segments):
    """The ids of a row: each segment is a list of the numbers of pieces of its words."""
    ids, entry = [CLS], 10
    for segment in segments:
        for pieces in segment:
            ids += [entry, *range(500 + entry, 500 + entry + pieces - 1)]
            entry += 1
        ids.append(SEP)
    return ids


def mask(input_ids, strategy, *, share=0.15, most=200, seed=0, continues_word=CONTINUES_WORD):
    input_ids = np.asarray(input_ids, np.int32)
    return masking.mask_tokens(
        input_ids,
        (input_ids != PAD).astype(np.int32),
        options=masking.MaskingOptions(share, most, strategy),
        vocab_size=VOCAB_SIZE,
        mask_id=MASK,
        special_ids=SPECIAL_IDS,
        continues_word=continues_word,
        rng=np.random.default_rng(seed),
    )


def chosen(masked):
    """The chosen positions of each row."""
    used = masked["masked_lm_weights"] == 1
    return [set(p[u].tolist()) for p, u in zip(masked["masked_lm_positions"], used, strict=True)]


def words_of(ids):
    """Lists of positions, one for each word; None where no run may go on."""
    words = []
    for position, entry in enumerate(ids):
        if entry in SPECIAL_IDS:
            words.append(None)
        elif CONTINUES_WORD[entry] and words and words[-1]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def random_rows(count=300, length=64, seed=0):
    """Rows of random ids, a quarter of them pieces; [SEP]s and [UNK]s anywhere; padding."""
    rng = np.random.default_rng(seed)
    ids = np.where(
        rng.random((count, length)) < 0.25,
        rng.integers(500, VOCAB_SIZE, (count, length)),
        rng.integers(5, 500, (count, length)),
    )
    ids = np.where(rng.random((count, length)) < 0.05, rng.choice([UNK, SEP], ids.shape), ids)
    return np.where(np.arange(length) < rng.integers(2, length + 1, (count, 1)), ids, PAD)


def plain_whole_words(ids, wanted, rng):
    words = [word for word in words_of(ids) if word]
    rng.shuffle(words)
    covered = set()
    for word in words:
        if len(covered) + len(word) <= wanted:
            covered |= set(word)
    return covered


def plain_ngrams(ids, wanted, rng):
    words, covered = words_of(ids), set()
    starts = [place for place, word in enumerate(words) if word]
    rng.shuffle(starts)
    for start in starts:
        (drawn,) = rng.choices((1, 2, 3), (6, 3, 2))
        for number in range(drawn, 0, -1):
            ngram = words[start : start + number]
            ngram = ngram[: ngram.index(None)] if None in ngram else ngram
            tokens = set(sum(ngram, []))
            if len(covered) + len(tokens) <= wanted:
                if not tokens & covered:
                    covered |= tokens
                break
    return covered


def plain_spans(ids, wanted, rng):
    words, covered = words_of(ids), set()

    def is_free(place):
        word = words[place] if place < len(words) else None
        return bool(word) and not set(word) & covered and len(covered) + len(word) <= wanted

    while free := [place for place in range(len(words)) if is_free(place)]:
        length = 11
        while length > 10:
            length = 1 + math.floor(math.log(1 - rng.random()) / math.log(0.8))
        place = rng.choice(free)
        while length and is_free(place):
            covered |= set(words[place])
            place, length = place + 1, length - 1
    return covered


PLAIN = {"whole_word": plain_whole_words, "ngram": plain_ngrams, "span": plain_spans}

ROWS = {
    "small": (row([1, 2, 1, 1], [3, 1, 1]), 0.4),
    "long words": (row([4, 1, 3], [1, 5, 2]), 0.35),
    "one segment": (row([1] * 12), 0.4),
    "second segment begins with a piece": ([CLS, 10, 510, SEP, 511, 20, 30, SEP], 0.5),
}


@pytest.mark.parametrize("strategy", WORD_STRATEGIES)
@pytest.mark.parametrize("name", ROWS)
def test_every_set_is_as_likely_as_in_the_plain_version(strategy, name):
    ids, share = ROWS[name]
    count = 3_000
    found = collections.Counter(map(frozenset, chosen(mask([ids] * count, strategy, share=share))))
    rng = random.Random(1)
    wanted = round(len(ids) * share)
    plain = collections.Counter(frozenset(PLAIN[strategy](ids, wanted, rng)) for _ in range(count))
    assert_same_distribution(found, plain)


def assert_same_distribution(one, other):
    """Two samples of equal size: chi-square over what is frequent, the rest as one."""
    assert one.keys() >= {key for key, count in other.items() if count > 20}
    merged = collections.Counter()
    for sign, counts in ((0, one), (1, other)):
        for key, count in counts.items():
            rare = one[key] + other[key] < 20
            merged["rare" if rare else key, sign] += count
    keys = {key for key, _ in merged}
    differences = [
        (merged[key, 0] - merged[key, 1]) ** 2 / (merged[key, 0] + merged[key, 1]) for key in keys
    ]
    freedom = len(keys) - 1
    assert sum(differences) < freedom + 5 * math.sqrt(2 * freedom) + 1


def runs(positions):
    """The runs of adjacent positions of a set."""
    for start in (position for position in positions if position - 1 not in positions):
        yield list(itertools.takewhile(positions.__contains__, itertools.count(start)))


def run_lengths(sets):
    """The number of runs of each length in the sets, as shares."""
    counts = collections.Counter(len(run) for positions in sets for run in runs(positions))
    return {length: count / counts.total() for length, count in counts.items()}


@pytest.mark.parametrize("strategy", WORD_STRATEGIES)
def test_a_full_row_is_masked_as_by_the_plain_version(strategy):
    rng = random.Random(2)
    ids = row(*[[rng.choices((1, 2, 3, 4), (7, 2, 1, 1))[0] for _ in range(40)] for _ in range(2)])
    sets = chosen(mask([ids] * 2500, strategy))
    plain = [PLAIN[strategy](ids, round(len(ids) * 0.15), rng) for _ in range(2500)]
    for measure in (lambda sets: np.bincount([len(s) for s in sets], minlength=30), frequencies):
        np.testing.assert_allclose(measure(sets) / 2500, measure(plain) / 2500, atol=0.045)
    found, expected = run_lengths(sets), run_lengths(plain)
    for length in range(1, 15):
        assert found.get(length, 0) == pytest.approx(expected.get(length, 0), abs=0.02)


def frequencies(sets):
    return np.bincount([position for positions in sets for position in positions], minlength=160)


@pytest.mark.parametrize("strategy", WORD_STRATEGIES)
def test_words_are_masked_whole_never_more_than_asked_for_and_none_that_fits_is_left(strategy):
    for seed, most in ((0, 200), (3, 9)):
        input_ids = random_rows(seed=seed)
        sets = chosen(mask(input_ids, strategy, most=most))
        for ids, positions in zip(input_ids, sets, strict=True):
            left = min(most, max(1, round(np.count_nonzero(ids) * 0.15))) - len(positions)
            assert left >= 0
            words = [set(word) for word in words_of(ids) if word]
            assert all(len(positions & word) in (0, len(word)) for word in words)
            free = [len(word) for word in words if not word & positions]
            assert strategy == "ngram" or not free or min(free) > left
    # Without pieces every row gets the released number.
    input_ids = np.tile(row([1] * 30, [1] * 30), (200, 1))
    assert {len(positions) for positions in chosen(mask(input_ids, strategy))} == {9}


def test_a_row_of_one_word_that_is_too_long_gets_no_prediction():
    masked = mask([row([9]), row([1] * 9)], "whole_word")
    np.testing.assert_array_equal(masked["masked_lm_weights"].sum(axis=1), [0, 2])


def test_a_piece_behind_a_special_token_starts_a_word():
    ids = [CLS, 10, SEP, 511, 512, SEP]
    sets = set(map(frozenset, chosen(mask([ids] * 200, "whole_word", share=0.4))))
    assert sets == {frozenset([3, 4]), frozenset([1])}


def test_all_tokens_of_a_span_share_their_fate_and_spans_differ():
    input_ids = np.tile(row([1] * 60, [1] * 60), (400, 1))
    masked = mask(input_ids, "span", seed=5)
    fates = collections.Counter()
    for positions, ids, changed in zip(
        chosen(masked), input_ids.tolist(), masked["input_ids"].tolist(), strict=True
    ):
        in_row = set()
        for run in runs(positions):
            fate = {
                "mask" if changed[at] == MASK else "kept" if changed[at] == ids[at] else "random"
                for at in run
            }
            assert len(fate) == 1
            fates.update(fate)
            in_row |= fate
        fates["rows of several fates"] += len(in_row) > 1
    total = sum(fates[fate] for fate in ("mask", "kept", "random"))
    assert fates["mask"] / total == pytest.approx(0.8, abs=0.04)
    assert fates["kept"] / total == pytest.approx(0.1, abs=0.03)
    assert fates["rows of several fates"] > 100


def test_random_order_holds_each_candidate_once_in_every_order():
    candidates = np.tile([True, False, True, True], (12_000, 1))
    order = word_masking.random_order(candidates, np.random.default_rng(0))
    orders, counts = np.unique(order, axis=0, return_counts=True)
    assert orders[:, 3].tolist() == [4] * 6  # three candidates, then the length
    np.testing.assert_allclose(counts / 12_000, 1 / 6, atol=0.015)


def test_word_strategies_ask_for_the_vocabularys_pieces():
    for strategy in WORD_STRATEGIES:
        with pytest.raises(ValueError, match=f"continues_word is None; the strategy '{strategy}'"):
            mask([row([1, 1])], strategy, continues_word=None)
        with pytest.raises(ValueError, match="continues_word has 3 entries; .* the 1000 of"):
            mask([row([1, 1])], strategy, continues_word=np.zeros(3, bool))


def test_the_weights_of_run_lengths_are_the_papers():
    weights = np.array(word_masking.SPAN_WEIGHTS)
    assert (weights * np.arange(1, 11)).sum() / weights.sum() == pytest.approx(3.8, abs=0.05)
    ngrams = np.array(word_masking.NGRAM_WEIGHTS)
    np.testing.assert_allclose(ngrams / ngrams.sum(), [6 / 11, 3 / 11, 2 / 11])
