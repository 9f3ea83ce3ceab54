"""The heads of models, a row each: their parts, and their names in other programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from flax import nnx

from bertjax.models import decoder, embedding_sharing
from bertjax.options import faults
from bertjax.tasks import masked_autoencoder


@dataclasses.dataclass(frozen=True)
class Head:
    """A head of a model, and what follows from it.

    `parts`: the first names of the paths of its model; all of them must be there.
    `class_name`: the name of its class in transformers, without the family's.
    `pipeline`: the task by which the hub lists the model.
    `optional`: parts that a model may lack.
    `of_config`: parts that a model has by its encoder's config, and is incomplete without.
    `has_labels`: its outputs are classes with names.
    `module`: the module of an encoder and a decoder, from the configs of both.
    `options`: the options of config.pretraining that train it, where they are not the defaults.
    `trained_by`: options of config.pretraining that files state.
    `shifted_objective`: the objective that predicts a masked token at the position before it.
    """

    parts: tuple[str, ...]
    class_name: str
    pipeline: str
    optional: tuple[str, ...] = ()
    of_config: tuple[str, ...] = ()
    has_labels: bool = False
    module: Callable[..., nnx.Module] | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    trained_by: tuple[str, ...] = ()
    shifted_objective: str = ""


# The richest first: the head of weights is the first one whose parts are all there.
HEADS: dict[str, Head] = {
    "masked_autoencoder": Head(
        ("encoder", "decoder", "value_head"),
        "ForPreTraining",
        "image-feature-extraction",
        module=masked_autoencoder.MaskedAutoencoderModel,
        options={"objective": "masked_autoencoder", "masking": "dynamic"},
        trained_by=("normalized_patches", "masked_lm_prob"),
    ),
    "sequence_to_sequence": Head(
        ("encoder", "decoder", "mlm_head"),
        "ForConditionalGeneration",
        "text2text-generation",
        module=decoder.EncoderDecoder,
        options={"objective": "masked_spans_to_sequence", "masking": "dynamic"},
    ),
    "replaced_tokens": Head(
        ("encoder", "rtd_head"),
        "ForPreTraining",
        "feature-extraction",  # the hub has no task for it
        optional=(embedding_sharing.GENERATOR,),
        options={"objective": "replaced_tokens"},
    ),
    "pretraining": Head(
        ("encoder", "mlm_head", "pooler", "nsp_head"),
        "ForPreTraining",
        "fill-mask",
        options={"pair_loss": "nsp"},
    ),
    "masked_lm": Head(
        ("encoder", "mlm_head"),
        "ForMaskedLM",
        "fill-mask",
        of_config=("mask_decoder",),
        shifted_objective="hybrid",
    ),
    "causal_lm": Head(
        ("encoder", "lm_head"),
        "ForCausalLM",
        "text-generation",
        options={"objective": "next_token", "masking": "none"},
    ),
    "next_sentence": Head(
        ("encoder", "pooler", "nsp_head"),
        "ForNextSentencePrediction",
        "feature-extraction",  # the hub has no task for it
    ),
    # The released code makes the pooler for each of its models, and its Saver restores all saved
    # variables; transformers makes none for spans and tokens.
    "question_answering": Head(
        ("encoder", "span_head"), "ForQuestionAnswering", "question-answering", ("pooler",)
    ),
    # Weights with a classifier and a pooler are taken for sequences, not for choices.
    "sequence_classification": Head(
        ("encoder", "pooler", "classifier"),
        "ForSequenceClassification",
        "text-classification",
        has_labels=True,
    ),
    "multiple_choice": Head(
        ("encoder", "pooler", "classifier"), "ForMultipleChoice", "multiple-choice"
    ),
    "token_classification": Head(
        ("encoder", "classifier"),
        "ForTokenClassification",
        "token-classification",
        ("pooler",),
        has_labels=True,
    ),
    "none": Head(("encoder",), "Model", "feature-extraction", ("pooler", "projections")),
}

# The heads of most families in transformers.
USUAL = (
    "masked_lm",
    "none",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "multiple_choice",
)


def check(head: str) -> None:
    """Raises a ValueError, with the known ones, if there is no such head."""
    if head not in HEADS:
        raise faults.unknown("head", head, HEADS)


def classes(family: str, heads: Collection[str] = USUAL) -> dict[str, str]:
    """Returns the names of a family's classes in transformers by head."""
    return {head: family + HEADS[head].class_name for head in heads}


def of_paths(paths: Collection[str]) -> str:
    """Returns the richest head whose parts are among our `paths`."""
    parts = {"encoder", *map(part_of, paths)}
    return next(name for name, head in HEADS.items() if parts.issuperset(head.parts))


def part_of(path: str) -> str:
    """Returns the part of a model that the parameter at `path` is in."""
    return path.partition(".")[0]


def belongs(path: str, head: str) -> bool:
    """Returns whether the parameter at `path` is part of the model with this head."""
    row = HEADS[head]
    return part_of(path) in (*row.parts, *row.optional, *row.of_config)


def is_required(path: str, head: str, pooler: str = "dense") -> bool:
    """Returns whether the model with this head is incomplete without the parameter at `path`.

    `pooler` is the config's: a "normed" one stands before every finetuned head.
    """
    is_pooling = part_of(path) == "pooler" and pooler == "normed" and head != "none"
    has_part = part_of(path) in (*HEADS[head].parts, *HEADS[head].of_config)
    return has_part or (is_pooling and belongs(path, head))


def is_of_class(path: str, head: str, pooler: str = "dense") -> bool:
    """Returns whether the class of transformers with this head has the parameter at `path`.

    Most classes for tokens and spans have no pooler, and transformers warns of unknown weights.
    """
    return is_required(path, head, pooler) or (head == "none" and belongs(path, head))
