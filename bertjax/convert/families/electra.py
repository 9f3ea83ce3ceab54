"""ELECTRA: a discriminator, and the generator that it was trained with (Clark et al. 2020).

They are models of their own to transformers, with other sizes, and one checkpoint to the released
code. The encoder is BERT's, with a projection where its embeddings have another width.

Sources: transformers, models/electra (modeling_electra.py, configuration_electra.py);
google-research/electra, model/modeling.py, run_pretraining.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bertjax.convert import heads, names
from bertjax.convert.families import base, bert
from bertjax.convert.names import Name

ARCHITECTURES = heads.classes("Electra", ("replaced_tokens", *heads.USUAL))

# The generator's head has gelu whatever hidden_act says, and so have the layers before classifiers.
ACTIVATIONS = {theirs: ours for theirs, ours in bert.ACTIVATIONS.items() if ours == "gelu"}

# A file without one of them has the value of ElectraConfig.
FIELDS: dict[str, base.Field] = bert.FIELDS | {
    "hidden_size": base.Field("hidden_size", int, default=256),
    "embedding_size": base.Field(
        "embedding_size", int, default=128, written_from="embedding_width"
    ),
    "num_attention_heads": base.Field("num_attention_heads", int, default=4),
    "intermediate_size": base.Field("intermediate_size", int, default=1024),
    "hidden_act": base.Field("hidden_act", str, values=ACTIVATIONS),
}

# How the class of choices makes one vector of a sequence; the other classes do not read it.
SUMMARY: dict[str, Any] = {
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
}

# The dropout after that is hidden_dropout_prob.
WITHOUT_EFFECT = bert.WITHOUT_EFFECT | {"summary_last_dropout"}


_CHOICES, _TEXTS = ("multiple_choice",), ("sequence_classification",)

TENSORS: tuple[Name, ...] = (
    *bert.of_encoder(bert.TENSORS, "electra"),
    *names.torch_dense("electra.embeddings_project", "encoder.embeddings.projection"),
    *names.torch_dense("discriminator_predictions.dense", "rtd_head.dense"),
    *names.torch_dense("discriminator_predictions.dense_prediction", "rtd_head.output"),
    *names.torch_dense("generator_predictions.dense", "mlm_head.dense"),
    *names.torch_norm("generator_predictions.LayerNorm", "mlm_head.norm"),
    Name("generator_lm_head.bias", "mlm_head.bias"),
    *names.torch_dense("sequence_summary.summary", "pooler.dense", heads=_CHOICES),
    *names.torch_dense("classifier.dense", "pooler.dense", heads=_TEXTS),
    *names.torch_dense("classifier.out_proj", "classifier", heads=_TEXTS),
    *names.torch_dense("classifier", "classifier", heads=("token_classification", *_CHOICES)),
    *names.torch_dense("qa_outputs", "span_head"),
)

_RELEASED = names.tensorflow1(
    names.renamed(
        TENSORS,
        {
            "discriminator_predictions.dense_prediction": "discriminator_predictions.dense_1",
            "generator_lm_head.bias": "generator_predictions.output_bias",
        },
    )
)
# The generator's own embeddings are there where they were not shared.
_OF_GENERATOR = [
    dataclasses.replace(it, ours=f"generator.{it.ours}")
    for it in names.renamed(_RELEASED, {"electra/": "generator/"})
    if it.ours.startswith(("encoder.", "mlm_head."))
]
VARIABLES: tuple[Name, ...] = (
    *(it for it in _RELEASED if it.ours.startswith(("encoder.", "rtd_head."))),
    *_OF_GENERATOR,
)

RELEASED = base.Released(
    names=VARIABLES,
    # The released code has none: the sizes are in its source.
    config="electra_config.json",
    checkpoint="electra_model.ckpt",
    example="electra_small",
    defaults={**bert.RELEASED.defaults, "embedding_size": 0, "type_vocab_size": 2},
    computed_with=bert.RELEASED.computed_with,
    head_size=64,
)

FAMILY = base.Family(
    model_type="electra",
    title="ELECTRA",
    fields=FIELDS,
    fixed=bert.FIXED | SUMMARY,
    stated={**bert.FAMILY.stated, **SUMMARY},
    without_effect=WITHOUT_EFFECT,
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix="electra.",
    tokenizer=bert.TOKENIZER,
    older=bert.FAMILY.older,
    ignored=(r"electra\.embeddings\.(position_ids|token_type_ids)",),
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    traits={"pooler_act": "gelu"},
    released=RELEASED,
)
