"""Claims about the page of `bertjax start`."""

from bertjax.checks import runs
from bertjax.start import page


def test_the_steps_that_the_hours_left_out_are_said():
    def steps(*decisions, step=79):
        return page._steps(runs.Run("run", [{"step": step}], {"budget.decisions": decisions}))

    assert "79 of 1,819" in steps((0, 1_000, 819), (0, 50, 29))
    assert steps((0, 79)) == steps() == ""


def test_a_name_of_a_directory_is_text_on_the_page(tmp_path, monkeypatch):
    name = "<img src=x onerror=alert(2)>"
    (tmp_path / name).mkdir()
    (tmp_path / name / "report.html").write_text("")
    monkeypatch.setattr(
        page.runs, "read", lambda run: runs.Run("run", [], {"budget.decisions": ()})
    )
    monkeypatch.setattr(page.compare_page, "findings", lambda run: "")
    content = page.write(tmp_path, [], "", "").read_text()
    assert "<img src=x" not in content and "The report of &lt;img src=x" in content
