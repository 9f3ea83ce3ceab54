"""Finetuning as a job: a data set, the weights that are started from, and the task between them.

What differs from one kind of data set to another belongs to `bertjax.finetuning`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from absl import logging
from etils import epath

from bertjax import finetuning
from bertjax.convert import formats
from bertjax.data import tokenizer as tokenizers
from bertjax.finetuning import base as kinds
from bertjax.finetuning import batches, feature_sets, low_rank
from bertjax.jobs import base
from bertjax.models import encoder
from bertjax.workdirs import reader


def finetuning_task(config: ml_collections.ConfigDict) -> kinds.FinetuningTask:
    """Returns the task of a resolved config (sizes, labels and dtype known)."""
    sizes, options = encoder.EncoderConfig(**config.model), config.finetuning
    task = finetuning.KINDS[options.dataset].task(sizes, options)
    return low_rank.with_factors(task, options)


@dataclasses.dataclass(frozen=True)
class FinetuningJob:
    """A data set learnt by an encoder that is there already.

    `dataset` and `tokenizer` are None for the outline of a job, which has shapes and no batches.
    """

    config: ml_collections.ConfigDict
    dataset: kinds.Kind | None
    tokenizer: tokenizers.Tokenizer | None

    @property
    def phases(self) -> tuple[base.Phase, ...]:
        """One phase, of as many steps as config.finetuning.num_epochs of the data take."""
        config, (phase,) = self.config, base.phases(self.config)
        if self.dataset is None:
            return (phase,)
        examples = len(self.dataset.features(kinds.TRAIN))
        steps = batches.steps_per_epoch(examples, phase.global_batch_size)
        return (
            dataclasses.replace(phase, num_steps=math.ceil(config.finetuning.num_epochs * steps)),
        )

    @property
    def task(self) -> kinds.FinetuningTask:
        return finetuning_task(self.config)

    @property
    def has_evaluation(self) -> bool:
        return bool(self.evaluation_sets)

    @property
    def evaluation_sets(self) -> tuple[str, ...]:
        return self.dataset.evaluation_sets if self.dataset else ()

    @property
    def test_sets(self) -> tuple[str, ...]:
        return self.dataset.test_sets if self.dataset else ()

    @property
    def best_score(self) -> tuple[str, bool] | None:
        return (self.dataset.best_score, True) if self.dataset else None

    @property
    def buckets(self) -> tuple[int, ...]:
        """The lengths that batches are padded to."""
        options = self.config.finetuning
        if options.length_buckets:
            return batches.default_buckets(options.max_seq_length)
        longest: int = options.max_seq_length
        return (longest,)

    def identity(self) -> dict[str, Any]:
        """Returns hashes of the vocabulary and of the rows trained on, wherever the files lie."""
        return {
            "manifests": {},
            "tokenizer_sha256": self.tokenizer.describe()["sha256"] if self.tokenizer else None,
            "train_sha256": _digest(self._dataset().features(kinds.TRAIN)),
        }

    def train_batches(
        self, phase: base.Phase, *, start_step: int, rows: range | None
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
        known = (*self.evaluation_sets, *self.test_sets)
        if name not in known:
            raise ValueError(f"the set is {name!r}; known are {', '.join(known) or 'none'}")
        return batches.evaluation_batches(
            self._dataset().features(name), batch_size=batch_size, buckets=self.buckets, rows=rows
        )

    def scores(self, name: str, outputs: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the scores, and keeps what is tuned in the config for what follows.

        It is that of the first evaluation set.
        """
        dataset = self._dataset()
        scores = dataset.scores(name, outputs)
        if name == self.evaluation_sets[0]:
            tuned = {score: scores[score] for score in dataset.tunes if score in scores}
            self.config.finetuning.update(tuned)
        return scores

    def write_predictions(
        self, name: str, outputs: Mapping[str, np.ndarray], directory: epath.PathLike
    ) -> None:
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        dataset, options = self._dataset(), self.config.finetuning
        tuned = {name: options[name] for name in dataset.tunes}
        dataset.write_predictions(name, outputs, directory, tuned)

    def abstract_batch(self, phase: base.Phase) -> dict[str, jax.ShapeDtypeStruct]:
        options = self.config.finetuning
        return finetuning.KINDS[options.dataset].batch_shapes(
            options, phase.global_batch_size, phase.max_seq_length
        )

    def train_flops(self, phase: base.Phase) -> float:
        """Those of the longest batch: with length buckets others need fewer."""
        return self.task.train_flops(phase.global_batch_size, phase.max_seq_length, 0)

    def chance_loss(self, phase: base.Phase) -> tuple[str, float] | None:
        return None

    def vocabulary(self) -> tokenizers.Tokenizer | None:
        return self.tokenizer

    def save_vocabulary(self, directory: epath.Path) -> None:
        if self.tokenizer is not None:
            self.tokenizer.save(directory)

    def _dataset(self) -> kinds.Kind:
        if self.dataset is None:
            raise ValueError("this is the outline of a job; it has no data")
        return self.dataset


def open_finetuning(
    config: ml_collections.ConfigDict, workdirs: Sequence[epath.PathLike] = ()
) -> FinetuningJob:
    """Returns the job after reading config.init_from's sizes and vocabulary, and the data.

    Once one of `workdirs` holds a checkpoint, they are read there: it is enough to resume. What the
    files hold is filled in: sizes of the model, labels, steps of the phase and of the warm-up. All
    sets are read here, so that a fault in them is told first.

    Raises:
      FileNotFoundError: if there are no weights or a file is missing.
      ValueError: if an option is missing or unknown, the weights have no vocabulary or read too few
        positions or segments, or a file is not as it must be.
    """
    config = config.copy_and_resolve_references()
    sizes, vocabulary = _begun(workdirs) or _origin(config.init_from)
    config.model.update(
        {name: sizes[name] for name in config.model if name not in base.OWN_MODEL_OPTIONS}
    )
    _check_length(config)
    dataset = finetuning.KINDS[config.finetuning.dataset](config.finetuning, vocabulary)
    dataset.check()
    training = dataset.features(kinds.TRAIN)
    _check_segments(config, training)
    for name in dataset.evaluation_sets:
        logging.info("Evaluation set %s: %d examples", name, len(dataset.features(name)))
    for name in dataset.test_sets:
        dataset.examples(name)
        logging.info("Test set %s is read; the model will answer it at the end", name)
    options = config.finetuning
    options.labels, options.is_regression = tuple(dataset.labels), dataset.is_regression
    config.phases.phase1.max_seq_length = options.max_seq_length
    job = FinetuningJob(config, dataset, vocabulary)
    config.phases.phase1.num_steps = job.phases[0].num_steps
    logging.info(
        "Finetuning on %d examples, %g epochs of them; labels: %s",
        len(training), options.num_epochs, ", ".join(options.labels) or "none",
    )  # fmt: skip
    return job


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
        source = formats.read(path)
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


def outline_finetuning(config: ml_collections.ConfigDict) -> FinetuningJob:
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
    return FinetuningJob(config, None, None)


def _check_length(config: ml_collections.ConfigDict) -> None:
    longest, wanted = config.model.max_position_embeddings, config.finetuning.max_seq_length
    if wanted > longest:
        raise ValueError(
            f"config.finetuning.max_seq_length is {wanted}; the model reads at most {longest} "
            f"positions: --config.finetuning.max_seq_length={longest} or less"
        )


def _check_segments(config: ml_collections.ConfigDict, training: feature_sets.FeatureSet) -> None:
    # Too small a table would be read out of bounds, silently.
    segments = max(int(row.max()) for row in training.tokens["segment_ids"]) + 1
    if segments > config.model.type_vocab_size:
        raise ValueError(
            f"rows have {segments} segments, but the weights of config.init_from know "
            f"{config.model.type_vocab_size} (type_vocab_size): take others for pairs of texts"
        )


def _digest(features: feature_sets.FeatureSet) -> str:
    digest = hashlib.sha256()
    parts = [(name, np.concatenate(rows)) for name, rows in sorted(features.tokens.items())]
    parts += sorted(features.columns.items())
    parts.append(("lengths", np.array([len(row) for row in features.tokens["input_ids"]])))
    for name, values in parts:
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
