"""XLM: a post-norm encoder with embeddings of languages, and no transform before its logits.

Conneau and Lample 2019. Its tokenizer, Moses' rules of each language before BPE, is not read.

Sources: transformers, models/xlm (modeling_xlm.py, configuration_xlm.py); facebookresearch/XLM,
xlm/model/transformer.py.

There the states of padding are zero after each layer; here they are not, and no token sees them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bertjax import models
from bertjax.convert import names
from bertjax.convert.families import base, bert
from bertjax.convert.names import Name

# Classifiers of sequences there have no pooler, those of choices a layer as wide as num_labels.
ARCHITECTURES: dict[str, str] = {
    "masked_lm": "XLMWithLMHeadModel",
    "none": "XLMModel",
    "token_classification": "XLMForTokenClassification",
    "question_answering": "XLMForQuestionAnsweringSimple",
}

# A file without one of them has the value of XLMConfig.
FIELDS: dict[str, base.Field] = {
    "vocab_size": base.Field("vocab_size", int, default=30145),
    "emb_dim": base.Field("hidden_size", int, default=2048),
    "n_layers": base.Field("num_hidden_layers", int),
    "n_heads": base.Field("num_attention_heads", int, default=16),
    "max_position_embeddings": base.Field("max_position_embeddings", int),
    "gelu_activation": base.Field("hidden_act", bool, values={True: "gelu", False: "relu"}),
    "dropout": base.Field("hidden_dropout_prob", float),
    "attention_dropout": base.Field("attention_probs_dropout_prob", float),
    "init_std": base.Field("initializer_range", float),
    "layer_norm_eps": base.Field("layer_norm_eps", float),
    "n_langs": base.Field("language_embeddings", int),
}

LANGUAGES = ("lang2id", "id2lang")

STATED = {"asm": False, "causal": False, "is_encoder": True, "tie_word_embeddings": True}
FIXED: dict[str, Any] = {**STATED, "pruned_heads": {}, "quantization_config": None}

# Sinusoidal positions are a table in the weights, as in DistilBERT.
WITHOUT_EFFECT = base.BOOKKEEPING | {
    *("sinusoidal_embeddings", "embed_init_std", "use_lang_emb", "lang_id", *LANGUAGES),
    *("unk_index", "mask_index", "max_vocab", "min_count", "same_enc_dec", "share_inout_emb"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
    *("summary_first_dropout", "start_n_top", "end_n_top"),
}
# As the released files spell fields -> as transformers writes them.
OLDER = {
    **{"n_words": "vocab_size", "pad_index": "pad_token_id"},
    **{"bos_index": "bos_token_id", "eos_index": "eos_token_id"},
}

_BODY, _LAYER = "transformer", bert.LAYER

TENSORS: tuple[Name, ...] = (
    Name(f"{_BODY}.embeddings.weight", "encoder.embeddings.word.embedding"),
    Name(f"{_BODY}.position_embeddings.weight", "encoder.embeddings.position.embedding"),
    Name(f"{_BODY}.lang_embeddings.weight", "encoder.embeddings.language.embedding"),
    *names.torch_norm(f"{_BODY}.layer_norm_emb", "encoder.embeddings.norm"),
    *names.torch_dense(f"{_BODY}.attentions.{{layer}}.q_lin", f"{_LAYER}.attention.query"),
    *names.torch_dense(f"{_BODY}.attentions.{{layer}}.k_lin", f"{_LAYER}.attention.key"),
    *names.torch_dense(f"{_BODY}.attentions.{{layer}}.v_lin", f"{_LAYER}.attention.value"),
    *names.torch_dense(f"{_BODY}.attentions.{{layer}}.out_lin", f"{_LAYER}.attention.output"),
    *names.torch_norm(f"{_BODY}.layer_norm1.{{layer}}", f"{_LAYER}.attention_norm"),
    *names.torch_dense(f"{_BODY}.ffns.{{layer}}.lin1", f"{_LAYER}.intermediate"),
    *names.torch_dense(f"{_BODY}.ffns.{{layer}}.lin2", f"{_LAYER}.output"),
    *names.torch_norm(f"{_BODY}.layer_norm2.{{layer}}", f"{_LAYER}.output_norm"),
    Name("pred_layer.proj.bias", "mlm_head.bias"),
    *names.torch_dense("classifier", "classifier"),
    *names.torch_dense("qa_outputs", "span_head"),
)


def with_languages(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields as transformers writes them, `n_langs` 0 without embeddings of them."""
    result = {OLDER.get(name, name): value for name, value in fields.items()}
    languages = result.get("n_langs", 1)
    has_embeddings = result.get("use_lang_emb", True) and languages != 1
    return result | {"n_langs": languages if has_embeddings else 0}


def languages_of(config: models.EncoderConfig) -> dict[str, Any]:
    """Returns the fields of languages and of the standard deviation of embeddings."""
    return {
        "n_langs": max(config.language_embeddings, 1),
        "use_lang_emb": config.language_embeddings > 0,
        "embed_init_std": config.initializer_range,
    }


FAMILY = base.Family(
    model_type="xlm",
    title="XLM",
    fields=FIELDS,
    fixed=FIXED,
    stated={**STATED, "sinusoidal_embeddings": False},
    without_effect=WITHOUT_EFFECT,
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix=f"{_BODY}.",
    tokenizer=dataclasses.replace(
        bert.TOKENIZER,
        # Its models take token_type_ids for words.
        fields={**bert.TOKENIZER.fields, "model_input_names": ["input_ids", "attention_mask"]},
        pair="{cls}:0 $A:0 {between} $B:0 {sep}:0",
        # Version 4 counts padding by the first of each pair, version 5 has one name for both.
        ids={
            **{"pad_index": "pad_id", "pad_token_id": "pad_id"},
            **{"bos_index": "cls_id", "bos_token_id": "cls_id"},
            **{"eos_index": "sep_id", "eos_token_id": "sep_id"},
            **{"unk_index": "unk_id", "mask_index": "mask_id"},
        },
        unread="XLMTokenizer",
    ),
    ignored=(rf"{_BODY}\.position_ids",),
    tied={"pred_layer.proj.weight": f"{_BODY}.embeddings.weight"},
    traits={"type_vocab_size": 0, "mlm_transform": False, "initializer": "normal"},
    derived=lambda sizes: {"intermediate_size": 4 * sizes["hidden_size"]},
    read=with_languages,
    restated=languages_of,
    languages=LANGUAGES,
)
