"""Whom a student learns from: the weights at config.distillation.teacher, read and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import ml_collections
import numpy as np
from absl import logging

from bertjax import config as config_lib
from bertjax.convert import formats, pretrained
from bertjax.data import languages
from bertjax.jobs import sources
from bertjax.models import encoder, parameters
from bertjax.options import faults as faults_lib
from bertjax.tasks import base as tasks
from bertjax.tokenization import tokenizer


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A teacher's parameters, nested, as NumPy arrays or, for an abstract job, as shapes.

    `task` is what it was trained for, at its own sizes; `source` says where it was read. `sha256`
    covers names and values ("" for shapes): by it a resumed run recognizes its teacher.
    """

    task: Any
    encoder: encoder.EncoderConfig
    params: parameters.Params = dataclasses.field(repr=False)
    source: str
    sha256: str


def sizes_of(config: ml_collections.ConfigDict) -> encoder.EncoderConfig:
    """Returns the teacher's sizes, computed with as the student is."""
    option = "config.distillation.teacher"
    sizes = sources.read(option, config.distillation.teacher, formats.describe).config
    return _as_student(sizes, config)


def abstract(config: ml_collections.ConfigDict, task: tasks.Task) -> Teacher:
    """Returns the teacher of a job that is planned: no parameter is read."""
    sizes, path = sizes_of(config), config.distillation.teacher
    return Teacher(task, sizes, tasks.abstract_model(task)[1], path, "")


def read(
    config: ml_collections.ConfigDict,
    task: tasks.Task,
    *,
    head: str | None,
    vocabulary: tokenizer.Tokenizer | None,
    labels: tuple[str, ...] = (),
) -> Teacher:
    """Returns the teacher with the model of `task`, which has the teacher's sizes.

    `head` None means the head of the weights. `vocabulary` belongs to the student's data, and
    `labels` name the classes of its head.
    """
    path = config.distillation.teacher
    weights = formats.read(path, head=head)
    shapes = parameters.flat(tasks.abstract_model(task)[1])
    sizes = _as_student(weights.config, config)
    faults = [
        *_size_faults(config, sizes),
        *sources.vocabulary_faults(weights.vocabulary, vocabulary, weights.source),
        *_language_faults(config, weights),
    ]
    theirs = tuple(weights.labels[n] for n in sorted(weights.labels))
    if labels and theirs != labels:
        faults.append(
            f"its labels are {', '.join(theirs) or 'none'}, the data's {', '.join(labels)}: they "
            "must be the same, in the same order (config.finetuning.labels)"
        )
    for name, shape in shapes.items():
        if name not in weights.params:
            faults.append(f"it lacks the parameter {name}")
        elif weights.params[name].shape != shape.shape:
            faults.append(f"{name} has shape {weights.params[name].shape}, expected {shape.shape}")
        elif not np.isfinite(weights.params[name]).all():
            faults.append(f"{name} holds NaN or infinite values")
    title = f"config.distillation.teacher, {weights.source}, cannot teach this run"
    faults_lib.check(title, faults)
    params = {name: np.asarray(weights.params[name], np.float32) for name in shapes}
    logging.info("Learning from %s, %s values", weights.source, f"{weights.num_parameters:,}")
    sha256 = parameters.sha256(params)
    return Teacher(task, sizes, parameters.nested(params), weights.source, sha256)


def _as_student(
    sizes: encoder.EncoderConfig, config: ml_collections.ConfigDict
) -> encoder.EncoderConfig:
    # How a product is computed is the run's choice. A teacher has no backward pass to save for.
    names = ("dtype", "gradient_reduction_dtype", "attention")
    return dataclasses.replace(sizes, **{it: config.model[it] for it in names}, remat="none")


def _size_faults(
    config: ml_collections.ConfigDict, teacher: encoder.EncoderConfig
) -> Iterator[str]:
    names = config_lib.phase_names(config)
    longest = max((config.phases[name].max_seq_length for name in names), default=0)
    if longest > teacher.max_position_embeddings:
        yield (
            f"the longest phase has max_seq_length {longest}, the teacher reads at most "
            f"{teacher.max_position_embeddings} positions: shorten the phase"
        )
    if config.task != "pretraining":
        return
    if teacher.vocab_size != config.model.vocab_size:
        yield (
            f"config.model.vocab_size is {config.model.vocab_size}, the teacher has "
            f"{teacher.vocab_size} rows: --config.model.vocab_size={teacher.vocab_size}"
        )
    if config.distillation.cosine_weight and teacher.hidden_size != config.model.hidden_size:
        yield (
            f"config.model.hidden_size is {config.model.hidden_size}, the teacher's is "
            f"{teacher.hidden_size}: their states have no angle, --config.distillation."
            "cosine_weight=0"
        )


def _language_faults(
    config: ml_collections.ConfigDict, teacher: pretrained.Pretrained
) -> Iterator[str]:
    theirs = languages.names_of(teacher.config.language_embeddings, teacher.languages)
    ours = languages.names_of(config.model.language_embeddings, config.data.languages)
    if theirs and (not ours or (teacher.languages and theirs[: len(ours)] != ours)):
        yield (
            f"its embeddings are of the languages {', '.join(theirs)}, the student's of "
            f"{', '.join(ours) or 'none'}: a row has one number for both, so the student's must be "
            "the same, in the same order"
        )


def student_values(
    teacher: Teacher, student: encoder.EncoderConfig, layers: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Returns a student's first values: the teacher's embeddings, head and chosen layers.

    `layers` are the teacher's, one for each of the student's; without any they are spread evenly
    from the first to the last, as DistilBERT's 6 of 12: 0, 2, 4, 7, 9, 11. Where the student has
    no segments, the teacher's first is added to every position: its inputs then equal a teacher's
    that reads one segment. (The released script drops it.)
    Source: Sanh et al. 2019, section 3; transformers, examples/research_projects/distillation,
    scripts/extract_distilbert.py.
    """
    chosen = layers or spread(teacher.encoder.num_hidden_layers, student.num_hidden_layers)
    faults_lib.check(
        f"the student cannot start from its teacher, {teacher.source} (change these, or start "
        "afresh: --config.distillation.starts_student=False)",
        _start_faults(teacher.encoder, student, chosen),
    )
    own = parameters.flat(teacher.params)
    values = {name: array for name, array in own.items() if ".layers." not in name}
    segments = values.get("encoder.embeddings.segment.embedding")
    if segments is not None and not student.type_vocab_size:
        del values["encoder.embeddings.segment.embedding"]
        name = "encoder.embeddings.position.embedding"
        values[name] = values[name] + segments[:1]
    for place, layer in enumerate(chosen):
        start = f"encoder.layers.{layer}."
        values |= {
            f"encoder.layers.{place}.{name.removeprefix(start)}": array
            for name, array in own.items()
            if name.startswith(start)
        }
    return values


def spread(of_teacher: int, of_student: int) -> tuple[int, ...]:
    """Returns layers of the teacher at even distances, the first and the last among them."""
    step = (of_teacher - 1) / max(of_student - 1, 1)
    return tuple(round(place * step) for place in range(of_student))


# Fields of EncoderConfig in which a student that starts from its teacher may differ from it.
_OWN = (
    "num_hidden_layers", "type_vocab_size", "pooler_act", "hidden_dropout_prob", "remat",
    "attention_probs_dropout_prob", "initializer_range", "initializer",
)  # fmt: skip


def _start_faults(
    teacher: encoder.EncoderConfig, student: encoder.EncoderConfig, layers: tuple[int, ...]
) -> Iterator[str]:
    for field in dataclasses.fields(teacher):
        theirs, ours = getattr(teacher, field.name), getattr(student, field.name)
        if field.name not in _OWN and theirs != ours:
            yield (
                f"config.model.{field.name} is {ours!r}, the teacher has {theirs!r}: "
                f"--config.model.{field.name}={theirs}"
            )
    if teacher.num_groups != teacher.num_hidden_layers:
        yield "the teacher's layers share their parameters: there are none to choose from"
    # Without segments the first goes into the table of positions.
    may_be_none = teacher.position_embedding == "learnt"
    if student.type_vocab_size not in (teacher.type_vocab_size, *[0] * may_be_none):
        must = f"the teacher's {teacher.type_vocab_size}" + " or 0" * may_be_none
        yield str(faults_lib.wrong("config.model.type_vocab_size", student.type_vocab_size, must))
    if len(layers) != student.num_hidden_layers:
        yield (
            f"config.distillation.layers has {len(layers)} numbers; the student has "
            f"{student.num_hidden_layers} layers"
        )
    if any(not 0 <= layer < teacher.num_hidden_layers for layer in layers):
        yield (
            f"config.distillation.layers is {layers}; the teacher's are 0 to "
            f"{teacher.num_hidden_layers - 1}"
        )
