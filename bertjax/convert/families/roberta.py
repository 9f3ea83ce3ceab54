"""RoBERTa, and XLM-RoBERTa and CamemBERT, which are its weights with other vocabularies.

Sources: transformers, models/roberta (modeling_roberta.py, configuration_roberta.py),
models/xlm_roberta and models/camembert, tokenization_*.py of these; fairseq, models/roberta.

In training the released classifier of sequences has a dropout before and after its dense layer;
here, as in BERT, only after it. Without dropout the results are the same.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.convert import heads, names
from bertjax.convert.families import base, bert
from bertjax.convert.names import Name
from bertjax.tokenization import byte_bpe, sentence_piece, token_ids, wordpiece

ARCHITECTURES = heads.classes("Roberta")
PAD_ID = 1

# The masked-token head always has the exact GELU, so only that is supported.
ACTIVATIONS = {name: ours for name, ours in bert.ACTIVATIONS.items() if ours == "gelu"}

# Defaults are RobertaConfig's, which differ from the released models' values.
FIELDS: dict[str, base.Field] = {
    **bert.FIELDS,
    "vocab_size": base.Field("vocab_size", int, default=50265),
    "hidden_act": base.Field("hidden_act", str, values=ACTIVATIONS),
    # Theirs counts the rows of the table.
    "max_position_embeddings": base.Field(
        "max_position_embeddings", int, default=512, more=PAD_ID + 1
    ),
}

FIXED: dict[str, Any] = {**bert.FIXED, "pad_token_id": PAD_ID}

_BODY = "roberta"
_SEQUENCES = "sequence_classification"
# The classifier of sequences has a dense layer of its own, which is our pooler.
_OTHERS = tuple(head for head in ARCHITECTURES if head != _SEQUENCES)

TENSORS: tuple[Name, ...] = (
    *bert.of_encoder(bert.TENSORS, _BODY),
    *names.torch_dense(f"{_BODY}.pooler.dense", "pooler.dense", heads=_OTHERS),
    *names.torch_dense("lm_head.dense", "mlm_head.dense"),
    *names.torch_norm("lm_head.layer_norm", "mlm_head.norm"),
    Name("lm_head.bias", "mlm_head.bias"),
    *names.torch_dense("classifier.dense", "pooler.dense", heads=(_SEQUENCES,)),
    *names.torch_dense("classifier.out_proj", "classifier", heads=(_SEQUENCES,)),
    *names.torch_dense("classifier", "classifier", heads=_OTHERS),
    *names.torch_dense("qa_outputs", "span_head"),
)

TOKENIZER = base.TokenizerFiles(
    vocabularies=(byte_bpe.ENTRIES_FILE, wordpiece.VOCABULARY_FILE, sentence_piece.MODEL_FILE),
    fields={
        "tokenizer_class": "RobertaTokenizer",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    },
    single="{cls}:0 $A:0 {sep}:0",
    pair="{cls}:0 $A:0 {between} $B:0 {sep}:0",
    ids={"pad_token_id": "pad_id", "bos_token_id": "cls_id", "eos_token_id": "sep_id"},
)

FAMILY = base.Family(
    model_type="roberta",
    title="RoBERTa",
    fields=FIELDS,
    fixed=FIXED,
    reasons={
        "pad_token_id": "positions begin behind the row of padding, so that another id leaves too "
        "few or unused rows, and the released models have 1"
    },
    stated={
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "pad_token_id": PAD_ID,
    },
    without_effect=base.BOOKKEEPING,
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix=f"{_BODY}.",
    tokenizer=TOKENIZER,
    older=bert.FAMILY.older,
    # The numbers 2, 3, 4, ... and zeros that some versions saved.
    ignored=(rf"{_BODY}\.embeddings\.position_ids", rf"{_BODY}\.embeddings\.token_type_ids"),
    tied={
        "lm_head.decoder.weight": f"{_BODY}.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    traits={"position_offset": PAD_ID + 1, "initializer": "normal"},
)


def _kin(model_type: str, title: str, classes: str) -> base.Family:
    """A family of RoBERTa's weights with a vocabulary of SentencePiece.

    Their classes have BERT's vocab_size by default.
    """
    return dataclasses.replace(
        FAMILY,
        model_type=model_type,
        title=title,
        fields=FIELDS | {"vocab_size": base.Field("vocab_size", int)},
        architectures=heads.classes(classes),
        tokenizer=dataclasses.replace(
            TOKENIZER,
            fields={**TOKENIZER.fields, "tokenizer_class": token_ids.LIBRARY_CLASS},
            pieces=sentence_piece.PIECES[model_type],
        ),
    )


XLM_FAMILY = _kin("xlm-roberta", "XLM-RoBERTa", "XLMRoberta")
CAMEMBERT_FAMILY = _kin("camembert", "CamemBERT", "Camembert")
