"""Claims about the directories that are written for transformers, without transformers."""

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bertjax.convert import __main__ as convert
from bertjax.convert import formats, huggingface_read, huggingface_write, pretrained
from bertjax.tokenization import sentence_piece
from tests.convert import weights
from tests.tokenization import test_sentence_piece


def test_the_library_reads_the_weights_and_tied_ones_stand_once(tmp_path):
    made = weights.make()
    huggingface_write.write(made, tmp_path / "hf", card="The card.\n")
    loaded = safetensors.numpy.load_file(tmp_path / "hf" / "model.safetensors")
    kernel = made.params["encoder.layers.1.intermediate.kernel"]
    assert (loaded["bert.encoder.layer.1.intermediate.dense.weight"] == kernel.T).all()
    assert not [name for name in loaded if "decoder" in name]
    assert sum(array.size for array in loaded.values()) == made.num_parameters
    assert {array.dtype for array in loaded.values()} == {np.dtype(np.float32)}
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["pad_token_id"] == 0 and config["architectures"] == ["BertForPreTraining"]
    told = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert told["model_max_length"] == 40 and told["do_lower_case"] is True
    assert (tmp_path / "hf" / "README.md").read_text() == "The card.\n"


def test_a_model_without_a_head_has_names_without_prefix_and_a_tagger_no_pooler(tmp_path):
    huggingface_write.write(weights.make("none"), tmp_path / "hf", card="")
    loaded = safetensors.numpy.load_file(tmp_path / "hf" / "model.safetensors")
    assert {name.split(".")[0] for name in loaded} == {"embeddings", "encoder", "pooler"}
    made = weights.make("sequence_classification")
    tagger = pretrained.select(made, "token_classification")
    assert "pooler.dense.kernel" in tagger.params
    huggingface_write.write(tagger, tmp_path / "tagger", card="")
    assert "pooler.dense.kernel" not in huggingface_read.read(tmp_path / "tagger").params


@pytest.mark.parametrize(
    ("name", "numbers"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_numbers_of_half_the_size_are_rounded_once_and_never_become_infinite(
    tmp_path, name, numbers
):
    made = weights.make()
    formats.write(made, tmp_path / "whole", format="huggingface")
    formats.write(made, tmp_path / "half", format="huggingface", dtype=name)
    sizes = [(tmp_path / it / "model.safetensors").stat().st_size for it in ("whole", "half")]
    assert sizes[1] < 0.55 * sizes[0]
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == name
    rounded = {path: x.astype(numbers).astype(np.float32) for path, x in made.params.items()}
    weights.assert_equal(formats.read(tmp_path / "half"), dataclasses.replace(made, params=rounded))
    large = {**made.params, "mlm_head.bias": np.full_like(made.params["mlm_head.bias"], 1e5)}
    formats.write(dataclasses.replace(made, params=large), tmp_path / "large", format="huggingface")
    if name == "float16":
        with pytest.raises(ValueError, match=r"cls.predictions.bias has 100000, .* for float16"):
            convert.convert(tmp_path / "large", tmp_path / "out", dtype=name)
        assert not (tmp_path / "out").exists()


def test_models_that_cannot_be_spelled_out_are_refused_and_kept_elsewhere(tmp_path):
    for options, said in (
        ({"model_type": "bpe"}, "it is a model of type bpe, and only unigram models"),
        ({"normalization_rule_name": "identity"}, "it normalizes by 'identity'; for .*nmt_nfkc"),
        ({"add_dummy_prefix": False}, "it treats white space in ways"),
    ):
        model = test_sentence_piece.model(**test_sentence_piece.BERT, **options)
        made = weights.make(vocabulary=sentence_piece.SentencePieceTokenizer(model))
        with pytest.raises(ValueError, match=said):
            formats.write(made, tmp_path / "hf", format="huggingface")
        assert not (tmp_path / "hf").exists()
    formats.write(made, tmp_path / "run", format="bertjax")
    weights.assert_equal(formats.read(tmp_path / "run"), made)
