"""Claims about bertjax from Python: what it has, what `run` and `load` return and show."""

import contextlib
import json
import logging as std_logging
import os
import pathlib
import subprocess
import sys
import types

import absl.logging
import numpy as np
import pytest
from etils import epath

import bertjax
from bertjax import evaluate, interactive, recipes, train
from bertjax.convert import workdir as workdirs
from bertjax.training import trials
from tests import finetuned_workdir, programs
from tests.convert import weights

LAZY = """
import sys
import bertjax
heavy = {"jax", "numpy", "tensorflow", "bertjax.inference"} & set(sys.modules)
assert not heavy, heavy
assert {"run", "load", "inference", "pictures", "recipes", "models"} <= set(dir(bertjax))
assert bertjax.recipes.load("smoke").data.source == "synthetic"
"""


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pretrained")
    workdirs.write(weights.make(norm_scale=1.0), directory)
    return directory


@pytest.fixture(scope="module")
def finetuned():
    return finetuned_workdir.made("table")


def test_modules_are_attributes_when_they_are_first_used():
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert bertjax.__getattr__("inference").load.__name__ == "load"
    assert bertjax.__getattr__("load").__module__ == "bertjax.interactive"
    modules = {path.stem for path in pathlib.Path(bertjax.__file__).parent.iterdir()}
    assert not modules & set(bertjax._FROM_INTERACTIVE)
    with pytest.raises(AttributeError, match="'bertjax' has no attribute 'lode'"):
        _ = bertjax.lode


def test_a_pretrained_model_fills_masks_encodes_and_logs_nothing(
    pretrained, one_device, monkeypatch, caplog, capfd
):
    with caplog.at_level("INFO", logger="absl"):
        model = bertjax.load(pretrained)
    assert caplog.records == [] and capfd.readouterr() == ("", "")
    ((best, *rest),) = model.fill_mask("w1 [MASK] w2", num_candidates=3)
    assert len(rest) == 2 and best["probability"] >= rest[0]["probability"]
    encoded = model.encode(["w1 w2", "w3"], pooling="cls")
    assert encoded["features"].shape[0] == len(encoded["lengths"]) == 2
    monkeypatch.setattr(evaluate, "evaluate_checkpoint", lambda *where, **how: (where, how))
    where, how = model.evaluate(pathlib.Path("heldout"), batch_size=8)
    assert where == (pretrained, "heldout")
    assert how == {"batch_size": 8, "step": "newest", "chance": True, "language": ""}
    with pytest.raises(ValueError, match="not finetuned"):
        model.predict([{"text": "w1 w2"}])
    with pytest.raises(ValueError, match=r"give a list of texts"):
        model.encode("w1 w2")
    tokens, weights = model.attention("w1 [MASK] w2")
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and "[MASK]" in tokens
    assert weights.shape[2:] == (len(tokens), len(tokens))
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert len(bertjax.pictures.attention_heads(tokens, weights[0]).axes) == weights.shape[1]
    with pytest.raises(ValueError, match="the model reads at most"):
        model.attention("w1 " * 60)


def test_a_finetuned_model_answers_and_logs_nothing(finetuned, one_device, caplog):
    model = bertjax.load(str(finetuned), step="newest")
    answers = model.predict([{"text": "w1 w2", "id": 7}, {"text": "w3"}])
    fields = {"label", "probabilities", "unknown_rate"}
    assert [set(answer) for answer in answers] == [fields | {"id"}, fields]
    with pytest.raises(ValueError, match="give a list of objects"):
        model.predict({"text": "w1"})
    checkpoint = f"--checkpoint={finetuned}"
    with caplog.at_level("INFO", logger="absl"):
        done = programs.succeed("bertjax.predict", checkpoint, lines=('{"text": "w1 w2"}',))
    assert [set(line) for line in done.lines] == [fields]
    assert [record.message for record in caplog.records if record.name == "absl"] == []


def test_a_folder_without_a_checkpoint_is_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="give the workdir of a run"):
        bertjax.load(tmp_path)


def test_a_recipe_is_run_by_its_name_and_its_log_is_seen(monkeypatch, tmp_path, capsys):
    runs, verbosity = [], absl.logging.get_verbosity()

    def trained(config, workdir):
        runs.append(config)
        absl.logging.info("the loss falls")

    monkeypatch.setattr(train, "train", trained)
    monkeypatch.setattr(std_logging.getLogger(), "handlers", [])
    absl.logging.set_verbosity(absl.logging.WARNING)
    try:
        for verbose in (False, True):
            python_handler = absl.logging.get_absl_handler().python_handler
            monkeypatch.setattr(python_handler, "stream", sys.stderr)
            done = bertjax.run("smoke", tmp_path, verbose=verbose)
            assert ("the loss falls" in capsys.readouterr().err) == verbose
    finally:
        absl.logging.set_verbosity(verbosity)
    assert runs == [recipes.load("smoke")] * 2 and done.scores == {} == done.paths


def test_of_several_trainings_the_best_is_the_model(monkeypatch, tmp_path):
    config = recipes.load("classification")
    config.seeds = 3
    assert trials.are_configured(config)
    monkeypatch.setattr(train, "train_trials", lambda *_: {"best": {"name": "seed_2"}})
    (tmp_path / "seed_2").mkdir()
    (tmp_path / "seed_2" / "metrics.jsonl").write_text('{"step": 4, "eval/dev/accuracy": 0.75}\n')
    done = bertjax.run(config, tmp_path, verbose=False)
    assert done.workdir == done.model.workdir == tmp_path / "seed_2"
    assert done.scores == {"eval/dev/accuracy": 0.75}
    assert done.paths == {"metrics": tmp_path / "seed_2" / "metrics.jsonl"}
    assert done.results == {"best": {"name": "seed_2"}}
    assert isinstance(done, interactive.Done)


class Cell:
    """Stands for the kernel: what the output of a cell holds, place by place."""

    def __init__(self):
        self.places = []

    def handle(self):
        place = []

        def show(content, raw):
            assert raw
            if not any(it is place for it in self.places):
                self.places.append(place)
            place[:] = [content]

        return types.SimpleNamespace(display=show, update=show)

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
    assert interactive.is_notebook()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not interactive.is_notebook()  # imported, but not running
    terminal = types.SimpleNamespace(get_ipython=types.SimpleNamespace)
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert not interactive.is_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not interactive.is_notebook()


def test_one_line_and_one_picture_are_replaced_in_place(cell, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(interactive, "DRAWING_SHARE", 1e9)  # as often as there is something new
    with interactive.shown_in_place(epath.Path(tmp_path / "run")):
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
    with interactive.shown_in_place(epath.Path(tmp_path)):
        absl.logging.info("one")
        first = cell.shown("image/png")
        written(tmp_path, 2)
        absl.logging.info("two")
        assert cell.shown("image/png") == first != []
    assert cell.shown("image/png") != first


def test_warnings_stay_and_the_log_is_as_before(cell, tmp_path, capsys):
    logger = absl.logging.get_absl_logger()
    before = (list(logger.handlers), logger.propagate, absl.logging.get_verbosity())
    with contextlib.suppress(KeyError), interactive.shown_in_place(epath.Path(tmp_path)):
        absl.logging.warning("the loss is that of %s", "unigrams")
        raise KeyError
    assert capsys.readouterr().err == "Warning: the loss is that of unigrams\n"
    assert (list(logger.handlers), logger.propagate, absl.logging.get_verbosity()) == before


def test_of_several_trainings_the_curves_are_of_the_one_that_runs(tmp_path):
    written(tmp_path / "seed_0", 1)
    written(tmp_path / "seed_1", 1)
    os.utime(tmp_path / "seed_1" / "metrics.jsonl", (1, 1))
    newest = interactive._newest_metrics(epath.Path(tmp_path))
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
