"""Claims about the search: it finds what fits, and asks seldom."""

import itertools

import pytest

from bertjax.plan import search

SETTINGS = search.Settings(
    remat="none", accumulation_steps=1, sharding="data_parallel", data_devices=4
)


def machine(limit, fixed, per_row, *, curve=1.0, speaks=True):
    """A compiler whose steps need fixed + per_row x batch ** curve; and what it was asked."""
    asked = []

    def attempt(size):
        asked.append(size)
        needed = int(fixed + per_row * size**curve)
        return search.Trial({"batch": size}, needed <= limit, needed if speaks else None)

    return attempt, asked


@pytest.mark.parametrize("speaks", [True, False])
def test_the_largest_batch_fits_and_a_step_more_does_not(speaks):
    for curve, limit in itertools.product((0.8, 1.0, 1.2), (300, 1_200, 5_000, 17_000)):
        attempt, asked = machine(limit, fixed=200, per_row=10, curve=curve, speaks=speaks)
        limits = search.Limits(device_bytes=limit, fixed_bytes=200)
        trials = search.largest_batch(attempt, 64, limits, unit=4)
        best = search.best_batch(trials)
        assert asked == list(trials) and asked[0] == 64 and len(asked) <= search.MAX_BATCH_TRIALS
        assert all(size % 4 == 0 for size in asked)
        truth = max((s for s in range(4, 50_000, 4) if 200 + 10 * s**curve <= limit), default=None)
        if truth is None:
            assert best is None
            continue
        assert best is not None and best <= truth
        if len(asked) < search.MAX_BATCH_TRIALS:
            assert truth - best < max(best / 16, 4)


def test_memory_that_grows_evenly_is_found_in_three_compiles_and_no_batch_is_an_answer():
    attempt, asked = machine(10_000, fixed=200, per_row=10)
    trials = search.largest_batch(attempt, 256, search.Limits(10_000, 200), unit=4)
    assert search.best_batch(trials) == 976  # 980 rows fit; steps of 16, then of 60
    assert asked == [256, 976, 1020]
    attempt, asked = machine(100, fixed=200, per_row=10)
    trials = search.largest_batch(attempt, 256, search.Limits(100, 200), unit=8)
    assert search.best_batch(trials) is None
    assert min(asked) == 8


def variants(fitting):
    tried = []

    def attempt(changes):
        tried.append(changes)
        return search.Trial(changes, fitting(changes))

    return attempt, tried


def test_single_changes_are_tried_and_accumulation_stops_where_it_fits():
    attempt, tried = variants(lambda changes: changes.get("gradient_accumulation_steps", 1) >= 4)
    found = search.changes_that_fit(attempt, SETTINGS, 256)
    accumulation = [{"gradient_accumulation_steps": number} for number in (2, 4, 8)]
    single = [{"model.remat": "dots"}, {"model.remat": "full"}, {"sharding": "fsdp"}]
    assert tried == [*single, *accumulation[:2]]
    assert [trial.fits for trial in found] == [False, False, False, False, True]
    # Settings that the run has already are not proposed.
    settings = search.Settings(remat="full", accumulation_steps=2, sharding="fsdp", data_devices=4)
    attempt, tried = variants(lambda changes: False)
    search.changes_that_fit(attempt, settings, 32)
    assert tried == accumulation[1:]


def test_changes_are_joined_only_where_none_fits_alone():
    def fitting(changes):
        return len(changes) == 3 and changes["gradient_accumulation_steps"] == 8

    attempt, tried = variants(fitting)
    found = search.changes_that_fit(attempt, SETTINGS, 32)
    assert found[-1].fits
    assert tried[-1] == {
        "model.remat": "full", "sharding": "fsdp", "gradient_accumulation_steps": 8
    }  # fmt: skip
    # 32 rows on 4 devices: no more than 8 micro-batches.
    assert max(changes.get("gradient_accumulation_steps", 1) for changes in tried) == 8
