"""Claims about ESM-2's files that need no transformers; tests/interop has the others."""

import json

import numpy as np
import pytest
import safetensors.numpy

from bertjax.convert import families, formats
from tests.convert import weights
from tests.interop import exports

ANGLES = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"


@pytest.fixture
def made():
    return exports.make(families.named("esm"), "masked_lm")


@pytest.fixture
def files(tmp_path, made):
    formats.write(made, tmp_path / "hf", format="huggingface")
    return tmp_path / "hf"


def change(directory, changed):
    """Writes the tensors anew, as `changed` returns them."""
    path = directory / "model.safetensors"
    tensors = changed(safetensors.numpy.load_file(path))
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def test_all_spellings_of_released_files_are_read(files, made):
    def as_released(tensors):
        tensors["esm.embeddings.position_embeddings.weight"] = np.ones((4, 12), np.float32)
        tensors["esm.embeddings.position_ids"] = np.arange(4)[None]
        older = {".weight": ".gamma", ".bias": ".beta"}
        for name in [name for name in tensors if "LayerNorm" in name]:
            kind = name[name.rindex(".") :]
            tensors[name.replace(kind, older[kind])] = tensors.pop(name)
        return tensors

    def as_version_5(tensors):
        angles = [tensors.pop(ANGLES.format(layer)) for layer in range(2)]
        return tensors | {ANGLES.format("*"): angles[0]}

    def as_in_memory(tensors):
        return tensors | {"esm.rotary_embeddings.inv_freq": tensors.pop(ANGLES.format("*"))}

    for changed in (as_released, as_version_5, as_in_memory):
        change(files, changed)
        weights.assert_equal(formats.read(files), made)


def test_rounded_angles_are_seen_kept_and_written(files, made, tmp_path):
    def rounded(tensors):
        return tensors | {
            name: array.astype(np.float16)
            for name, array in tensors.items()
            if name.endswith("inv_freq")
        }

    assert formats.read(files).config.rotary_angles == "exact"
    change(files, rounded)
    read = formats.read(files)
    assert read.config.rotary_angles == "float16"
    formats.write(read, tmp_path / "run", format="bertjax")
    assert formats.read(tmp_path / "run").config == read.config
    formats.write(read, tmp_path / "again", format="huggingface")
    again = safetensors.numpy.load_file(tmp_path / "again" / "model.safetensors")
    (angles,) = {again[ANGLES.format(layer)].tobytes() for layer in range(2)}
    assert np.frombuffer(angles, np.float32).astype(np.float16).astype(np.float32).tobytes() == (
        angles
    )


def test_angles_of_another_base_are_refused(files):
    change(files, lambda it: it | {ANGLES.format(1): 2 * it[ANGLES.format(1)]})
    with pytest.raises(ValueError, match=r"layer\.0.*inv_freq does not follow from rope"):
        formats.read(files)
    fields = json.loads((files / "config.json").read_text())
    for name in ("position_embedding_type", "token_dropout"):
        without = {key: value for key, value in fields.items() if key != name}
        (files / "config.json").write_text(json.dumps(without))
        with pytest.raises(ValueError, match=f"{name} is .*only ESM-2 is supported, not ESM-1"):
            formats.read(files)
