"""BART: an encoder-decoder with one table of words, and positions of its own on both sides.

Sources: transformers, models/bart (modeling_bart.py, configuration_bart.py) of 4.57 and 5.24;
Lewis et al. 2020.

The first two rows of a table of positions are not used, the head is the table of words alone, and
`final_logits_bias`, which some released files lack, is zeros. In training the released models also
drop layers and numbers within a feed-forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax import models
from bertjax.convert import heads, names
from bertjax.convert.families import base, bert, roberta
from bertjax.convert.names import Name

HEAD = "sequence_to_sequence"

# A file without one of them has the value of BartConfig.
FIELDS: dict[str, base.Field] = {
    "vocab_size": base.Field("vocab_size", int, default=50_265),
    "d_model": base.Field("hidden_size", int, default=1_024),
    "encoder_layers": base.Field("num_hidden_layers", int, default=12),
    "encoder_attention_heads": base.Field("num_attention_heads", int, default=16),
    "encoder_ffn_dim": base.Field("intermediate_size", int, default=4_096),
    "max_position_embeddings": base.Field("max_position_embeddings", int, default=1_024),
    "activation_function": base.Field("hidden_act", str, values=bert.ACTIVATIONS),
    "dropout": base.Field("hidden_dropout_prob", float, default=0.1),
    "attention_dropout": base.Field("attention_probs_dropout_prob", float, default=0.0),
    "init_std": base.Field("initializer_range", float, default=0.02),
}

FIXED: dict[str, Any] = {
    **{"is_encoder_decoder": True, "is_decoder": False, "tie_word_embeddings": True},
    **{"scale_embedding": False, "normalize_before": False, "normalize_embedding": True},
    **{"add_final_layer_norm": False, "static_position_embeddings": False},
    "pad_token_id": roberta.PAD_ID,
}
# For classifiers, and for code from before 2021; they change nothing in this class.
WITHOUT_EFFECT = base.BOOKKEEPING | {
    *("add_bias_logits", "classif_dropout", "classifier_dropout", "extra_pos_embeddings"),
    *("force_bos_token_to_be_generated", "num_hidden_layers"),
}


def _attention(theirs: str, ours: str) -> tuple[Name, ...]:
    parts = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
    return tuple(
        name
        for their_part, our_part in parts.items()
        for name in names.torch_dense(f"{theirs}.{their_part}", f"{ours}.{our_part}")
    )


def _side(side: str) -> tuple[Name, ...]:
    """The names of the encoder, or of the decoder without its cross-attention."""
    theirs, ours = f"model.{side}.layers.{{layer}}", f"{side}.layers.{{layer}}"
    positions = f"{side}.embeddings.position.embedding"
    return (
        Name(f"model.{side}.embed_positions.weight", positions),
        *names.torch_norm(f"model.{side}.layernorm_embedding", f"{side}.embeddings.norm"),
        *_attention(f"{theirs}.self_attn", f"{ours}.attention"),
        *names.torch_norm(f"{theirs}.self_attn_layer_norm", f"{ours}.attention_norm"),
        *names.torch_dense(f"{theirs}.fc1", f"{ours}.intermediate"),
        *names.torch_dense(f"{theirs}.fc2", f"{ours}.output"),
        *names.torch_norm(f"{theirs}.final_layer_norm", f"{ours}.output_norm"),
    )


_LAYER, _CROSS = "model.decoder.layers.{layer}", "decoder.cross.{layer}"
_WORDS, _BIAS = "model.shared.weight", "final_logits_bias"
TENSORS: tuple[Name, ...] = (
    Name(_WORDS, "encoder.embeddings.word.embedding"),
    *_side("encoder"),
    *_side("decoder"),
    *_attention(f"{_LAYER}.encoder_attn", f"{_CROSS}.attention"),
    *names.torch_norm(f"{_LAYER}.encoder_attn_layer_norm", f"{_CROSS}.norm"),
    Name(_BIAS, "mlm_head.bias", "of_row"),
)


def constants(
    config: models.EncoderConfig, decoder: models.EncoderConfig | None
) -> Mapping[str, np.ndarray]:
    """Returns the bias of a model without one."""
    return {_BIAS: np.zeros((1, config.vocab_size), np.float32)}


FAMILY = base.Family(
    model_type="bart",
    title="BART",
    fields=FIELDS,
    fixed=FIXED,
    reasons={
        "pad_token_id": "positions begin behind the row of padding, and the released models have 1"
    },
    stated={
        **{"is_encoder_decoder": True, "scale_embedding": False, "tie_word_embeddings": True},
        "pad_token_id": roberta.PAD_ID,
        # Their class would end a target that reaches the greatest length.
        "forced_eos_token_id": None,
    },
    without_effect=WITHOUT_EFFECT,
    architectures=heads.classes("Bart", [HEAD]),
    tensors=TENSORS,
    prefix="model.",
    tokenizer=base.TokenizerFiles(
        vocabularies=roberta.TOKENIZER.vocabularies,
        fields=roberta.TOKENIZER.fields,
        single=roberta.TOKENIZER.single,
        pair=roberta.TOKENIZER.pair,
        # A decoder of BART reads the end of a target first.
        ids={**roberta.TOKENIZER.ids, "decoder_start_token_id": "sep_id"},
    ),
    tied={
        "lm_head.weight": _WORDS,
        "model.encoder.embed_tokens.weight": _WORDS,
        "model.decoder.embed_tokens.weight": _WORDS,
    },
    traits={
        **{"position_offset": roberta.PAD_ID + 1, "initializer": "normal", "layer_norm_eps": 1e-5},
        **{"type_vocab_size": 0, "mlm_transform": False},
    },
    constants=constants,
    decoder={
        "decoder_layers": ("num_hidden_layers", 12),
        "decoder_attention_heads": ("num_attention_heads", 16),
        "decoder_ffn_dim": ("intermediate_size", 4_096),
    },
    shares="words",
)
