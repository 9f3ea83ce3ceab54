"""The objectives of pretraining: a module for each, and its row in OBJECTIVES.

`base` has the interface of a task and the losses that tasks share. The tasks of finetuning belong
to its kinds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.models import EncoderConfig
from bertjax.options import pretraining as options_lib
from bertjax.options import table
from bertjax.options.option import Group
from bertjax.tasks import (
    base,
    masked_autoencoder,
    masked_spans_to_sequence,
    masked_values,
    mixed_rows,
    next_token,
    pretraining,
    record_needs,
    replaced_tokens,
    span_boundary,
)


@dataclasses.dataclass(frozen=True)
class Objective:
    """A value of config.pretraining.objective.

    `make` makes the task from an EncoderConfig and config.pretraining. `options` are the options of
    that group that not all objectives read. `faults` yields a sentence for each option of a config
    that does not fit. With `reads_masks` batches have masked tokens,
    with `reads_sequences` sources and targets, by config.pretraining.sequence_rows. `needs` is what
    records must have for it.
    `token_loss` is the loss whose chance level is the unigram entropy. `chance` takes averages, of
    training or of an evaluation, and returns the baselines that follow from them
    (`scores.baselines`).
    """

    make: Callable[[EncoderConfig, Any], base.Task]
    faults: Callable[[Any], Iterator[str]] = lambda config: iter(())
    options: Group = dataclasses.field(default_factory=dict)
    reads_masks: bool = True
    reads_sequences: bool = False
    needs: tuple[record_needs.Need, ...] = ()
    token_loss: str = "mlm_loss"
    chance: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda averages: {}


_OF_VALUES = ("value_error", "normalized_patches", "least_crop", "flips")

# A recipe, which knows no objective, can name options that are `owned` rows of `options`.
OBJECTIVES: dict[str, Objective] = {
    "masked_tokens": Objective(pretraining.of_options),
    "replaced_tokens": Objective(
        replaced_tokens.of_options,
        replaced_tokens.faults,
        options_lib.owned("discriminator_weight", "generator"),
        chance=replaced_tokens.chance,
    ),
    "hybrid": Objective(
        mixed_rows.hybrid,
        mixed_rows.hybrid_faults,
        options_lib.owned("causal_share", "hybrid_mean"),
        needs=(record_needs.one_text_a_sequence,),
    ),
    "prefix_rows": Objective(
        mixed_rows.prefix_rows,
        mixed_rows.prefix_rows_faults,
        options_lib.owned("prefix_share"),
        needs=(record_needs.two_segments,),
    ),
    "span_boundary": Objective(span_boundary.of_options, span_boundary.faults),
    "masked_values": Objective(
        masked_values.of_options,
        masked_values.faults,
        options_lib.owned(*_OF_VALUES, "predicts", "exchanged_cells"),
        token_loss="value_loss",
        chance=masked_values.chance,
    ),
    "masked_autoencoder": Objective(
        masked_autoencoder.of_options,
        masked_autoencoder.faults,
        options_lib.owned(*_OF_VALUES, "decoder"),
        token_loss="value_loss",
    ),
    "masked_spans_to_sequence": Objective(
        masked_spans_to_sequence.of_options,
        masked_spans_to_sequence.faults,
        options_lib.owned("sequence_rows"),
        reads_masks=False,
        reads_sequences=True,
        needs=(
            record_needs.one_text_a_sequence,
            record_needs.one_sequence_a_row,
            record_needs.ends_of_sentences,
        ),
        token_loss="lm_loss",
    ),
    "next_token": Objective(
        next_token.of_options, next_token.faults, reads_masks=False, token_loss="lm_loss"
    ),
}
table.OWNERS["pretraining.objective"] = OBJECTIVES
