"""Claims about NomicBERT's files that need no transformers; tests/interop has the others."""

import json

import numpy as np
import safetensors.numpy

from bertjax.convert import families, formats
from tests.convert import weights
from tests.interop import exports


def test_all_spellings_of_files_are_read(tmp_path):
    made = exports.make(families.named("nomic_bert"), "masked_lm")
    bias = "mlm_head.dense.bias"
    made.params[bias][:] = 0  # as released files lack it
    formats.write(made, tmp_path / "hf", format="huggingface")
    path = tmp_path / "hf" / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)

    def as_contrastors():
        lacking = tensors.keys() - {"cls.predictions.transform.dense.bias"}
        return {name.replace("nomic_bert.", "bert."): tensors[name] for name in lacking}

    def as_in_memory():
        renamed = {}
        for name, array in tensors.items():
            for stored, today in (
                *(("encoder.layers.", "layers."), ("emb_ln.", "embeddings.LayerNorm.")),
                *(("attn.out_proj", "self_attn.o_proj"), ("norm1", "post_attention_layernorm")),
                *(("fc11", "up_proj"), ("fc12", "gate_proj"), ("fc2", "down_proj")),
                ("norm2", "post_mlp_layernorm"),
            ):
                name = name.replace(stored, today)
            parts = np.split(array, 3) if "Wqkv" in name else [array]
            kinds = "qkv" if "Wqkv" in name else [""]
            for kind, part in zip(kinds, parts, strict=True):
                renamed[name.replace("attn.Wqkv", f"self_attn.{kind}_proj")] = part.copy()
        return renamed

    for changed in (as_contrastors(), as_in_memory()):
        safetensors.numpy.save_file(changed, path, metadata={"format": "pt"})
        weights.assert_equal(formats.read(tmp_path / "hf"), made)


def test_an_export_says_the_base_of_rotary_positions(tmp_path):
    formats.write(
        exports.make(families.named("nomic_bert"), "none"), tmp_path, format="huggingface"
    )
    fields = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert fields["rope_parameters"]["rope_theta"] == 10_000.0
