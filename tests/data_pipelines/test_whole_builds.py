"""The parts of a build of values are one output, wherever it stops and whatever was there."""

import dataclasses
import os

import numpy as np
import pytest
from etils import epath

from bertjax.files import directories, output
from data_pipelines.building import builders, tfds_metadata
from data_pipelines.values import value_records
from tests.data_pipelines import decoded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(value_records.Options):
    """The options of every builder; `input` is the value of all cells."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Two shards for each part, without the files of tensorflow-datasets, which take longest."""
    monkeypatch.setattr(builders, "default_num_shards", lambda *_, **__: 2)
    monkeypatch.setattr(tfds_metadata, "write", lambda *_: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def build(directory, parts=(9, 4, 3), **changes):
    options = Options(**{"input": "1", "output": str(directory)} | changes)
    made = {
        name: (value_records.Arrays(np.full((rows, 2, 1), float(options.input))), {})
        for name, rows in zip(value_records.PARTS, parts, strict=True)
    }
    return value_records.write_parts(options, made)


def stopped(monkeypatch, step, call):
    """Whether a call was killed at a step of its work; nothing cleans up behind it."""
    steps, path_class = [], type(epath.Path("."))

    def stopping(original):
        def action(*arguments, **options):
            if len(steps) == step:
                raise KeyboardInterrupt
            steps.append(original)
            return original(*arguments, **options)

        return action

    with monkeypatch.context() as patch:
        for name in ("mkdir", "rename", "replace", "rmdir", "rmtree", "unlink"):
            patch.setattr(path_class, name, stopping(getattr(path_class, name)))
        try:
            call()
        except KeyboardInterrupt:
            return True
    return False


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_build_stopped_anywhere_is_the_old_or_none_and_the_same_command_completes_it(
    tmp_path, monkeypatch, overwrite
):
    build(tmp_path / "undisturbed", (9, 4, 0), seed=1)
    new = decoded.files(tmp_path / "undisturbed", "**/*")
    step, states = 0, []
    while True:
        place = tmp_path / f"{step}" / "out"
        place.parent.mkdir()
        if overwrite:
            build(place)
        old = decoded.files(place, "**/*") if overwrite else {}
        call = lambda place=place: build(place, (9, 4, 0), seed=1, overwrite=overwrite)  # noqa: E731
        if not stopped(monkeypatch, step, call):
            break
        output.Output(place, "records", overwrite=True)  # gives back what was moved aside
        states.append(decoded.files(place, "**/*") if place.exists() else {})
        assert states[-1] in (old, new)
        call()
        assert decoded.files(place, "**/*") == new
        assert [path.name for path in place.parent.iterdir()] == ["out"]
        step += 1
    assert states[0] == old and states[-1] == new and step > 20


def test_the_same_command_again_changes_nothing_and_another_is_refused(tmp_path):
    build(tmp_path / "out")
    before = decoded.files(tmp_path, "**/*")
    build(tmp_path / "out")
    assert decoded.files(tmp_path, "**/*") == before
    for changes, message in (
        ({"seed": 1}, "out exists.*--overwrite"),
        ({"parts": (9, 7, 0)}, "of another input.*--overwrite"),  # of a file that has changed
    ):
        with pytest.raises(FileExistsError, match=message):
            build(tmp_path / "out", **changes)
        assert decoded.files(tmp_path, "**/*") == before
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_records_are_known_again_by_the_values_that_they_hold(tmp_path):
    one, same, other = (
        build(tmp_path / name, input=value)["train"].digest
        for name, value in (("one", "1"), ("same", "1"), ("other", "2"))
    )
    assert one == same != other


def test_a_build_that_fails_leaves_nothing_and_files_of_others_stay(tmp_path):
    with pytest.raises(ValueError, match="not on this machine; build into a local directory"):
        build("gs://no-such-bucket/out")
    with pytest.raises(ValueError, match="no rows for train"):
        build(tmp_path / "out", (0, 4, 3))
    assert not list(tmp_path.iterdir())
    build(tmp_path / "out")
    (tmp_path / "out" / "run").mkdir()
    (tmp_path / "out" / "run" / "model").write_text("days of work")
    before = decoded.files(tmp_path, "**/*")
    for changes in ({}, {"overwrite": True}):
        with pytest.raises(directories.NotOursError, match="did not write: run/model"):
            build(tmp_path / "out", **changes)
        assert decoded.files(tmp_path, "**/*") == before
