import numpy as np

from data_pipelines.reports import lengths


def test_every_length_falls_into_one_bin():
    drawn = np.random.default_rng(0).geometric(0.01, 5000) - 1
    figures = lengths.figures(lengths.counted(drawn), mean=drawn.mean(), largest=drawn.max())
    starts = np.array([*figures["from"], np.inf])
    expected = [
        ((drawn >= a) & (drawn < b)).sum() for a, b in zip(starts, starts[1:], strict=False)
    ]
    assert figures["counts"] == expected and sum(expected) == 5000
    assert figures["median"] == np.median(drawn)


def test_bins_are_single_lengths_at_first_and_few_in_all():
    figures = lengths.figures(lengths.counted(np.arange(5000)), mean=0, largest=4999)
    assert figures["from"][:8] == list(range(8))
    assert len(figures["from"]) < 48 and sum(figures["counts"]) == 5000


def test_full_examples_have_a_bin_to_themselves():
    for longest in (16, 100, 128, 512):
        counts = np.ones(longest + 1, np.int64)
        figures = lengths.example_figures(counts)
        assert figures["from"][0] == 0 and figures["from"][-1] == longest
        assert figures["counts"][-1] == 1 and sum(figures["counts"]) == longest + 1
        assert figures["mean"] == longest / 2


def test_without_lengths_there_are_no_bins():
    empty = lengths.figures(lengths.counted(np.zeros(0, np.int64)), mean=0, largest=0)
    assert (empty["from"], empty["counts"]) == ([], [])
