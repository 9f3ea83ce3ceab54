"""Claims about the models that come with bertjax: their names stand wherever a path may."""

import pytest

import bertjax
from bertjax.convert import __main__ as convert
from bertjax.convert import formats, shipped
from tests.convert import weights


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A model that came with the package, by the name toy-mini; the working directory is empty."""
    made = weights.make("masked_lm", norm_scale=1.0)
    formats.write(made, tmp_path / "weights" / "toy-mini", format="huggingface")
    monkeypatch.setattr(shipped, "DIRECTORY", tmp_path / "weights")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return made


def test_a_name_is_loaded_described_and_converted_as_its_directory(toy, tmp_path):
    ((best, *_),) = bertjax.load("toy-mini").fill_mask("w1 [MASK] w2")
    by_path = bertjax.load(tmp_path / "weights" / "toy-mini").fill_mask("w1 [MASK] w2")
    assert best == by_path[0][0]
    assert formats.describe("toy-mini").config == toy.config
    convert.convert("toy-mini", tmp_path / "run", format="bertjax")
    weights.assert_equal(formats.read(tmp_path / "run"), toy)


def test_what_lies_here_goes_before_a_name_and_a_wrong_name_is_no_file(toy, tmp_path):
    mine = weights.make("masked_lm", seed=1)
    formats.write(mine, "toy-mini", format="huggingface")
    weights.assert_equal(formats.read("toy-mini"), mine)
    weights.assert_equal(formats.read(tmp_path / "weights" / "toy-mini"), toy)
    for name in ("toy-maxi", "runs/toy-mini", "..", ""):
        with pytest.raises((FileNotFoundError, ValueError)):
            bertjax.load(name)


def test_the_model_that_comes_with_bertjax_knows_some_english_and_is_small():
    model = bertjax.load("babylm-mini")
    ((best, *_),) = model.fill_mask("She opened the [MASK] and went into the room.")
    assert best["token"] == " door"
    good, bad = model.score(["Every cat is asleep.", "Every cat are asleep."])
    assert good.log_likelihood > bad.log_likelihood
    files = (shipped.DIRECTORY / "babylm-mini").glob("*")
    assert sum(it.stat().length for it in files) < 12e6
