"""The options of pretraining: a row each, and the rows that single objectives own.

The rows of `tasks.OBJECTIVES` name the rows of OWNED that they read. An objective may also declare
rows in its own module; recipes and command lines, which are read without JAX, cannot set those.
"""

from __future__ import annotations

from bertjax.options.option import (
    ABOVE_0,
    ABOVE_0_TO_1,
    AT_LEAST_0,
    AT_LEAST_1,
    BETWEEN_0_AND_1,
    Condition,
    Group,
    Option,
)

_DRAWN = Condition(
    lambda it: it["pretraining.masking"] != "none", "with config.pretraining.masking='none'"
)

ROWS: dict[str, Option] = {
    "objective": Option("masked_tokens", "a key of tasks.OBJECTIVES"),
    "pair_loss": Option("nsp", "nsp | sop (sentence order, ALBERT) | none"),
    "masking": Option(
        "static", "static: from the records | dynamic: drawn at load time | none (next_token)",
        choices=("static", "dynamic", "none")),
}  # fmt: skip

# How tokens are masked; read by the objectives that read masks.
MASKS: dict[str, Option] = {
    "mask_strategy": Option(
        "token", "dynamic masks: token | whole_word | ngram | span", read=(_DRAWN,)),
    "masked_lm_prob": Option(
        0.15, "share of tokens to predict (dynamic masks)", BETWEEN_0_AND_1, read=(_DRAWN,)),
    "max_predictions_per_seq": Option(
        0, "dynamic masks; 0: masked_lm_prob x length, rounded up", read=(_DRAWN,)),
    "mask_share": Option(
        0.8, "of the tokens to predict: those that become [MASK] (dynamic)", read=(_DRAWN,)),
    "keep_share": Option(
        0.1, "of the tokens to predict: those that stay; the rest becomes random (dynamic)",
        read=(_DRAWN,)),
}  # fmt: skip

OWNED: dict[str, Option | Group] = {
    "discriminator_weight": Option(
        50.0, "replaced_tokens: of its loss; the generator's has 1 (ELECTRA: 50)", ABOVE_0),
    "generator": {  # the other fields are as in config.model
        "hidden_size": Option(
            0, "width of its layers; 0: a quarter of model.hidden_size", AT_LEAST_0),
        "num_hidden_layers": Option(0, "0: as many as model.num_hidden_layers", AT_LEAST_0),
        "num_attention_heads": Option(
            0, "per layer; 0: one for every 64 of its hidden_size", AT_LEAST_0),
        "intermediate_size": Option(
            0, "width of its feed-forward; 0: 4 x its hidden_size", AT_LEAST_0),
        "embeddings": Option(
            "shared", "shared | separate | gradient_disentangled (DeBERTaV3)"),
        "temperature": Option(
            1.0, "of its samples; lower: likelier tokens; 1: as the generator has them", ABOVE_0),
    },
    "causal_share": Option(
        1 / 16, "hybrid: share of the rows that are read from left to right (GPT-BERT: 1/16)",
        BETWEEN_0_AND_1),
    "hybrid_mean": Option(
        "rows", "rows: each kind's mean by its share | tokens: of all tokens",
        choices=("rows", "tokens")),
    "prefix_share": Option(
        1 / 4, "prefix_rows: share of the rows that are read after a prefix (UniLM: 1/3)",
        BETWEEN_0_AND_1),
    "sequence_rows": Option(
        "mass", "masked_spans_to_sequence: mass (a fragment of half of the row) | bart (infilled "
        "spans, exchanged sentences)"),
    "value_error": Option("squared", "masked_values: squared | absolute | huber"),
    "predicts": Option(
        "values", "masked_values: values | replaced (which cells were exchanged)",
        choices=("values", "replaced")),
    "normalized_patches": Option(False, "masked_values: True: targets of patches, as MAE"),
    "exchanged_cells": Option(
        False, "masked_values: hidden cells of tables get the value of another row of the "
        "training data"),
    "least_crop": Option(
        1.0, "of pixels: least share of the area of a random crop; 1: no crop", ABOVE_0_TO_1),
    "flips": Option(False, "of pixels: True: half of the pictures are mirrored"),
    "decoder": {  # masked_autoencoder; the other fields are as in config.model
        "hidden_size": Option(512, "width of its layers", AT_LEAST_1),
        "num_hidden_layers": Option(8, "layers that read the whole row", AT_LEAST_1),
        "num_attention_heads": Option(16, "per layer", AT_LEAST_1),
        "intermediate_size": Option(2_048, "width of its feed-forward", AT_LEAST_1),
    },
}  # fmt: skip


def owned(*names: str) -> dict[str, Option | Group]:
    """Returns rows of OWNED by name."""
    return {name: OWNED[name] for name in names}
