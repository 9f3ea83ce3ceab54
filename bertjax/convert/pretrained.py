"""A pretrained model: the type that all readers return and all writers take."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import nnx

from bertjax import models
from bertjax.convert import families, heads
from bertjax.convert.families import base
from bertjax.data import records
from bertjax.models import decoder_sharing, embedding_sharing, parameters, sentence_vectors
from bertjax.models.mask_decoder import MaskDecoder
from bertjax.tokenization import tokenizer

# Parts of pretraining that no class of transformers has.
LEFT_BEHIND = ("sbo_head",)

# Part -> its module. Classifiers and heads of spans are linear layers.
MODULES: dict[str, Callable[..., nnx.Module]] = {
    "encoder": models.make_encoder,
    "pooler": models.Pooler,
    "mlm_head": models.MlmHead,
    "lm_head": models.MlmHead,
    "nsp_head": models.PairHead,
    "rtd_head": models.ReplacedHead,
}


@dataclasses.dataclass(frozen=True)
class Description:
    """The description of weights without their parameters; fields and errors as in `Pretrained`."""

    config: models.EncoderConfig
    vocabulary: tokenizer.Tokenizer | None
    source: str
    languages: tuple[str, ...] = ()

    def __post_init__(self):
        tokenizer.check_table(self.vocabulary, self.config.vocab_size, self.source)
        tokenizer.check_padding(self.vocabulary, self.config.position_offset, self.source)


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """Weights with what is needed to use them.

    `params`: float32 NumPy arrays in our layout, by dotted path.
    `head`: a key of `heads.HEADS`.
    `labels`: number -> class of a finetuned head; empty for other heads.
    `source`: the path of the files.
    `unused`: names in the source that do not belong to the model.
    `is_regression`: a classifier's one output is a number, not a class.
    `is_multi_label`: any number of a classifier's classes may be right.
    `export_fault`: why no format can hold the head; "" if one can.
    `model_type`: the family of the weights; with "" the config decides.
    `pooling`: the pooling of a classifier of sequences.
    `generator`: the encoder of a discriminator's generator, if its parameters are under
      `generator`.
    `decoder`: the sizes of the decoder, if its parameters are under `decoder`.
    `start_id`, `end_id`: the first and last id of a decoder's targets; None: by the family and the
      vocabulary.
    `generation`: fields of generation_config.json, of a model that generates texts.
    `sentence`: the vectors of a model for sentence embeddings, which has no head.
    `languages`: names of the languages with embeddings, in their order; () if unknown.
    `is_shifted`: a masked token is predicted at the position before it, like a next token, by the
      same head: `tasks.mixed_rows`.
    `objective`: the options of config.pretraining that trained it, the head's `trained_by`.
    `manifest`: the manifest of the records of values that it was trained on, None if unknown.
    """

    config: models.EncoderConfig
    params: Mapping[str, np.ndarray]
    vocabulary: tokenizer.Tokenizer | None
    head: str
    labels: Mapping[int, str]
    source: str
    unused: tuple[str, ...] = ()
    is_regression: bool = False
    is_multi_label: bool = False
    export_fault: str = ""
    model_type: str = ""
    pooling: str = "cls"
    generator: models.EncoderConfig | None = None
    decoder: models.EncoderConfig | None = None
    start_id: int | None = None
    end_id: int | None = None
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sentence: sentence_vectors.SentenceVectors | None = None
    languages: tuple[str, ...] = ()
    is_shifted: bool = False
    objective: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    manifest: records.Manifest | None = None

    def __post_init__(self):
        tokenizer.check_table(self.vocabulary, self.config.vocab_size, self.source)
        tokenizer.check_padding(self.vocabulary, self.config.position_offset, self.source)

    @property
    def num_parameters(self) -> int:
        return sum(array.size for array in self.params.values())

    @property
    def family(self) -> base.Family:
        """The family in whose names and fields other programs store these weights."""
        if self.model_type:
            return families.named(self.model_type)
        return families.holding(self.config, self.head, self.vocabulary, self.decoder)

    @property
    def shares(self) -> str:
        """The parts that a decoder shares with its encoder, a key of `decoder_sharing.LACKING`."""
        return decoder_sharing.sharing(self.params)


def shapes(
    config: models.EncoderConfig,
    *,
    labels: int | None = None,
    generator: models.EncoderConfig | None = None,
    decoder: models.EncoderConfig | None = None,
    decoder_head: str = "masked_autoencoder",
    shares: str = "none",
) -> dict[str, Any]:
    """Returns the shape of every parameter that a model of these sizes may have, by our path.

    Unknown numbers (`labels` None) are None in a shape. `decoder_head` is the head of a model with
    the `decoder`, and `shares` names the encoder's parts that the decoder uses.
    """
    hidden = config.hidden_size
    of_generator = _shapes(generator).items() if generator else ()
    return {
        **_shapes(config),
        **(_shapes_of_both(config, decoder, decoder_head, shares) if decoder else {}),
        **{
            f"{embedding_sharing.GENERATOR}.{path}": shape
            for path, shape in of_generator
            if heads.belongs(path, "masked_lm")
        },
        "classifier.kernel": (hidden, labels),
        "classifier.bias": (labels,),
        "span_head.kernel": (hidden, 2),
        "span_head.bias": (2,),
    }


@functools.lru_cache(maxsize=16)  # an encoder takes a second to build, even without its numbers
def _shapes(config: models.EncoderConfig) -> Mapping[str, tuple[int, ...]]:
    def params(make: Callable[..., nnx.Module]) -> parameters.Params:
        return parameters.split(make(config, rngs=nnx.Rngs(0)))[1]

    modules = MODULES | ({"mask_decoder": MaskDecoder} if config.mask_decoder else {})
    parts = {part: jax.eval_shape(lambda make=make: params(make)) for part, make in modules.items()}
    return {path: leaf.shape for path, leaf in parameters.flat(parts).items()}


@functools.lru_cache(maxsize=4)
def _shapes_of_both(
    config: models.EncoderConfig, decoder: models.EncoderConfig, head: str, shares: str
) -> Mapping[str, tuple[int, ...]]:
    make = heads.HEADS[head].module
    assert make is not None, head
    options = {"shares": shares} if head == "sequence_to_sequence" else {}

    def params() -> parameters.Params:
        model = make(config, decoder, rngs=nnx.Rngs(0), **options)
        return parameters.split(model)[1]

    return {path: leaf.shape for path, leaf in parameters.flat(jax.eval_shape(params)).items()}


def exported(weights: Pretrained) -> Pretrained:
    """Returns the weights without parts that no format has; they are logged and `unused`."""
    left = [path for path in weights.params if heads.part_of(path) in LEFT_BEHIND]
    if not left:
        return weights
    logging.info("Left out, as no class has them: %s", ", ".join(left))
    params = {path: array for path, array in weights.params.items() if path not in left}
    return dataclasses.replace(weights, params=params, unused=(*left, *weights.unused))


def select(weights: Pretrained, head: str) -> Pretrained:
    """Returns the weights of the model with this head; the others are `unused`.

    For ELECTRA, head "masked_lm" means the generator. For a hybrid model, "causal_lm" means the
    same encoder read from left to right.
    """
    heads.check(head)
    if head == "masked_lm" and weights.generator is not None:
        weights = generator_of(weights, weights.generator)
    if head == "causal_lm" and weights.is_shifted:
        weights = _causal_side(weights)
    present = set(map(heads.part_of, weights.params))
    if head not in ("none", weights.head) and weights.head == "sequence_to_sequence":
        present -= {"mlm_head"}  # it reads the decoder's states
    if missing := [part for part in heads.HEADS[head].parts if part not in present]:
        raise ValueError(
            f"{weights.source} has no {', '.join(missing)}, which a model with the head {head!r} "
            f"needs; its own head is {weights.head!r}"
        )
    is_of_sequences = head == "sequence_classification"
    model_type = weights.model_type
    if head == "none" and model_type and (parts := families.named(model_type).nested):
        model_type = parts["encoder"].model_type
    return dataclasses.replace(
        weights,
        params={path: array for path, array in weights.params.items() if heads.belongs(path, head)},
        head=head,
        labels=_labels(weights, head),
        unused=(
            *(path for path in weights.params if not heads.belongs(path, head)),
            *weights.unused,
        ),
        is_regression=weights.is_regression and is_of_sequences,
        is_multi_label=weights.is_multi_label and is_of_sequences,
        export_fault="" if head == "none" else weights.export_fault,
        model_type=model_type,
        pooling=weights.pooling if is_of_sequences else "cls",
        generator=weights.generator if head == "replaced_tokens" else None,
        decoder=weights.decoder if heads.HEADS[head].module else None,
        generation=weights.generation if head == weights.head else {},
        sentence=weights.sentence if head == "none" else None,
        is_shifted=weights.is_shifted and head == "masked_lm",
    )


def _causal_side(weights: Pretrained) -> Pretrained:
    """Returns a hybrid model as a left-to-right model."""
    renamed = {
        f"lm_head.{path.removeprefix('mlm_head.')}" if path.startswith("mlm_head.") else path: array
        for path, array in weights.params.items()
    }
    sizes = dataclasses.replace(weights.config, left_to_right=True)
    return dataclasses.replace(weights, config=sizes, params=renamed, model_type="")


def for_sentences(weights: Pretrained, pooling: str | None, normalize: bool | None) -> Pretrained:
    """Returns the encoder as a model of sentence embeddings; None keeps the present value."""
    if weights.sentence is None and pooling is None:
        raise ValueError(
            f"{weights.source} was not trained for sentence embeddings: give --sentence_pooling, "
            "for example mean"
        )
    options = {"pooling": pooling, "normalize": normalize}
    changes = {name: value for name, value in options.items() if value is not None}
    sentence = weights.sentence or sentence_vectors.SentenceVectors()
    sentence = dataclasses.replace(sentence, **changes)
    return dataclasses.replace(select(weights, "none"), sentence=sentence)


def generator_of(weights: Pretrained, config: models.EncoderConfig) -> Pretrained:
    """Returns the generator as a separate model."""
    prefix, params = f"{embedding_sharing.GENERATOR}.", weights.params.items()
    return dataclasses.replace(
        weights,
        config=config,
        params={path.removeprefix(prefix): x for path, x in params if path.startswith(prefix)},
        head="masked_lm",
        unused=(*(path for path, _ in params if not path.startswith(prefix)), *weights.unused),
        generator=None,
    )


def sizes_of(
    shapes: Mapping[str, Sequence[int]], encoder: str, *, head_size: int
) -> dict[str, int]:
    """Returns the sizes of an encoder from the shapes of its parameters, by our paths.

    Attention heads are `head_size` wide; a narrower model has one.
    """
    layer = re.compile(rf"{re.escape(encoder)}\.layers\.(\d+)\.")
    numbers = {int(match[1]) for match in map(layer.match, shapes) if match}
    first = f"{encoder}.layers.{min(numbers, default=0)}"
    hidden, intermediate = shapes[f"{first}.intermediate.kernel"]
    sizes = {
        "hidden_size": hidden,
        "num_hidden_layers": len(numbers),
        "num_attention_heads": max(hidden // head_size, 1),
        "intermediate_size": intermediate,
    }
    tables = (("vocab_size", "word"), ("max_position_embeddings", "position"))
    for name, table in (*tables, ("type_vocab_size", "segment")):
        if shape := shapes.get(f"{encoder}.embeddings.{table}.embedding"):
            sizes[name] = shape[0]
            sizes["embedding_size"] = 0 if shape[1] == hidden else shape[1]
    return sizes


def named_labels(
    labels: Mapping[int, str], params: Mapping[str, np.ndarray], head: str
) -> Mapping[int, str]:
    """Returns the names of the head's classes: `labels`, or by default LABEL_0, LABEL_1, ...

    Without names transformers would assume two classes, and not load the classifier.
    """
    if labels or not heads.HEADS[head].has_labels or "classifier.bias" not in params:
        return labels
    return {number: f"LABEL_{number}" for number in range(params["classifier.bias"].size)}


def _labels(weights: Pretrained, head: str) -> Mapping[int, str]:
    """Returns the names of the head's classes."""
    if head != "multiple_choice":
        has_labels = heads.HEADS[head].has_labels
        return named_labels(weights.labels, weights.params, head) if has_labels else {}
    count = weights.params["classifier.bias"].size
    if count != 1:
        raise ValueError(
            f"the classifier of {weights.source} has {count} outputs for a sequence; the head "
            "'multiple_choice' needs one for each choice: choose another head"
        )
    return {}
