"""Claims about telling formats apart and about what is replaced."""

import dataclasses

import pytest

from bertjax.convert import formats, huggingface_read
from bertjax.convert.families import bert
from bertjax.workdirs import checkpoint_storage as storage
from tests.convert import weights

BIAS = "mlm_head.bias"


@pytest.mark.parametrize(
    ("format", "head"),
    [
        ("tf1", "pretraining"),  # other heads: test_tensorflow1.py
        *((format, head) for format in formats.WRITERS for head in bert.ARCHITECTURES),
    ],
)
def test_what_is_written_is_recognized_described_and_read(tmp_path, monkeypatch, format, head):
    made = weights.make(head)
    weights.write(made, tmp_path / "out", format)
    assert formats.recognize(tmp_path / "out") == format
    read = formats.read(tmp_path / "out")
    weights.assert_equal(read, made)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    if format != "tf1":  # whose description needs all names
        for module, name in ((huggingface_read, "read_weights"), (storage, "read_params")):
            monkeypatch.setattr(module, name, lambda *_: pytest.fail("parameters were read"))
    described = formats.describe(tmp_path / "out")
    assert (described.config, described.source) == (read.config, read.source)
    assert described.vocabulary.describe() == read.vocabulary.describe()


def test_a_file_its_directory_and_a_prefix_are_recognized_and_all_else_is_named(tmp_path):
    for file, format in (
        ("model.safetensors", "huggingface"),
        ("pytorch_model.bin", "huggingface"),
        ("model.safetensors.index.json", "huggingface"),
        ("bert_model.ckpt.index", "tf1"),
    ):
        directory = tmp_path / file
        directory.mkdir()
        (directory / file).touch()
        assert formats.recognize(directory) == formats.recognize(directory / file) == format
    assert formats.recognize(directory / "bert_model.ckpt") == "tf1"
    (directory / "model.safetensors").touch()
    with pytest.raises(ValueError, match="huggingface and tf1"):
        formats.recognize(directory)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        formats.recognize(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no weights that are known"):
        formats.recognize(tmp_path / "empty")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="not a known file of weights"):
        formats.recognize(tmp_path / "notes.txt")


def test_weights_are_replaced_only_when_asked(tmp_path):
    """Other directories are never replaced: tests/files/test_output.py."""
    out = tmp_path / "out"
    formats.write(weights.make(), out, format="bertjax")
    other = weights.make(seed=1)
    with pytest.raises(ValueError, match="--overwrite"):
        formats.write(other, out, format="bertjax")
    with pytest.raises(ValueError, match="to write is 'tf1'; known are bertjax, huggingface"):
        formats.write(other, out, format="tf1", overwrite=True)
    broken = dataclasses.replace(other, params={**other.params, "unheard.of": other.params[BIAS]})
    with pytest.raises(ValueError, match=r"unheard\.of"):
        formats.write(broken, out, format="huggingface", overwrite=True)
    weights.assert_equal(formats.read(out), weights.make())  # A failed write leaves the old ones.
    (tmp_path / "link").symlink_to(out)
    formats.write(other, tmp_path / "link", format="bertjax", overwrite=True)
    weights.assert_equal(formats.read(out), other)
    assert (tmp_path / "link").is_symlink()


def test_of_two_writers_at_once_the_second_is_refused(tmp_path, monkeypatch):
    first, write = weights.make(), formats.WRITERS["huggingface"]

    def write_later(made, draft, *options):
        write(made, draft, *options)
        formats.write(first, tmp_path / "out", format="bertjax")

    monkeypatch.setitem(formats.WRITERS, "huggingface", write_later)
    with pytest.raises(ValueError, match="out exists; give another --to"):
        formats.write(weights.make(seed=1), tmp_path / "out", format="huggingface")
    weights.assert_equal(formats.read(tmp_path / "out"), first)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_chosen_head_is_read_from_every_format(tmp_path):
    made = weights.make("multiple_choice")
    for format in ("huggingface", "bertjax", "tf1"):
        weights.write(made, tmp_path / format, format)
        choice = formats.read(tmp_path / format, head="multiple_choice")
        weights.assert_equal(choice, made)
        bare = formats.read(tmp_path / format, head="none")
        assert {path.split(".")[0] for path in bare.params} == {"encoder", "pooler"}
        assert len(bare.unused) == 2
        with pytest.raises(ValueError, match="mlm_head"):
            formats.read(tmp_path / format, head="masked_lm")
