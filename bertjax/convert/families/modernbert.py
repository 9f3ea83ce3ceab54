"""ModernBERT, and the models that are written as it is: Ettin's encoders, mmBERT and others.

Sources: transformers, models/modernbert (modeling_modernbert.py, configuration_modernbert.py) of
4.48 and of 5.23; AnswerDotAI/ModernBERT; huggingface/text-embeddings-inference,
backends/candle/src/models/modernbert.rs, which wants the fields of version 4.

Version 5 has lists and tables in place of version 4's numbers. Both are read, and both written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertjax import models
from bertjax.convert import heads, names
from bertjax.convert.families import base, bert
from bertjax.convert.names import Name
from bertjax.tokenization import byte_bpe, sentence_piece, wordpiece

ARCHITECTURES = heads.classes("ModernBert")

# The layers have one of these; the heads, the one over masked tokens among them, another field.
ACTIVATIONS = {name: ours for name, ours in bert.ACTIVATIONS.items() if ours == "gelu"}

# A file without one of them has the value of ModernBertConfig.
FIELDS: dict[str, base.Field] = {
    "vocab_size": base.Field("vocab_size", int, default=50368),
    "hidden_size": base.Field("hidden_size", int),
    "num_hidden_layers": base.Field("num_hidden_layers", int, default=22),
    "num_attention_heads": base.Field("num_attention_heads", int),
    "intermediate_size": base.Field("intermediate_size", int, default=1152),
    "max_position_embeddings": base.Field("max_position_embeddings", int, default=8192),
    "hidden_activation": base.Field("hidden_act", str, values=ACTIVATIONS),
    "classifier_activation": base.Field(
        "pooler_act", str, values=bert.ACTIVATIONS | {"silu": "silu"}, default="gelu"
    ),
    "initializer_range": base.Field("initializer_range", float),
    "norm_eps": base.Field("layer_norm_eps", float, default=1e-5),
    "attention_dropout": base.Field("attention_probs_dropout_prob", float, default=0.0),
    "embedding_dropout": base.Field("hidden_dropout_prob", float, default=0.0),
    # Theirs is the width of both sides together.
    "local_attention": base.Field("window", int, default=128, times=2),
    "global_attn_every_n_layers": base.Field("global_every", int, default=3, least=1),
    "global_rope_theta": base.Field("rotary_base", float, default=160_000.0),
    "local_rope_theta": base.Field("local_rotary_base", float, default=10_000.0),
}

FIXED: dict[str, Any] = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False),
    "decoder_bias": True,
    "tie_word_embeddings": True,
    "quantization_config": None,
}

WITHOUT_EFFECT = base.BOOKKEEPING | {
    *("initializer_cutoff_factor", "position_embedding_type"),
    *("deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index"),
    *("reference_compile", "repad_logits_with_grad", "layer_types", "rope_parameters"),
}

GLOBAL, LOCAL = "full_attention", "sliding_attention"
DEFAULT_WINDOW = 64
# Fields of ids, which a vocabulary's ids replace. Their defaults might lie beyond the vocabulary.
IDS = {
    "pad_token_id": "pad_id",
    **{"bos_token_id": "cls_id", "eos_token_id": "sep_id"},
    **{"cls_token_id": "cls_id", "sep_token_id": "sep_id"},
}

_BODY, _LAYER = "model", bert.LAYER
_HF_LAYER = f"{_BODY}.layers.{{layer}}"
_CLASSIFYING = ("sequence_classification", "token_classification", "multiple_choice")
_SPANS = ("question_answering",)
_POOLED = (*_CLASSIFYING, *_SPANS)


def _kernel(theirs: str, ours: str, heads: tuple[str, ...] = ()) -> Name:
    return Name(f"{theirs}.weight", f"{ours}.kernel", "transpose", heads)


def _scale(theirs: str, ours: str, heads: tuple[str, ...] = ()) -> Name:
    return Name(f"{theirs}.weight", f"{ours}.scale", heads=heads)


TENSORS: tuple[Name, ...] = (
    Name(f"{_BODY}.embeddings.tok_embeddings.weight", "encoder.embeddings.word.embedding"),
    _scale(f"{_BODY}.embeddings.norm", "encoder.embeddings.norm"),
    _scale(f"{_HF_LAYER}.attn_norm", f"{_LAYER}.attention_norm"),
    # The first three, and the two of the feed-forward, lie in one tensor: FUSED.
    _kernel(f"{_HF_LAYER}.attn.query", f"{_LAYER}.attention.query"),
    _kernel(f"{_HF_LAYER}.attn.key", f"{_LAYER}.attention.key"),
    _kernel(f"{_HF_LAYER}.attn.value", f"{_LAYER}.attention.value"),
    _kernel(f"{_HF_LAYER}.attn.Wo", f"{_LAYER}.attention.output"),
    _scale(f"{_HF_LAYER}.mlp_norm", f"{_LAYER}.output_norm"),
    _kernel(f"{_HF_LAYER}.mlp.input", f"{_LAYER}.intermediate"),
    _kernel(f"{_HF_LAYER}.mlp.gate", f"{_LAYER}.gate"),
    _kernel(f"{_HF_LAYER}.mlp.Wo", f"{_LAYER}.output"),
    _scale(f"{_BODY}.final_norm", "encoder.final_norm"),
    _kernel("head.dense", "mlm_head.dense", heads=("masked_lm",)),
    _scale("head.norm", "mlm_head.norm", heads=("masked_lm",)),
    Name("decoder.bias", "mlm_head.bias", heads=("masked_lm",)),
    _kernel("head.dense", "pooler.dense", heads=_POOLED),
    _scale("head.norm", "pooler.norm", heads=_POOLED),
    *names.torch_dense("classifier", "span_head", heads=_SPANS),
    *names.torch_dense("classifier", "classifier", heads=_CLASSIFYING),
)

FUSED: dict[str, Sequence[str]] = {
    f"{_HF_LAYER}.attn.Wqkv.weight": [
        f"{_HF_LAYER}.attn.{name}.weight" for name in ("query", "key", "value")
    ],
    # The first half is activated.
    f"{_HF_LAYER}.mlp.Wi.weight": [f"{_HF_LAYER}.mlp.{name}.weight" for name in ("input", "gate")],
}


def in_numbers(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config.json of either version with the numbers of version 4."""
    result = dict(fields)
    if (kinds := fields.get("layer_types")) is not None:
        result["global_attn_every_n_layers"] = _every(kinds)
    if flat := sorted((fields.get("rope_parameters") or {}).keys() - {GLOBAL, LOCAL}):
        raise ValueError(
            f"rope_parameters has {', '.join(flat)}; it must have {GLOBAL!r} and {LOCAL!r} alone"
        )
    if fields.get("local_attention") in (0, 1):  # a token sees itself alone, not all
        result["local_attention"] = -2
    for name, kind in (("global_rope_theta", GLOBAL), ("local_rope_theta", LOCAL)):
        rotary = (fields.get("rope_parameters") or {}).get(kind) or {}
        if rotary.get("rope_type", "default") != "default":
            raise ValueError(
                f"rope_parameters has the rope_type {rotary['rope_type']!r} for {kind}; only "
                "'default' is supported"
            )
        if "rope_theta" in rotary:
            result[name] = rotary["rope_theta"]
    if result.get("global_attn_every_n_layers", 3) == 1:  # our values without a window
        result |= {
            "local_attention": 0,
            "local_rope_theta": result.get("global_rope_theta", 160_000),
        }
    return result


def _every(kinds: Sequence[str]) -> int:
    """Returns n if every n-th layer from the first on is global."""
    for n in range(1, len(kinds) + 1):
        if list(kinds) == [LOCAL if layer % n else GLOBAL for layer in range(len(kinds))]:
            return n
    raise ValueError(
        f"layer_types is {list(kinds)}; only every n-th layer may be {GLOBAL!r}, from the first "
        f"on, and the others {LOCAL!r}"
    )


def in_both(config: models.EncoderConfig) -> dict[str, Any]:
    """Returns the fields of both versions in addition to, or in place of, mapped ones."""
    local = config.local_rotary_base or config.rotary_base
    layers, bases = range(config.num_hidden_layers), {GLOBAL: config.rotary_base, LOCAL: local}
    return {
        "local_attention": 2 * max(config.window or DEFAULT_WINDOW, 0),
        "local_rope_theta": local,
        "layer_types": [GLOBAL if config.is_global(layer) else LOCAL for layer in layers],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
        },
    }


TOKENIZER = base.TokenizerFiles(
    vocabularies=(byte_bpe.ENTRIES_FILE, wordpiece.VOCABULARY_FILE, sentence_piece.MODEL_FILE),
    fields={**bert.TOKENIZER.fields, "model_input_names": ["input_ids", "attention_mask"]},
    single=bert.TOKENIZER.single,
    pair="{cls}:0 $A:0 {between} $B:0 {sep}:0",
    ids=IDS,
)

FAMILY = base.Family(
    model_type="modernbert",
    title="ModernBERT",
    fields=FIELDS,
    fixed=FIXED,
    stated={
        **{name: value for name, value in FIXED.items() if value is not None},
        **dict.fromkeys(IDS),
        "initializer_cutoff_factor": 2.0,
    },
    without_effect=WITHOUT_EFFECT,
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix=f"{_BODY}.",
    tokenizer=TOKENIZER,
    tied={"decoder.weight": f"{_BODY}.embeddings.tok_embeddings.weight"},
    fused=FUSED,
    traits={
        **{"type_vocab_size": 0, "position_embedding": "rotary", "layer": "pre_norm"},
        **{"feed_forward": "gated", "norm": "scale_only", "use_bias": False},
        **{"pooler": "normed", "pooler_act": "gelu", "depth_scaled_init": True},
    },
    read=in_numbers,
    restated=in_both,
    pooling="classifier_pooling",
)
