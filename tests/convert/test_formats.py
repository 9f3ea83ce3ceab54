"""Claims about telling formats apart and about what is replaced."""

import pytest

from bertjax.convert import formats
from tests.convert import weights


@pytest.mark.parametrize("format", ["huggingface", "bertjax", "tf1"])
def test_what_is_written_is_recognized_and_read(tmp_path, format):
    made = weights.make()
    formats.write(made, tmp_path / "out", format=format)
    assert formats.recognize(tmp_path / "out") == format
    weights.assert_equal(formats.read(tmp_path / "out"), made)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("file", "format"),
    [
        ("model.safetensors", "huggingface"),
        ("pytorch_model.bin", "huggingface"),
        ("model.safetensors.index.json", "huggingface"),
        ("bert_model.ckpt.index", "tf1"),
    ],
)
def test_a_file_and_its_directory_are_recognized(tmp_path, file, format):
    (tmp_path / file).touch()
    assert formats.recognize(tmp_path) == format
    assert formats.recognize(tmp_path / file) == format


def test_the_prefix_of_a_tensorflow_checkpoint_is_recognized(tmp_path):
    (tmp_path / "bert_model.ckpt.index").touch()
    assert formats.recognize(tmp_path / "bert_model.ckpt") == "tf1"


def test_what_is_unknown_or_ambiguous_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        formats.recognize(tmp_path / "missing")
    with pytest.raises(ValueError, match="no weights that are known"):
        formats.recognize(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="no file of weights"):
        formats.recognize(tmp_path / "notes.txt")
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "bert_model.ckpt.index").touch()
    with pytest.raises(ValueError, match="huggingface and tf1"):
        formats.recognize(tmp_path)


def test_weights_are_replaced_only_when_asked(tmp_path):
    formats.write(weights.make(), tmp_path / "out", format="huggingface")
    other = weights.make(seed=1)
    with pytest.raises(ValueError, match="--overwrite"):
        formats.write(other, tmp_path / "out", format="bertjax")
    formats.write(other, tmp_path / "out", format="bertjax", overwrite=True)
    weights.assert_equal(formats.read(tmp_path / "out"), other)


def test_a_directory_of_other_things_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="holds no weights"):
        formats.write(weights.make(), tmp_path, format="huggingface", overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_a_failed_write_leaves_the_old_weights(tmp_path):
    formats.write(weights.make(), tmp_path / "out", format="huggingface")
    broken = weights.make(seed=1)
    broken.params["unheard.of"] = broken.params["mlm_head.bias"]
    with pytest.raises(ValueError, match=r"unheard\.of"):
        formats.write(broken, tmp_path / "out", format="huggingface", overwrite=True)
    weights.assert_equal(formats.read(tmp_path / "out"), weights.make())
