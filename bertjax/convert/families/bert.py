"""BERT, and the many models that are written as it is: mBERT, BioBERT, SpanBERT and others.

Sources: transformers, models/bert (modeling_bert.py, configuration_bert.py) and activations.py;
google-research/bert, modeling.py, run_pretraining.py, run_classifier.py, run_squad.py.
"""

from __future__ import annotations

from typing import Any

from bertjax.convert import heads, names
from bertjax.convert.families import base
from bertjax.convert.names import Name
from bertjax.tokenization import byte_bpe, sentence_piece, wordpiece

# Head -> the class of transformers; `transformers.Auto*` find it by this name.
ARCHITECTURES = heads.classes("Bert", ("pretraining", "next_sentence", *heads.USUAL))

# Their activation -> ours; the first of each kind is the name that the oldest versions know.
# "gelu_fast" is the tanh form with its constant written to ten digits.
ACTIVATIONS: dict[str, str] = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh"),
    "relu": "relu",
}

SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "max_position_embeddings"),
)
RATES = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("initializer_range", "layer_norm_eps"),
)
# The same names on both sides.
FIELDS: dict[str, base.Field] = {
    **{name: base.Field(name, int) for name in SIZES},
    "type_vocab_size": base.Field("type_vocab_size", int, least=1),
    "hidden_act": base.Field("hidden_act", str, values=ACTIVATIONS),
    **{name: base.Field(name, float) for name in RATES},
}

FIXED: dict[str, Any] = {
    "position_embedding_type": "absolute",
    **dict.fromkeys(("is_decoder", "is_encoder_decoder", "add_cross_attention"), False),
    "tie_word_embeddings": True,
    "pruned_heads": {},
    "quantization_config": None,
}

# In the released multilingual and Chinese files; no program reads them.
UNREAD = (
    *("directionality", "pooler_fc_size", "pooler_num_attention_heads"),
    *("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
)
WITHOUT_EFFECT = base.BOOKKEEPING | {*UNREAD}

LAYER = "encoder.layers.{layer}"  # ours
_HF_LAYER = "bert.encoder.layer.{layer}"

TENSORS: tuple[Name, ...] = (
    Name("bert.embeddings.word_embeddings.weight", "encoder.embeddings.word.embedding"),
    Name("bert.embeddings.position_embeddings.weight", "encoder.embeddings.position.embedding"),
    Name("bert.embeddings.token_type_embeddings.weight", "encoder.embeddings.segment.embedding"),
    *names.torch_norm("bert.embeddings.LayerNorm", "encoder.embeddings.norm"),
    *names.torch_dense(f"{_HF_LAYER}.attention.self.query", f"{LAYER}.attention.query"),
    *names.torch_dense(f"{_HF_LAYER}.attention.self.key", f"{LAYER}.attention.key"),
    *names.torch_dense(f"{_HF_LAYER}.attention.self.value", f"{LAYER}.attention.value"),
    *names.torch_dense(f"{_HF_LAYER}.attention.output.dense", f"{LAYER}.attention.output"),
    *names.torch_norm(f"{_HF_LAYER}.attention.output.LayerNorm", f"{LAYER}.attention_norm"),
    *names.torch_dense(f"{_HF_LAYER}.intermediate.dense", f"{LAYER}.intermediate"),
    *names.torch_dense(f"{_HF_LAYER}.output.dense", f"{LAYER}.output"),
    *names.torch_norm(f"{_HF_LAYER}.output.LayerNorm", f"{LAYER}.output_norm"),
    *names.torch_dense("bert.pooler.dense", "pooler.dense"),
    *names.torch_dense("cls.predictions.transform.dense", "mlm_head.dense"),
    *names.torch_norm("cls.predictions.transform.LayerNorm", "mlm_head.norm"),
    Name("cls.predictions.bias", "mlm_head.bias"),
    *names.torch_dense("cls.seq_relationship", "nsp_head.dense"),
    *names.torch_dense("classifier", "classifier"),
    *names.torch_dense("qa_outputs", "span_head"),
)


def of_encoder(table: tuple[Name, ...], theirs: str) -> tuple[Name, ...]:
    """Returns BERT's names of an encoder under another prefix."""
    entries = [it for it in table if it.ours.startswith("encoder.")]
    return names.renamed(entries, {"bert.": f"{theirs}."})


# The released code names the output layers of its heads otherwise.
VARIABLES = names.tensorflow1(
    names.renamed(
        TENSORS,
        {
            "cls.predictions.bias": "cls.predictions.output_bias",
            "cls.seq_relationship.": "cls.seq_relationship.output_",
            "classifier.": "output_",
            "qa_outputs.": "cls.squad.output_",
            "output_weight": "output_weights",
        },
    )
)

RELEASED = base.Released(
    names=VARIABLES,
    config="bert_config.json",
    checkpoint="bert_model.ckpt",
    example="uncased_L-12_H-768_A-12",
    # BertConfig's. (Its released models have two segments, and their files say so.)
    defaults={
        **{"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
        **{"intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 16},
        **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        **{"hidden_act": "gelu", "initializer_range": 0.02},
    },
    unread=UNREAD,
    # tf.contrib.layers.layer_norm, variance_epsilon.
    computed_with={"layer_norm_eps": 1e-12},
    # The names are uncased_L-12_H-768_A-12, cased_..., multi_cased_..., multilingual_L-... and
    # chinese_L-...
    casing={"uncased": True, "cased": False, r"(?:multilingual|chinese)_L-\d": True},
)

TOKENIZER = base.TokenizerFiles(
    vocabularies=(wordpiece.VOCABULARY_FILE, sentence_piece.MODEL_FILE, byte_bpe.ENTRIES_FILE),
    fields={
        # For BertTokenizer transformers would build the rules of tokenizer.json anew.
        "tokenizer_class": "PreTrainedTokenizerFast",
        base.INPUTS: base.WITH_SEGMENTS,
        "clean_up_tokenization_spaces": False,
    },
    single="{cls}:0 $A:0 {sep}:0",
    pair="{cls}:0 $A:0 {between} $B:1 {sep}:1",
    ids={"pad_token_id": "pad_id"},
)

FAMILY = base.Family(
    model_type="bert",
    title="BERT",
    fields=FIELDS,
    fixed=FIXED,
    stated={"position_embedding_type": "absolute", "tie_word_embeddings": True},
    without_effect=WITHOUT_EFFECT,
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix="bert.",
    tokenizer=TOKENIZER,
    older=((r"(?<=LayerNorm\.)gamma$", "weight"), (r"(?<=LayerNorm\.)beta$", "bias")),
    # The numbers 0, 1, 2, ... and zeros that some versions saved.
    ignored=(r"bert\.embeddings\.position_ids", r"bert\.embeddings\.token_type_ids"),
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    released=RELEASED,
)
