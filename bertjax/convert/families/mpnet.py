"""MPNet: RoBERTa's positions, BERT's words, and a bias of attention for each head and distance.

Sources: transformers, models/mpnet (modeling_mpnet.py, configuration_mpnet.py,
tokenization_mpnet.py) of 5.24; microsoft/MPNet.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.convert import heads, names
from bertjax.convert.families import base, bert, roberta
from bertjax.convert.names import Name
from bertjax.models import relative_tables

ARCHITECTURES = heads.classes("MPNet")
BUCKETS = "relative_attention_num_buckets"

FIELDS: dict[str, base.Field] = {
    name: field for name, field in roberta.FIELDS.items() if name != "type_vocab_size"
} | {
    "vocab_size": base.Field("vocab_size", int, default=30527),
    "hidden_act": base.Field("hidden_act", str, values={"gelu": "gelu"}),
}

# It is computed with this number of buckets, whatever the field says.
FIXED: dict[str, Any] = {
    **{"pad_token_id": roberta.PAD_ID, BUCKETS: relative_tables.T5_BUCKETS},
    **{"tie_word_embeddings": True, "quantization_config": None},
}

_BODY = "mpnet"
_THEIRS = {
    "roberta.": f"{_BODY}.",
    ".attention.self.query.": ".attention.attn.q.",
    ".attention.self.key.": ".attention.attn.k.",
    ".attention.self.value.": ".attention.attn.v.",
    ".attention.output.dense.": ".attention.attn.o.",
    ".attention.output.LayerNorm.": ".attention.LayerNorm.",
}
_SEQUENCES = "sequence_classification"
_OTHERS = ("token_classification", "multiple_choice")

TENSORS: tuple[Name, ...] = (
    *(
        entry
        for entry in names.renamed(roberta.TENSORS, _THEIRS)
        if not entry.ours.startswith(("encoder.embeddings.segment", "pooler.", "classifier."))
    ),
    Name(f"{_BODY}.encoder.relative_attention_bias.weight", "encoder.relative.table.embedding"),
    *names.torch_dense(
        *(f"{_BODY}.pooler.dense", "pooler.dense"), heads=("none", "multiple_choice")
    ),
    *names.torch_dense("classifier.dense", "pooler.dense", heads=(_SEQUENCES,)),
    *names.torch_dense("classifier.out_proj", "classifier", heads=(_SEQUENCES,)),
    *names.torch_dense("classifier", "classifier", heads=_OTHERS),
)

FAMILY = base.Family(
    model_type="mpnet",
    title="MPNet",
    fields=FIELDS,
    fixed=FIXED,
    reasons={BUCKETS: "transformers computes with 32, whatever this field says"},
    stated={"pad_token_id": roberta.PAD_ID, BUCKETS: relative_tables.T5_BUCKETS},
    without_effect=base.BOOKKEEPING,
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix=f"{_BODY}.",
    tokenizer=dataclasses.replace(
        roberta.TOKENIZER,
        vocabularies=bert.TOKENIZER.vocabularies,
        fields={**roberta.TOKENIZER.fields, "tokenizer_class": "PreTrainedTokenizerFast"},
    ),
    ignored=(rf"{_BODY}\.embeddings\.position_ids",),
    tied={
        "lm_head.decoder.weight": f"{_BODY}.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    traits={
        **{"relative": "t5_bias", "type_vocab_size": 0},
        **{"position_offset": roberta.PAD_ID + 1, "initializer": "normal"},
    },
)
