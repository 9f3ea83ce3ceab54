"""Rows of an encoder with a decoder: MASS's fragments and BART's infilled spans."""

import collections
import itertools

import numpy as np
import pytest

from bertjax.data import sequence_rows, word_masking

PAD, UNK, CLS, SEP, MASK = range(5)
VOCABULARY = 1_000
IDS = sequence_rows.Ids(VOCABULARY, PAD, SEP, MASK, (PAD, UNK, CLS, SEP, MASK))
LENGTH = 24


def rows(count=64, seed=0, length=LENGTH):
    """[CLS] words [SEP], padded; some have an [UNK] or a second [SEP], some have no word at all."""
    rng = np.random.default_rng(seed)
    input_ids = np.full((count, length), PAD, np.int32)
    for row, size in enumerate([length, 3, 2, *rng.integers(4, length + 1, count - 3)]):
        input_ids[row, :size] = [CLS, *rng.integers(5, VOCABULARY, size - 2), SEP]
        if row % 3 == 2 and size > 6:
            input_ids[row, rng.integers(1, size - 1)] = rng.choice([UNK, SEP])
    ends = (rng.random(input_ids.shape) < 0.3).astype(np.int32)
    mask = (input_ids != PAD).astype(np.int32)
    return {"input_ids": input_ids, "input_mask": mask, "ends_sentence": ends}


def made(name, batch, seed=0):
    return sequence_rows.SEQUENCE_ROWS[name].draw(batch, IDS, np.random.default_rng(seed))


def words_of(ids):
    """The places of the tokens that may be hidden."""
    return [place for place, it in enumerate(ids) if it not in IDS.special_ids]


def slow_mass(batch, seed):
    """Row by row, from the same draws."""
    rng, ids = np.random.default_rng(seed), batch["input_ids"].tolist()
    words = [words_of(row) for row in ids]
    sizes = [
        min(round(sum(it != PAD for it in row) / 2), len(of))
        for row, of in zip(ids, words, strict=True)
    ]
    dice = rng.random(len(ids))
    anywhere = rng.integers(0, [len(of) - size + 1 for of, size in zip(words, sizes, strict=True)])
    fragments = []
    for of, size, die, place in zip(words, sizes, dice, anywhere, strict=True):
        first = 0 if die < 0.2 else len(of) - size if die < 0.4 else place
        fragments.append(of[first : first + size])
    total = sum(map(len, fragments))
    kinds, others = iter(rng.random(total)), iter(rng.integers(0, VOCABULARY, total))
    for row, fragment in zip(ids, fragments, strict=True):
        source = list(row)
        for place in fragment:
            kind, other = next(kinds), next(others)
            source[place] = MASK if kind < 0.8 else row[place] if kind < 0.9 else other
        target = [(row[p - 1], p - 1, row[p]) for p in fragment]
        shown = [int(it != MASK and was != PAD) for it, was in zip(source, row, strict=True)]
        yield source, shown, target


def sentences_of(row, ends):
    """The sentences of a row, without its first and its last token."""
    found, inner = [[]], range(1, sum(it != PAD for it in row) - 1)
    for place in inner:
        found[-1].append(row[place])
        is_before_sep = place + 1 in inner and row[place + 1] == SEP
        if row[place] == SEP and not is_before_sep or ends[place] and not is_before_sep:
            found.append([])
    return found


def exchanged(batch, rng):
    """Rows with the sentences in the order of random numbers."""
    keys, rows = rng.random((len(batch["input_ids"]), LENGTH + 1)), []
    for row, ends, key in zip(
        batch["input_ids"].tolist(), batch["ends_sentence"].tolist(), keys, strict=True
    ):
        found = sentences_of(row, ends)
        order = sorted(range(len(found)), key=key.__getitem__)
        size = sum(it != PAD for it in row)
        inner = [it for number in order for it in found[number]]
        rows.append([row[0], *inner, *row[size - 1 :]])
    return np.array(rows)


def slow_bart(batch, seed):
    rng = np.random.default_rng(seed)
    ids = exchanged(batch, rng)
    words = [words_of(row) for row in ids.tolist()]
    budgets = [int(np.ceil(0.3 * len(of))) for of in words]
    columns = rng.poisson(3.5, (len(ids), max(budgets))).T.tolist()
    while any(sum(of) < it for of, it in zip(zip(*columns, strict=True), budgets, strict=True)):
        columns += rng.poisson(3.5, (len(ids), max(budgets))).T.tolist()
    spans = []  # of each row; an empty one is 0
    for drawn, budget in zip(zip(*columns, strict=True), budgets, strict=True):
        taken = []
        for length in drawn:
            if sum(taken) < budget:
                taken.append(min(length, budget - sum(taken)))
        spans.append(taken)
    maskable = np.array([[p in of for p in range(LENGTH)] for of in words])
    order = word_masking.random_order(maskable, rng)
    count = sum(size > 0 for taken in spans for size in taken)
    in_place = iter(np.where(rng.random(count) < 0.1, rng.integers(0, VOCABULARY, count), MASK))
    sources = []
    for row, taken, starts in zip(ids.tolist(), spans, order, strict=True):
        source = {place: it for place, it in enumerate(row) if it != PAD}
        lengths = [size for size in taken if size]
        for _, start in zip(lengths, starts, strict=False):
            source[start] = int(next(in_place))
        for size, start in zip(lengths, starts, strict=False):
            for place in range(start + 1, start + size):
                if row[place] in IDS.special_ids:
                    break
                source.pop(place, None)
        sources.append([source[place] for place in sorted(source)])
    empty = [
        min(sum(size == 0 for size in taken), LENGTH - len(source))
        for taken, source in zip(spans, sources, strict=True)
    ]
    inner = np.array(
        [
            [0 < p < len(s) + n - 1 for p in range(LENGTH)]
            for s, n in zip(sources, empty, strict=True)
        ]
    )
    chosen = [
        sorted(places[:n])
        for places, n in zip(word_masking.random_order(inner, rng), empty, strict=True)
    ]
    added = sum(map(len, chosen))
    new = iter(np.where(rng.random(added) < 0.1, rng.integers(0, VOCABULARY, added), MASK))
    for source, places in zip(sources, chosen, strict=True):
        for place in places:
            source.insert(place, int(next(new)))
        yield source


@pytest.mark.parametrize("seed", range(6))
def test_fragments_are_those_of_a_loop_over_rows(seed):
    batch = rows(seed=seed)
    found = made("mass", batch, seed)
    for row, (source, shown, target) in enumerate(slow_mass(batch, seed)):
        assert found["input_ids"][row].tolist() == source
        assert found["source_mask"][row].tolist() == shown
        padding = [(PAD, 0, PAD)] * (LENGTH // 2 - len(target))
        names = ("target_ids", "target_positions", "target_labels")
        assert list(zip(*(found[name][row].tolist() for name in names), strict=True)) == [
            *target,
            *padding,
        ]
        assert found["target_mask"][row].tolist() == [1] * len(target) + [0] * len(padding)


@pytest.mark.parametrize("seed", range(6))
def test_infilled_rows_are_those_of_a_loop_over_rows(seed):
    batch = rows(seed=seed)
    found = made("bart", batch, seed)
    for row, source in enumerate(slow_bart(batch, seed)):
        padded = source + [PAD] * (LENGTH - len(source))
        assert found["input_ids"][row].tolist() == padded
        assert found["input_mask"][row].tolist() == [int(p < len(source)) for p in range(LENGTH)]
    np.testing.assert_array_equal(found["target_labels"], batch["input_ids"])
    np.testing.assert_array_equal(found["target_mask"], batch["input_mask"])
    assert (found["target_ids"][:, 0] == SEP).all() and not found["segment_ids"].any()
    np.testing.assert_array_equal(found["target_ids"][:, 1:], batch["input_ids"][:, :-1])


def full_rows(count, length=22):
    ids = np.tile(np.arange(5, 5 + length), (count, 1)).astype(np.int32)
    ids[:, 0], ids[:, -1] = CLS, SEP
    mask = np.ones_like(ids)
    return {"input_ids": ids, "input_mask": mask, "ends_sentence": np.zeros_like(ids)}


def near(share, expected, count):
    """Within four standard deviations of a share of `count` draws."""
    return abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / count)


def test_a_fragment_is_half_of_the_row_at_its_start_or_its_end_or_anywhere():
    count, length = 20_000, 22
    found = made("mass", full_rows(count, length))
    assert (found["target_mask"].sum(axis=1) == 11).all()
    np.testing.assert_array_equal(found["target_ids"][:, 1:], found["target_labels"][:, :-1])
    np.testing.assert_array_equal(
        found["target_positions"], found["target_positions"][:, :1] + np.arange(11)
    )
    # 20 tokens leave 10 places that a fragment of 11 begins at: the ends have a fifth more.
    shares = np.bincount(found["target_positions"][:, 0], minlength=10) / count
    for place, share in enumerate(shares):
        assert near(share, 0.6 / 10 + 0.2 * (place in (0, 9)), count), place


def test_all_orders_of_the_sentences_of_a_row_are_as_likely():
    count = 12_000
    batch = full_rows(count, 9)
    batch["ends_sentence"][:, [2, 3]] = 1  # two tokens, one, four
    order = sequence_rows.sentence_order(
        batch["input_ids"], batch["input_mask"] != 0, batch["ends_sentence"] != 0, SEP,
        np.random.default_rng(0),
    )  # fmt: skip
    parts = ([1, 2], [3], [4, 5, 6, 7])
    shares = collections.Counter(map(tuple, order.tolist()))
    for permutation in itertools.permutations(parts):
        row = (0, *itertools.chain(*permutation), 8)
        assert near(shares.pop(row) / count, 1 / 6, count)
    assert not shares


@pytest.mark.parametrize("name", sequence_rows.SEQUENCE_ROWS)
def test_special_tokens_stay_and_rows_depend_on_the_generator_alone(name):
    batch = rows(count=200)
    found = made(name, batch)
    for ids, source, mask, labels in zip(
        batch["input_ids"], found["input_ids"], found.get("input_mask", batch["input_mask"]),
        found["target_labels"] * found["target_mask"], strict=True,
    ):  # fmt: skip
        real = source[mask != 0].tolist()
        assert (real[0], real[-1]) == (CLS, SEP)
        if name == "mass":
            assert not {*labels.tolist()} & {UNK, CLS, SEP, MASK}
        specials = [it for it in ids.tolist() if it in (CLS, SEP, UNK)]
        kept = iter(real)  # others may be drawn at random
        assert all(any(it == other for other in kept) for it in specials)
    again = made(name, batch)
    other = made(name, batch, seed=1)
    assert found.keys() == again.keys() == other.keys()
    for feature in found:
        np.testing.assert_array_equal(found[feature], again[feature])
    assert (found["input_ids"] != other["input_ids"]).any()


@pytest.mark.parametrize("name", sequence_rows.SEQUENCE_ROWS)
def test_shapes_are_those_of_the_features_at_even_and_odd_lengths(name):
    kind = sequence_rows.SEQUENCE_ROWS[name]
    for length in (2, 3, 7, 8):
        batch = rows(count=40, length=max(length, 4))
        batch = {key: it[:, :length] for key, it in batch.items()}
        found = made(name, batch)
        shapes = {key: (40, *it.sizes(length)) for key, it in kind.features(length).items()}
        assert {key: found[key].shape for key in shapes} == shapes
        assert all(it.dtype == np.int32 for it in found.values())
        assert found["input_ids"].shape == (40, length)
        assert found.keys() <= {*shapes, "input_ids", "input_mask", "segment_ids"}


@pytest.mark.parametrize("name", sequence_rows.SEQUENCE_ROWS)
def test_the_first_token_of_a_row_stays_even_if_it_is_a_word(name):
    batch = full_rows(2_000, 6)
    batch["input_ids"][:, 0] = 999
    found = made(name, batch)
    assert (found["input_ids"][:, 0] == 999).all()
    if name == "mass":
        assert found["target_positions"].min() == 0 and (found["target_labels"] != 999).all()


def test_rows_that_are_full_have_no_space_for_an_empty_span():
    """One word in a row: a span is that word, and the empty spans before it find no place."""
    batch = full_rows(500, 3)
    found = made("bart", batch)
    assert {*map(tuple, found["input_mask"].tolist())} == {(1, 1, 1)}
    wide = {key: np.pad(it, ((0, 0), (0, 2))) for key, it in batch.items()}
    sizes = made("bart", wide)["input_mask"].sum(axis=1)
    assert {*itertools.chain(sizes.tolist())} >= {3, 4}
