"""BERT for generation: no segments, no pooler, and a head without a transform.

Sources: transformers, models/bert_generation (modeling_bert_generation.py,
configuration_bert_generation.py) of 4.57 and 5.24; Rothe et al. 2020.

Its encoder stands alone, or with its decoder in an `encoder_decoder`. Its tokenizer's class adds no
special tokens to a text and is not known here.
"""

from __future__ import annotations

import dataclasses

from bertjax.convert.families import base, bert
from bertjax.convert.names import Name

# A file without one of them has the value of BertGenerationConfig.
DEFAULTS = {
    **{"vocab_size": 50_358, "hidden_size": 1_024, "num_hidden_layers": 24},
    **{"num_attention_heads": 16, "intermediate_size": 4_096},
}

FIELDS: dict[str, base.Field] = {
    name: dataclasses.replace(field, default=DEFAULTS.get(name))
    for name, field in bert.FIELDS.items()
    if name != "type_vocab_size"
}

TENSORS: tuple[Name, ...] = (
    *(it for it in bert.of_encoder(bert.TENSORS, "bert") if ".segment." not in it.ours),
    Name("lm_head.bias", "mlm_head.bias"),
)

FAMILY = base.Family(
    model_type="bert-generation",
    title="BertGeneration",
    fields=FIELDS,
    fixed=bert.FIXED,
    stated=bert.FAMILY.stated,
    without_effect=base.BOOKKEEPING,
    architectures={"none": "BertGenerationEncoder"},
    tensors=TENSORS,
    prefix="bert.",
    tokenizer=dataclasses.replace(
        bert.TOKENIZER,
        fields={**bert.TOKENIZER.fields, base.INPUTS: ["input_ids", "attention_mask"]},
        pair="{cls}:0 $A:0 {between} $B:0 {sep}:0",
        ids={"pad_token_id": "pad_id", "bos_token_id": "cls_id", "eos_token_id": "sep_id"},
        unread="BertGenerationTokenizer",
    ),
    ignored=(r"bert\.embeddings\.position_ids",),
    tied={
        "lm_head.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    traits={"type_vocab_size": 0, "mlm_transform": False},
)
