"""Finetuning as a job: a data set, the weights that are started from, and the task between them.

What differs from one kind of data set to another belongs to `bertjax.finetuning`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from absl import logging
from etils import epath

from bertjax import config as config_lib
from bertjax import finetuning
from bertjax.convert import formats
from bertjax.data import padding
from bertjax.data import tokenizer as tokenizers
from bertjax.finetuning import base as kinds
from bertjax.finetuning import batches, distilled, epochs, feature_sets, imported, low_rank
from bertjax.jobs import base, lengths, teachers
from bertjax.models import encoder
from bertjax.tasks import distillation
from bertjax.workdirs import reader


def finetuning_task(config: ml_collections.ConfigDict) -> kinds.FinetuningTask:
    """Returns the task of a resolved config (sizes, labels and dtype known)."""
    sizes, options = encoder.EncoderConfig(**config.model), config.finetuning
    task = finetuning.KINDS[options.dataset].task(sizes, options)
    return low_rank.with_factors(task, options)


def _taught_task(
    config: ml_collections.ConfigDict, teacher: teachers.Teacher
) -> kinds.FinetuningTask:
    """Returns the task that learns the teacher's answers too."""
    sizes, options = encoder.EncoderConfig(**config.model), config.finetuning
    kind = finetuning.KINDS[options.dataset]
    task = kind.taught(sizes, options, teacher.task) or distilled.Distilled(
        kind.task(sizes, options), teacher.task, distillation.of_config(config.distillation)
    )
    return low_rank.with_factors(task, options)


# What a model of ours tells of its head. One of others has the released code's.
_HEAD_OPTIONS = ("pooling", "bilstm_size", "feature_based", "normalize")


def _teacher_options(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns config.finetuning with the head that the teacher has."""
    path, told = config.distillation.teacher, config_lib.default_config().finetuning
    if finetuning.KINDS[config.finetuning.dataset].teacher_has_own_head:
        told = config.finetuning
    found = reader.describe(epath.Path(path)) if formats.recognize(path) == "bertjax" else None
    if found is not None and found.config.task == "finetuning":
        told = found.config.finetuning
    options = config.finetuning.copy_and_resolve_references()
    options.update({name: told[name] for name in _HEAD_OPTIONS})
    return options


def _teacher_task(
    config: ml_collections.ConfigDict, options: ml_collections.ConfigDict
) -> kinds.FinetuningTask:
    return finetuning.KINDS[options.dataset].task(teachers.sizes_of(config), options)


def _read_teacher(
    config: ml_collections.ConfigDict, vocabulary: tokenizers.Tokenizer
) -> teachers.Teacher | None:
    if not config.distillation.teacher:
        return None
    options = _teacher_options(config)
    kind = finetuning.KINDS[options.dataset]
    return teachers.read(
        config,
        _teacher_task(config, options),
        # A head that no format has is read whole: to ask for another would leave out parts of it.
        head=None if kind.only_here(options, config.model.pooler) else kind.head(options),
        vocabulary=vocabulary,
        labels=tuple(options.labels),
    )


@dataclasses.dataclass(frozen=True)
class FinetuningData:
    """The rows of a data set in batches.

    `dataset` and `tokenizer` are None for the outline of a job, which has shapes and no batches.
    """

    config: ml_collections.ConfigDict
    dataset: kinds.Kind | None
    tokenizer: tokenizers.Tokenizer | None

    @property
    def buckets(self) -> tuple[int, ...]:
        """The lengths that batches are padded to."""
        return _buckets(self.config.finetuning)

    @functools.cached_property
    def _train_sha256(self) -> str:
        return _digest(self._dataset().features(kinds.TRAIN))

    def identity(self) -> dict[str, Any]:
        """Returns hashes of the vocabulary and of the rows trained on, wherever the files lie."""
        return {
            "manifests": {},
            "tokenizer_sha256": self.tokenizer.describe()["sha256"] if self.tokenizer else None,
            "train_sha256": self._train_sha256,
        }

    def train_batches(
        self, phase: lengths.Phase, *, start_step: int, rows: range | None
    ) -> base.Batches:
        return batches.train_batches(
            self._dataset().features(kinds.TRAIN),
            global_batch_size=phase.global_batch_size,
            seed=self.config.seed,
            start_step=start_step - phase.first_step,
            buckets=self.buckets,
            rows=rows,
        )

    def evaluation_batches(self, name: str, *, batch_size: int, rows: range | None) -> base.Batches:
        dataset = self._dataset()
        known = (*dataset.evaluation_sets, *dataset.test_sets)
        if name not in known:
            raise ValueError(f"the set is {name!r}; known are {', '.join(known) or 'none'}")
        return batches.evaluation_batches(
            dataset.features(name), batch_size=batch_size, buckets=self.buckets, rows=rows
        )

    def num_train_examples(self, phase: lengths.Phase) -> int | None:
        return self.dataset.features(kinds.TRAIN).epoch_size if self.dataset else None

    def num_examples(self, name: str) -> int:
        return len(self._dataset().examples(name))

    def abstract_batch(self, phase: lengths.Phase) -> dict[str, jax.ShapeDtypeStruct]:
        options = self.config.finetuning
        return finetuning.KINDS[options.dataset].batch_shapes(
            options, phase.global_batch_size, phase.max_seq_length
        )

    def token_mask(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        return batch["input_mask"]

    def batch_lengths(self, phase: lengths.Phase) -> tuple[int, ...]:
        """Returns the lengths that the rows of batches have, the longest last."""
        del phase
        return self.buckets

    def fill(self, phase: lengths.Phase) -> float | None:
        del phase  # Where lengths are bucketed it is that of each batch.
        return None

    def chance_loss(self, phase: lengths.Phase) -> tuple[str, float] | None:
        return None

    def contents(self) -> None:
        return None

    def vocabulary(self) -> tokenizers.Tokenizer | None:
        return self.tokenizer

    def _dataset(self) -> kinds.Kind:
        if self.dataset is None:
            raise ValueError("this is the outline of a job; it has no data")
        return self.dataset


def open_job(
    config: ml_collections.ConfigDict, workdirs: Sequence[epath.PathLike] = ()
) -> base.Job:
    """Returns the job after reading config.init_from's sizes and vocabulary, and the data.

    Once one of `workdirs` holds a checkpoint, they are read there: it is enough to resume. What the
    files hold is filled in: sizes of the model, labels, steps of the phase and of the warm-up. All
    sets are read here, so that a fault in them is told first.

    Raises:
      FileNotFoundError: if there are no weights or a file is missing.
      ValueError: if an option is missing or unknown, the weights have no vocabulary or read too few
        positions, or a file is not as it must be.
    """
    config = config.copy_and_resolve_references()
    sizes, vocabulary = _found(config, workdirs)
    config.model.update(
        {name: sizes[name] for name in config.model if name not in base.OWN_MODEL_OPTIONS}
    )
    _check_length(config)
    dataset = finetuning.KINDS[config.finetuning.dataset](config.finetuning, vocabulary)
    dataset.check()
    training = dataset.features(kinds.TRAIN)
    _check_order(config)
    for name in dataset.evaluation_sets:
        dataset.features(name)
        logging.info("Evaluation set %s: %d examples", name, len(dataset.examples(name)))
    for name in dataset.test_sets:
        dataset.examples(name)
        logging.info("Test set %s is read; the model will answer it at the end", name)
    options = config.finetuning
    options.update(dataset.found)
    config.phases.phase1.max_seq_length = options.max_seq_length
    config.phases.phase1.num_steps = _steps_of(config, training)
    logging.info(
        "Finetuning on %d examples, %g epochs of them; labels: %s",
        len(training), options.num_epochs, ", ".join(options.labels) or "none",
    )  # fmt: skip
    return _job(config, dataset, vocabulary, _read_teacher(config, vocabulary))


def with_config(job: base.Job, config: ml_collections.ConfigDict) -> base.Job:
    """Returns the job under another config, whose data and labels are the same."""
    data: Any = job.data
    config.phases.phase1.num_steps = _steps_of(config, data.dataset.features(kinds.TRAIN))
    return _job(config, data.dataset, data.tokenizer, job.teacher)


def kind_of(trained: reader.Workdir) -> type[kinds.Kind] | None:
    """Returns the kind that a finetuned model answers as, None if it was not finetuned.

    Others may have finetuned it: then the options of its config become what its head tells.
    """
    options = trained.config.finetuning
    if trained.config.task == "finetuning":
        return finetuning.KINDS[options.dataset]
    told = dict(trained.meta.get("converted", {}))
    if "classifier" in trained.params and not told.get("labels"):
        count = trained.params["classifier"]["bias"].size
        told["labels"] = {str(number): f"LABEL_{number}" for number in range(count)}
    of_head = imported.kind_of(told, trained.config.model.max_position_embeddings)
    if of_head is None:
        return None
    kind, decided = of_head
    options.update(decided)
    return kind


def evaluating(trained: reader.Workdir, data: str) -> base.Job:
    """Returns the job of a finetuned model that is evaluated on the labelled files at `data`.

    Raises:
      FileNotFoundError: if there are none, or the workdir holds no vocabulary.
      ValueError: if they are not as they must be.
    """
    config, vocabulary = trained.config, trained.needed_vocabulary()
    kind = kind_of(trained)
    if kind is None:
        raise ValueError(
            f"{trained.directory} holds a model that was not finetuned: finetune it with "
            f"--config.init_from={trained.directory}"
        )
    files = {"data_dir": data, "train_file": data, "eval_file": data, "test_file": ""}
    config.finetuning.update(files)
    dataset = kind(config.finetuning, vocabulary)
    return _job(config, dataset, vocabulary)


def _job(
    config: ml_collections.ConfigDict,
    dataset: kinds.Kind | None,
    tokenizer: tokenizers.Tokenizer | None,
    teacher: teachers.Teacher | None = None,
) -> base.Job:
    phases = lengths.phases(config)
    return base.Job(
        config=config,
        phases=phases,
        task=_taught_task(config, teacher) if teacher else finetuning_task(config),
        data=FinetuningData(config, dataset, tokenizer),
        evaluation=_evaluation(config, dataset, phases[-1].end_step),
        teacher=teacher,
    )


def _evaluation(
    config: ml_collections.ConfigDict, dataset: kinds.Kind | None, last_step: int
) -> base.Evaluation:
    every_steps = config.evaluation.every_steps
    is_every_epoch = not every_steps
    if is_every_epoch:
        every_steps = max(round(last_step / config.finetuning.num_epochs), 1)
    return base.Evaluation(
        every_steps=every_steps,
        best_score=dataset.best_score if dataset else "",
        is_higher_better=True,
        sets=dataset.evaluation_sets if dataset else (),
        test_sets=dataset.test_sets if dataset else (),
        # What is not saved cannot be the best that stays.
        is_saved=is_every_epoch and config.checkpoint.keep_best > 0,
        scorer=dataset,
        tunes=dataset.tunes if dataset and dataset.evaluation_sets else (),
    )


def num_steps(config: ml_collections.ConfigDict, num_examples: int) -> int:
    """Returns the steps that config.finetuning.num_epochs of so many examples take."""
    (phase,) = lengths.phases(config)
    steps = epochs.steps_per_epoch(num_examples, phase.global_batch_size)
    return math.ceil(config.finetuning.num_epochs * steps)


def _steps_of(config: ml_collections.ConfigDict, training: feature_sets.FeatureSet) -> int:
    """Returns the steps that config.finetuning.num_epochs of the rows take."""
    (phase,) = lengths.phases(config)
    by_length = len(_buckets(config.finetuning)) > 1
    of_all = epochs.Epochs(training, phase.global_batch_size, config.seed, by_length=by_length)
    return of_all.steps_in(config.finetuning.num_epochs)


def _buckets(options: ml_collections.ConfigDict) -> tuple[int, ...]:
    """Returns the lengths that batches are padded to."""
    if options.length_buckets:
        return padding.default_buckets(options.max_seq_length)
    longest: int = options.max_seq_length
    return (longest,)


def _found(
    config: ml_collections.ConfigDict, workdirs: Sequence[epath.PathLike]
) -> tuple[Mapping[str, Any], tokenizers.Tokenizer]:
    """Returns sizes and vocabulary; an error tells of them and of files that are not there."""
    faults: list[Exception] = []
    found = None
    try:
        found = _begun(workdirs) or _origin(config.init_from)
    except (ValueError, FileNotFoundError) as error:
        faults.append(error)
    kind = finetuning.KINDS[config.finetuning.dataset]
    for option in ("train_file", "eval_file", "test_file"):
        missing = [
            path for path in kind.paths(config.finetuning[option]) if not epath.Path(path).exists()
        ]
        if missing:
            told = f"config.finetuning.{option} is {config.finetuning[option]}"
            which = " and ".join(missing) if [config.finetuning[option]] != missing else "which"
            faults.append(FileNotFoundError(f"{told}, {which} does not exist"))
    if len(faults) > 1:
        raise type(faults[0])("several things are wrong:\n  " + "\n  ".join(map(str, faults)))
    if faults:
        raise faults[0]
    assert found is not None
    return found


def _begun(
    workdirs: Sequence[epath.PathLike],
) -> tuple[Mapping[str, Any], tokenizers.Tokenizer] | None:
    """Returns the sizes and the vocabulary of the first workdir that holds a run, if one does."""
    for workdir in map(epath.Path, workdirs):
        begun = reader.describe(workdir)
        if begun is not None and begun.vocabulary is not None:
            return begun.config.model.to_dict(), begun.vocabulary
    return None


def _origin(path: str) -> tuple[Mapping[str, Any], tokenizers.Tokenizer]:
    """Returns the sizes and the vocabulary of the weights at config.init_from."""
    wanted = "give a workdir, a Hugging Face directory or a TF1 checkpoint, --config.init_from=PATH"
    if not path:
        raise ValueError(
            f"config.init_from is empty; finetuning begins with weights and their vocabulary: "
            f"{wanted}"
        )
    try:
        source = formats.describe(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"config.init_from is {path}, to start from: {error}; {wanted}"
        ) from error
    if source.vocabulary is None:
        raise ValueError(
            f"config.init_from, {source.source}, has no vocabulary; finetuning reads text with "
            "that of the weights: put its vocab.txt or spiece.model beside them"
        )
    return dataclasses.asdict(source.config), source.vocabulary


def outline(config: ml_collections.ConfigDict) -> base.Job:
    """Returns the job of a config whose model sizes are known, without weights and without data.

    Labels that are not given are taken to be two; the steps are those of the config's phase.
    """
    config = config.copy_and_resolve_references()
    if not config.model.vocab_size:
        raise ValueError(
            "config.model.vocab_size is 0; without reading config.init_from it must be given: "
            "--config.model.vocab_size=ENTRIES"
        )
    _check_length(config)
    config.finetuning.labels = tuple(config.finetuning.labels) or ("0", "1")
    phase = config.phases.phase1
    phase.max_seq_length = config.finetuning.max_seq_length
    teacher = None
    if config.distillation.teacher:
        teacher = teachers.outline(config, _teacher_task(config, _teacher_options(config)))
    return _job(config, None, None, teacher)


def _check_length(config: ml_collections.ConfigDict) -> None:
    longest, wanted = config.model.max_position_embeddings, config.finetuning.max_seq_length
    if wanted > longest:
        raise ValueError(
            f"config.finetuning.max_seq_length is {wanted}; the model reads at most {longest} "
            f"positions: --config.finetuning.max_seq_length={longest} or less"
        )


def _check_order(config: ml_collections.ConfigDict) -> None:
    options = config.finetuning
    kind = finetuning.KINDS[options.dataset]
    if config.model.left_to_right and kind.reads_only_first(options):
        ways = {"pooling": "set --config.finetuning.pooling=last"}
        ways["bilstm_size"] = "put a BiLSTM on it, --config.finetuning.bilstm_size=WIDTH"
        known = ["take other weights", *(ways[name] for name in ways if name in kind.own_options)]
        raise ValueError(
            f"config.finetuning.dataset is {options.dataset!r}, which reads the first position, "
            "[CLS]; the weights of config.init_from look to the left alone (left_to_right), so it "
            f"has seen nothing there: {', or '.join(known)}"
        )


def _digest(features: feature_sets.FeatureSet) -> str:
    digest = hashlib.sha256()
    parts = [(name, np.concatenate(rows)) for name, rows in sorted(features.tokens.items())]
    parts += sorted(features.columns.items())
    if any(part.weight != 1 for part in features.parts):
        shown = [(part.examples, part.shown) for part in features.parts]
        parts.append(("parts", np.array(shown)))
    parts.append(("lengths", np.array([len(row) for row in features.tokens["input_ids"]])))
    for name, values in parts:
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
