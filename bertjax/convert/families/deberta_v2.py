"""DeBERTa-v3 and the models of its form, whose config.json calls them deberta-v2.

Sources: transformers, models/deberta_v2 (modeling_deberta_v2.py, configuration_deberta_v2.py) of
5.24; microsoft/DeBERTa, deberta/{bert,disentangled_attention}.py and
apps/models/masked_language_model.py.
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
from bertjax.tokenization import sentence_piece

ARCHITECTURES = heads.classes("DebertaV2")

# A file without one of them has the value of transformers' DebertaV2Config.
FIELDS: dict[str, base.Field] = {
    "vocab_size": base.Field("vocab_size", int, default=128100),
    "hidden_size": base.Field("hidden_size", int, default=1536),
    "num_hidden_layers": base.Field("num_hidden_layers", int, default=24),
    "num_attention_heads": base.Field("num_attention_heads", int, default=24),
    "intermediate_size": base.Field("intermediate_size", int, default=6144),
    "max_position_embeddings": base.Field("max_position_embeddings", int, default=512),
    "type_vocab_size": base.Field("type_vocab_size", int, default=0),
    "hidden_act": base.Field("hidden_act", str, values=bert.ACTIVATIONS),
    "pooler_hidden_act": base.Field("pooler_act", str, values={"gelu": "gelu"}, default="gelu"),
    **{name: base.Field(name, float) for name in bert.RATES[:-1]},
    "layer_norm_eps": base.Field("layer_norm_eps", float, default=1e-7),
    "position_buckets": base.Field("relative_buckets", int),
    "max_relative_positions": base.Field("relative_span", int),
}

# The form of v3's attention; a file must state each, since transformers' defaults are others.
STATED = {
    **{"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "position_biased_input": False,
}
TERMS = ("p2c", "c2p")
FIXED: dict[str, Any] = {
    **STATED,
    **{"conv_kernel_size": 0, "tie_word_embeddings": True, "quantization_config": None},
}
WITHOUT_EFFECT = base.BOOKKEEPING | {
    *("pos_att_type", "pooler_dropout", "pooler_hidden_size", "cls_dropout", "legacy"),
    *("embedding_size", "attention_head_size", "conv_act", "conv_groups", "padding_idx"),
}

_BODY = "deberta"
_POSITIONS = f"{_BODY}.embeddings.position_embeddings.weight"
_THEIRS = {
    "bert.": f"{_BODY}.",
    ".attention.self.query.": ".attention.self.query_proj.",
    ".attention.self.key.": ".attention.self.key_proj.",
    ".attention.self.value.": ".attention.self.value_proj.",
}

TENSORS: tuple[Name, ...] = (
    *(
        entry
        for entry in names.renamed(bert.TENSORS, _THEIRS)
        if entry.theirs != _POSITIONS and not entry.ours.startswith(("nsp_head.", "pooler."))
    ),
    *names.torch_dense(
        *("pooler.dense", "pooler.dense"), heads=("sequence_classification", "multiple_choice")
    ),
    Name(f"{_BODY}.encoder.rel_embeddings.weight", "encoder.relative.table.embedding"),
    *names.torch_norm(f"{_BODY}.encoder.LayerNorm", "encoder.relative.norm"),
    # Names of microsoft/DeBERTa: the head of replaced tokens, and the positions of the generator.
    *names.torch_dense("mask_predictions.dense", "rtd_head.dense"),
    *names.torch_norm("mask_predictions.LayerNorm", "rtd_head.norm"),
    *names.torch_dense("mask_predictions.classifier", "rtd_head.output"),
    Name(_POSITIONS, "mask_decoder.position.embedding", heads=("masked_lm",)),
)


def in_full(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields with those that follow from others; refuses other forms of attention."""
    wrong = [
        faults.wrong(name, fields.get(name, "not given"), f"{value!r}, as in DeBERTa-v3")
        for name, value in STATED.items()
        if fields.get(name) != value
    ]
    kinds = fields.get("pos_att_type") or ()
    kinds = kinds.split("|") if isinstance(kinds, str) else list(kinds)
    if sorted(kinds) != sorted(TERMS):
        wrong.append(faults.wrong("pos_att_type", fields.get("pos_att_type"), "'p2c|c2p'"))
    width = fields.get("hidden_size", FIELDS["hidden_size"].default)
    heads_size = width // fields.get("num_attention_heads", FIELDS["num_attention_heads"].default)
    for name, value in (
        *(("embedding_size", width), ("pooler_hidden_size", width)),
        ("attention_head_size", heads_size),
    ):
        if fields.get(name) not in (None, value):
            wrong.append(faults.wrong(name, fields[name], f"{value}, as the other sizes have it"))
    faults.check("config.json of a DeBERTa", wrong)
    result = dict(fields)
    if result.get("max_relative_positions", -1) < 1:
        result["max_relative_positions"] = fields.get("max_position_embeddings", 512)
    if result.get("position_buckets", -1) < 1:  # each distance has its row
        result["position_buckets"] = result["max_relative_positions"]
    return result


def has_mask_decoder(config: models.EncoderConfig, weights: Mapping[str, np.ndarray]) -> bool:
    """Returns whether the weights are a generator's, whose positions enter at its last layer."""
    del config
    return _POSITIONS in weights and not _is_discriminator(weights)


def replaced_head(config: models.EncoderConfig, weights: Mapping[str, np.ndarray]) -> str:
    """Returns the kind of the head of replaced tokens, in weights that have one."""
    del config
    return "with_first" if _is_discriminator(weights) else "token"


def _is_discriminator(weights: Mapping[str, np.ndarray]) -> bool:
    return any(name.startswith("mask_predictions.") for name in weights)


def in_theirs(config: models.EncoderConfig) -> dict[str, Any]:
    """Returns the fields that follow from others."""
    return {
        "pos_att_type": list(TERMS),
        "pooler_hidden_size": config.hidden_size,
        # They count it apart from the length of rows, and read the second where this is -1.
        "max_relative_positions": config.relative_span,
    }


TOKENIZER = base.TokenizerFiles(
    vocabularies=(*bert.TOKENIZER.vocabularies, sentence_piece.MASKLESS_FILE),
    fields={**bert.TOKENIZER.fields, "tokenizer_class": "PreTrainedTokenizerFast"},
    single=bert.TOKENIZER.single,
    pair=bert.TOKENIZER.pair,
    ids={"pad_token_id": "pad_id"},
)

FAMILY = base.Family(
    model_type="deberta-v2",
    title="DeBERTa-v3",
    fields=FIELDS,
    fixed=FIXED,
    stated={**STATED, "tie_word_embeddings": True, "legacy": True, "pooler_dropout": 0},
    without_effect=WITHOUT_EFFECT,
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix=f"{_BODY}.",
    tokenizer=TOKENIZER,
    older=(
        # The names with legacy=False, and in microsoft/DeBERTa.
        (r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.", r"cls.predictions.transform.\1."),
        (r"^lm_predictions\.lm_head\.bias$", "cls.predictions.bias"),
    ),
    # The difference to the generator's table, which `weight` holds already.
    ignored=(rf"{_BODY}\.embeddings\.(position_ids|(word|position)_embeddings\._weight)",),
    tied={
        "cls.predictions.decoder.weight": f"{_BODY}.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    traits={"relative": "disentangled", "position_embedding": "none", "pooler_act": "gelu"},
    of_weights={"mask_decoder": has_mask_decoder, "replaced_head": replaced_head},
    read=in_full,
    restated=in_theirs,
)
