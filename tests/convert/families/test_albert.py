"""Claims about ALBERT's files, the TensorFlow 1 checkpoints of its own code among them."""

import json

import numpy as np
import pytest

from bertjax.convert import formats
from bertjax.convert.families import albert
from tests.convert import released_checkpoint
from tests.tokenization import test_sentence_piece

HIDDEN, WIDTH, INTERMEDIATE, VOCABULARY = 4, 3, 6, 12
# As the released albert_config.json has them.
RELEASED = {
    **{"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "initializer_range": 0.02},
    **{"vocab_size": VOCABULARY, "embedding_size": WIDTH, "hidden_size": HIDDEN},
    **{"intermediate_size": INTERMEDIATE, "max_position_embeddings": 8, "type_vocab_size": 2},
    **{"num_attention_heads": 2, "num_hidden_layers": 4, "num_hidden_groups": 2},
    **{"inner_group_num": 2, "hidden_act": "gelu"},
    **dict.fromkeys(("net_structure_type", "gap_size", "num_memory_blocks"), 0),
    "down_scale_factor": 1,
}


def released_shapes(width=WIDTH):
    """The variables of run_pretraining.py, written out by hand; projected unless as wide."""
    shapes = {
        "bert/embeddings/word_embeddings": (VOCABULARY, width),
        "bert/embeddings/token_type_embeddings": (2, width),
        "bert/embeddings/position_embeddings": (8, width),
        "cls/predictions/output_bias": (VOCABULARY,),
        "cls/seq_relationship/output_weights": (2, HIDDEN),
        "cls/seq_relationship/output_bias": (2,),
    }
    dense = {
        "bert/pooler/dense": (HIDDEN, HIDDEN),
        "cls/predictions/transform/dense": (HIDDEN, width),
    }
    norms = {"bert/embeddings/LayerNorm": width, "cls/predictions/transform/LayerNorm": width}
    if width != HIDDEN:
        dense["bert/encoder/embedding_hidden_mapping_in"] = (width, HIDDEN)
    for group in range(2):
        for inner in range(2):
            scope = f"bert/encoder/transformer/group_{group}/inner_group_{inner}"
            for name in ("self/query", "self/key", "self/value", "output/dense"):
                dense[f"{scope}/attention_1/{name}"] = (HIDDEN, HIDDEN)
            dense[f"{scope}/ffn_1/intermediate/dense"] = (HIDDEN, INTERMEDIATE)
            dense[f"{scope}/ffn_1/intermediate/output/dense"] = (INTERMEDIATE, HIDDEN)
            norms |= {f"{scope}/LayerNorm": HIDDEN, f"{scope}/LayerNorm_1": HIDDEN}
    for name, shape in dense.items():
        shapes |= {f"{name}/kernel": shape, f"{name}/bias": shape[1:]}
    for name, size in norms.items():
        shapes |= {f"{name}/gamma": (size,), f"{name}/beta": (size,)}
    return shapes


def save(directory, width=WIDTH):
    """A folder as it was released, with its own names for the files."""
    rng = np.random.default_rng(0)
    shapes = released_shapes(width)
    variables = {name: rng.normal(size=shapes[name]).astype(np.float32) for name in sorted(shapes)}
    directory.mkdir()
    released_checkpoint.save(variables, directory / "model.ckpt-best")
    (directory / "albert_config.json").write_text(json.dumps(RELEASED | {"embedding_size": width}))
    return variables


def test_a_released_checkpoint_is_read(tmp_path):
    variables = save(tmp_path / "albert_base")
    found = formats.read(tmp_path / "albert_base")
    assert (found.head, found.unused, found.family) == ("pretraining", (), albert.FAMILY)
    assert found.config.hidden_act == "gelu_tanh"  # what its code computes under "gelu"
    assert (found.config.num_hidden_groups, found.config.inner_group_num) == (2, 2)
    scope = "bert/encoder/transformer/group_1/inner_group_0"
    np.testing.assert_array_equal(
        found.params["encoder.layers.2.attention.query.kernel"],
        variables[f"{scope}/attention_1/self/query/kernel"],
    )
    np.testing.assert_array_equal(
        found.params["encoder.layers.3.output_norm.scale"],
        variables["bert/encoder/transformer/group_1/inner_group_1/LayerNorm_1/gamma"],
    )
    for name, array in released_checkpoint.variables_of(found).items():
        np.testing.assert_array_equal(variables.pop(name), array, err_msg=name)
    assert not variables


def test_embeddings_as_wide_as_the_layers_are_given_a_projection_that_changes_nothing(tmp_path):
    save(tmp_path / "wide", width=HIDDEN)
    found = formats.read(tmp_path / "wide")
    assert not found.config.projects_embeddings
    assert albert.FAMILY.lacks(found.config) == []
    formats.write(found, tmp_path / "hf", format="huggingface")
    theirs = formats.read(tmp_path / "hf")
    assert theirs.config.projects_embeddings
    added = theirs.params.keys() - found.params.keys()
    projection = "encoder.embeddings.projection"
    assert added == {f"{projection}.kernel", f"{projection}.bias"}
    np.testing.assert_array_equal(theirs.params[f"{projection}.kernel"], np.eye(HIDDEN))
    assert not theirs.params[f"{projection}.bias"].any()
    weights = {path: a.tobytes() for path, a in theirs.params.items() if path not in added}
    assert weights == {path: array.tobytes() for path, array in found.params.items()}


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_vocabulary_that_was_released_is_found_with_its_casing(tmp_path, lowercase):
    save(tmp_path / "albert_base")
    lines = [line.lower() if lowercase else line.title() for line in test_sentence_piece.LINES]
    model = test_sentence_piece.model(lines=lines, **test_sentence_piece.BERT)
    config = RELEASED | {"vocab_size": VOCABULARY}
    (tmp_path / "albert_base" / "albert_config.json").write_text(json.dumps(config))
    (tmp_path / "albert_base" / "30k-clean.model").write_bytes(model)
    with pytest.raises(ValueError, match="vocabulary has .* entries, albert_config.json says"):
        formats.read(tmp_path / "albert_base")
    found = formats.tensorflow1.read_vocabulary(tmp_path / "albert_base", albert.RELEASED)
    assert found is not None and found.describe()["lowercase"] is lowercase
    assert found.describe()["strip_accents"] is lowercase
