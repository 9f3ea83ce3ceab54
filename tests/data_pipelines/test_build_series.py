"""Series to records: windows, scaling by the training part, gaps, parts in time."""

import tracemalloc

import numpy as np
import pytest

from bertjax.data import records
from data_pipelines import build_series
from data_pipelines.values import value_tables
from tests.data_pipelines import decoded

STEPS = 200


@pytest.fixture
def series():
    rng = np.random.default_rng(0)
    return np.cumsum(rng.normal(size=(STEPS, 3)), axis=0) + np.array([0, 50, -7])


def write_csv(path, series, gaps=()):
    lines = ["date,a,b,c,note"]
    for at, row in enumerate(series):
        cells = ["" if (at, column) in gaps else repr(float(it)) for column, it in enumerate(row)]
        lines.append(f"2020-01-01 {at // 60:02d}:{at % 60:02d}:00,{','.join(cells)},x")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def options(path, output, **changes):
    given = {"window": 26, "patch": 4, "parts": "120,40,40", "time_column": "date"}
    return build_series.Options(input=path, output=str(output), **(given | changes))


def test_each_part_has_all_windows_of_its_own_steps_once_scaled_by_the_training_part(
    tmp_path, series
):
    path = write_csv(tmp_path / "s.csv", series)
    build_series.build(options(path, tmp_path / "r"))
    scaled = (series - series[:120].mean(axis=0)) / series[:120].std(axis=0)
    for part, begin, end in (("train", 0, 120), ("heldout", 120, 160), ("test", 160, 200)):
        expected = {
            scaled[start + 2 : start + 26, channel].astype(np.float32).tobytes()
            for start in range(begin, end - 26 + 1)
            for channel in range(3)
        }
        manifest, rows = (
            records.Manifest.load(tmp_path / "r" / part),
            decoded.read(tmp_path / "r" / part),
        )
        assert not {"observed", "continues_word"} & {*rows}
        assert rows["values"].shape[1:] == (6, 4)
        assert len(rows["values"]) == manifest.num_examples == len(expected)
        assert {it.tobytes() for it in rows["values"]} == expected
    channels = manifest.statistics["channels"]
    assert [it["name"] for it in channels] == ["a", "b", "c"]
    np.testing.assert_allclose([it["mean"] for it in channels], series[:120].mean(axis=0))


def test_empty_cells_are_not_observed_and_do_not_scale(tmp_path, series):
    gaps = {(at, 1) for at in range(30, 45)} | {(3, 0), (150, 2)}
    path = write_csv(tmp_path / "s.csv", series, gaps)
    build_series.build(options(path, tmp_path / "r", stride=7, scaling="standard"))
    manifest, rows = (
        records.Manifest.load(tmp_path / "r" / "train"),
        decoded.read(tmp_path / "r" / "train"),
    )
    seen = np.array([row for at, row in enumerate(series[:120, 1]) if (at, 1) not in gaps])
    np.testing.assert_allclose(manifest.statistics["channels"][1]["mean"], seen.mean())
    assert (rows["observed"] == 0).sum() > 20
    assert (rows["values"][rows["observed"] == 0] == 0).all()
    assert rows["values"][rows["observed"] != 0].std() > 0.5


def test_channels_together_are_groups_of_positions(tmp_path, series):
    path = write_csv(tmp_path / "s.csv", series)
    build_series.build(
        options(path, tmp_path / "r", channels_together=True, channels="c,a", scaling="none")
    )
    rows = decoded.read(tmp_path / "r" / "train")
    assert rows["values"].shape[1:] == (12, 4)
    assert (rows["continues_word"] == [0, 1, 1, 1, 1, 1] * 2).all()
    starts = {
        np.concatenate([series[at + 2 : at + 26, 2], series[at + 2 : at + 26, 0]])
        .astype(np.float32)
        .tobytes()
        for at in range(120 - 25)
    }
    assert {it.tobytes() for it in rows["values"]} == starts


def test_the_same_input_gives_the_same_bytes_from_csv_and_npy(tmp_path, series):
    path = write_csv(tmp_path / "s.csv", series)
    np.save(tmp_path / "s.npy", series)
    build_series.build(options(path, tmp_path / "a"))
    build_series.build(options(str(tmp_path / "s.npy"), tmp_path / "b", time_column=""))
    shards = [sorted((tmp_path / name / "train").glob("*.tfrecord*")) for name in "ab"]
    assert len(shards[0]) == len(shards[1]) >= 8
    for one, other in zip(*shards, strict=True):
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "changes", "message"),
    [
        ("s.csv", None, {"time_column": "day"}, "--time_column is 'day'; known are date, a"),
        ("s.csv", None, {"channels": "a,note"}, "column 'note' of .* holds text"),
        ("s.csv", None, {"parts": "300"}, r"--parts is '300', 300 rows; there are 200"),
        ("s.csv", None, {"parts": "a lot"}, "--parts is 'a lot'; it must be up to 3 numbers"),
        ("s.csv", None, {"patch": 40}, "--patch is 40, --window 26"),
        ("s.csv", None, {"parts": "20,40"}, "there are no rows for .*train: give more data"),
        ("s.csv", None, {"season": 25}, "--season is 25; it must be from 0 to 24"),
        ("s.csv", None, {"horizon": -1}, "--horizon is -1; it must be at least 0"),
        (
            "t.csv",
            b"date,a,b\n1,7,0\n2,7,1e39\n",
            {"scaling": "none", "parts": "1"},
            "row 2 of .*, b: 1e.39 after",
        ),
        (
            "t.csv",
            b"date,a\n1,1e200\n2,3e200\n",
            {"parts": "1"},
            "the deviation of a of .* is beyond",
        ),
        ("t.csv", b"date,a\n1,7\n2,7\n2,7\n", {}, "'date' of .* does not rise at row 3: sort"),
        ("t.csv", b"date,a\nMonday,7\n", {}, "'date' of .* holds text; times must be numb"),
        ("t.csv", b"date,a\n", {}, "has no rows under its header, date, a"),
        ("t.parquet", b"PAR1 no", {}, "t.parquet cannot be read as Parquet"),
        ("none.csv", None, {}, "none.csv"),
        ("o.npy", np.array([{}, 1]), {}, "o.npy cannot be read as an array"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, series, name, content, changes, message):
    write_csv(tmp_path / "s.csv", series)
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        np.save(tmp_path / name, content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        build_series.build(options(str(tmp_path / name), tmp_path / "r", **changes))
    assert not (tmp_path / "r" / "train" / "manifest.json").exists()


def test_a_gap_in_time_is_warned_of_and_months_of_other_lengths_are_not(tmp_path, caplog):
    def times_of(path, times):
        path.write_text("\n".join(["t,a", *(f"{it},{at}" for at, it in enumerate(times))]))
        caplog.clear()
        value_tables.read_numbers(str(path), time_column="t")
        return caplog.text

    months = [f"{year}-{month:02d}-01" for year in (2020, 2021) for month in range(1, 13)]
    assert not times_of(tmp_path / "months.csv", months)
    del months[5]
    assert "1 of 22 steps are longer than most, the first from row 5 (2020-05-01" in times_of(
        tmp_path / "gap.csv", months
    )
    assert not times_of(tmp_path / "n.csv", range(3, 30, 3))
    assert "from row 9 (27) to the next (90)" in times_of(
        tmp_path / "n.csv", [*range(3, 30, 3), 90]
    )


def test_shares_add_up_to_all_rows():
    assert value_tables.part_sizes("0.7,0.1,0.2", 101, ("a", "b", "c")) == [71, 10, 20]
    assert value_tables.part_sizes("0.5", 101, ("a", "b", "c")) == [50, 0, 0]


def test_what_is_constant_in_the_training_part_keeps_its_unit(tmp_path, caplog):
    rng = np.random.default_rng(0)
    series = np.stack([rng.normal(size=STEPS), *np.full((3, STEPS), [[0.1], [14.62], [100]])], 1)
    series[160:, 1:] += [0.1, 0.1, 0.5]
    np.save(tmp_path / "s.npy", series)
    build_series.build(options(str(tmp_path / "s.npy"), tmp_path / "r", time_column=""))
    assert "channel_1, channel_2, channel_3 does not change" in caplog.text
    rows = decoded.read(tmp_path / "r" / "test")["values"].reshape(-1, 24)
    constant = rows[np.ptp(rows, axis=1) < 1e-5, 0]
    np.testing.assert_allclose(np.unique(constant.round(5)), [0.1, 0.5])


def test_a_window_of_one_channel_costs_no_copy_of_the_others():
    made = build_series.Options(input="x", output="y", window=128, patch=8)
    windows = build_series.Windows(np.zeros((400, 300)), made, False)
    tracemalloc.start()
    rows = windows.take(np.arange(64))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10 * rows["values"].nbytes
