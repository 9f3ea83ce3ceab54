"""Records of values in words and pictures."""

import pytest

from bertjax.data import records
from data_pipelines import inspect_records
from data_pipelines.reports import value_report
from tests import small_values


@pytest.mark.parametrize("kind", small_values.LENGTHS)
def test_a_page_has_the_facts_and_a_picture_of_rows(tmp_path, capsys, kind):
    manifest = small_values.write(tmp_path / "r", kind)
    page = tmp_path / "page.html"
    inspect_records.main(inspect_records.Options(str(tmp_path / "r"), examples=3, html=str(page)))
    printed = capsys.readouterr().out
    assert f"rows                    {manifest.num_examples}" in printed
    assert "Labels: kind classes; names low, high" in printed
    assert ("categories 0, 1, 2" in printed) == (kind == "cells")
    assert "data:image/png;base64," in page.read_text()
    drawn = value_report.picture(records.open(tmp_path / "r"), 3)
    axes = drawn.axes
    assert len(axes) == (6 if kind == "pixels" else 3)
    if kind == "patches":
        spans = [patch for patch in axes[0].patches]
        assert len(spans) == round(0.4 * 16)  # shaded where hidden
    with pytest.raises(ValueError, match="--recount counts tokens"):
        inspect_records.main(inspect_records.Options(str(tmp_path / "r"), recount=True))
