"""ESM-2: encoders of proteins, a letter a residue.

Sources: transformers, models/esm (modeling_esm.py, configuration_esm.py, tokenization_esm.py) of
4.57 and 5.24; facebookresearch/esm, esm/model/esm2.py, esm/data.py.

ESM-1 has learnt positions and other embeddings and is not read, nor is ESMFold. The head that
predicts contacts from attention was fitted after pretraining: it is not read, and an export has
zeros, without which transformers would warn of missing weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax import models
from bertjax.convert import heads, names
from bertjax.convert.families import base, bert, roberta
from bertjax.convert.names import Name
from bertjax.models import rotary
from bertjax.tokenization import wordpiece

ARCHITECTURES = heads.classes(
    "Esm", ("masked_lm", "none", "sequence_classification", "token_classification")
)

# A file without one of them has the value of EsmConfig. The activation is the exact GELU always.
FIELDS: dict[str, base.Field] = {
    **{name: base.Field(name, int) for name in bert.SIZES},
    **{name: base.Field(name, float) for name in bert.RATES},
    "max_position_embeddings": base.Field("max_position_embeddings", int, default=1026),
    "rope_theta": base.Field("rotary_base", float, default=10_000.0),
    "mask_token_id": base.Field("mask_id", int, default=32),
}

ESM2: dict[str, Any] = {
    "position_embedding_type": "rotary",
    "token_dropout": True,
    "emb_layer_norm_before": False,
}
# The values of EsmConfig, for a file without these fields.
ESM1 = {"position_embedding_type": "absolute", "token_dropout": False}

_BODY = "esm"
_LAYER = f"{_BODY}.encoder.layer.{{layer}}"

# The names of RoBERTa; norms lie before their layers, and one more behind the last.
_RENAMED = {
    "roberta.": f"{_BODY}.",
    "attention.output.LayerNorm": "attention.LayerNorm",
    "{layer}.output.LayerNorm": "{layer}.LayerNorm",
}
_LACKING = ("position", "segment", "norm")
TENSORS: tuple[Name, ...] = (
    *(
        it
        for it in names.renamed(roberta.TENSORS, _RENAMED)
        if not it.ours.startswith(("span_head", *(f"encoder.embeddings.{it}" for it in _LACKING)))
    ),
    *names.torch_norm(f"{_BODY}.encoder.emb_layer_norm_after", "encoder.final_norm"),
)

# The angles by which a position turns: in each layer (version 4, and the released files), once, or
# with the star that version 5 writes.
_ANGLES = r"(encoder\.layer\.(\d+|\*)\.attention\.self\.)?rotary_embeddings\.inv_freq"
_CONTACTS = "contact_head.regression"


def constants(
    config: models.EncoderConfig, decoder: models.EncoderConfig | None = None
) -> dict[str, np.ndarray]:
    """Returns the tensors that are not trained: the angles, and a contact head of zeros."""
    del decoder
    angles = _angles(config)
    maps = config.num_hidden_layers * config.num_attention_heads
    return {
        **{
            f"{_LAYER.format(layer=layer)}.attention.self.rotary_embeddings.inv_freq": angles
            for layer in range(config.num_hidden_layers)
        },
        f"{_BODY}.{_CONTACTS}.weight": np.zeros((1, maps), np.float32),
        f"{_BODY}.{_CONTACTS}.bias": np.zeros(1, np.float32),
    }


def _angles(config: models.EncoderConfig) -> np.ndarray:
    turn = config.rotary_base_of(0)
    assert turn is not None
    head_size = config.hidden_size // config.num_attention_heads
    return rotary.angles_of_one(head_size, turn).astype(np.float32)


def stored_angles(config: models.EncoderConfig, weights: Mapping[str, np.ndarray]) -> str:
    """Returns the value of `rotary_angles` for the angles in the weights."""
    kinds = ("exact", "float16")
    possible = {kind: _angles(dataclasses.replace(config, rotary_angles=kind)) for kind in kinds}
    names_of_angles = [name for name in weights if name.endswith("rotary_embeddings.inv_freq")]
    stored = [weights[name] for name in names_of_angles]
    for kind, angles in possible.items():
        if all(it.shape == angles.shape and np.allclose(it, angles, 1e-6, 0) for it in stored):
            return kind
    raise ValueError(
        f"{names_of_angles[0]} does not follow from rope_theta {config.rotary_base:g}, exact or "
        "rounded to float16 in all layers; other rotary positions are not supported"
    )


TOKENIZER = base.TokenizerFiles(
    vocabularies=(wordpiece.VOCABULARY_FILE,),
    fields={
        "tokenizer_class": "EsmTokenizer",
        base.INPUTS: ["input_ids", "attention_mask"],
    },
    single="{cls}:0 $A:0 {sep}:0",
    pair="{cls}:0 $A:0 {sep}:0 $B:0 {sep}:0",
    ids={"pad_token_id": "pad_id", "mask_token_id": "mask_id", "eos_token_id": "sep_id"},
)

FAMILY = base.Family(
    model_type="esm",
    title="ESM-2",
    fields=FIELDS,
    fixed={
        **bert.FIXED,
        **ESM2,
        **{"hidden_act": "gelu", "is_folding_model": False, "esmfold_config": None},
    },
    reasons=dict.fromkeys(ESM2, "only ESM-2 is supported, not ESM-1"),
    stated={**ESM2, "tie_word_embeddings": True, "hidden_act": "gelu", "pad_token_id": 1},
    without_effect=base.BOOKKEEPING | {"vocab_list", "classifier_dropout"},
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix=f"{_BODY}.",
    tokenizer=TOKENIZER,
    older=bert.FAMILY.older,
    # The released files also have a table of positions, which no ESM-2 reads.
    ignored=(
        rf"{_BODY}\.embeddings\.position_(ids|embeddings\.weight)",
        rf"({_BODY}\.)?{_ANGLES}",
        rf"({_BODY}\.)?{_CONTACTS}\.(weight|bias)",
    ),
    tied={"lm_head.decoder.weight": f"{_BODY}.embeddings.word_embeddings.weight"},
    traits={
        **{"embeddings": "token_dropout", "type_vocab_size": 0, "position_embedding": "rotary"},
        **{"layer": "full_pre_norm", "layer_norm_eps": 1e-5},
    },
    constants=constants,
    of_weights={"rotary_angles": stored_angles},
    read=lambda fields: {**ESM1, **fields},
)
