"""Hugging Face directories: every form that is in use is read, and what is broken is named."""

import json
import pathlib
import shutil
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bertjax.convert import huggingface_read

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
TABLE = "bert.embeddings.word_embeddings.weight"


@pytest.fixture
def directory(tmp_path):
    """A copy of the golden pretraining model that a test may change."""
    return pathlib.Path(shutil.copytree(GOLDEN / "pretraining", tmp_path / "model"))


def load(directory):
    return safetensors.numpy.load_file(directory / "model.safetensors")


def save(directory, weights, name="model.safetensors"):
    safetensors.numpy.save_file(weights, directory / name)


def set_config(directory, **fields):
    path = directory / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps(config))


def assert_same(left, right):
    assert left.params.keys() == right.params.keys()
    for path, array in left.params.items():
        np.testing.assert_array_equal(array, right.params[path], err_msg=path)


def test_a_directory_and_its_file_are_the_same_model(directory):
    read = huggingface_read.read(directory)
    assert read.head == "pretraining"
    assert read.vocabulary is None
    assert {array.dtype for array in read.params.values()} == {np.dtype(np.float32)}
    assert_same(read, huggingface_read.read(directory / "model.safetensors"))


def gamma(name):
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return name.replace("LayerNorm.bias", "LayerNorm.beta")


def test_older_names_and_needless_ones_are_understood(directory):
    wanted = huggingface_read.read(directory)
    weights = {gamma(name): array for name, array in load(directory).items()}
    weights |= {
        "bert.embeddings.position_ids": np.arange(14)[None],
        "cls.predictions.decoder.weight": weights[TABLE],
        "cls.predictions.decoder.bias": weights["cls.predictions.bias"],
    }
    save(directory, weights)
    read = huggingface_read.read(directory)
    assert_same(read, wanted)
    assert read.unused == ()


def test_a_model_without_prefix_and_heads_is_read(directory):
    wanted = huggingface_read.read(directory, head="none")
    weights = load(directory)
    bare = {n.removeprefix("bert."): a for n, a in weights.items() if not n.startswith("cls.")}
    save(directory, bare)
    set_config(directory, architectures=["BertModel"])
    read = huggingface_read.read(directory)
    assert (read.head, read.unused) == ("none", ())
    assert_same(read, wanted)


def test_a_tied_copy_alone_stands_for_its_original_and_an_untied_one_is_an_error(directory):
    wanted, weights = huggingface_read.read(directory), load(directory)
    alone = weights | {"cls.predictions.decoder.weight": weights[TABLE]}
    del alone[TABLE]
    save(directory, alone)
    assert_same(huggingface_read.read(directory), wanted)
    weights["cls.predictions.decoder.weight"] = weights[TABLE] + 1
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"] + 1
    save(directory, weights)
    unequal = rf"(?s)decoder\.weight differs from {TABLE}.*decoder\.bias"
    with pytest.raises(ValueError, match=unequal):
        huggingface_read.read(directory)


def test_half_and_double_precision_become_float32_where_that_holds_them(directory):
    wanted, weights = huggingface_read.read(directory), load(directory)
    dtypes = {"a": np.float16, "b": ml_dtypes.bfloat16}
    halves = {name: array.astype(dtypes["ab"[len(name) % 2]]) for name, array in weights.items()}
    save(directory, halves)
    read = huggingface_read.read_weights(directory / "model.safetensors")
    for name, array in halves.items():
        assert read[name].dtype == np.float32
        np.testing.assert_array_equal(read[name], array.astype(np.float32))
    save(directory, {name: array.astype(np.float64) for name, array in weights.items()})
    assert_same(huggingface_read.read(directory), wanted)
    table = weights[TABLE].astype(np.float64)
    table[0, 0] = 1e40
    save(directory, weights | {TABLE: table})
    with pytest.raises(ValueError, match=rf"{TABLE} has float64 numbers that are too"):
        huggingface_read.read(directory)


def test_a_wrapped_module_is_read_as_what_it_wraps(directory):
    wanted, weights = huggingface_read.read(directory), load(directory)
    for wrapper in ("module.", "_orig_mod.", "module._orig_mod."):
        save(directory, {f"{wrapper}{name}": array for name, array in weights.items()})
        read = huggingface_read.read(directory)
        assert_same(read, wanted)
        assert (read.head, read.unused) == (wanted.head, ())


def test_a_pair_head_alone_is_one_of_next_sentences(directory):
    weights = load(directory)
    save(directory, {n: a for n, a in weights.items() if not n.startswith("cls.predictions")})
    set_config(directory, architectures=["BertForNextSentencePrediction"])
    read = huggingface_read.read(directory)
    assert (read.head, read.unused) == ("next_sentence", ())
    assert "nsp_head.dense.kernel" in read.params


def test_what_another_head_needs_is_told_as_unused(directory):
    set_config(directory, architectures=["BertForSequenceClassification"], id2label={"0": "x"})
    weights = load(directory)
    weights |= {
        "classifier.weight": np.ones((1, 16), np.float32),
        "classifier.bias": np.ones(1, np.float32),
    }
    save(directory, weights)
    read = huggingface_read.read(directory)
    assert read.head == "sequence_classification"
    assert read.labels == {0: "x"}
    assert set(read.unused) == {name for name in weights if name.startswith("cls.")}
    assert not any(path.startswith(("mlm_head", "nsp_head")) for path in read.params)


def test_the_released_weights_keep_both_heads_whatever_their_config_says(directory):
    for name in ("BertForPreTraining", "BertForMaskedLM", "BertModel", "MyBert", None):
        set_config(directory, architectures=name and [name])
        assert huggingface_read.read(directory).head == "pretraining"
    with pytest.raises(ValueError, match=r"head is 'mlm'; known are .*pretraining"):
        huggingface_read.read(directory, head="mlm")


def test_faults_of_the_parameters_are_those_of_the_file(directory):
    """All at once: test_names.py."""
    weights = load(directory)
    weights[TABLE] = weights[TABLE][:, :-1].copy()
    save(directory, weights)
    wanted = rf"(?s)^{directory / 'model.safetensors'}.*{TABLE} has the shape \[60, 15\]"
    with pytest.raises(ValueError, match=wanted):
        huggingface_read.read(directory)


def shards(directory):
    """Splits the weights in two, with an index; returns the weights of both."""
    weights = load(directory)
    (directory / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, held in parts.items():
        save(directory, {name: weights[name] for name in held}, file)
    places = {name: file for file, held in parts.items() for name in held}
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index, places


def test_shards_are_joined_and_must_be_those_of_their_index(directory):
    wanted = huggingface_read.read(directory)
    index, places = shards(directory)
    assert_same(huggingface_read.read(directory), wanted)
    assert_same(huggingface_read.read(index), wanted)
    del places["bert.pooler.dense.bias"]
    places[TABLE] = "one.safetensors" if places[TABLE] == "two.safetensors" else "two.safetensors"
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ValueError, match="does not fit its shards") as caught:
        huggingface_read.read(directory)
    assert f"{TABLE} is not in " in str(caught.value)
    assert "bert.pooler.dense.bias of " in str(caught.value)
    (directory / "two.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"names two\.safetensors"):
        huggingface_read.read(directory)
    for text, message in (
        *((it, "not an index") for it in ("{", "[]", '{"weight_map": []}')),
        ('{"weight_map": {"a": 1}}', "not an index"),
        ('{"weight_map": {"a": "../../x.safetensors"}}', "outside its directory"),
    ):
        index.write_text(text)
        with pytest.raises(ValueError, match=message):
            huggingface_read.read(directory)


def lying_header(length):
    header = json.dumps({TABLE: {"dtype": "F32", "shape": [60, 16], "data_offsets": [0, length]}})
    return struct.pack("<Q", len(header)) + header.encode() + bytes(3840)


def test_a_truncated_or_lying_file_a_pointer_and_a_missing_one_are_errors(directory):
    path = directory / "model.safetensors"
    whole = path.read_bytes()
    for content in (
        *(b"", whole[:5], whole[:300], whole[:-4], whole + bytes(4)),
        struct.pack("<Q", 2**60) + whole[8:],
        whole[:8] + b"[" + whole[9:],
        *(lying_header(3836), lying_header(2**40)),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^{path} is not a whole safetensors file"):
            huggingface_read.read(directory)
    header = json.dumps({"x": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(2))
    with pytest.raises(
        ValueError, match="1 parameters of unsup.* types, such as x of F8_E4M3; save"
    ):
        huggingface_read.read(directory)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(ValueError, match="git lfs pull"):
        huggingface_read.read(directory)
    for file in ("model.safetensors", "config.json"):
        (directory / file).unlink()
        with pytest.raises(FileNotFoundError, match=file):
            huggingface_read.read(directory)
