"""Claims about the page of `bertjax start`."""

from bertjax.checks import runs
from bertjax.start import page


def test_the_steps_that_the_hours_left_out_are_said():
    def steps(*decisions, step=79):
        return page._steps(runs.Run("run", [{"step": step}], {"budget.decisions": decisions}))

    assert "79 of 1,819" in steps((0, 1_000, 819), (0, 50, 29))
    assert steps((0, 79)) == steps() == ""
