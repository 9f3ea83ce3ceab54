"""Series to records: windows, scaling by the training part, gaps, parts in time."""

import re
import tracemalloc

import numpy as np
import pytest

from bertjax.data import records, series_index
from data_pipelines import build_series
from data_pipelines.values import series as series_of_files
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
        ("s.csv", None, {"patch": 40}, "--patch is 40; it must be at most --window, 26"),
        ("s.csv", None, {"parts": "20,40"}, "there are no rows for train: give more data"),
        ("s.csv", None, {"season": 25}, "--season is 25; it must be from 0 to 24"),
        ("s.csv", None, {"horizon": -1}, "--horizon is -1; it must be at least 0"),
        (
            "t.csv",
            b"date,a,b\n1,7,0\n2,7,1e39\n",
            {"scaling": "none", "parts": "1", "window": 2, "patch": 1},
            "t.csv:3, b: 1e.39 after",
        ),
        (
            "t.csv",
            b"date,a\n1,1e200\n2,3e200\n",
            {"parts": "1", "window": 2, "patch": 1},
            "the deviation of a of .* is beyond",
        ),
        (
            "t.csv",
            b"date,a\n1,7\n2,7\n2,7\n",
            {"parts": "1"},
            "'date' does not rise at .*t.csv:4, .*: sort",
        ),
        (
            "t.csv",
            b"date,a\nMonday,7\n",
            {"parts": "1"},
            "'date' of .* holds text; times must be numb",
        ),
        ("t.csv", b"date,a\n", {}, "has no rows under its header, date, a"),
        ("t.parquet", b"PAR1 no", {}, "t.parquet cannot be read as Parquet"),
        ("none.csv", None, {}, "none.csv"),
        ("o.npy", np.array([{}, 1]), {"time_column": ""}, "o.npy cannot be read as an array"),
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


def read(path, **changes):
    made = build_series.Options(input=str(path), output="", **changes)
    return series_of_files.read(made, {})


HOURS = np.datetime64("2026-03-28T00:00:00") + np.arange(60) * np.timedelta64(1, "h")


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([f"{2020 + at // 12}-{at % 12 + 1:02d}-01" for at in range(24)], ""),
        ([f"2020-{at + 1:02d}-01" for at in range(12) if at != 5], "1 of 10 .* from 2020-05-01"),
        (range(3, 30, 3), ""),
        ([*range(3, 30, 3), 90], "1 of 9 steps are not the usual 3, the first from 27 to 90"),
        (
            np.delete(HOURS, 26),
            "(?s)^(?!.*not the usual).*an hour is missing after 2026-03-29 01:00:00",
        ),
        (
            np.delete(HOURS, [3, 4]),
            "1 of 57 steps are not the usual 1h, the first from 2026-03-28 0",
        ),
        ([*range(0, 60), *range(60, 300, 6)], "the step is 6 times the usual 1 from 60 on"),
    ],
)
def test_what_breaks_the_step_of_times_is_warned_of(tmp_path, caplog, times, message):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["t,a", *(f"{it},{at}" for at, it in enumerate(times))]))
    assert read(path, time_column="t").reading["step"]
    assert re.search(message, caplog.text) if message else not caplog.text


def machines(path, lengths=(("m1", 60), ("m2", 40)), in_turn=False):
    """Hours of machines, at 10 and 90."""
    rows = [
        (at, f"{name},{HOURS[at]},{10 + 80 * (name == 'm2') + at % 5}")
        for name, length in lengths
        for at in range(length)
    ]
    rows = sorted(rows, key=lambda it: it[0]) if in_turn else rows
    path.write_text("\n".join(["machine,hour,level", *(row for _, row in rows)]) + "\n")
    return str(path)


@pytest.mark.parametrize("in_turn", [False, True])
def test_windows_and_parts_are_of_one_series_and_scaling_is_over_all(tmp_path, caplog, in_turn):
    path = machines(tmp_path / "m.csv", (("m1", 60), ("m2", 40), ("m3", 5)), in_turn)
    build_series.build(
        build_series.Options(
            input=path, output=str(tmp_path / "r"), window=8, patch=4, parts="0.5,0.25,0.25",
            series_column="machine",
        )
    )  # fmt: skip
    assert "1 of 3 series" in caplog.text and "m3" in caplog.text
    manifest = records.Manifest.load(tmp_path / "r" / "train")
    train = np.array([*(10 + np.arange(30) % 5), *(90 + np.arange(20) % 5)])
    (channel,) = manifest.statistics["channels"]
    assert channel["name"] == "level" and channel["mean"] == pytest.approx(train.mean())
    for part, windows in (("train", 23 + 13), ("heldout", 8 + 3), ("test", 8 + 3)):
        rows = decoded.read(tmp_path / "r" / part)["values"].reshape(-1, 8)
        rows = rows * channel["deviation"] + channel["mean"]
        assert len(rows) == windows
        assert (np.ptp(rows, axis=1) < 5).all() and {*(rows[:, 0] > 50)} == {True, False}


@pytest.mark.parametrize("in_turn", [False, True])
def test_several_series_without_the_option_are_warned_of_or_refused(tmp_path, caplog, in_turn):
    path = machines(tmp_path / "m.csv", in_turn=in_turn)
    assert "time_column" not in read(path).reading
    assert "--series_column=machine" in caplog.text
    row = 3 if in_turn else 62
    with pytest.raises(ValueError, match=f"'hour' does not rise at .*m.csv:{row}, .*=machine"):
        read(path, time_column="hour")
    assert read(path, series_column="machine").reading["time_column"] == "hour"


def test_a_row_of_empty_cells_is_a_step_without_values(tmp_path):
    """Those beneath the table are Excel's, and a line without anything is none."""
    (tmp_path / "t.csv").write_text("a;b\n1;2\n;\n\n3;x\n5;6\n;\n;\n")
    file = read(tmp_path / "t.csv", channels="a")
    np.testing.assert_array_equal(file.series[0].values[:, 0], [1, np.nan, 3, 5])
    assert [file.place(row).rsplit(":")[-1] for row in range(4)] == ["2", "3", "5", "6"]


@pytest.mark.parametrize("named", ["", "t"])
def test_a_row_without_any_cell_has_no_time(tmp_path, named):
    (tmp_path / "t.csv").write_text("t;a\n2026-01-01;1\n;\n2026-01-02;3\n2026-01-03;4\n")
    file = read(tmp_path / "t.csv", time_column=named)
    assert file.series[0].values.tolist() == [[1], [3], [4]]
    assert file.reading["step"] == "1D" and file.place(file.series[0].rows[1]).endswith(":4")


@pytest.mark.parametrize("grid", ["", "1h"])
def test_the_training_part_decides_what_is_a_number_and_how_it_is_spelt(tmp_path, caplog, grid):
    """Most of the later cells are words, or have another decimal mark."""
    hours = np.datetime64("2026-01-01T00:00") + np.arange(96) * np.timedelta64(60, "m")
    cells = [("1,5", "7,25", "ok") if at < 48 else ("off", "2.5", "1") for at in range(len(hours))]
    (tmp_path / "t.csv").write_text(
        "time;a;b;state\n"
        + "".join(f"{t};{';'.join(it)}\n" for t, it in zip(hours, cells, strict=True))
    )
    file = read(tmp_path / "t.csv", parts="0.5,0.5", grid=grid)
    assert file.channels == ("a", "b")
    values = file.series[0].values
    np.testing.assert_array_equal(values[:48], np.tile([1.5, 7.25], (48, 1)))
    assert np.isnan(values[48:]).all()
    warnings = [it.getMessage() for it in caplog.records if "are others" in it.getMessage()]
    assert len(warnings) == 2 and all("48" in it and "t.csv:50" in it for it in warnings)


def test_a_channel_that_rises_as_times_do_is_named(tmp_path, caplog):
    path = tmp_path / "t.csv"
    path.write_text("stamp,a\n" + "".join(f"{1700000000 + 60 * at},{at % 7}\n" for at in range(20)))
    assert read(path).channels == ("stamp", "a")
    assert "--time_column=stamp" in caplog.text and "=a" not in caplog.text


def test_several_columns_of_times_are_asked_about_and_an_hour_that_comes_twice_is_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("t,sent,a\n2020-01-01,2020-01-02,7\n2020-01-02,2020-01-03,8\n")
    with pytest.raises(ValueError, match="t, sent: .* --time_column=NAME"):
        read(path)
    assert read(path, time_column="sent").channels == ("a",)
    hours = np.datetime64("2026-10-25T00:00:00") + np.array([0, 1, 2, 2, 3, 4]) * np.timedelta64(
        1, "h"
    )
    path.write_text("\n".join(["t,a", *(f"{it},1" for it in hours)]))
    with pytest.raises(
        ValueError, match="t.csv:5, where 2026-10-25 02:00:00 .* clocks are set back"
    ):
        read(path, time_column="t")


def on_grid(path, times, grid):
    path.write_text("\n".join(["t,a", *(f"{it},{at}" for at, it in enumerate(times))]))
    (series,) = read(path, grid=grid).series
    kept = np.nan_to_num(series.values[:, 0], nan=-1).astype(int).tolist()
    return kept, [str(it) for it in series.times.astype("datetime64[s]")]


def test_a_grid_has_each_row_at_its_nearest_step_and_the_missing_ones_not_observed(tmp_path):
    path = tmp_path / "t.csv"
    late = ["2026-01-01 00:00:07", "2026-01-01 01:00:00", "2026-01-01 03:59:58", "2026-01-01 05:00"]
    late = [*late, "2026-01-01 06:00:00", "2026-01-01 07:00:00"]
    values, times = on_grid(path, late, "1h")
    assert values == [0, 1, -1, -1, 2, 3, 4, 5] and times[2] == "2026-01-01T02:00:00"
    assert on_grid(path, late, "auto") == (values, times)
    months = ["2026-01-01", "2026-02-01", "2026-03-01", "2026-05-01"]
    values, times = on_grid(path, months, "auto")
    assert values == [0, 1, 2, -1, 3] and times[3] == "2026-04-01T00:00:00"
    assert on_grid(path, ["2026-01-31", "2026-02-28", "2026-04-30"], "MS")[0] == [0, 1, -1, 2]
    for grid, message in (
        ("1D", "t.csv:3: 2026-01-01 00:00:07 and 2026-01-01 01:00:00 are in one step of --grid=1D"),
        ("1s", "makes 25,194 steps from 6 rows.* from 2026-01-01 01:00:00 to 2026-01-01 03:59:58"),
        ("1x", "--grid is '1x'; it must be"),
        ("15", "--grid is '15'; it must be auto, or as the times"),
    ):
        with pytest.raises(ValueError, match=message):
            on_grid(path, late, grid)
    (tmp_path / "n.csv").write_text("a\n1\n2\n")
    with pytest.raises(ValueError, match="--grid is '1h', but .* has no column of times"):
        read(tmp_path / "n.csv", grid="1h")


def test_a_row_with_a_horizon_names_its_series_channel_and_step_and_the_labels_observed(tmp_path):
    machines(tmp_path / "m.csv")
    lines = (tmp_path / "m.csv").read_text().splitlines()
    (tmp_path / "m.csv").write_text("\n".join(it for it in lines if "T05" not in it) + "\n")
    made = build_series.Options(
        input=str(tmp_path / "m.csv"), output=str(tmp_path / "r"), window=8, patch=4, horizon=3,
        series_column="machine", parts="0.7,0.3", grid="auto",
    )  # fmt: skip
    build_series.build(made)
    index = series_index.SeriesIndex.load(tmp_path / "r" / "heldout")
    assert (index.series, index.channels) == (("m1", "m2"), ("level",))
    rows = decoded.read(tmp_path / "r" / "heldout")
    assert {*rows["series"]} == {0, 1} and {*rows["channel"]} == {0}
    first = {name: rows["step"][rows["series"] == at].min() for at, name in enumerate(index.series)}
    assert first == {"m1": 42, "m2": 28}
    levels = rows["labels"] * index.deviations[0] + index.means[0]
    for series, step, observed, level in zip(
        rows["series"], rows["step"], rows["labels_observed"], levels, strict=True
    ):
        steps = step + np.arange(3)
        assert (index.dates(int(series), steps) == HOURS[steps]).all()
        assert (observed == (steps % 24 != 5)).all()
        seen = observed != 0
        np.testing.assert_allclose(level[seen], (10 + 80 * series + steps % 5)[seen], rtol=1e-5)
    assert index.dates(0, np.array([60]))[0] == HOURS[-1] + np.timedelta64(1, "h")


def test_new_series_end_with_a_window_that_nothing_follows(tmp_path, caplog):
    old = build_series.Options(
        input=machines(tmp_path / "m.csv"), output=str(tmp_path / "r"), window=8, patch=4,
        horizon=3, series_column="machine", parts="0.7,0.3",
    )  # fmt: skip
    build_series.build(old)
    new = machines(tmp_path / "n.csv", (("m9", 20),))
    like = {"input": new, "output": str(tmp_path / "n"), "like": str(tmp_path / "r" / "train")}
    build_series.build(build_series.Options(**like, stride=5))
    rows = decoded.read(tmp_path / "n")
    assert rows["step"].tolist() == [10, 15, 20]
    assert rows["labels_observed"].sum(axis=1).tolist() == [3, 3, 0]
    assert (rows["labels"][2] == 0).all()
    assert series_index.SeriesIndex.load(tmp_path / "n").series == ("m9",)
    build_series.build(build_series.Options(**like, overwrite=True, parts="0.8,0.2"))
    parts = [records.Manifest.load(tmp_path / "n" / part) for part in ("train", "heldout")]
    channels = records.Manifest.load(tmp_path / "r" / "train").statistics["channels"]
    assert [it.statistics["channels"] for it in parts] == [channels, channels]
    lines = (tmp_path / "n.csv").read_text().replace(",1", ",555").splitlines()
    (tmp_path / "n.csv").write_text("\n".join(lines[:1] + lines[1::2]))
    build_series.build(build_series.Options(**like, overwrite=True))
    assert "step of" in caplog.text and "is 2h, and 1h in" in caplog.text
    assert "level 100.00%, such as 5550 (10 to 94)" in caplog.text


def test_the_report_has_a_line_a_column_with_what_it_becomes_and_why(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text(
        "t,site,a,b\n" + "".join(f"2026-01-{at + 1:02d},x,{at},7\n" for at in range(20))
    )
    lines = []
    made = build_series.Options(
        input=str(path), output=str(tmp_path / "r"), window=4, patch=2, channels="a"
    )
    build_series.build(made, lines.append)
    told = dict(line.split(maxsplit=1) for line in lines)
    assert "times of the rows, a step of 1D" in told["t"]
    assert "left out" in told["site"] and "text" in told["site"] and "'x'" in told["site"]
    assert "channel" in told["a"] and "0 to 19, 20 values" in told["a"]
    assert "left out: not in --channels" in told["b"]


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
