"""EuroBERT: Llama's layers, looking both ways, with keys and values that heads of queries share.

Sources: transformers, models/eurobert (modeling_eurobert.py, configuration_eurobert.py) and
modeling_rope_utils.py of 5.24; Boizard et al. 2025 (arXiv 2503.05500); Nicolas-BZRD/EuroBERT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from absl import logging

from bertjax import models
from bertjax.convert import heads, names
from bertjax.convert.families import base, bert, modernbert
from bertjax.convert.names import Name
from bertjax.options import faults

ARCHITECTURES = heads.classes(
    "EuroBert", ("masked_lm", "none", "sequence_classification", "token_classification")
)
POOLING, OLDER_POOLING = "classifier_pooling", "clf_pooling"
HEADS = "num_attention_heads"
MASK_ID = 128002  # of the released vocabulary

# A file without one of them has the value of transformers' EuroBertConfig.
FIELDS: dict[str, base.Field] = {
    "vocab_size": base.Field("vocab_size", int, default=128256),
    **{name: base.Field(name, int) for name in bert.SIZES[1:-1]},
    # Ours is 0 where no head is shared: `restated` writes that.
    "num_key_value_heads": base.Field("num_key_value_heads", int),
    "max_position_embeddings": base.Field("max_position_embeddings", int, default=8192),
    "hidden_act": base.Field(
        "hidden_act", str, values={"silu": "silu", **bert.ACTIVATIONS}, default="silu"
    ),
    # The released configs say it; transformers drops nothing but attention weights.
    "hidden_dropout": base.Field("hidden_dropout_prob", float, default=0.0),
    "attention_dropout": base.Field("attention_probs_dropout_prob", float, default=0.0),
    "initializer_range": base.Field("initializer_range", float),
    "rms_norm_eps": base.Field("layer_norm_eps", float, default=1e-5),
    # Made by `in_todays`: it is in rope_parameters.
    "rope_theta": base.Field("rotary_base", float, default=10_000.0, stated=False),
}

FIXED: dict[str, Any] = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), False),
    "quantization_config": None,
}

WITHOUT_EFFECT = base.BOOKKEEPING | {
    *("head_dim", "rope_parameters", "rope_scaling", "pretraining_tp"),
    # Names of special tokens in the released configs, which the tokenizer has.
    *("bos_token", "eos_token", "pad_token", "mask_token", OLDER_POOLING),
}

_BODY, _LAYER = "model", bert.LAYER
_HF_LAYER = f"{_BODY}.layers.{{layer}}"

TENSORS: tuple[Name, ...] = (
    Name(f"{_BODY}.embed_tokens.weight", "encoder.embeddings.word.embedding"),
    *(
        Name(f"{_HF_LAYER}.{theirs}.weight", f"{_LAYER}.{ours}.kernel", "transpose")
        for theirs, ours in (
            *(("self_attn.q_proj", "attention.query"), ("self_attn.k_proj", "attention.key")),
            *(("self_attn.v_proj", "attention.value"), ("self_attn.o_proj", "attention.output")),
            *(("mlp.gate_proj", "intermediate"), ("mlp.up_proj", "gate")),
            ("mlp.down_proj", "output"),
        )
    ),
    Name(f"{_HF_LAYER}.input_layernorm.weight", f"{_LAYER}.attention_norm.scale"),
    Name(f"{_HF_LAYER}.post_attention_layernorm.weight", f"{_LAYER}.output_norm.scale"),
    Name(f"{_BODY}.norm.weight", "encoder.final_norm.scale"),
    Name("lm_head.weight", "mlm_head.output.embedding"),
    *names.torch_dense("dense", "pooler.dense", heads=("sequence_classification",)),
    *names.torch_dense("classifier", "classifier"),
)


def in_todays(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config.json with one base of rotary positions and one pooling."""
    result = {name: value for name, value in fields.items() if value is not None}
    wide, heads = (result.get(name, it) for name, it in (("hidden_size", 768), (HEADS, 12)))
    size = result.get("head_dim", 0)
    if size and all(isinstance(it, int) for it in (size, wide, heads)) and size * heads != wide:
        raise faults.wrong("head_dim", size, f"hidden_size / {HEADS}, {wide} / {heads}")
    if result.get("num_key_value_heads") == 0:
        raise faults.wrong("num_key_value_heads", 0, f"a divisor of {HEADS}, {heads}")
    rotary = result.get("rope_scaling") or result.get("rope_parameters") or {}
    if not isinstance(rotary, Mapping):
        raise faults.wrong("rope_parameters", rotary, "an object with rope_theta")
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind != "default":
        raise faults.wrong("rope_parameters.rope_type", kind, "'default', all that is supported")
    result |= {"rope_theta": rotary["rope_theta"]} if "rope_theta" in rotary else {}
    if OLDER_POOLING in fields and POOLING not in fields:
        result[POOLING] = fields[OLDER_POOLING]
        if fields[OLDER_POOLING] != "late":
            logging.warning(
                "config.json has %s %r, which is read as %s: the code that trained the model "
                "computed so. transformers 5.24 reads %s alone, and computes 'late'",
                *(OLDER_POOLING, fields[OLDER_POOLING], POOLING, POOLING),
            )
    return result


def restated(config: models.EncoderConfig) -> dict[str, Any]:
    """Returns the fields of rotary positions, of the heads of keys and values, and of the mask."""
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base},
        "num_key_value_heads": config.num_key_value_heads or config.num_attention_heads,
        # A vocabulary's replaces it; transformers wants a number, and one that the table has.
        "mask_token_id": MASK_ID if config.vocab_size > MASK_ID else 0,
    }


FAMILY = base.Family(
    model_type="eurobert",
    title="EuroBERT",
    fields=FIELDS,
    fixed=FIXED,
    # Defaults of ids might lie beyond the vocabulary, whose ids replace them.
    stated={
        **{name: value for name, value in FIXED.items() if value is not None},
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    },
    without_effect=WITHOUT_EFFECT,
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix=f"{_BODY}.",
    tokenizer=base.TokenizerFiles(
        vocabularies=modernbert.TOKENIZER.vocabularies,
        fields=modernbert.TOKENIZER.fields,
        single=modernbert.TOKENIZER.single,
        pair=modernbert.TOKENIZER.pair,
        ids={
            **{"pad_token_id": "pad_id", "mask_token_id": "mask_id"},
            **{"bos_token_id": "cls_id", "eos_token_id": "sep_id"},
        },
    ),
    ignored=(r".*inv_freq",),
    traits={
        **{"embeddings": "words", "type_vocab_size": 0, "position_embedding": "rotary"},
        **{"layer": "full_pre_norm", "feed_forward": "gated", "hidden_act": "silu"},
        **{"norm": "rms_norm", "use_bias": False, "head_bias": True, "mlm_transform": False},
        **{"tie_word_embeddings": False, "pooler": "every_pooling", "pooler_act": "gelu"},
    },
    read=in_todays,
    restated=restated,
    pooling=POOLING,
    poolings={"late": "late", "mean": "mean", "bos": "cls"},
)
