"""Searches against plain loops that have no memory of earlier steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax.models import decoder, generation
from tests import conftest, small_modules
from tests.models import test_decoder as of_decoder

START, END, MOST = 1, 2, 7
SEARCH = {"start_id": START, "end_id": END, "max_length": MOST}


@pytest.fixture(scope="module")
def model():
    """A model whose targets end, at different places: its head is as large as one that learnt."""
    made = small_modules.made(decoder.EncoderDecoder, conftest.TINY, shares="embeddings")
    made.mlm_head.norm.scale[...] = 6 * made.mlm_head.norm.scale[...]
    made.mlm_head.bias[...] = made.mlm_head.bias[...].at[END].add(7.0)
    return made


@pytest.fixture(scope="module")
def batch():
    return of_decoder.rows(conftest.TINY, batch=5)


@pytest.fixture(scope="module")
def shares(model, batch):
    """A function from the number of a row and a target to the log-shares of what follows."""
    compiled = jax.jit(lambda ids, mask: model({**batch, "target_ids": ids, "target_mask": mask}))

    def of(row, target):
        ids = np.zeros((5, MOST), np.int32)
        ids[row, : len(target)] = target
        mask = np.broadcast_to(np.arange(MOST) < len(target), ids.shape).astype(np.int32)
        logits = compiled(jnp.asarray(ids), jnp.asarray(mask))[row, len(target) - 1]
        return scipy.special.log_softmax(np.asarray(logits, np.float64))

    return of


@pytest.fixture(scope="module")
def search(model):
    """A function that searches with options for the targets of a batch.

    There are two loops for the places of a target, and several blocks of tokens.
    """

    @functools.partial(jax.jit, static_argnames="search")
    def compiled(batch, keys, search):
        return generation.generate(model, batch, search, keys=keys)

    def run(batch, keys=None, **options):
        return compiled(batch, keys, generation.Search(**{**SEARCH, **options}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "MOST_IN_ONE_LOOP", 4)
        patch.setattr(generation, "TOKEN_BLOCK", 8)
        yield run


def without_end(ids):
    """The ids of a target up to its end."""
    ids = [int(it) for it in ids]
    return ids[: ids.index(END) + 1] if END in ids else ids


def repeats(target, size):
    grams = [tuple(target[at : at + size]) for at in range(len(target) - size + 1)]
    return len(set(grams)) < len(grams)


def plain_beams(shares, row, beams, penalty, stops_early, no_repeat, least):
    """The search as lists of (score, target): one row, all continuations sorted."""
    running, ended = [(0.0, [START])], []
    for length in range(1, MOST + 1):
        every = []
        for score, target in running:
            for token, share in enumerate(shares(row, target)):
                is_early = token == END and length <= least
                if not is_early and not (no_repeat and repeats([*target, token], no_repeat)):
                    every.append((score + share, [*target, token]))
        every = sorted(every, key=lambda it: -it[0])[: 2 * beams]
        is_full = stops_early is True and len(ended) == beams
        for score, target in every[:beams]:
            if (target[-1] == END or length == MOST) and not is_full:
                ended.append((score / length**penalty, target[1:]))
        ended = sorted(ended, key=lambda it: -it[0])[:beams]
        running = [it for it in every if it[1][-1] != END][:beams]
        longest = MOST if stops_early == "never" and penalty > 0 else length
        is_done = len(ended) == beams and (
            stops_early is True or running[0][0] / longest**penalty <= ended[-1][0]
        )
        if is_done:
            break
    return ended


@pytest.mark.parametrize("least", [0, 3])
def test_greedy_targets_are_the_best_tokens_of_a_plain_loop(search, batch, shares, least):
    found = search(batch, min_new_tokens=least)
    ends = set()
    for row in range(5):
        target, score = [START], 0.0
        while len(target) <= MOST and target[-1] != END:
            of_next = shares(row, target)
            if len(target) <= least:
                of_next[END] = -np.inf
                of_next = scipy.special.log_softmax(of_next)
            target.append(int(of_next.argmax()))
            score += of_next.max()
        assert without_end(found.ids[row, 0]) == target[1:]
        assert not np.any(found.ids[row, 0, len(target) - 1 :])  # padding
        np.testing.assert_allclose(found.scores[row, 0], score, atol=1e-5)
        ends.add(len(target))
    assert len(ends) > 1 and min(ends) > least + 1


@pytest.mark.parametrize(
    ("beams", "penalty", "stops_early", "no_repeat", "least"),
    [(2, 3.0, False, 0, 0), (3, 2.0, False, 2, 3), (4, 0.6, True, 1, 0), (2, 3.0, "never", 0, 0)],
)
def test_beams_are_those_of_a_plain_loop(
    search, batch, shares, beams, penalty, stops_early, no_repeat, least
):
    options = {"length_penalty": penalty, "early_stopping": stops_early, "min_new_tokens": least}
    found = search(batch, beams=beams, no_repeat_ngram=no_repeat, **options)
    for row in range(5):
        expected = plain_beams(shares, row, beams, penalty, stops_early, no_repeat, least)
        assert [without_end(it) for it in found.ids[row]] == [target for _, target in expected]
        np.testing.assert_allclose(found.scores[row], [it for it, _ in expected], atol=1e-5)


@pytest.mark.parametrize("options", [{"beams": 3}, {"sampling": True}], ids=str)
def test_a_row_is_searched_for_as_if_it_were_alone(search, batch, options):
    keys = jax.random.split(jax.random.key(0), 5) if "sampling" in options else None
    whole = search(batch, keys, **options)
    alone = {name: jnp.repeat(x[3:4], 5, axis=0) for name, x in batch.items()}
    found = search(alone, None if keys is None else jnp.repeat(keys[3:4], 5), **options)
    for row in range(5):
        np.testing.assert_array_equal(whole.ids[3], found.ids[row])
        np.testing.assert_allclose(whole.scores[3], found.scores[row], atol=1e-5)


def test_samples_have_the_shares_of_the_model(search, batch, shares):
    """The first tokens of 2,000 samples of one row, also of the most probable ones alone."""
    count, temperature = 2000, 1.3
    many = {name: jnp.repeat(x[:1], count, axis=0) for name, x in batch.items()}
    keys = jax.random.split(jax.random.key(1), count)
    logits = shares(0, [START]) / temperature
    order = np.argsort(-logits)
    for top_k, top_p in ((0, 1.0), (0, 0.6), (4, 0.7)):
        kept = order[: top_k or None]
        of_kept = scipy.special.softmax(logits[kept])
        kept = kept[: int((np.cumsum(of_kept) - of_kept < top_p).sum())]
        expected = np.zeros(len(logits))
        expected[kept] = scipy.special.softmax(logits[kept])
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        ids = search(many, keys, max_length=1, sampling=True, **options).ids[:, 0, 0]
        found = np.bincount(np.asarray(ids), minlength=len(logits)) / count
        assert np.all(found[expected == 0] == 0)
        errors = np.abs(found - expected) / np.sqrt(expected * (1 - expected) / count + 1e-9)
        assert errors.max() < 5


def test_samples_change_with_their_keys_alone(search, batch):
    first, again, other = (
        search(batch, jax.random.split(jax.random.key(seed), 5), sampling=True).ids
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"beams": 0, "temperature": 0.0, "top_p": 2.0, "sampling": True},
            "(?s)beams is 0.*temperature is 0.0.*top_p is 2.0",
        ),
        ({"top_k": 3}, "top_k is 3"),
        ({"length_penalty": 0.5}, "length_penalty is 0.5"),
        ({"beams": 2, "sampling": True}, "beams is 2; it must be 1 with sampling"),
        (
            {"early_stopping": "no", "min_new_tokens": 8},
            f"(?s)min_new_tokens is 8; .*{MOST}.*early_stopping is 'no'",
        ),
    ],
)
def test_options_that_do_not_fit_are_all_named_at_once(options, said):
    with pytest.raises(ValueError, match=said):
        generation.Search(**SEARCH, **options)


def test_a_search_without_beams_drops_the_options_of_beams_that_the_model_has():
    of_model = generation.Search(**SEARCH, beams=4, length_penalty=2.0, early_stopping="never")
    assert generation.changed(of_model, beams=2).length_penalty == 2.0
    for given in ({"beams": 1}, {"sampling": True}):
        assert generation.changed(of_model, **given) == generation.Search(**SEARCH, **given)
    with pytest.raises(ValueError, match=r"length_penalty is 0\.5"):
        generation.changed(of_model, beams=1, length_penalty=0.5)


def test_sampling_needs_keys(model, batch):
    with pytest.raises(ValueError, match="keys is None"):
        generation.generate(model, batch, generation.Search(**SEARCH, sampling=True))


def test_a_search_that_never_stops_early_compares_at_the_greatest_length():
    ended = (jnp.zeros((1, 1, 3)), jnp.array([[-0.5]]), jnp.array([[True]]))
    can = {
        stops: bool(
            generation._can_improve(
                jnp.array([[-6.0]]),
                ended,
                jnp.int32(2),
                generation.Search(**SEARCH, beams=2, length_penalty=3.0, early_stopping=stops),
            )[0, 0]
        )
        for stops in (False, "never")
    }
    assert can == {False: False, "never": True}  # -6 / 2**3 and -6 / 7**3
