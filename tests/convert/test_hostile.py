"""Files that are made to hang the reader, or to fill its memory: one clear error, at once."""

import functools
import json
import shutil

import numpy as np
import pytest

from bertjax import inference, models
from bertjax.convert import formats
from bertjax.tokenization import tokenizer
from bertjax.workdirs import checkpoint
from tests import small_tokenizers
from tests.convert import weights

DEEP = "[" * 200_000


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """Weights as others have them."""
    root = tmp_path_factory.mktemp("forms")
    for name in ("huggingface", "tf1"):
        weights.write(weights.make("sequence_classification"), root / name, name)
    return root


CONFIGS = {"huggingface": "config.json", "tf1": "bert_config.json"}


@pytest.mark.parametrize("format", CONFIGS)
def test_sizes_that_nobody_has_are_refused_before_anything_is_built(forms, tmp_path, format):
    model = shutil.copytree(forms / format, tmp_path / "model")
    path = model / CONFIGS[format]
    fields = json.loads(path.read_text())
    sizes = ("num_hidden_layers", "vocab_size", "intermediate_size", "max_position_embeddings")
    for name in sizes:
        path.write_text(json.dumps(fields | {name: 10**9}))
        for read in (formats.read, formats.describe):
            with pytest.raises(ValueError, match=f"{name} is 1000000000; it must be .*at most"):
                read(model)
    if format == "huggingface":  # Labels are not named one by one.
        fields = {name: value for name, value in fields.items() if "2" not in name}
        path.write_text(json.dumps(fields | {"num_labels": 10**9}))
        with pytest.raises(ValueError, match="num_labels is 1000000000; it must be from 1 to 1,0"):
            formats.read(model)


def test_a_workdir_with_such_a_config_is_refused(tmp_path):
    formats.write(weights.make("sequence_classification"), tmp_path / "run", format="bertjax")
    original = checkpoint.load_params

    def lying(*arguments, **options):
        params, meta, step = original(*arguments, **options)
        sizes = {**meta["config"]["model"], "num_hidden_layers": 10**9}
        return params, {**meta, "config": {**meta["config"], "model": sizes}}, step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "load_params", lying)
        for read in (formats.read, inference.load, inference.load_finetuned):
            with pytest.raises(ValueError, match="num_hidden_layers is 1000000000"):
                read(tmp_path / "run")


def test_the_largest_that_is_believed_is():
    sizes = models.EncoderConfig(num_hidden_layers=1_000, vocab_size=10_000_000)
    assert sizes.num_hidden_layers == 1_000


@pytest.mark.parametrize("format", CONFIGS)
def test_json_that_is_nested_too_deeply_is_not_read(forms, tmp_path, format):
    names = [CONFIGS[format], "tokenizer_config.json"]
    if format == "huggingface":
        names += ["tokenizer.json", "added_tokens.json", "model.safetensors.index.json"]
    for number, name in enumerate(names):
        model = shutil.copytree(forms / format, tmp_path / str(number))
        (model / name).write_text(DEEP)
        if name.endswith(".index.json"):
            (model / "model.safetensors").unlink()
        with pytest.raises(ValueError, match=f"(?s){name}.*nested too deeply"):
            formats.read(model)


# Where in a tokenizer.json, what stands there, and what is said of it.
TOKENIZER_FAULTS = [
    (
        ("model", "vocab", "&"),
        10**7,
        "'&' has the id 10,000,000; with .* entries it may be at most",
    ),
    (("post_processor", "pair", 2, "SpecialToken", "id"), "zzz", "`tokenizers` does not read it"),
    (("added_tokens", 1, "id"), float("inf"), "OverflowError"),
]


def test_a_tokenizer_that_its_library_does_not_take_is_named(tmp_path):
    for number, (place, value, message) in enumerate(TOKENIZER_FAULTS):
        path = tmp_path / str(number) / "tokenizer.json"
        small_tokenizers.write(path.parent, "ModernBERT")
        fields = json.loads(path.read_text())
        part = functools.reduce(lambda part, key: part[key], place[:-1], fields)
        part[place[-1]] = value
        path.write_text(json.dumps(fields))
        with pytest.raises(
            ValueError, match=f"{path} is not a tokenizer of the library.*{message}"
        ):
            tokenizer.load(path.parent)


def test_an_npz_of_objects_is_no_file_of_weights(tmp_path):
    class Payload:
        def __reduce__(self):
            return (tmp_path / "written").touch, ()

    np.savez(tmp_path / "weights.npz", a=np.array([Payload()], object))
    with pytest.raises(ValueError, match="weights.npz is not a known file of weights"):
        formats.read(tmp_path / "weights.npz")
    assert not (tmp_path / "written").exists()
