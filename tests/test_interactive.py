"""Claims about bertjax from Python: what `import bertjax` has, what `run` and `load` return."""

import logging as std_logging
import pathlib
import subprocess
import sys
import tarfile

import absl.logging
import numpy as np
import pytest

import bertjax
from bertjax import evaluate, interactive, recipes, train
from bertjax.training import trials
from tests import finetuned_workdir, programs

GOLDEN = pathlib.Path(__file__).parent / "golden" / "before"

LAZY = """
import sys
import bertjax
heavy = {"jax", "numpy", "tensorflow", "bertjax.inference"} & set(sys.modules)
assert not heavy, heavy
assert {"run", "load", "inference", "pictures", "recipes", "models"} <= set(dir(bertjax))
assert bertjax.recipes.load("smoke").data.source == "synthetic"
assert bertjax.inference.load.__name__ == "load"
assert bertjax.load.__module__ == bertjax.run.__module__ == "bertjax.interactive"
assert bertjax.train.train.__module__ == "bertjax.train"
"""


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pretrained")
    with tarfile.open(GOLDEN / "pretraining.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory / "pretraining"


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory):
    directory = tmp_path_factory.mktemp("finetuned")
    finetuned_workdir.write(directory, "table")
    return directory


@pytest.fixture
def log_as_before():
    """Gives back the levels and handlers of logging."""
    root, verbosity = std_logging.getLogger(), absl.logging.get_verbosity()
    handlers = list(root.handlers)
    yield root
    root.handlers[:] = handlers
    absl.logging.set_verbosity(verbosity)


def test_modules_are_attributes_when_they_are_first_used():
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_names_of_the_package_are_no_modules_and_unknown_ones_are_errors():
    modules = {path.stem for path in pathlib.Path(bertjax.__file__).parent.iterdir()}
    assert not modules & set(bertjax._FROM_PYTHON)
    with pytest.raises(AttributeError, match="'bertjax' has no attribute 'lode'"):
        _ = bertjax.lode


def test_a_pretrained_model_fills_masks_and_encodes(pretrained, one_device, monkeypatch):
    model = bertjax.load(pretrained)
    ((best, *rest),) = model.fill_mask("the [MASK] house", num_candidates=3)
    assert len(rest) == 2 and best["probability"] >= rest[0]["probability"]
    found = model.encode(["the house", "a"], pooling="cls")
    assert found["features"].shape[0] == len(found["lengths"]) == 2
    monkeypatch.setattr(evaluate, "evaluate_checkpoint", lambda *where, **how: (where, how))
    where, how = model.evaluate(pathlib.Path("heldout"), batch_size=8)
    assert where == (pretrained, "heldout")
    assert how == {"batch_size": 8, "step": "newest", "chance": True}
    with pytest.raises(ValueError, match="not finetuned"):
        model.predict([{"text": "the house"}])
    with pytest.raises(ValueError, match=r"give a list of texts"):
        model.encode("the house")


def test_the_attention_to_a_text_has_a_row_for_each_token(pretrained, one_device):
    tokens, weights = bertjax.load(pretrained).attention("the [MASK] house")
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and "[MASK]" in tokens
    assert weights.shape[2:] == (len(tokens), len(tokens))
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
    assert len(bertjax.pictures.attention_heads(tokens, weights[0]).axes) == weights.shape[1]
    with pytest.raises(ValueError, match="the model reads at most"):
        bertjax.load(pretrained).attention("the " * 600)


def test_a_finetuned_model_answers(finetuned, one_device):
    model = bertjax.load(str(finetuned), step="newest")
    answers = model.predict([{"text": "w1 w2", "id": 7}, {"text": "w3"}])
    assert [set(answer) for answer in answers] == [
        {"id", "label", "probabilities"}, {"label", "probabilities"}
    ]  # fmt: skip
    with pytest.raises(ValueError, match="give a list of objects"):
        model.predict({"text": "w1"})


def test_a_folder_without_a_checkpoint_is_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="takes the workdir of a run"):
        bertjax.load(tmp_path)
    (tmp_path / "seed_0" / "checkpoints").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"but 1 trainings: seed_0; give one of them"):
        bertjax.load(tmp_path)


def test_loading_says_nothing(pretrained, one_device, caplog, capfd):
    with caplog.at_level("INFO", logger="absl"):
        bertjax.inference.load(pretrained)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


def test_answering_lines_says_nothing_but_the_answers(finetuned, one_device, caplog):
    with caplog.at_level("INFO"):
        done = programs.succeed(
            "bertjax.predict", f"--checkpoint={finetuned}", lines=('{"text": "w1 w2"}',)
        )
    assert len(done.lines) == 1 and set(done.lines[0]) == {"label", "probabilities"}
    assert [record.message for record in caplog.records if record.name == "absl"] == []


def test_a_recipe_is_run_by_its_name_and_its_log_is_seen(
    monkeypatch, tmp_path, log_as_before, capsys
):
    seen = {}

    def trained(config, workdir):
        seen.update(config=config, workdir=workdir)
        absl.logging.info("the loss falls")

    monkeypatch.setattr(train, "train", trained)
    log_as_before.handlers[:] = []
    monkeypatch.setattr(absl.logging.get_absl_handler().python_handler, "stream", sys.stderr)
    absl.logging.set_verbosity(absl.logging.WARNING)
    done = bertjax.run("smoke", tmp_path, verbose=False)
    assert "the loss falls" not in capsys.readouterr().err
    assert seen["config"] == recipes.load("smoke") and done.scores == {} == done.paths
    monkeypatch.setattr(absl.logging.get_absl_handler().python_handler, "stream", sys.stderr)
    bertjax.run("smoke", tmp_path)
    assert "the loss falls" in capsys.readouterr().err


def test_of_several_trainings_the_best_is_the_model(monkeypatch, tmp_path):
    config = recipes.load("classification")
    config.seeds = 3
    assert trials.are_wanted(config)
    monkeypatch.setattr(train, "train_trials", lambda *_: {"best": {"name": "seed_2"}})
    (tmp_path / "seed_2").mkdir()
    (tmp_path / "seed_2" / "metrics.jsonl").write_text('{"step": 4, "eval/dev/accuracy": 0.75}\n')
    done = bertjax.run(config, tmp_path, verbose=False)
    assert done.workdir == done.model.workdir == tmp_path / "seed_2"
    assert done.scores == {"eval/dev/accuracy": 0.75}
    assert done.paths == {"metrics": tmp_path / "seed_2" / "metrics.jsonl"}
    assert done.results == {"best": {"name": "seed_2"}}
    assert isinstance(done, interactive.Done)
