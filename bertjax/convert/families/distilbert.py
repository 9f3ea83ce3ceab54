"""DistilBERT: half of BERT's layers, no segments, no pooler but a classifier's (Sanh et al. 2019).

Sources: transformers, models/distilbert (modeling_distilbert.py, configuration_distilbert.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.convert import heads, names
from bertjax.convert.families import base, bert
from bertjax.convert.names import Name
from bertjax.tokenization import wordpiece

ARCHITECTURES = heads.classes("DistilBert")

# A file without one of them has the value of DistilBertConfig.
FIELDS: dict[str, base.Field] = {
    "vocab_size": base.Field("vocab_size", int),
    "max_position_embeddings": base.Field("max_position_embeddings", int),
    "n_layers": base.Field("num_hidden_layers", int, default=6),
    "n_heads": base.Field("num_attention_heads", int),
    "dim": base.Field("hidden_size", int),
    "hidden_dim": base.Field("intermediate_size", int),
    "activation": base.Field("hidden_act", str, values=bert.ACTIVATIONS),
    "dropout": base.Field("hidden_dropout_prob", float),
    "attention_dropout": base.Field("attention_probs_dropout_prob", float),
    "initializer_range": base.Field("initializer_range", float),
}

FIXED: dict[str, Any] = {
    **{"tie_word_embeddings": True, "tie_weights_": True},
    **{"pruned_heads": {}, "quantization_config": None},
}

# Sinusoidal positions are a table as any other, saved with the weights, which is not trained; here
# config.optimizer.frozen keeps it as it is. The dropouts before the heads are hidden_dropout_prob.
WITHOUT_EFFECT = base.BOOKKEEPING | {
    *("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "output_past")
}

_BODY, _HF_LAYER, _LAYER = "distilbert", "distilbert.transformer.layer.{layer}", bert.LAYER

# Those whose class has a layer before its classifier; it is our pooler, with relu.
_POOLING = ("sequence_classification", "multiple_choice")

TENSORS: tuple[Name, ...] = (
    Name(f"{_BODY}.embeddings.word_embeddings.weight", "encoder.embeddings.word.embedding"),
    Name(f"{_BODY}.embeddings.position_embeddings.weight", "encoder.embeddings.position.embedding"),
    *names.torch_norm(f"{_BODY}.embeddings.LayerNorm", "encoder.embeddings.norm"),
    *names.torch_dense(f"{_HF_LAYER}.attention.q_lin", f"{_LAYER}.attention.query"),
    *names.torch_dense(f"{_HF_LAYER}.attention.k_lin", f"{_LAYER}.attention.key"),
    *names.torch_dense(f"{_HF_LAYER}.attention.v_lin", f"{_LAYER}.attention.value"),
    *names.torch_dense(f"{_HF_LAYER}.attention.out_lin", f"{_LAYER}.attention.output"),
    *names.torch_norm(f"{_HF_LAYER}.sa_layer_norm", f"{_LAYER}.attention_norm"),
    *names.torch_dense(f"{_HF_LAYER}.ffn.lin1", f"{_LAYER}.intermediate"),
    *names.torch_dense(f"{_HF_LAYER}.ffn.lin2", f"{_LAYER}.output"),
    *names.torch_norm(f"{_HF_LAYER}.output_layer_norm", f"{_LAYER}.output_norm"),
    *names.torch_dense("vocab_transform", "mlm_head.dense"),
    *names.torch_norm("vocab_layer_norm", "mlm_head.norm"),
    Name("vocab_projector.bias", "mlm_head.bias"),
    *names.torch_dense("pre_classifier", "pooler.dense", heads=_POOLING),
    *names.torch_dense("classifier", "classifier"),
    *names.torch_dense("qa_outputs", "span_head"),
)

TOKENIZER = dataclasses.replace(
    bert.TOKENIZER,
    vocabularies=(wordpiece.VOCABULARY_FILE,),
    # Its models take no token_type_ids.
    fields={**bert.TOKENIZER.fields, "model_input_names": ["input_ids", "attention_mask"]},
)

FAMILY = base.Family(
    model_type="distilbert",
    title="DistilBERT",
    fields=FIELDS,
    fixed=FIXED,
    stated={"sinusoidal_pos_embds": False, "tie_word_embeddings": True},
    without_effect=WITHOUT_EFFECT,
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix=f"{_BODY}.",
    tokenizer=TOKENIZER,
    ignored=(rf"{_BODY}\.embeddings\.position_ids",),
    tied={"vocab_projector.weight": f"{_BODY}.embeddings.word_embeddings.weight"},
    # The layer before a classifier has relu: modeling_distilbert.py, forward.
    traits={"type_vocab_size": 0, "pooler_act": "relu"},
)
