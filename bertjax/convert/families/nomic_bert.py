"""NomicBERT: nomic-bert-2048, the nomic-embed-text models and their descendants.

Sources: transformers, models/nomic_bert (modeling_nomic_bert.py, configuration_nomic_bert.py) and
conversion_mapping.py of 5.24; nomic-ai/contrastors, models/encoder (configuration_nomic_bert.py,
modeling_nomic_bert.py) and layers (attention.py, mlp.py).

Files have the names of tensors of contrastors, also those that transformers writes. config.json has
the fields of contrastors or of transformers, which reads the first as its own defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax import models
from bertjax.convert import heads, names
from bertjax.convert.families import base, bert
from bertjax.convert.names import Name
from bertjax.options import faults

ARCHITECTURES = heads.classes(
    "NomicBert", ("masked_lm", "none", "sequence_classification", "token_classification")
)

# A file without one of them has the value of transformers' NomicBertConfig.
FIELDS: dict[str, base.Field] = {
    "vocab_size": base.Field("vocab_size", int, default=30528),
    **{name: base.Field(name, int) for name in bert.SIZES[1:-1]},
    "max_position_embeddings": base.Field("max_position_embeddings", int, default=2048),
    "type_vocab_size": base.Field("type_vocab_size", int, least=1),
    "hidden_act": base.Field("hidden_act", str, values={"silu": "silu"}, default="silu"),
    "hidden_dropout_prob": base.Field("hidden_dropout_prob", float, default=0.0),
    "attention_probs_dropout_prob": base.Field("attention_probs_dropout_prob", float, default=0.0),
    "initializer_range": base.Field("initializer_range", float),
    "layer_norm_eps": base.Field("layer_norm_eps", float, default=1e-12),
    # Made by `in_todays`: it is in rope_parameters.
    "rope_theta": base.Field("rotary_base", float, default=1_000.0, stated=False),
}

# The fields of contrastors, GPT2Config's included -> today's names.
OLDER = {
    **{"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"},
    **{"n_inner": "intermediate_size", "n_positions": "max_position_embeddings"},
    **{"layer_norm_epsilon": "layer_norm_eps", "resid_pdrop": "hidden_dropout_prob"},
    **{"attn_pdrop": "attention_probs_dropout_prob", "rotary_emb_base": "rope_theta"},
}
# The values of contrastors where a file says none.
OLDER_DEFAULTS = {
    **{"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024},
    **{"layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    **{"rotary_emb_base": 10_000, "rotary_emb_fraction": 0.0},
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True),
}
# The form of a model that is computed here, in their words.
OLDER_FIXED = {
    **{"rotary_emb_fraction": 1.0, "activation_function": "swiglu"},
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False),
}

FIXED: dict[str, Any] = {
    **dict.fromkeys(("prenorm", "parallel_block", "use_rms_norm", "causal"), False),
    **{"rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "num_experts": None},
    **{"tie_word_embeddings": True, "quantization_config": None},
}

WITHOUT_EFFECT = base.BOOKKEEPING | {
    *OLDER, *OLDER_DEFAULTS, *OLDER_FIXED,
    *("classifier_dropout", "rope_parameters", "head_dim", "rotary_scaling_factor"),
    *("max_trained_positions", "pad_vocab_size_multiple", "parallel_block_tied_norm"),
    *("fused_bias_fc", "fused_dropout_add_ln", "use_flash_attn", "use_xentropy"),
    *("dense_seq_output", "n_ctx", "reorder_and_upcast_attn", "scale_attn_weights"),
    *("scale_attn_by_inverse_layer_idx", "summary_activation", "summary_first_dropout"),
    *("summary_proj_to_labels", "summary_type", "summary_use_proj", "max_seq_length"),
}  # fmt: skip

_BODY, _LAYER = "nomic_bert", bert.LAYER
_HF_LAYER = f"{_BODY}.encoder.layers.{{layer}}"


def _kernel(theirs: str, ours: str) -> Name:
    return Name(f"{theirs}.weight", f"{ours}.kernel", "transpose")


TENSORS: tuple[Name, ...] = (
    Name(f"{_BODY}.embeddings.word_embeddings.weight", "encoder.embeddings.word.embedding"),
    Name(
        f"{_BODY}.embeddings.token_type_embeddings.weight", "encoder.embeddings.segment.embedding"
    ),
    *names.torch_norm(f"{_BODY}.emb_ln", "encoder.embeddings.norm"),
    # The first three lie in one tensor: FUSED.
    _kernel(f"{_HF_LAYER}.attn.query", f"{_LAYER}.attention.query"),
    _kernel(f"{_HF_LAYER}.attn.key", f"{_LAYER}.attention.key"),
    _kernel(f"{_HF_LAYER}.attn.value", f"{_LAYER}.attention.value"),
    _kernel(f"{_HF_LAYER}.attn.out_proj", f"{_LAYER}.attention.output"),
    *names.torch_norm(f"{_HF_LAYER}.norm1", f"{_LAYER}.attention_norm"),
    # The second matrix is activated. Source: contrastors, layers/mlp.py, GatedMlp.
    _kernel(f"{_HF_LAYER}.mlp.fc11", f"{_LAYER}.gate"),
    _kernel(f"{_HF_LAYER}.mlp.fc12", f"{_LAYER}.intermediate"),
    _kernel(f"{_HF_LAYER}.mlp.fc2", f"{_LAYER}.output"),
    *names.torch_norm(f"{_HF_LAYER}.norm2", f"{_LAYER}.output_norm"),
    # NomicBertModel has none unless it is asked for.
    *names.torch_dense(f"{_BODY}.pooler.dense", "pooler.dense", heads=("sequence_classification",)),
    *names.torch_dense("cls.predictions.transform.dense", "mlm_head.dense", heads=("masked_lm",)),
    *names.torch_norm("cls.predictions.transform.layer_norm", "mlm_head.norm"),
    Name("cls.predictions.bias", "mlm_head.bias"),
    *names.torch_dense("classifier", "classifier"),
)

FUSED = {
    f"{_HF_LAYER}.attn.Wqkv.weight": [
        f"{_HF_LAYER}.attn.{name}.weight" for name in ("query", "key", "value")
    ],
}


def in_todays(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config.json of contrastors or transformers with today's names."""
    result = dict(fields)
    if "n_embd" in fields and "hidden_size" not in fields:
        result = OLDER_DEFAULTS | result
        _check_older(result)
        result["n_inner"] = result.get("n_inner") or 4 * result["n_embd"]
        older = {today: result[name] for name, today in OLDER.items() if name in result}
        result = (
            older
            | {"hidden_act": "silu"}
            | {name: value for name, value in result.items() if name not in older}
        )
    rotary = fields.get("rope_parameters") or {}
    kind = rotary.get("rope_type", "default")
    most = rotary.get("original_max_position_embeddings", 2048)
    if kind == "dynamic" and result.get("max_position_embeddings", 2048) > most:
        # Up to the positions of the training it is the same.
        result["max_position_embeddings"] = most
    elif kind not in ("default", "dynamic"):
        must = "'default', or 'dynamic', which differs only beyond the positions of the training"
        raise faults.wrong("rope_parameters.rope_type", kind, must)
    if "rope_theta" in rotary:
        result["rope_theta"] = rotary["rope_theta"]
    return result


def _check_older(fields: Mapping[str, Any]) -> None:
    """Raises a ValueError if the fields of contrastors are of a model of another form."""
    wrong = [
        faults.wrong(name, fields.get(name), f"{value!r}, all that is supported")
        for name, value in OLDER_FIXED.items()
        if fields.get(name) != value
    ]
    if fields["embd_pdrop"] != fields["resid_pdrop"]:
        must = f"resid_pdrop, {fields['resid_pdrop']}: one rate is for both"
        wrong.append(faults.wrong("embd_pdrop", fields["embd_pdrop"], must))
    faults.check("fields of contrastors", wrong)


def in_rope_parameters(config: models.EncoderConfig) -> dict[str, Any]:
    """Returns the field of the base of rotary positions."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base}}


def biases(
    config: models.EncoderConfig, decoder: models.EncoderConfig | None
) -> dict[str, np.ndarray]:
    """Returns the bias that released files lack: contrastors has none, transformers adds 0."""
    return {"cls.predictions.transform.dense.bias": np.zeros(config.hidden_size, np.float32)}


FAMILY = base.Family(
    model_type="nomic_bert",
    title="NomicBERT",
    fields=FIELDS,
    fixed=FIXED,
    stated={"tie_word_embeddings": True},
    without_effect=WITHOUT_EFFECT,
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix=f"{_BODY}.",
    tokenizer=bert.TOKENIZER,
    older=(
        (r"^bert\.", f"{_BODY}."),
        (r"(?<!encoder\.)layers\.", "encoder.layers."),
        (r"embeddings\.LayerNorm", "emb_ln"),
        (r"self_attn\.o_proj", "attn.out_proj"),
        (r"self_attn\.q_proj", "attn.query"),
        (r"self_attn\.k_proj", "attn.key"),
        (r"self_attn\.v_proj", "attn.value"),
        (r"mlp\.up_proj", "mlp.fc11"),
        (r"mlp\.gate_proj", "mlp.fc12"),
        (r"mlp\.down_proj", "mlp.fc2"),
        ("post_attention_layernorm", "norm1"),
        ("post_mlp_layernorm", "norm2"),
    ),
    ignored=(r".*inv_freq",),
    tied={
        "cls.predictions.decoder.weight": f"{_BODY}.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    fused=FUSED,
    traits={
        **{"position_embedding": "rotary", "feed_forward": "gated", "hidden_act": "silu"},
        **{"use_bias": False, "head_bias": True},
    },
    read=in_todays,
    restated=in_rope_parameters,
    constants=biases,
)
