"""Claims about what a run writes for people to watch."""

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from absl import logging as absl_logging
from matplotlib import image
from tensorboardX.proto import event_pb2

from bertjax.devices import accelerators
from bertjax.files import atomic
from bertjax.training import writers

SCALARS = {"train/loss": 7.25, "train/learning_rate": 1e-4, "perf/tokens_per_second": 1234.0}


def strict_lines(path: Path) -> list[dict]:
    """Returns the lines of a JSON-lines file, as a parser reads them that knows no NaN."""

    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def events(directory: Path) -> list[event_pb2.Event]:
    """Returns the events of all TensorBoard files: records of length, crc, bytes, crc."""
    found = []
    for path in sorted(directory.glob("events.*")):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            found.append(event_pb2.Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def write(workdir, steps, *, start_step=0):
    with writers.RunWriter(workdir, total_steps=10, start_step=start_step) as writer:
        for step in steps:
            writer.scalars(step, {"train/loss": 10.0 - step})


def logged(monkeypatch) -> list[str]:
    """Returns a list that fills with the lines logged from now on."""
    lines: list[str] = []
    monkeypatch.setattr(
        absl_logging, "info", lambda message, *arguments: lines.append(message % arguments)
    )
    return lines


def test_scalars_are_one_json_line_at_once_and_one_event_each(tmp_path):
    others = {"numpy": np.float32(0.5), "integer": 2, "array": np.array(1.5)}
    not_finite = {"nan": math.nan, "up": math.inf, "down": -math.inf}
    with writers.RunWriter(tmp_path, total_steps=10) as writer:
        writer.scalars(3, SCALARS)
        assert strict_lines(tmp_path / "metrics.jsonl") == [{"step": 3, **SCALARS}]
        writer.scalars(4, others | not_finite)
        writer.curves()
    expected = {"step": 4, "numpy": 0.5, "integer": 2.0, "array": 1.5}
    expected |= dict.fromkeys(not_finite)
    assert strict_lines(tmp_path / "metrics.jsonl")[1] == expected
    written = {
        value.tag: value.simple_value
        for event in events(tmp_path / "tensorboard")
        for value in event.summary.value
        if event.step == 3
    }
    assert written == pytest.approx(SCALARS)


def test_a_resumed_run_leaves_the_file_of_a_run_that_never_stopped(tmp_path):
    write(tmp_path / "whole", [1, 2, 3])  # killed before its first checkpoint
    write(tmp_path / "whole", range(1, 11))
    steps = [line["step"] for line in strict_lines(tmp_path / "whole" / "metrics.jsonl")]
    assert steps == [*range(1, 11)]
    write(tmp_path / "resumed", range(1, 8))
    write(tmp_path / "resumed", range(5, 11), start_step=4)
    whole, resumed = (tmp_path / name / "metrics.jsonl" for name in ("whole", "resumed"))
    assert resumed.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("torn", [b'{"step": 3, "train/lo', b'{"step": 3}', b"\x00\x00\n", b"7\n"])
def test_a_torn_last_line_is_dropped_and_later_lines_are_whole(tmp_path, torn):
    write(tmp_path, [1, 2])
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(torn)
    write(tmp_path, [4], start_step=3)
    assert [line["step"] for line in strict_lines(tmp_path / "metrics.jsonl")] == [1, 2, 4]


def test_tensorboard_is_told_to_drop_the_steps_that_are_run_again(tmp_path):
    write(tmp_path, [1, 2, 3])
    write(tmp_path, [3], start_step=2)
    restarts = [
        event.step for event in events(tmp_path / "tensorboard") if event.HasField("session_log")
    ]
    assert restarts[-1] == 3


def test_processes_other_than_the_first_write_nothing(tmp_path):
    kinds = ("json_lines", "tensorboard")
    with writers.RunWriter(tmp_path / "run", total_steps=10, enabled=False, kinds=kinds) as writer:
        writer.scalars(1, SCALARS)
        writer.progress(1, SCALARS)
        writer.curves()
    assert not (tmp_path / "run").exists()


def test_a_line_that_cannot_be_written_names_the_file(tmp_path):
    with writers.RunWriter(tmp_path, total_steps=10) as writer:
        (tmp_path / "metrics.jsonl").mkdir()
        with pytest.raises(OSError, match=r"not recorded.*metrics\.jsonl"):
            writer.scalars(1, SCALARS)


def test_curves_are_a_picture_that_is_replaced_and_leave_nothing_else(tmp_path):
    with writers.RunWriter(tmp_path, total_steps=10) as writer:
        writer.curves()
        empty = image.imread(tmp_path / "curves.png")
        for step in range(1, 10):
            writer.scalars(step, {**SCALARS, "eval/validation/mlm_loss": 7.0, "odd": 1.0})
        writer.curves()
    drawn = image.imread(tmp_path / "curves.png")
    assert drawn.shape == empty.shape
    assert (drawn != empty).any()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"metrics.jsonl", "curves.png", "tensorboard"}


def test_each_panel_draws_its_scalars_and_no_others():
    entries = [
        {"step": 1, "train/loss": 9.0, "train/loss_scale": 0.7, "train/nsp_accuracy": 0.5},
        {"step": 2, "train/loss": None, "eval/held_out/mlm_loss": 8.0},
    ]
    axes = writers.draw_curves(entries).axes
    assert labels(axes) == [
        ["train/loss", "eval/held_out/mlm_loss"],
        ["train/nsp_accuracy"],
        [],
        [],
    ]
    assert list(axes[0].lines[0].get_xdata()) == [1, 2]
    assert math.isnan(axes[0].lines[0].get_ydata()[1])
    of_discriminator = {"train/discriminator_loss": 0.3, "eval/heldout/discriminator_auc": 0.8}
    axes = writers.draw_curves([{"step": 1, "train/loss": 22.0, **of_discriminator}]).axes
    assert labels(axes) == [["train/loss"], [], [], [], *([name] for name in of_discriminator)]


def labels(axes):
    return [[str(line.get_label()) for line in panel.lines] for panel in axes]


def test_scores_in_percent_have_an_axis_of_their_own():
    entries = [{"step": 1, "train/accuracy": 0.5, "eval/dev/f1": 88.0, "eval/dev/loss": 3.0}]
    axes = writers.draw_curves(entries).axes
    scores, percent = axes[1], axes[-1]
    assert labels([scores, percent]) == [["train/accuracy"], ["eval/dev/f1"]]
    assert percent.get_ylabel() == "percent" and percent.bbox.bounds == scores.bbox.bounds
    legend = [text.get_text() for text in percent.get_legend().get_texts()]
    assert legend == ["train/accuracy", "eval/dev/f1"]
    assert len(axes[0].lines) == 1


def test_what_answering_without_reading_scores_is_a_dashed_line():
    chance = {"eval/held_out/unigram_loss": 6.2, "eval/held_out/most_frequent_token_accuracy": 0.05}
    entries = [{"step": n, "train/loss": 8.0 - n} for n in (1, 2)]
    entries[-1] |= {"eval/held_out/mlm_loss": 7.0, **chance}  # evaluated once, at the end
    axes = writers.draw_curves(entries).axes
    assert list(axes[0].lines[-1].get_ydata()) == [6.2, 6.2]
    styles = {line.get_label(): line.get_linestyle() for panel in axes for line in panel.lines}
    others = dict.fromkeys(("train/loss", "eval/held_out/mlm_loss"), "-")
    assert styles == dict.fromkeys(chance, "--") | others


def test_of_several_sets_the_chance_of_the_mean_alone_is_drawn():
    scores = {
        f"eval/{it}/{score}": 7.0
        for it in ("de", "fr", "mean")
        for score in ("mlm_loss", "unigram_loss")
    }
    axes = writers.draw_curves([{"step": 1, **scores}]).axes
    losses = [f"eval/{it}/mlm_loss" for it in ("de", "fr", "mean")]
    assert labels(axes)[0] == [*losses, "eval/mean/unigram_loss"]


def test_the_progress_line_holds_what_is_there_in_words():
    values = {"perf/model_flop_utilization": 0.4123, "train/loss": 2.0, "train/grad_norm": 1.0}
    assert writers.progress_text(values) == "loss 2.000, MFU 41.2%"
    assert writers.progress_text(SCALARS) == "loss 7.250, 1.2k tokens/s"


def test_progress_without_a_terminal_is_rationed_but_always_shows_the_last_step(
    tmp_path, monkeypatch
):
    lines = logged(monkeypatch)
    with writers.RunWriter(tmp_path, total_steps=4, log_every_seconds=3600.0) as writer:
        for step in range(1, 5):
            writer.progress(step, SCALARS)
    assert [re.match(r"step (\d)/4", line).group(1) for line in lines] == ["1", "4"]
    assert lines[-1].endswith("[00:00 left]: loss 7.250, 1.2k tokens/s")


def test_progress_on_a_terminal_is_a_bar_from_the_resumed_step(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with writers.RunWriter(tmp_path, total_steps=10, start_step=5) as writer:
        writer.note("compiling step 6")
        assert "step 5/10 [00:00, ? left, compiling step 6]" in capsys.readouterr().err
        writer.note("")
        assert "compiling" not in capsys.readouterr().err
        writer.progress(6, SCALARS)
    shown = capsys.readouterr().err
    assert "step 6/10" in shown
    assert "loss 7.250, 1.2k tokens/s" in shown


def test_a_remote_workdir_receives_the_files_and_is_resumed_from(tmp_path, monkeypatch):
    assert atomic.is_remote("gs://bucket/run") and not atomic.is_remote(tmp_path)
    monkeypatch.setattr(atomic, "is_remote", lambda path: True)
    with writers.RunWriter(tmp_path, total_steps=10) as writer:
        writer.scalars(1, SCALARS)
        writer.scalars(2, SCALARS)
        assert not (tmp_path / "metrics.jsonl").exists()
        writer.curves()
        assert (tmp_path / "curves.png").exists()
    write(tmp_path, [2, 3], start_step=1)
    assert [line["step"] for line in strict_lines(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2


def test_two_cores_of_one_chip_are_half_a_chip_each_and_a_cpu_has_no_known_peak():
    assert accelerators.peak_flops("TPU v3") == 61.5e12
    assert accelerators.memory_bytes("TPU7x") == 96 * 2**30
    assert accelerators.peak_flops("TPU v5 lite") == accelerators.peak_flops("TPU v5e") == 197e12
    assert accelerators.peak_flops("cpu") is accelerators.memory_bytes("cpu") is None


@pytest.mark.parametrize(("count", "columns"), [(0, 1), (5, 1), (60, 2)])
def test_each_of_several_runs_has_a_colour_and_its_name_once(count, columns):
    lines = [{"step": 1, "train/loss": 0.5}, {"step": 2, "eval/dev/f1": 0.1}]
    curves = {f"run_{number}": lines for number in range(count)}
    picture = writers.draw_trials(curves, "eval/dev/f1")
    (legend,) = picture.legends
    assert [text.get_text() for text in legend.get_texts()] == list(curves)
    assert legend._ncols == columns
    for axes in picture.axes:
        assert len({tuple(line.get_color()) for line in axes.lines}) == len(axes.lines) == count
