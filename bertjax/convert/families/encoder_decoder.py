"""Two encoders of one family, the second with cross-attention: BERT2BERT and its kin.

Sources: transformers, models/encoder_decoder (modeling_encoder_decoder.py,
configuration_encoder_decoder.py) of 4.57 and 5.24, models/bert (modeling_bert.py).

The files know no ties between the two: what a decoder shares is written as two equal copies, and
equal copies are read as shared. The encoder's pooler takes no part; one of zeros is written,
because their class has it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from bertjax import models
from bertjax.convert.families import base
from bertjax.convert.names import Name

HEAD = "sequence_to_sequence"
DECODES = {"is_decoder": True, "add_cross_attention": True}
# Fields of config.json that say with which ids a target begins and ends.
ENDS = {"decoder_start_token_id": "cls_id", "eos_token_id": "sep_id"}


def tensors(part: base.Family) -> tuple[Name, ...]:
    """Returns the names of two encoders of a family, and of the head of the second."""
    table: list[Name] = []
    for entry in part.tensors:
        headless = f"encoder.{entry.theirs.removeprefix(part.prefix)}"
        with_head = f"decoder.{entry.theirs}"
        if entry.ours.startswith("encoder."):
            ours = entry.ours.replace("encoder", "decoder", 1)
            table += [Name(headless, entry.ours, entry.transform)]
            table += [Name(with_head, ours, entry.transform)]
            if ".attention." in entry.theirs:
                theirs = with_head.replace(".attention.", ".crossattention.")
                ours = ours.replace(".layers.", ".cross.").replace(".attention_norm.", ".norm.")
                table.append(Name(theirs, ours, entry.transform))
        elif entry.ours.startswith("pooler.") and entry.theirs.startswith(part.prefix):
            table.append(Name(headless, entry.ours, entry.transform))
        elif entry.ours.startswith("mlm_head."):
            table.append(Name(with_head, entry.ours, entry.transform, (HEAD,)))
    return tuple(table)


def of(part: base.Family) -> base.Family:
    """Returns the family of models whose encoder and decoder are of `part`."""
    table = tensors(part)
    decoder = dataclasses.replace(
        part, fixed={**part.fixed, **DECODES}, stated={**part.stated, **DECODES}
    )

    def constants(
        config: models.EncoderConfig, decoder: models.EncoderConfig | None
    ) -> Mapping[str, np.ndarray]:
        size = config.hidden_size
        shapes = {"pooler.dense.kernel": (size, size), "pooler.dense.bias": (size,)}
        return {
            entry.theirs: np.zeros(shapes[entry.ours], np.float32)
            for entry in table
            if entry.ours in shapes
        }

    prefix = re.escape(part.prefix)
    return dataclasses.replace(
        part,
        model_type="encoder-decoder",
        title=f"{part.title} encoder-decoder",
        fixed={"is_encoder_decoder": True},
        reasons={},
        stated={"is_encoder_decoder": True},
        without_effect=base.BOOKKEEPING | {"tie_word_embeddings", "vocab_size"},
        architectures={HEAD: "EncoderDecoderModel"},
        tensors=table,
        prefix="",
        ignored=tuple(
            pattern
            for it in part.ignored
            for pattern in (rf"decoder\.{it}", rf"encoder\.{it.removeprefix(prefix)}")
        ),
        tied={f"decoder.{copy}": f"decoder.{original}" for copy, original in part.tied.items()},
        tokenizer=dataclasses.replace(part.tokenizer, ids={**part.tokenizer.ids, **ENDS}),
        released=None,
        constants=constants,
        nested={"encoder": part, "decoder": decoder},
    )
