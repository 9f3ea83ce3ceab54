"""The reader of a workdir: parameters, config, vocabulary and the checkpoint they belong to.

Programs that use a model, conversion, warm starts and finetuning read workdirs through this file;
only a resumed run restores its state through `checkpoint.Checkpointer`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections
from etils import epath
from jax.sharding import Mesh

from bertjax import config as config_lib
from bertjax.data import records
from bertjax.files import atomic
from bertjax.models import embedding_sharing, encoder_config, lora, parameters
from bertjax.tokenization import tokenizer
from bertjax.workdirs import checkpoint

VOCABULARY_DIRECTORY = "vocabulary"  # in the workdir
TRAINING_DATA_DIRECTORY = "training_data"  # in the workdir: contents.npz of the training records
RESULTS_FILE = "results.json"  # of several trainings: their scores
START_FILE = "start.json"  # of `bertjax start`, in the folder of the workdir
CONFIG_FILE = "config.json"  # for people: programs read the config in the checkpoint


@dataclasses.dataclass(frozen=True)
class Description:
    """A workdir's model without its parameters.

    `config` is resolved: it has sizes, labels and dtype, and the model of the step. `meta`
    is the checkpoint's meta item, `step` its step. `vocabulary` is None after training on random
    tokens, or if converted weights had none.
    """

    config: ml_collections.ConfigDict
    meta: Mapping[str, Any]
    step: int
    vocabulary: tokenizer.Tokenizer | None
    directory: epath.Path

    def identity(self, name: str) -> Any:
        """Returns the `manifests` or the `tokenizer_sha256` of the data of the run."""
        try:
            return self.meta["identity"][name]
        except KeyError as error:
            raise checkpoint.CheckpointError(
                f"the meta item of step {self.step} in {self.directory / checkpoint.DIRECTORY} "
                f"lacks {error}, which says what the run was trained on: it is damaged"
            ) from error

    def located(self, path: str) -> str:
        """Returns where a path of the config is, for a program that runs in another folder.

        A relative path that does not exist here is looked for in the folders above the workdir, the
        nearest first.
        """
        if not path or epath.Path(path).exists():
            return path
        folders = epath.Path(self.directory).resolve().parents
        places = [folder / path for folder in folders]
        return str(next((it for it in places if it.exists()), path))

    def needed_vocabulary(self) -> tokenizer.Tokenizer:
        """Returns the vocabulary, or raises a FileNotFoundError that says why it is missing."""
        if self.vocabulary is None:
            raise FileNotFoundError(
                f"{self.directory / VOCABULARY_DIRECTORY} does not exist: a run on synthetic data, "
                "or weights that came without their vocabulary, cannot read text"
            )
        return self.vocabulary


@dataclasses.dataclass(frozen=True)
class Workdir(Description):
    """A workdir's model with its parameters.

    `params` is a nested dict; LoRA is merged into kernels, and both encoders have the embeddings
    that they share.
    """

    params: parameters.Params


def read(
    workdir: epath.PathLike,
    *,
    step: str | int = "newest",
    ema: bool | None = None,
    mesh: Mesh | None = None,
) -> Workdir:
    """Returns the model of one checkpoint: "newest", "best" (by the score of keep_best), or a step.

    `ema` chooses the average of the parameters; None: what the run evaluated. Parameters are
    replicated on the devices of `mesh`, or NumPy arrays without one.
    """
    params, meta, chosen_step = checkpoint.load_params(workdir, step, ema=ema)
    description = _description(workdir, meta, chosen_step)
    if "lora" in params:
        params = lora.merge(params, alpha=description.config.finetuning.lora_alpha)
    params = embedding_sharing.apart(params)
    if mesh is not None:
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        params = jax.device_put(params, everywhere)
    return Workdir(**vars(description), params=dict(params))


def describe(workdir: epath.PathLike) -> Description | None:
    """Returns the description in the newest readable meta item, None without a checkpoint.

    It reads no parameters.
    """
    newest = checkpoint.read_meta(workdir)
    return None if newest is None else _description(workdir, *newest)


def training_records(trained: Description) -> dict[str, records.RecordSet]:
    """Returns the records of each phase of a run, {} unless all are where they were, unchanged."""
    record_sets = {}
    for phase, digest in trained.identity("manifests").items():
        length = trained.config.phases[phase].max_seq_length
        train_dir = records.directory_of(trained.config.data.train_dir, length)
        directory = epath.Path(trained.located(train_dir))
        try:
            manifest = records.Manifest.load(directory)
        except (FileNotFoundError, ValueError):
            return {}
        if manifest.digest != digest:
            return {}
        record_sets[phase] = records.RecordSet(directory, manifest)
    return record_sets


def config_of(meta: Mapping[str, Any], step: int) -> ml_collections.ConfigDict:
    """Returns the resolved config of a checkpoint's meta item, and of its step.

    It has the model of the phase in which the step was taken. An attention of "auto", which a run
    tries on its own devices, becomes plain JAX: a reader tries no kernels, and may have others.
    """
    config = ml_collections.ConfigDict(config_lib.completed(meta["config"]))
    config = config_lib.in_phase(config, config_lib.phase_at(config, step))
    if config.model.attention == "auto":
        config.model.attention = "xla"
    return config


def write_config(config: Mapping[str, Any], workdir: epath.PathLike) -> None:
    """Writes a config for people to read."""
    directory = epath.Path(workdir)
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2, sort_keys=True)
    atomic.write(directory / CONFIG_FILE, text + "\n")


def _description(workdir: epath.PathLike, meta: Mapping[str, Any], step: int) -> Description:
    directory = epath.Path(workdir)
    place = f"the meta item of step {step} in {directory / checkpoint.DIRECTORY}"
    try:
        config = config_of(meta, step)
        faults = "; ".join(map(str, encoder_config.type_faults(config.model.to_dict())))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise checkpoint.CheckpointError(f"{place} holds no config of a run: {error!r}") from error
    if faults:
        raise checkpoint.CheckpointError(f"{place} holds no config of a run: {faults}")
    path = directory / VOCABULARY_DIRECTORY
    vocabulary = tokenizer.load(path) if path.exists() else None
    tokenizer.check_table(vocabulary, config.model.vocab_size, str(directory))
    return Description(config, meta, step, vocabulary, directory)
