"""The one reader of saved models: a workdir or downloaded weights, ready for texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import ml_collections
from etils import epath
from flax import nnx
from jax.sharding import Mesh

from bertjax import jobs
from bertjax.convert import formats
from bertjax.convert import workdir as convert_workdir
from bertjax.data import languages
from bertjax.devices import sharding
from bertjax.files import json_text
from bertjax.finetuning import base as kinds
from bertjax.jobs import finetuning as finetuning_job
from bertjax.models import (
    containers,
    embedding_sharing,
    embeddings,
    encoder,
    parameters,
    sentence_encoder,
    sentence_vectors,
)
from bertjax.tasks import base as tasks_base
from bertjax.tasks import pretraining, replaced_tokens
from bertjax.tokenization import tokenizer
from bertjax.workdirs import checkpoint, reader, trained_positions

SHOWN_TRAININGS = 8
# Heads of pretraining whose task predicts hidden tokens or values.
PREDICTING = {"mlm_head", "lm_head", "value_head", "column_head", "replaced_head"}


class _Reads:
    """The vocabulary of a model that reads texts; one of values has none."""

    own_vocabulary: tokenizer.Tokenizer | None

    @property
    def vocabulary(self) -> tokenizer.Tokenizer:
        """The vocabulary; ValueError if the model reads values."""
        if self.own_vocabulary is None:
            raise ValueError(
                "the model reads values, not texts: give it records with --records=DIR, or arrays "
                "from Python"
            )
        return self.own_vocabulary


@dataclasses.dataclass(frozen=True)
class TrainedModel(_Reads):
    """A pretrained model, or the encoder of any other one.

    Its module has an `encoder`, and `masked_logits` if it `fills_masks`, or `replaced_logits` if it
    is ELECTRA's discriminator, or `projections` if it is a model for sentence embeddings that has
    any.

    params: whole on every device of `mesh`
    own_vocabulary: None for a model of values
    task: the pretraining task; None for an encoder alone
    sizes: of the encoder
    trained_length: number of positions that were trained; None if it is unknown
    sentence: how a model for sentence embeddings makes its vectors; None for all others
    languages: names of the languages that it has embeddings of, in their order
    language: name of the language of the texts, as chosen by `load` or `in_language`
    value_meaning: the columns or channels that it was trained on, and their scaling
    source, step: where it was read
    """

    graphdef: nnx.GraphDef
    params: parameters.Params
    own_vocabulary: tokenizer.Tokenizer | None
    max_length: int
    mesh: Mesh
    task: tasks_base.Task | None = None
    sizes: encoder.EncoderConfig | None = None
    trained_length: int | None = None
    sentence: sentence_vectors.SentenceVectors | None = None
    languages: tuple[str, ...] = ()
    language: str = ""
    value_meaning: str = ""
    source: str = ""
    step: int = 0

    @property
    def fills_masks(self) -> bool:
        # The head of an encoder-decoder belongs to the decoder.
        return "mlm_head" in self.params and "decoder" not in self.params

    def module(self) -> Any:
        """Returns the Flax module with its parameters, for other programs."""
        return parameters.merge(self.graphdef, self.params)

    def sha256(self) -> str:
        """Returns the hash of the parameters by which vectors are made."""
        parts = (part for part in ("encoder", "projections") if part in self.params)
        return parameters.sha256(parameters.flat({part: self.params[part] for part in parts}))


@dataclasses.dataclass(frozen=True)
class FinetunedModel(_Reads):
    """A finetuned model, with LoRA merged into its kernels.

    params: whole on every device of `mesh`
    options: config.finetuning, with the labels of the training files
    tuned: numbers tuned by evaluation, by the names of the options that they replace
    is_imported: whether another program finetuned it
    languages, language: as in a TrainedModel; by default the language that it was finetuned in
    """

    kind: kinds.FinetuningKind
    task: tasks_base.Task
    graphdef: nnx.GraphDef
    params: parameters.Params
    own_vocabulary: tokenizer.Tokenizer | None
    options: ml_collections.ConfigDict
    tuned: Mapping[str, float]
    mesh: Mesh
    is_imported: bool = False
    languages: tuple[str, ...] = ()
    language: str = ""
    value_meaning: str = ""


Model = TypeVar("Model", TrainedModel, FinetunedModel)


def in_language(model: Model, name: str) -> Model:
    """Returns the model for texts in a language; "" is the one that it was finetuned in.

    Batches need no `language` then.

    Raises:
      ValueError: as `languages.number_of`.
    """
    number = languages.number_of(name or model.language, model.languages, "--language")
    if number is None:
        return model
    module = parameters.merge(model.graphdef, model.params)
    for _, part in containers.iter_modules(module):
        if isinstance(part, embeddings.LearntEmbeddings):
            part.default_language = number
    graphdef, _ = parameters.split(module)
    return dataclasses.replace(model, language=model.languages[number], graphdef=graphdef)


def _chosen(model: Model, language: str | None) -> Model:
    """Returns the model in the language that is given, or that it was finetuned in, if any."""
    is_open = language is None and not model.language
    return model if is_open else in_language(model, language or "")


def load(
    workdir: epath.PathLike,
    *,
    step: str | int = "newest",
    generator: bool = False,
    language: str | None = None,
) -> TrainedModel:
    """Returns a checkpoint's model with its vocabulary: the newest, the best, or the one of a step.

    `language` is as in `in_language`, or None if batches name the language of their rows.

    Weights of other formats are read without a conversion. Weights without a pretraining head
    (converted, or finetuned) give the encoder alone. ELECTRA gives its discriminator, or with
    `generator` its generator, if it has one.

    Raises:
      FileNotFoundError: if `workdir` holds no such checkpoint, or no vocabulary (a synthetic run).
      ValueError, checkpoint.CheckpointError: as `workdirs.reader.read`.
    """
    saved = _read(workdir, step)
    params, sizes = saved.params, encoder.EncoderConfig(**saved.config.model)
    task, sentence = None, convert_workdir.sentence_vectors_of(saved)
    if generator and embedding_sharing.GENERATOR in params:
        sizes = replaced_tokens.generator_config(sizes, saved.config.pretraining.generator)
        params = params[embedding_sharing.GENERATOR]
        task = pretraining.Pretraining(sizes, pair_loss="none")
        graphdef, _ = tasks_base.abstract_model(task)
    elif PREDICTING & params.keys():
        task = jobs.JOBS[saved.config.task].task(saved.config)
        graphdef, _ = tasks_base.abstract_model(task)
    elif "rtd_head" in params:
        task = jobs.JOBS[saved.config.task].task(saved.config)
        graphdef = replaced_tokens.discriminator_graph(sizes)
        params = {part: params[part] for part in ("encoder", "rtd_head")}
    elif sentence is not None and sentence.projections:
        graphdef = _projecting_graph(sizes, sentence)
        params = {part: params[part] for part in ("encoder", "projections")}
    else:
        bare = nnx.eval_shape(lambda: encoder.make_bare(sizes, rngs=nnx.Rngs(0)))
        graphdef, _ = parameters.split(bare)
        params = {"encoder": params["encoder"]}
    model = TrainedModel(
        graphdef=graphdef,
        params=params,
        own_vocabulary=_vocabulary(saved),
        max_length=saved.config.model.max_position_embeddings,
        mesh=all_devices(),
        task=task,
        sizes=sizes,
        trained_length=trained_positions.number(saved),
        sentence=sentence,
        languages=_languages(saved.config),
        value_meaning=saved.config.data.value_meaning,
        source=str(saved.directory),
        step=saved.step,
    )
    return _chosen(model, language)


def _projecting_graph(
    sizes: encoder.EncoderConfig, sentence: sentence_vectors.SentenceVectors
) -> nnx.GraphDef:
    """Returns the static part of a model whose vectors go through dense layers."""

    def make() -> nnx.Module:
        return sentence_encoder.SentenceEncoder(
            sizes,
            pooling=sentence.pooling,
            normalize=sentence.normalize,
            projections=sentence.projections,
            rngs=nnx.Rngs(0),
        )

    return parameters.split(nnx.eval_shape(make))[0]


def load_finetuned(
    workdir: epath.PathLike, *, step: str | int = "newest", language: str | None = None
) -> FinetunedModel:
    """Returns a checkpoint's finetuned model with its vocabulary, also of converted weights.

    `language` is as in `load`.

    Raises:
      FileNotFoundError, checkpoint.CheckpointError: as `load`.
      ValueError: if it has no finetuned head, or as `load`.
    """
    saved = _read(workdir, step)
    config = saved.config
    kind = finetuning_job.kind_of(saved)
    if kind is None:
        raise ValueError(
            f"{workdir} holds a model of task {config.task!r}, which was not finetuned: "
            f"finetune it with --config.init_from={workdir}, or use "
            "`python -m bertjax.fill_mask` or `python -m bertjax.encode`"
        )
    config.finetuning.lora_rank = 0  # merged
    task = kind.task(encoder.EncoderConfig(**config.model), config.finetuning)
    graphdef, shapes = tasks_base.abstract_model(task)
    model = FinetunedModel(
        kind=kind,
        task=task,
        graphdef=graphdef,
        # Converted weights may have more than the task, such as the pooler of TensorFlow's.
        params={part: saved.params[part] for part in shapes},
        own_vocabulary=_vocabulary(saved),
        options=config.finetuning,
        tuned=saved.meta.get("tuned", {}),  # converted weights have none
        mesh=all_devices(),
        is_imported=config.task != "finetuning",
        languages=_languages(config),
        language=config.finetuning.language,
        value_meaning=config.data.value_meaning,
    )
    return _chosen(model, language)


def _vocabulary(saved: reader.Description) -> tokenizer.Tokenizer | None:
    """Returns the vocabulary of a model that reads texts, None for one of values."""
    reads_values = encoder.EncoderConfig(**saved.config.model).reads_values
    return None if reads_values else saved.needed_vocabulary()


def _languages(config: ml_collections.ConfigDict) -> tuple[str, ...]:
    return languages.names_of(config.model.language_embeddings, config.data.languages)


def all_devices() -> Mesh:
    """Returns a mesh that splits rows over all devices."""
    return sharding.make_mesh(jax.devices(), data=-1)


def _trainings(workdir: epath.Path) -> list[str]:
    """Returns the names of the directories in a directory that are workdirs with checkpoints."""
    paths = workdir.iterdir() if workdir.is_dir() else ()
    inside = [path.name for path in paths if (path / checkpoint.DIRECTORY).is_dir()]
    return sorted(inside, key=lambda name: (len(name), name))  # seed_2 before seed_10


def _best_of(workdir: epath.PathLike, trainings: Sequence[str]) -> str:
    """Returns the training with the best score, or the first one before there are results."""
    path = epath.Path(workdir) / reader.RESULTS_FILE
    best = json_text.read_object(path)["best"]["name"] if path.exists() else trainings[0]
    return best if best in trainings else trainings[0]


def _read(workdir: epath.PathLike, step: str | int) -> reader.Workdir:
    """Returns the workdir's model; a missing vocabulary is found before parameters are read."""
    described = reader.describe(workdir)
    if described is not None:
        _vocabulary(described)
    elif trainings := _trainings(epath.Path(workdir)):
        raise FileNotFoundError(
            f"{workdir} holds no checkpoint itself, but {len(trainings)} trainings: "
            f"{', '.join(trainings[:SHOWN_TRAININGS])}{' ...' * (len(trainings) > SHOWN_TRAININGS)}"
            f"; give one of them: --checkpoint={epath.Path(workdir) / _best_of(workdir, trainings)}"
        )
    elif _has_foreign_weights(workdir):
        return _foreign_weights(workdir, step)
    return reader.read(workdir, step=step, mesh=all_devices())


def _has_foreign_weights(path: epath.PathLike) -> bool:
    """Returns whether the path holds weights of another format, such as transformers'."""
    try:
        return formats.recognize(path) != "bertjax"
    except (FileNotFoundError, ValueError):
        return False


def _foreign_weights(path: epath.PathLike, step: str | int) -> reader.Workdir:
    """Returns weights of another format as a workdir after a conversion."""
    if step != checkpoint.NEWEST:
        raise ValueError(f"--step={step} chooses a checkpoint of a workdir; {path} is none")
    saved = convert_workdir.as_workdir(formats.read(path), path)
    _vocabulary(saved)
    everywhere = jax.sharding.NamedSharding(all_devices(), sharding.P())
    return dataclasses.replace(saved, params=jax.device_put(saved.params, everywhere))
