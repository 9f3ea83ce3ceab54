"""A run in a notebook: its newest line and its curves are replaced in place."""

import contextlib
import json
import logging as std_logging
import os
import sys
import types

import absl.logging
import pytest
from etils import epath

import bertjax
from bertjax import live, recipes, train


class Cell:
    """Stands for the kernel: what the output of a cell holds, place by place."""

    def __init__(self):
        self.places = []

    def handle(self):
        place = []
        cell = self

        class Handle:
            def display(self, content, raw):
                assert raw
                cell.places.append(place)
                place[:] = [content]

            def update(self, content, raw):
                assert raw
                place[:] = [content]

        return Handle()

    def shown(self, kind):
        return [place[0][kind] for place in self.places if kind in place[0]]


@pytest.fixture
def cell(monkeypatch):
    found = Cell()
    display = types.SimpleNamespace(DisplayHandle=found.handle)
    kernel = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(
        get_ipython=lambda: kernel, display=display, version_info=(9, 0)
    )  # which matplotlib asks for
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


def written(workdir, *steps):
    workdir.mkdir(exist_ok=True)
    with open(workdir / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps({"step": it, "train/loss": 5.0 / it}) + "\n" for it in steps)


def test_a_notebook_is_a_kernel_and_nothing_else(monkeypatch, cell):
    assert live.is_notebook()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not live.is_notebook()  # imported, but not running
    terminal = types.SimpleNamespace(get_ipython=types.SimpleNamespace)
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert not live.is_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not live.is_notebook()


def test_one_line_and_one_picture_are_replaced_in_place(cell, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(live, "DRAWING_SHARE", 1e9)  # as often as there is something new
    with live.shown(epath.Path(tmp_path / "run")):
        absl.logging.info("step 1/3: loss 5.0\nand more")
        assert cell.shown("text/plain") == ["step 1/3: loss 5.0"] and not cell.shown("image/png")
        written(tmp_path / "run", 1)
        absl.logging.info("step 2/3: loss 2.5")
        (first,) = cell.shown("image/png")
        absl.logging.info("saved")
        assert cell.shown("image/png") == [first]  # nothing new to draw
        written(tmp_path / "run", 2, 3)
    assert cell.shown("text/plain") == ["saved"]
    (last,) = cell.shown("image/png")
    assert last != first and last.startswith(b"\x89PNG")
    assert len(cell.places) == 2
    assert capsys.readouterr() == ("", "")


def test_drawing_takes_a_small_share_of_the_time(cell, tmp_path):
    written(tmp_path, 1)
    with live.shown(epath.Path(tmp_path)):
        absl.logging.info("one")
        first = cell.shown("image/png")
        written(tmp_path, 2)
        absl.logging.info("two")
        assert cell.shown("image/png") == first != []
    assert cell.shown("image/png") != first


def test_warnings_stay_and_the_log_is_as_before(cell, tmp_path, capsys):
    logger = absl.logging.get_absl_logger()
    before = (list(logger.handlers), logger.propagate, absl.logging.get_verbosity())
    with contextlib.suppress(KeyError), live.shown(epath.Path(tmp_path)):
        absl.logging.warning("the loss is that of %s", "unigrams")
        raise KeyError
    assert capsys.readouterr().err == "Warning: the loss is that of unigrams\n"
    assert (list(logger.handlers), logger.propagate, absl.logging.get_verbosity()) == before


def test_of_several_trainings_the_curves_are_of_the_one_that_runs(tmp_path):
    written(tmp_path / "seed_0", 1)
    written(tmp_path / "seed_1", 1)
    os.utime(tmp_path / "seed_1" / "metrics.jsonl", (1, 1))
    newest = live._newest_metrics(epath.Path(tmp_path))
    assert newest is not None and newest.parent.name == "seed_0"


@pytest.mark.parametrize("verbose", [True, False])
def test_a_run_in_a_notebook_is_shown_there_unless_it_is_to_be_quiet(
    cell, tmp_path, monkeypatch, verbose
):
    def trained(config, workdir):
        written(tmp_path, 1, 2)
        absl.logging.info("Finished")

    monkeypatch.setattr(train, "train", trained)
    handlers = list(std_logging.getLogger().handlers)
    bertjax.run(recipes.load("smoke"), tmp_path, verbose=verbose)
    assert len(cell.shown("image/png")) == verbose
    assert cell.shown("text/plain") == ["Finished"] * verbose
    assert std_logging.getLogger().handlers == handlers
