"""The numbers of words at which checkpoints are kept: their schedule, their names, their errors."""

from bertjax.workdirs import word_marks


def test_the_schedule_of_the_challenge_is_fine_first_and_coarse_later():
    marks = word_marks.marks(("babylm",))
    assert [word_marks.label(mark) for mark in marks] == [
        *(f"{number}M" for number in range(1, 11)),
        *(f"{number}M" for number in range(20, 101, 10)),
        *(f"{number}M" for number in range(200, 1001, 100)),
    ]


def test_marks_are_in_order_and_once_and_have_short_names():
    assert word_marks.marks((3e6, "babylm", 2, 250_000))[:4] == (2, 250_000, 1_000_000, 2_000_000)
    assert list(map(word_marks.label, (1, 1500, 2000, 10**9))) == ["1", "1500", "2K", "1000M"]


def test_a_value_that_is_no_mark_is_a_fault():
    assert not list(word_marks.faults((1, 2e6, "babylm")))
    faults = list(word_marks.faults((0, 1.5, True, "babylmm")))
    assert len(faults) == 4
    assert (
        "has 'babylmm'; it must have whole numbers of words, from 1 on, or names: babylm"
        in (faults[-1])
    )
