"""Claims about telling formats apart and about what is replaced."""

import pytest
from etils import epath

from bertjax.convert import formats, huggingface_read
from bertjax.convert.families import bert
from bertjax.workdirs import checkpoint_storage
from tests.convert import weights


@pytest.mark.parametrize(
    ("format", "head"),
    [
        ("tf1", "pretraining"),  # other heads: test_tensorflow1.py
        *((format, head) for format in formats.WRITERS for head in bert.ARCHITECTURES),
    ],
)
def test_what_is_written_is_recognized_and_read(tmp_path, format, head):
    made = weights.make(head)
    weights.write(made, tmp_path / "out", format)
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
    with pytest.raises(ValueError, match="not a known file of weights"):
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


@pytest.mark.parametrize("action", ["rename", "rmtree"])
@pytest.mark.parametrize("count", [0, 1])
def test_stopped_anywhere_the_old_or_the_new_weights_are_there(
    tmp_path, monkeypatch, action, count
):
    old, new = weights.make(), weights.make(seed=1)
    formats.write(old, tmp_path / "out", format="bertjax")
    kind = type(epath.Path(tmp_path))
    real, calls = getattr(kind, action), []

    def stopped(path, *arguments):
        calls.append(path)
        if "bertjax" in path.name + str(arguments) and len(calls) > count:
            raise KeyboardInterrupt
        return real(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(kind, action, stopped)
        try:
            formats.write(new, tmp_path / "out", format="huggingface", overwrite=True)
            assert action == "rmtree" and count == 1  # there is one removal and two renames
        except KeyboardInterrupt:
            pass
    with pytest.raises(ValueError, match="exists already"):  # and what was aside is put back
        formats.write(new, tmp_path / "out", format="huggingface")
    found = formats.read(tmp_path / "out")
    weights.assert_equal(found, new if action == "rmtree" else old)
    formats.write(new, tmp_path / "out", format="bertjax", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_format_that_is_only_read_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="to write is 'tf1'; known are bertjax, huggingface"):
        formats.write(weights.make(), tmp_path / "out", format="tf1")


def test_what_a_link_points_to_is_replaced(tmp_path):
    formats.write(weights.make(), tmp_path / "out", format="huggingface")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    formats.write(weights.make(seed=1), tmp_path / "link", format="huggingface", overwrite=True)
    weights.assert_equal(formats.read(tmp_path / "out"), weights.make(seed=1))
    assert (tmp_path / "link").is_symlink()


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


@pytest.mark.parametrize("format", [*formats.FORMATS])
def test_a_description_is_that_of_the_weights(tmp_path, format):
    weights.write(weights.make(), tmp_path / "out", format)
    read, described = formats.read(tmp_path / "out"), formats.describe(tmp_path / "out")
    assert (described.config, described.source) == (read.config, read.source)
    assert described.vocabulary.describe() == read.vocabulary.describe()


@pytest.mark.parametrize("format", ["bertjax", "huggingface"])
def test_a_description_reads_no_parameter(tmp_path, monkeypatch, format):
    formats.write(weights.make(), tmp_path / "out", format=format)
    for module, reader in ((huggingface_read, "read_weights"), (checkpoint_storage, "read_params")):
        monkeypatch.setattr(module, reader, lambda *_: pytest.fail("parameters were read"))
    assert formats.describe(tmp_path / "out").config == weights.CONFIG
