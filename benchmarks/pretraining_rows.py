"""The rows that `objectives` compares, their records, and the settings that they share.

A row lists its differences from BERT. `workshop` trains and scores the rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import ml_collections

from bertjax import config as config_lib

TASKS = ("cola", "sst2", "rte", "stsb")
NEVER = 10**9  # steps: an evaluation at the end alone

# Kind of records -> options of data_pipelines.build. Masks are drawn as they are read.
RECORDS: dict[str, Mapping[str, Any]] = {
    "nsp": {"pair_objective": "nsp"},
    "sop": {"pair_objective": "sop"},
    "segments": {"pair_objective": "none"},
    "full_sentences": {"pair_objective": "none", "packing": "full_sentences", "short_seq_prob": 0},
    "whole_sentences": {"pair_objective": "none", "short_seq_prob": 0},
    "packed": {"pair_objective": "none", "packing": "best_fit", "short_seq_prob": 0},
    # With stored masks of 15%, the same for every model that is scored on them.
    "masked": {"pair_objective": "none", "short_seq_prob": 0, "mask": "token"},
}


@dataclasses.dataclass(frozen=True)
class Row:
    """The records of a row, and the options in which it differs from BERT.

    `of_settings` are options that a setting decides. `finetuned` are options of its finetuning.
    Its `length` is what the "budget" pays for, or "one" step.
    """

    title: str
    records: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    of_settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    finetuned: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    length: str = "budget"

    @property
    def made_of(self) -> dict[str, Any]:
        """The settings of a pretraining, which are kept with its scores."""
        own = {"records": self.records, "length": self.length}
        return {**own, **self.options, **self.of_settings}


def _without_pairs(**options: Any) -> dict[str, Any]:
    return {"pretraining.pair_loss": "none"} | {
        f"pretraining.{name}": value for name, value in options.items()
    }


def _masks(strategy: str) -> dict[str, Any]:
    return {"pretraining.mask_strategy": strategy}


ROWS: dict[str, Row] = {
    "bert": Row("BERT: pairs with NSP, single tokens, 15%", "nsp"),
    "no_nsp": Row("without NSP, the same pairs", "nsp", _without_pairs()),
    "sop": Row("SOP", "sop", {"pretraining.pair_loss": "sop"}),
    "whole_words": Row("whole words", "nsp", _masks("whole_word")),
    "ngrams": Row("n-grams", "nsp", _masks("ngram")),
    "spans": Row("spans", "nsp", _masks("span")),
    "span_boundary": Row(
        "SpanBERT: one segment, spans, span boundary",
        "segments",
        _without_pairs(objective="span_boundary", mask_strategy="span"),
    ),
    "full_sentences": Row("RoBERTa's packing: full sentences", "full_sentences", _without_pairs()),
    "albert": Row(
        "ALBERT: shared layers, narrow embeddings, SOP, n-grams",
        "sop",
        {
            "pretraining.pair_loss": "sop",
            "model.num_hidden_groups": 1,
            **_masks("ngram"),
        },
        of_settings={"model.embedding_size": "narrow_embedding_size"},
    ),
    "electra": Row(
        "ELECTRA: one segment",
        "segments",
        {
            **_without_pairs(objective="replaced_tokens", mask_share=0.85, keep_share=0.15),
            "model.pooler_act": "gelu",
            "checkpoint.best_metric": "discriminator_loss",
        },
    ),
    "left_to_right": Row(
        "left to right: one segment",
        "segments",
        {
            **_without_pairs(objective="next_token", masking="none"),
            "model.left_to_right": True,
            "checkpoint.best_metric": "lm_loss",
        },
        finetuned={"finetuning.pooling": "last"},
    ),
    "masks_30": Row("30% masks", "nsp", {"pretraining.masked_lm_prob": 0.3}),
    "not_pretrained": Row(
        "not pretrained", "nsp", {"schedule.peak_learning_rate": 0.0}, length="one"
    ),
}


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of the modern encoder or of its recipe: the options in which it differs from BERT's.

    `records` is where it decides the kind of them. `without` is the title of the row that lacks it.
    """

    without: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    of_settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    records: str = ""


# The modern pieces that rows take back, one at a time. Source: `recipes.modern_config`.
PIECES: dict[str, Piece] = {
    "rotary": Piece("learnt positions", {"model.position_embedding": "rotary"}),
    "gated": Piece(
        "plain feed-forward",
        {"model.feed_forward": "gated"},
        of_settings={"model.intermediate_size": "gated_intermediate_size"},
    ),
    "pre_norm": Piece("post-norm", {"model.layer": "pre_norm", "model.depth_scaled_init": True}),
    "masks_30": Piece("15% masks", {"pretraining.masked_lm_prob": 0.3}),
    "packing": Piece("not packed", records="packed"),
    "schedule": Piece(
        "linear schedule",
        {
            "schedule.name": "wsd",
            "schedule.decay_shape": "one_minus_sqrt",
            "schedule.decay_share": 0.1,
        },
    ),
}
# The options of all modern rows. Sequences are as short as a window, so windows are left out.
_MODERN = {
    "pretraining.pair_loss": "none",
    "evaluation.masked_lm_prob": 0.15,
    "model.norm": "scale_only",
    "model.layer_norm_eps": 1e-5,
    "model.use_bias": False,
    "model.type_vocab_size": 0,
    "model.pooler": "normed",
    "model.pooler_act": "gelu",
    "optimizer.name": "stable_adamw",
    "optimizer.weight_decay": 1e-5,
    "optimizer.fully_decoupled_decay": True,
    "optimizer.clip_norm": 0.0,
}


def modern(without: str = "") -> Row:
    """Returns the modern encoder with its recipe, or what it is without one of PIECES."""
    pieces = [piece for name, piece in PIECES.items() if name != without]
    return Row(
        f"modern, {PIECES[without].without}" if without else "modern",
        "".join(piece.records for piece in pieces) or "whole_sentences",
        {**_MODERN, **{name: it for piece in pieces for name, it in piece.options.items()}},
        {name: it for piece in pieces for name, it in piece.of_settings.items()},
    )


MODERN_ROWS: dict[str, Row] = {
    "bert_2018": Row("BERT of 2018", "nsp"),
    "modern": modern(),
    **{f"modern_without_{name}": modern(name) for name in PIECES},
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings that all rows of a workdir share, and that decide the figures."""

    corpus: str = ""
    heldout: str = ""
    pairs: str = ""
    glue: str = ""
    budget: float = 3e13
    vocab_size: int = 8192
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    narrow_embedding_size: int = 32
    max_seq_length: int = 64
    batch_size: int = 32
    learning_rate: float = 2e-3
    dupe_factor: int = 2
    heldout_sequences: int = 4096
    pairs_per_paradigm: int = 100
    most_examples: int = 10_000
    finetuning_rate: float = 3e-4
    finetuning_epochs: float = 3.0

    @property
    def gated_intermediate_size(self) -> int:
        """The width with which three matrices are as large as BERT's two, a multiple of 8."""
        return round(8 * self.hidden_size / 3 / 8) * 8


# Setting -> what its flag's help says, where the name does not.
HELP = {
    "corpus": "text to pretrain on, as data_pipelines.build reads it",
    "heldout": "text for the held-out losses",
    "pairs": "minimal pairs, such as BLiMP's",
    "glue": "the directory of GLUE's official files",
    "budget": "FLOPs of a pretraining",
    "narrow_embedding_size": "of ALBERT",
    "dupe_factor": "passes over the text when records are built, each with other pairs",
    "heldout_sequences": "of its own kind that a row is scored on at its end, at most",
    "most_examples": "of a training set of GLUE, from its beginning",
}


def config_of(row: Row, settings: Settings) -> ml_collections.ConfigDict:
    """Returns BERT of the settings' sizes, with the differences of a row.

    No dropout: a small model in few steps learns from every token. The initial range is the
    paper's for 768, for this width.
    """
    config, width = config_lib.default_config(), settings.hidden_size
    config.model.update(
        num_hidden_layers=settings.num_layers,
        hidden_size=width,
        num_attention_heads=settings.num_heads,
        intermediate_size=4 * width,
        initializer_range=round(0.02 * math.sqrt(768 / width), 4),
        max_position_embeddings=settings.max_seq_length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config.pretraining.masking = "dynamic"
    config.global_batch_size = settings.batch_size
    config.phases.phase1.update(num_steps=1, max_seq_length=settings.max_seq_length)
    config.optimizer.beta2 = 0.98
    config.schedule.update(
        peak_learning_rate=settings.learning_rate, warmup_steps=0, warmup_share=0.1
    )
    config.evaluation.update(
        every_steps=NEVER,
        global_batch_size=256,
        max_batches=-(-settings.heldout_sequences // 256),
    )
    config.checkpoint.update(keep_last=1, keep_best=0)
    config.log_every_steps = 50
    config.plateau.check_step = 0
    of_settings = {name: getattr(settings, own) for name, own in row.of_settings.items()}
    config.update_from_flattened_dict({**row.options, **of_settings})
    return config


def steps_within(budget: float, flops_of_step: float) -> int:
    """Returns the number of steps that the budget pays for, rounded.

    Raises:
      ValueError: if it is not one.
    """
    steps = round(budget / flops_of_step)
    if not steps:
        raise ValueError(
            f"--budget is {budget:g} FLOPs, but a step takes {flops_of_step:.3g}; give more"
        )
    return steps
