"""ALBERT: one layer's parameters for all layers, and embeddings that are narrower than they are.

Sources: transformers, models/albert (modeling_albert.py, configuration_albert.py);
google-research/albert, modeling.py, run_pretraining.py, run_classifier.py, run_squad_v1.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from bertjax import models
from bertjax.convert import heads, names
from bertjax.convert.families import base, bert
from bertjax.convert.names import Name
from bertjax.tokenization import sentence_piece, wordpiece

ARCHITECTURES = heads.classes("Albert", ("pretraining", *heads.USUAL))

# With the values of AlbertConfig, which are xxlarge's.
SIZES = {
    **{"vocab_size": 30_000, "hidden_size": 4_096, "num_hidden_layers": 12},
    **{"num_attention_heads": 64, "intermediate_size": 16_384, "max_position_embeddings": 512},
}
# Those that are never left open, as 0 leaves them here.
STATED_SIZES = {
    **{"embedding_size": 128, "num_hidden_groups": 1, "inner_group_num": 1, "type_vocab_size": 2}
}
RATES = {
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    **{"initializer_range": 0.02, "layer_norm_eps": 1e-12},
}
# The same names on both sides.
FIELDS: dict[str, base.Field] = {
    **{name: base.Field(name, int, default=value) for name, value in SIZES.items()},
    **{name: base.Field(name, int, default=v, least=1) for name, v in STATED_SIZES.items()},
    "hidden_act": base.Field("hidden_act", str, values=bert.ACTIVATIONS, default="gelu_new"),
    **{name: base.Field(name, float, default=value) for name, value in RATES.items()},
}

UNREAD = ("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks")
# The released files have them, and no program reads them; and a dropout before heads.
WITHOUT_EFFECT = base.BOOKKEEPING | {*UNREAD, "layers_to_keep", "classifier_dropout_prob"}

_HF_LAYER = "albert.encoder.albert_layer_groups.{layer}.albert_layers.{inner}"
_LAYER = bert.LAYER
_PROJECTION = "encoder.embeddings.projection"

TENSORS: tuple[Name, ...] = (
    *(it for it in bert.of_encoder(bert.TENSORS, "albert") if "{layer}" not in it.theirs),
    *names.torch_dense("albert.encoder.embedding_hidden_mapping_in", _PROJECTION),
    *names.torch_dense(f"{_HF_LAYER}.attention.query", f"{_LAYER}.attention.query"),
    *names.torch_dense(f"{_HF_LAYER}.attention.key", f"{_LAYER}.attention.key"),
    *names.torch_dense(f"{_HF_LAYER}.attention.value", f"{_LAYER}.attention.value"),
    *names.torch_dense(f"{_HF_LAYER}.attention.dense", f"{_LAYER}.attention.output"),
    *names.torch_norm(f"{_HF_LAYER}.attention.LayerNorm", f"{_LAYER}.attention_norm"),
    *names.torch_dense(f"{_HF_LAYER}.ffn", f"{_LAYER}.intermediate"),
    *names.torch_dense(f"{_HF_LAYER}.ffn_output", f"{_LAYER}.output"),
    *names.torch_norm(f"{_HF_LAYER}.full_layer_layer_norm", f"{_LAYER}.output_norm"),
    *names.torch_dense("albert.pooler", "pooler.dense"),
    *names.torch_dense("predictions.dense", "mlm_head.dense"),
    *names.torch_norm("predictions.LayerNorm", "mlm_head.norm"),
    Name("predictions.bias", "mlm_head.bias"),
    *names.torch_dense("sop_classifier.classifier", "nsp_head.dense"),
    *names.torch_dense("classifier", "classifier"),
    *names.torch_dense("qa_outputs", "span_head"),
)

_TF_LAYER = "bert.encoder.transformer.group_{layer}.inner_group_{inner}"
_TF_ATTENTION, _TF_FEED_FORWARD = f"{_TF_LAYER}.attention_1", f"{_TF_LAYER}.ffn_1.intermediate"

VARIABLES: tuple[Name, ...] = (
    *(entry for entry in bert.VARIABLES if "{layer}" not in entry.theirs),
    *names.tensorflow1(
        (
            *names.torch_dense("bert.encoder.embedding_hidden_mapping_in", _PROJECTION),
            *names.torch_dense(f"{_TF_ATTENTION}.self.query", f"{_LAYER}.attention.query"),
            *names.torch_dense(f"{_TF_ATTENTION}.self.key", f"{_LAYER}.attention.key"),
            *names.torch_dense(f"{_TF_ATTENTION}.self.value", f"{_LAYER}.attention.value"),
            *names.torch_dense(f"{_TF_ATTENTION}.output.dense", f"{_LAYER}.attention.output"),
            *names.torch_norm(f"{_TF_LAYER}.LayerNorm", f"{_LAYER}.attention_norm"),
            *names.torch_dense(f"{_TF_FEED_FORWARD}.dense", f"{_LAYER}.intermediate"),
            *names.torch_dense(f"{_TF_FEED_FORWARD}.output.dense", f"{_LAYER}.output"),
            *names.torch_norm(f"{_TF_LAYER}.LayerNorm_1", f"{_LAYER}.output_norm"),
        )
    ),
)

RELEASED = base.Released(
    names=VARIABLES,
    config="albert_config.json",
    checkpoint="model.ckpt-best",
    example="albert_base",
    # AlbertConfig's.
    defaults={
        **{name: value for name, value in SIZES.items() if name != "vocab_size"},
        **STATED_SIZES,
        "hidden_act": "gelu",
        **{name: value for name, value in RATES.items() if name != "layer_norm_eps"},
    },
    unread=UNREAD,
    # layer_norm of modeling.py, and transformer_model, which projects nothing of the same width.
    computed_with={"layer_norm_eps": 1e-12, "embedding_projection": "if_needed"},
    # gelu of modeling.py is the tanh form.
    means={"gelu": "gelu_tanh"},
    model="30k-clean.model",
)

TOKENIZER = dataclasses.replace(
    bert.TOKENIZER,
    vocabularies=(sentence_piece.MODEL_FILE, wordpiece.VOCABULARY_FILE),
    ids={"pad_token_id": "pad_id", "bos_token_id": "cls_id", "eos_token_id": "sep_id"},
)


def _same_projection(config: models.EncoderConfig) -> Mapping[str, np.ndarray]:
    """Returns the projection that changes nothing, for embeddings as wide as the layers."""
    size = config.hidden_size
    identity, bias = np.eye(size, dtype=np.float32), np.zeros(size, np.float32)
    return {f"{_PROJECTION}.kernel": identity, f"{_PROJECTION}.bias": bias}


FAMILY = base.Family(
    model_type="albert",
    title="ALBERT",
    fields=FIELDS,
    fixed=bert.FIXED,
    stated={"position_embedding_type": "absolute", "tie_word_embeddings": True},
    without_effect=WITHOUT_EFFECT,
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix="albert.",
    tokenizer=TOKENIZER,
    older=bert.FAMILY.older,
    ignored=(r"albert\.embeddings\.position_ids", r"albert\.embeddings\.token_type_ids"),
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    # transformers projects whatever the widths.
    traits={"embedding_projection": "always"},
    completed={"embedding_projection": _same_projection},
    released=RELEASED,
)
