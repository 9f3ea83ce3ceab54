"""Pictures of what a run on values predicts."""

import numpy as np
import pytest

from bertjax.data import records, value_pictures, value_rows
from bertjax.interactive import pictures
from tests import finetuned_workdir, small_records, small_runs, small_values

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")


@pytest.mark.parametrize("kind", small_values.LENGTHS)
def test_what_is_predicted_stands_where_it_was_hidden(tmp_path, kind):
    small_values.write(tmp_path / "r", kind)
    small_runs.untrained(small_values.make_config(kind, tmp_path / "r"), tmp_path / "run")
    drawn = pictures.hidden_values(tmp_path / "run", tmp_path / "r", rows=3)
    if kind == "pixels":
        assert len(drawn.axes) == 9
        whole, left, predicted = (
            np.asarray(axes.images[0].get_array(), int) for axes in drawn.axes[::3]
        )
        is_shown = whole == left
        assert 0.3 < is_shown.mean() < 0.8
        assert (predicted[is_shown] == whole[is_shown]).all()
        assert (predicted[~is_shown] != left[~is_shown]).any()
    elif kind == "patches":
        for axes in drawn.axes:
            observed, predicted = (line.get_ydata() for line in axes.lines)
            there = ~np.isnan(predicted)
            assert there.sum() == 8 * 4  # half of 16 patches
            assert not np.allclose(observed[there], predicted[there])
    else:
        assert [len(axes.lines) for axes in drawn.axes] == [1, 1, 1]


def test_a_run_on_texts_and_records_of_texts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="finetuned_table is not a run on values"):
        pictures.hidden_values(finetuned_workdir.made("table"), tmp_path)
    with pytest.raises(ValueError, match="finetuned_table does not forecast"):
        pictures.forecast(finetuned_workdir.made("table"), tmp_path)
    small_records.write(tmp_path / "texts")
    with pytest.raises(ValueError, match="texts do not say what they forecast"):
        value_rows.ForecastRows.of(records.open(tmp_path / "texts"))
    with pytest.raises(ValueError, match="and no values: give those of"):
        value_rows.as_arrays(records.open(tmp_path / "texts"))


def test_rows_are_the_first_of_the_records(tmp_path):
    small_values.write(tmp_path / "r", "patches")
    batch = value_pictures.batch(records.open(tmp_path / "r"), 5)
    assert batch["values"].shape[0] == 5 and (batch["example_weights"] == 1).all()
