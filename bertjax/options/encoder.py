"""The fields of an encoder's config, which are the group `model` of a run's options.

`models.EncoderConfig` adds what they mean together. The field names are those of the original
bert_config.json where it has them. BERT-base is the default: Devlin et al. 2019, section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bertjax.options.option import (
    AT_LEAST_0,
    BELOW_1,
    Condition,
    Option,
    Range,
    between,
)

DTYPES = ("float32", "bfloat16")
AUTO = "auto"
# The largest values are there for damaged and hostile files, which must not exhaust memory.
LARGEST_VOCABULARY = 10_000_000
LARGEST_WIDTH = 100_000

ROTARY = Condition(
    lambda it: it["model.position_embedding"] == "rotary",
    "with another config.model.position_embedding than 'rotary'",
)
WINDOW = Condition(lambda it: bool(it["model.window"]), "with config.model.window 0")
DISENTANGLED = Condition(
    lambda it: it["model.relative"] == "disentangled",
    "with another config.model.relative than 'disentangled'",
)
# A finetuned model keeps the fields of its pretraining.
REPLACED = Condition(
    lambda it: it["task"] != "pretraining" or it["pretraining.objective"] == "replaced_tokens",
    "with another config.pretraining.objective than 'replaced_tokens'",
)
DECODED = Condition(
    lambda it: (
        it["task"] != "pretraining"
        or it["pretraining.objective"] == "replaced_tokens"
        or (
            it["pretraining.objective"] == "masked_tokens"
            and it["pretraining.pair_loss"] == "none"
            and not it["distillation.teacher"]
        )
    ),
    "but config.pretraining.objective 'replaced_tokens', and 'masked_tokens' without a pair_loss "
    "and a teacher",
)


def _field(
    default: Any,
    help: str,
    within: Range | None = None,
    *,
    choices: tuple[str, ...] = (),
    read: tuple[Condition, ...] = (),
    of_run: Any = None,
) -> Any:
    """Returns a field of a dataclass with its row; `of_run` is a run's default if it differs."""
    row = Option(default, help, within, choices, read)
    return dataclasses.field(default=default, metadata={"option": row, "of_run": of_run})


@dataclasses.dataclass(frozen=True)
class EncoderFields:
    """The parts and sizes of an encoder."""

    vocab_size: int = _field(
        30522,
        "entries; 0: the vocabulary of the records",
        between(0, LARGEST_VOCABULARY),
        of_run=0,
    )
    hidden_size: int = _field(768, "width of the layers", between(1, LARGEST_WIDTH))
    num_hidden_layers: int = _field(12, "transformer layers", between(1, 1_000))
    num_attention_heads: int = _field(
        12, "per layer; hidden_size must be a multiple", between(1, 10_000)
    )
    num_key_value_heads: int = _field(
        0,
        "heads of keys and values, each shared by consecutive heads of queries; 0: as many",
        between(0, 10_000),
    )
    intermediate_size: int = _field(3072, "width of the feed-forward", between(1, 1_000_000))
    hidden_act: str = _field("gelu", "gelu (erf) | gelu_tanh | relu | silu")
    hidden_dropout_prob: float = _field(
        0.1, "of embeddings and of the outputs of sublayers", BELOW_1
    )
    attention_probs_dropout_prob: float = _field(0.1, "of attention weights", BELOW_1)
    # The table of positions has `position_offset` rows more.
    max_position_embeddings: int = _field(
        512, "longest sequence the model can read, in tokens", between(1, 10_000_000)
    )
    # The row of padding is zero and never trained, and so is the word of its number.
    position_offset: int = _field(
        0,
        "row of the table for the first position; RoBERTa: 2, the row before it is for padding",
        between(0, 1_000),
    )
    type_vocab_size: int = _field(
        2,
        "segments; 0: no embeddings of segments, their ids are not read",
        between(0, 100_000),
    )
    language_embeddings: int = _field(
        0, "languages with an embedding each (XLM: 15); 0: none", between(0, 100_000)
    )
    initializer: str = _field(
        "truncated_normal",
        "of kernels and embeddings: truncated_normal | normal | xavier_uniform (embeddings normal)",
    )
    initializer_range: float = _field(0.02, "its sigma; xavier_uniform: of embeddings alone")
    # Source: Megatron-LM.
    depth_scaled_init: bool = _field(
        False, "True: sigma / sqrt(2 x layers) for kernels before a residual"
    )
    norm: str = _field("layer_norm", "layer_norm | scale_only (LayerNorm without bias) | rms_norm")
    layer_norm_eps: float = _field(1e-12, "added to the variance")
    use_bias: bool = _field(
        True, "False: dense layers of encoder and heads have none, but the last ones"
    )
    head_bias: bool = _field(
        False, "True: dense layers of heads have one, also without use_bias (NomicBERT)"
    )
    embedding_size: int = _field(
        0,
        "width of word, position and segment embeddings (ALBERT); 0: hidden_size",
        between(0, LARGEST_WIDTH),
    )
    embedding_projection: str = _field(
        "if_needed",
        "dense layer after the embeddings: if_needed (their width is another) | always",
        choices=("if_needed", "always"),
    )
    num_hidden_groups: int = _field(
        0, "groups of layers that share parameters (ALBERT: 1); 0: no sharing", between(0, 1_000)
    )
    inner_group_num: int = _field(
        1, "consecutive layers with parameters of their own in a group", between(1, 1_000)
    )
    embeddings: str = _field(
        "learnt",
        "kind of embeddings: learnt (words, positions, segments) | words (without norm: EuroBERT) "
        "| token_dropout (words, ESM-2) | patches (values of series and images) | columns (of "
        "tables)",
    )
    position_embedding: str = _field(
        "learnt",
        "learnt (a table) | rotary (queries and keys turn); for values also sines | sines_of_grid "
        "| none",
        choices=("learnt", "rotary", "sines", "sines_of_grid", "none"),
    )
    relative: str = _field(
        "none",
        "terms of attention by distance: none | t5_bias (MPNet) | disentangled (DeBERTa)",
    )
    relative_buckets: int = _field(
        256,
        "disentangled: distances in one direction with a row of their own",
        between(4, 10_000),
        read=(DISENTANGLED,),
    )
    relative_span: int = _field(
        512,
        "disentangled: longer distances share the last row",
        between(8, 10_000_000),
        read=(DISENTANGLED,),
    )
    rotary_base: float = _field(10_000.0, "rotary: larger for longer texts", read=(ROTARY,))
    local_rotary_base: float = _field(
        0.0,
        "rotary: the base of layers with a window; 0: rotary_base",
        AT_LEAST_0,
        read=(ROTARY, WINDOW),
    )
    rotary_angles: str = _field(
        "exact",
        "rotary: exact | float16 (rounded, as the released ESM-2)",
        choices=("exact", "float16"),
    )
    value_width: int = _field(
        0, "patches: values of a position; 0: as the records have", between(0, 1_000_000)
    )
    grid_rows: int = _field(
        0, "sines_of_grid: rows of patches; 0: a square, or as the records have", between(0, 10_000)
    )
    columns: Sequence[int] = _field(
        (), "columns: 0 for numbers, else the number of categories; (): as the records have"
    )
    hidden_input: str = _field(
        "vector",
        "patches, at hidden positions: a learnt vector | zeros (PatchTST) | none (they are not "
        "read)",
        choices=("vector", "zeros", "none"),
    )
    # Learnt vectors stand for the values that are missing.
    partial_patches: bool = _field(
        True, "patches: False: all values of a patch were observed, or none"
    )
    normalized_rows: bool = _field(
        False, "patches: True: each row has the mean 0 and the variance 1"
    )
    mask_id: int = _field(
        -1, "token_dropout: id of the mask, whose vectors are zero; -1: as the records have"
    )
    layer: str = _field(
        "post_norm",
        "kind of layer: post_norm (BERT) | pre_norm (ModernBERT) | full_pre_norm (ESM-2, ViT: a "
        "norm also before the first attention)",
    )
    feed_forward: str = _field("plain", "kind of feed-forward: plain | gated (GeGLU, SwiGLU)")
    # Parameters, softmax and losses stay float32.
    dtype: str = _field(
        "float32",
        "of matrix products; auto: float32 on CPU, bfloat16 elsewhere",
        choices=DTYPES,
        of_run=AUTO,
    )
    gradient_reduction_dtype: str = _field(
        "float32",
        "of the gradients of kernels and their sums over devices: float32 | compute (as dtype)",
        choices=("float32", "compute"),
    )
    # "full" computes each layer again, "dots" all of it but the projections.
    remat: str = _field("none", "recompute activations in the backward pass: none | dots | full")
    attention: str = _field(
        "xla",
        "xla | pallas (kernels for TPU) | cudnn (kernels of GPUs, without dropout of the weights, "
        "where a trial agrees) | auto: pallas on a TPU newer than v4 where a trial agrees",
        of_run=AUTO,
    )
    window: int = _field(
        0,
        "tokens that attention reaches on each side; 0: all; -1: the token alone",
        between(-1, 10_000_000),
    )
    global_every: int = _field(
        1,
        "with a window: every n-th layer, from the first on, has none; 0: all layers have it",
        between(0, 1_000),
        read=(WINDOW,),
    )
    left_to_right: bool = _field(False, "True: a position sees itself and its left alone")
    pooler: str = _field(
        "dense",
        "dense (BERT) | every_pooling: also with other poolings than cls (EuroBERT) | normed: ends "
        "in a norm and stands before every finetuned head (ModernBERT)",
        choices=("dense", "every_pooling", "normed"),
    )
    pooler_act: str = _field("tanh", "of the pooler: tanh | gelu (erf) | gelu_tanh | relu | silu")
    mlm_transform: bool = _field(
        True, "False: the masked-token head is the words' table and a bias (XLM)"
    )
    tie_word_embeddings: bool = _field(
        True, "False: the masked-token head has a table of its own and no bias (EuroBERT)"
    )
    mask_decoder: bool = _field(
        False,
        "True: masked tokens get their positions at the last layer, which they pass twice "
        "(DeBERTa)",
        read=(DECODED,),
    )
    replaced_head: str = _field(
        "token",
        "judges replaced tokens by: token (their states, ELECTRA) | with_first (normed sums with "
        "the first token's, DeBERTaV3)",
        choices=("token", "with_first"),
        read=(REPLACED,),
    )


# Field -> its row.
ROWS: dict[str, Option] = {
    field.name: field.metadata["option"] for field in dataclasses.fields(EncoderFields)
}


def _of_run(field: dataclasses.Field) -> Option:
    row, default = field.metadata["option"], field.metadata["of_run"]
    return row if default is None else dataclasses.replace(row, default=default)


MODEL: dict[str, Option] = {
    field.name: _of_run(field) for field in dataclasses.fields(EncoderFields)
} | {
    "dtype": dataclasses.replace(ROWS["dtype"], default=AUTO, choices=(AUTO, *DTYPES)),
}
