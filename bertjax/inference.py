"""A trained model read from a workdir, ready for texts: for fill_mask, encode and predict."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from absl import flags
from etils import epath
from flax import nnx
from jax.sharding import Mesh

from bertjax import jobs
from bertjax.convert import formats
from bertjax.convert import workdir as convert_workdir
from bertjax.data import tokenizer
from bertjax.devices import sharding
from bertjax.finetuning import base as kinds
from bertjax.jobs import finetuning as finetuning_job
from bertjax.models import embedding_sharing, encoder, parameters, sentence_vectors
from bertjax.tasks import base as tasks_base
from bertjax.tasks import pretraining, replaced_tokens
from bertjax.training import trials
from bertjax.workdirs import checkpoint, reader, trained_positions

RESULTS_FILE = trials.RESULTS_FILE
SHOWN_TRAININGS = 8


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """The parts of a run that are needed to use its model.

    Its module has an `encoder`; and `mlm_logits`, if it `fills_masks`, or `replaced_logits`, if it
    is ELECTRA's discriminator. `task` is what it was trained for, None of an encoder alone.
    `params` lie whole on every device of `mesh`. `trained_length` is how many positions were
    trained, None: nobody knows. `sentence` says how a model for sentence embeddings makes its
    vectors, None of all others. `source` and `step` say where it was read.
    """

    graphdef: nnx.GraphDef
    params: parameters.Params
    vocabulary: tokenizer.Tokenizer
    max_length: int
    mesh: Mesh
    task: tasks_base.Task | None = None
    trained_length: int | None = None
    sentence: sentence_vectors.SentenceVectors | None = None
    source: str = ""
    step: int = 0

    @property
    def fills_masks(self) -> bool:
        return "mlm_head" in self.params

    def module(self) -> Any:
        """Returns the Flax module with its parameters, for other programs."""
        return parameters.merge(self.graphdef, self.params)

    def sha256(self) -> str:
        """Returns the hash of the encoder's parameters, whose vectors are the same by it."""
        return parameters.sha256(parameters.flat({"encoder": self.params["encoder"]}))


@dataclasses.dataclass(frozen=True)
class FinetunedModel:
    """A finetuned model, with LoRA merged into its kernels, and what its answers mean.

    `options` are config.finetuning, with the labels that training found; `tuned` the numbers that
    its evaluation tuned, by the names of the options in whose place they are. `params` lie whole on
    every device of `mesh`. `is_imported` says that others finetuned it.
    """

    kind: type[kinds.Kind]

    task: tasks_base.Task
    graphdef: nnx.GraphDef
    params: parameters.Params
    vocabulary: tokenizer.Tokenizer
    options: ml_collections.ConfigDict
    tuned: Mapping[str, float]
    mesh: Mesh
    is_imported: bool = False


def load(
    workdir: epath.PathLike, *, step: str | int = "newest", generator: bool = False
) -> TrainedModel:
    """Returns a checkpoint's model with its vocabulary: the newest, the best, or that of a step.

    Weights of other formats are read where they lie, without a conversion. Weights without a head
    of pretraining (converted, or finetuned) give the encoder alone. Of
    ELECTRA it is the discriminator, or with `generator`, where there is one, the generator.

    Raises:
      FileNotFoundError: if `workdir` holds no such checkpoint, or no vocabulary (a synthetic run).
      ValueError, checkpoint.CheckpointError: as `workdirs.reader.read`.
    """
    found = _read(workdir, step)
    params, sizes = found.params, encoder.EncoderConfig(**found.config.model)
    task = None
    if generator and embedding_sharing.GENERATOR in params:
        sizes = replaced_tokens.generator_config(sizes, found.config.pretraining.generator)
        params = params[embedding_sharing.GENERATOR]
        task = pretraining.Pretraining(sizes, pair_loss="none")
        graphdef, _ = tasks_base.abstract_model(task)
    elif "mlm_head" in params or "lm_head" in params:
        task = jobs.JOBS[found.config.task].task(found.config)
        graphdef, _ = tasks_base.abstract_model(task)
    elif "rtd_head" in params:
        task = jobs.JOBS[found.config.task].task(found.config)
        graphdef = replaced_tokens.discriminator_graph(sizes)
        params = {part: params[part] for part in ("encoder", "rtd_head")}
    else:
        graphdef, _ = parameters.split(
            nnx.eval_shape(lambda: encoder.make_bare(sizes, rngs=nnx.Rngs(0)))
        )
        params = {"encoder": params["encoder"]}
    return TrainedModel(
        graphdef=graphdef,
        params=params,
        vocabulary=found.needed_vocabulary(),
        max_length=found.config.model.max_position_embeddings,
        mesh=all_devices(),
        task=task,
        trained_length=trained_positions.number(found),
        sentence=convert_workdir.sentence_vectors_of(found),
        source=str(found.directory),
        step=found.step,
    )


def load_finetuned(workdir: epath.PathLike, *, step: str | int = "newest") -> FinetunedModel:
    """Returns a checkpoint's finetuned model with its vocabulary, one that was converted as well.

    Raises:
      FileNotFoundError, checkpoint.CheckpointError: as `load`.
      ValueError: if it has no head that answers, or as `load`.
    """
    found = _read(workdir, step)
    config = found.config
    is_imported = config.task != "finetuning"
    kind = finetuning_job.kind_of(found)
    if kind is None:
        raise ValueError(
            f"{workdir} holds a model of task {found.config.task!r}, which was not finetuned: "
            f"finetune it with --config.init_from={workdir}, or use "
            "`python -m bertjax.fill_mask` or `python -m bertjax.encode`"
        )
    config.finetuning.lora_rank = 0  # merged
    task = kind.task(encoder.EncoderConfig(**config.model), config.finetuning)
    graphdef, shapes = tasks_base.abstract_model(task)
    return FinetunedModel(
        kind=kind,
        task=task,
        graphdef=graphdef,
        # Converted weights may have more than the task, such as the pooler of TensorFlow's.
        params={part: found.params[part] for part in shapes},
        vocabulary=found.needed_vocabulary(),
        options=config.finetuning,
        tuned=found.meta.get("tuned", {}),  # converted weights have none
        mesh=all_devices(),
        is_imported=is_imported,
    )


def all_devices() -> Mesh:
    """Returns the mesh of a program that uses a model: rows over all devices."""
    return sharding.make_mesh(jax.devices(), data=-1)


def define_flags(checkpoint_help: str) -> None:
    """Defines --checkpoint and --step, which all programs that use a model have."""
    flags.DEFINE_string("checkpoint", None, checkpoint_help, required=True)
    flags.DEFINE_string("step", "newest", "Which checkpoint: newest, best, or the number of one.")


def _trainings(workdir: epath.Path) -> list[str]:
    """Returns the names of the directories in a directory that are workdirs with checkpoints."""
    if not workdir.is_dir():
        return []
    inside = [path for path in workdir.iterdir() if (path / checkpoint.DIRECTORY).is_dir()]
    # seed_2 before seed_10.
    return sorted((path.name for path in inside), key=lambda name: (len(name), name))


def _best_of(workdir: epath.PathLike, trainings: Sequence[str]) -> str:
    """Returns the training with the best score where there are results, else the first."""
    path = epath.Path(workdir) / RESULTS_FILE
    best = json.loads(path.read_text())["best"]["name"] if path.exists() else trainings[0]
    return best if best in trainings else trainings[0]


def check_numbers(outputs: Any, of_what: str) -> None:
    """Raises a ValueError if one of the model's outputs, a tree of arrays, is no finite number."""
    arrays = (np.asarray(leaf) for leaf in jax.tree.leaves(outputs))
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError(
            f"the model's outputs for {of_what} hold NaN or infinite numbers, which are no answer: "
            "its weights are damaged or have diverged; take another checkpoint (--step), or the "
            "weights that it was made from"
        )


def _read(workdir: epath.PathLike, step: str | int) -> reader.Workdir:
    """Returns the workdir's model, before any time is spent on parameters if it reads no text."""
    described = reader.describe(workdir)
    if described is not None:
        described.needed_vocabulary()
    elif trainings := _trainings(epath.Path(workdir)):
        raise FileNotFoundError(
            f"{workdir} holds no checkpoint itself, but {len(trainings)} trainings: "
            f"{', '.join(trainings[:SHOWN_TRAININGS])}{' ...' * (len(trainings) > SHOWN_TRAININGS)}"
            f"; give one of them: --checkpoint={epath.Path(workdir) / _best_of(workdir, trainings)}"
        )
    elif _is_of_others(workdir):
        return _of_others(workdir, step)
    return reader.read(workdir, step=step, mesh=all_devices())


def _is_of_others(path: epath.PathLike) -> bool:
    """Returns whether weights of another format lie there, such as a directory of transformers."""
    try:
        return formats.recognize(path) != "bertjax"
    except (FileNotFoundError, ValueError):
        return False


def _of_others(path: epath.PathLike, step: str | int) -> reader.Workdir:
    """Returns weights of another format as if they had been converted into a workdir.

    Raises:
      FileNotFoundError, ValueError: as `formats.read`, without a vocabulary, or for a `step`.
    """
    if step != checkpoint.NEWEST:
        raise ValueError(f"--step={step} chooses a checkpoint of a workdir; {path} is none")
    found = convert_workdir.as_workdir(formats.read(path), path)
    found.needed_vocabulary()
    everywhere = jax.sharding.NamedSharding(all_devices(), sharding.P())
    return dataclasses.replace(found, params=jax.device_put(found.params, everywhere))


def warn_beyond_trained(longest: int, model: TrainedModel) -> None:
    """Warns once of rows of `longest` tokens if the model was trained on shorter ones."""
    if model.trained_length is not None and longest > model.trained_length:
        _warn_of_long_texts(model.trained_length, model.max_length)


@functools.cache  # once in a program, not for each batch
def _warn_of_long_texts(trained: int, max_length: int) -> None:
    trained_positions.warn_beyond(trained, max_length, f"texts of more than {trained} tokens")


def padded_length(length: int, model: TrainedModel) -> int:
    """Returns how long a row of so many tokens becomes: few lengths, so few programs."""
    return min(-(-length // 32) * 32, model.max_length)


def single_segment_batch(
    sequences: Sequence[Sequence[int]], model: TrainedModel
) -> dict[str, np.ndarray]:
    """Returns [CLS] tokens [SEP] rows, padded to a multiple of 32: few programs are compiled.

    Raises:
      ValueError: if a sequence is longer than the model can read.
    """
    longest = max(len(sequence) for sequence in sequences) + 2
    if longest > model.max_length:
        raise ValueError(
            f"a text has {longest} tokens with [CLS] and [SEP]; the model reads at most "
            f"{model.max_length}: shorten it or split it"
        )
    warn_beyond_trained(longest, model)
    length = padded_length(longest, model)
    vocabulary = model.vocabulary
    input_ids = np.full((len(sequences), length), vocabulary.pad_id, np.int32)
    input_mask = np.zeros_like(input_ids)
    for row, sequence in enumerate(sequences):
        tokens = [vocabulary.cls_id, *sequence, vocabulary.sep_id]
        input_ids[row, : len(tokens)] = tokens
        input_mask[row, : len(tokens)] = 1
    return {
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": np.zeros_like(input_ids),
    }
