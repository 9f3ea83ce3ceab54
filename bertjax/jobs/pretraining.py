"""BERT's pretraining as a job: record directories, or random tokens, and the task over them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from etils import epath

from bertjax import tasks
from bertjax.data import contents, masking, records, streams, synthetic, tokenizer
from bertjax.finetuning import batches as finetuning_batches
from bertjax.jobs import base, held_out, lengths, minimal_pairs, teachers
from bertjax.models import encoder
from bertjax.tasks import distillation, pretraining
from bertjax.workdirs import checkpoint, reader, trained_positions

HELD_OUT, PAIRS = "heldout", "pairs"

_FLOAT_FEATURES = ("masked_lm_weights", "example_weights")


def pretraining_task(config: ml_collections.ConfigDict) -> tasks.base.Task:
    """Returns the pretraining task of a resolved config (vocabulary size and dtype known)."""
    objective = tasks.OBJECTIVES[config.pretraining.objective]
    return objective.make(encoder.EncoderConfig(**config.model), config.pretraining)


def _teacher_task(config: ml_collections.ConfigDict) -> pretraining.Pretraining:
    """Returns what a teacher is trained for: masked tokens, of its own sizes.

    Raises:
      ValueError: if the student learns something else.
    """
    if type(pretraining_task(config)) is not pretraining.Pretraining:
        raise ValueError(
            f"config.pretraining.objective is {config.pretraining.objective!r}, but "
            f"config.distillation.teacher is {config.distillation.teacher}: a teacher of masked "
            "tokens teaches with 'masked_tokens' alone"
        )
    return pretraining.Pretraining(teachers.sizes_of(config), pair_loss="none")


def _read_teacher(
    config: ml_collections.ConfigDict, vocabulary: tokenizer.Tokenizer | None
) -> teachers.Teacher | None:
    if not config.distillation.teacher:
        return None
    task = _teacher_task(config)
    return teachers.read(config, task, head="masked_lm", vocabulary=vocabulary)


@dataclasses.dataclass(frozen=True)
class PretrainingData:
    """Record directories, or random tokens, for each phase.

    `evaluation_set` is held out, `pairs` are config.evaluation.pairs_file. `manifests` are those of
    records that are not read: what a plan knows of them.
    """

    config: ml_collections.ConfigDict
    phases: tuple[lengths.Phase, ...]
    train_sets: Mapping[str, records.RecordSet]
    evaluation_set: records.RecordSet | None
    pairs: minimal_pairs.PairSet | None = None
    manifests: Mapping[str, records.Manifest] = dataclasses.field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        return {
            "manifests": {name: found.manifest.digest for name, found in self.train_sets.items()},
            "tokenizer_sha256": self._tokenizer_sha256,
        }

    def is_known_as(self, identity: Mapping[str, Any]) -> bool:
        digests = identity["manifests"]
        return (
            identity["tokenizer_sha256"] == self._tokenizer_sha256
            and digests.keys() == self.train_sets.keys()
            and all(
                found.manifest.is_known_as(digests[name]) for name, found in self.train_sets.items()
            )
        )

    @property
    def _tokenizer_sha256(self) -> str | None:
        found = iter(self.train_sets.values())
        return next((record_set.manifest.tokenizer["sha256"] for record_set in found), None)

    def train_batches(
        self, phase: lengths.Phase, *, start_step: int, rows: range | None
    ) -> base.Batches:
        data = self.config.data
        shared = {
            "global_batch_size": phase.global_batch_size,
            "seed": lengths.seed(self.config.seed, phase),
            "start_step": start_step - phase.first_step + phase.steps_before,
            "rows": rows,
        }
        if data.source == "synthetic":
            batches = synthetic.train_batches(
                max_seq_length=phase.max_seq_length,
                max_predictions_per_seq=self._predictions(phase),
                vocab_size=self.config.model.vocab_size,
                **shared,
            )
            read = {*self.abstract_batch(phase), "record_positions"}
            return ({name: it[name] for name in it if name in read} for it in batches)
        record_set = self.train_sets[phase.name]
        return streams.train_batches(
            record_set,
            max_streams=data.max_streams,
            shuffle_buffer_size=data.shuffle_buffer_size,
            draw_masks=draw_masks(record_set, self.config.pretraining, _largest_rate(phase)),
            mask_rate=_rate_by_step(phase),
            ramp_from=phase.ramp_from,
            rows_before=phase.rows_until(start_step),
            buckets=self._buckets(phase),
            **shared,
        )

    def evaluation_batches(
        self, name: str = HELD_OUT, *, batch_size: int, rows: range | None
    ) -> base.Batches:
        if name == PAIRS and self.pairs:
            return self.pairs.batches(batch_size=batch_size, rows=rows)
        if self.evaluation_set is None:
            raise ValueError("config.data.eval_dir is empty; there is nothing to evaluate on")
        return record_batches(
            self.evaluation_set,
            self.config.pretraining,
            batch_size=batch_size,
            rows=rows,
            masked_lm_prob=self.config.evaluation.masked_lm_prob,
        )

    def num_train_examples(self, phase: lengths.Phase) -> int | None:
        found = self.train_sets.get(phase.name)
        return found.manifest.num_examples if found else None

    def num_examples(self, name: str = HELD_OUT) -> int:
        if name == PAIRS and self.pairs:
            return len(self.pairs.pairs)
        return self.evaluation_set.manifest.num_examples if self.evaluation_set else 0

    def abstract_batch(self, phase: lengths.Phase) -> dict[str, jax.ShapeDtypeStruct]:
        rows, predictions = phase.global_batch_size, self._predictions(phase)
        manifest = self._manifest(phase)
        sequences = manifest.max_sequences_per_row if manifest else 0
        names = {*records.TOKEN_FEATURES, *(manifest.token_features if manifest else ())}
        shapes = {name: (rows, phase.max_seq_length) for name in sorted(names)}
        if self.config.pretraining.masking != "none":
            shapes |= {name: (rows, predictions) for name in records.MASK_FEATURES}
        labels = (rows, sequences) if sequences else (rows,)
        shapes |= {"next_sentence_labels": labels, "example_weights": (rows,)}
        return {
            name: jax.ShapeDtypeStruct(shape, np.float32 if name in _FLOAT_FEATURES else np.int32)
            for name, shape in shapes.items()
        }

    def batch_lengths(self, phase: lengths.Phase) -> tuple[int, ...]:
        """Returns the lengths that the rows of the phase's batches have, the longest last."""
        return self._buckets(phase) or (phase.max_seq_length,)

    def fill(self, phase: lengths.Phase) -> float | None:
        manifest = self._manifest(phase)
        return manifest.statistics.get("fill") if manifest else None

    def chance_loss(self, phase: lengths.Phase) -> tuple[str, float] | None:
        """Returns the masked tokens' unigram entropy: the best loss without any context."""
        if phase.name not in self.train_sets:
            return None
        statistics = self.train_sets[phase.name].manifest.statistics
        entropy = statistics.get("unigram_entropy")
        objective = tasks.OBJECTIVES[self.config.pretraining.objective]
        return None if entropy is None else (objective.token_loss, entropy)

    def contents(self) -> contents.Contents | None:
        return held_out.united(self.train_sets.values())

    def vocabulary(self) -> tokenizer.Tokenizer | None:
        # All phases have the same one: `open_job` compares their hashes.
        for record_set in self.train_sets.values():
            return tokenizer.load(record_set.directory)
        return None

    def _predictions(self, phase: lengths.Phase) -> int:
        manifest = self._manifest(phase)
        if manifest is not None and manifest.has_static_masks:
            return manifest.max_predictions_per_seq
        sequences = manifest.max_sequences_per_row if manifest else 0
        return _masking_options(
            self.config.pretraining, phase.max_seq_length, sequences, _largest_rate(phase)
        ).max_predictions_per_seq

    def _buckets(self, phase: lengths.Phase) -> tuple[int, ...]:
        """Returns the lengths that batches are cut to, none where they are not."""
        if not self.config.data.length_buckets:
            return ()
        return finetuning_batches.default_buckets(phase.max_seq_length)

    def _manifest(self, phase: lengths.Phase) -> records.Manifest | None:
        found = self.train_sets.get(phase.name)
        return found.manifest if found else self.manifests.get(phase.name)


def _job(
    config: ml_collections.ConfigDict,
    phases: tuple[lengths.Phase, ...],
    train_sets: Mapping[str, records.RecordSet],
    evaluation_set: records.RecordSet | None,
    chance: Mapping[str, float] | None = None,
    pairs: minimal_pairs.PairSet | None = None,
    teacher: teachers.Teacher | None = None,
    manifests: Mapping[str, records.Manifest] | None = None,
) -> base.Job:
    by_pairs = evaluation_set is None and pairs is not None
    evaluation = base.Evaluation(
        every_steps=config.evaluation.every_steps,
        best_score="accuracy" if by_pairs else config.checkpoint.best_metric,
        is_higher_better=by_pairs,
        sets=(HELD_OUT,) * bool(evaluation_set) + (PAIRS,) * bool(pairs),
        answered={PAIRS: pairs} if pairs else {},
        max_batches=config.evaluation.max_batches,
        chance={HELD_OUT: chance} if chance else {},
    )
    data = PretrainingData(config, phases, train_sets, evaluation_set, pairs, manifests or {})
    task: Any = pretraining_task(config)
    if teacher is not None:
        task = distillation.Distillation(
            task, teacher.task, distillation.of_config(config.distillation)
        )
    of_averages = tasks.OBJECTIVES[config.pretraining.objective].chance
    return base.Job(config, phases, task, data, evaluation, of_averages, teacher)


def record_batches(
    record_set: records.RecordSet,
    options: ml_collections.ConfigDict,
    *,
    batch_size: int,
    rows: range | None = None,
    masked_lm_prob: float = 0.0,
) -> base.Batches:
    """Yields every example of a record set once; `options` is config.pretraining.

    Masks that are not stored are drawn the same way each time, at the rate `masked_lm_prob` or,
    where it is 0, at that of `options`.
    """
    return streams.evaluation_batches(
        record_set,
        batch_size=batch_size,
        rows=rows,
        draw_masks=draw_masks(record_set, options, masked_lm_prob),
    )


def draw_masks(
    record_set: records.RecordSet, options: ml_collections.ConfigDict, masked_lm_prob: float = 0.0
) -> Callable[..., Any] | None:
    """Returns the function that masks a batch of `record_set`; None where its masks are stored.

    It masks at the rate `masked_lm_prob`, 0 being that of `options` (config.pretraining), or at the
    lower one that it is told, with as many places for predictions.
    """
    if record_set.manifest.has_static_masks or options.masking == "none":
        return None
    vocabulary = tokenizer.load(record_set.directory)
    manifest = record_set.manifest
    largest = _masking_options(
        options, manifest.max_seq_length, manifest.max_sequences_per_row, masked_lm_prob
    )
    masks = functools.partial(
        masking.mask_tokens,
        vocab_size=vocabulary.vocab_size,
        mask_id=vocabulary.mask_id,
        special_ids=vocabulary.special_ids,
        continues_word=vocabulary.continues_word,
    )

    def draw(
        batch: dict[str, np.ndarray], rng: np.random.Generator, masked_lm_prob: float | None = None
    ) -> dict[str, np.ndarray]:
        chosen = largest
        if masked_lm_prob is not None:
            chosen = dataclasses.replace(largest, masked_lm_prob=masked_lm_prob)
        sequences = records.sequence_ids(batch)
        return batch | masks(batch["input_ids"], sequences, rng=rng, options=chosen)

    return draw


def open_job(
    config: ml_collections.ConfigDict, workdirs: Sequence[epath.PathLike] = ()
) -> base.Job:
    """Returns the job after checking its records against each other and against the config.

    Of `workdirs` only is asked whether a run is in one: that one may go on with what it has.

    Raises:
      FileNotFoundError: if a record directory or its manifest is missing.
      ValueError: if one does not fit the run, all faults of a directory at once; or if a new run
        would be scored on what it trains on.
    """
    config = config.copy_and_resolve_references()
    lengths.set_steps(config, {})
    all_phases = lengths.phases(config)
    if config.data.source == "synthetic":
        _check_nothing_to_read(config)
        return _job(config, all_phases, {}, None, teacher=_read_teacher(config, None))
    train_sets: dict[str, records.RecordSet] = {}
    sha256 = None
    for phase in all_phases:
        if phase.name in train_sets:
            continue
        try:
            record_set = _open(config, config.data.train_dir, phase.max_seq_length, sha256)
        except FileNotFoundError as error:
            if len(all_phases) == 1:
                raise
            raise FileNotFoundError(
                f"{error}. {phase.name} needs records of {phase.max_seq_length} tokens; "
                f"--config.phases.{phase.name}.num_steps=0 leaves it out"
            ) from error
        sha256 = record_set.manifest.tokenizer["sha256"]
        train_sets[phase.name] = record_set
    lengths.set_steps(config, {name: it.manifest.num_examples for name, it in train_sets.items()})
    all_phases = lengths.phases(config)
    evaluation_set = None
    if config.data.eval_dir:
        evaluation_set = _open(config, config.data.eval_dir, all_phases[-1].max_seq_length, sha256)
        is_new = all(checkpoint.read_meta(workdir) is None for workdir in workdirs)
        held_out.check(config, train_sets.values(), evaluation_set, is_new=is_new)
    _resolve_vocab_size(config, train_sets[all_phases[0].name])
    chance = held_out.chance(held_out.united(train_sets.values()), evaluation_set)
    pairs = _open_pairs(config, train_sets[all_phases[0].name])
    vocabulary = tokenizer.load(train_sets[all_phases[0].name].directory)
    teacher = _read_teacher(config, vocabulary)
    return _job(config, all_phases, train_sets, evaluation_set, chance, pairs, teacher)


def _open_pairs(
    config: ml_collections.ConfigDict, record_set: records.RecordSet
) -> minimal_pairs.PairSet | None:
    options = config.evaluation
    if not options.pairs_file:
        return None
    task = pretraining_task(config)
    if not isinstance(task, tasks.base.ScoresSentences):
        raise ValueError(
            f"config.evaluation.pairs_file is {options.pairs_file!r}, but the objective "
            f"{config.pretraining.objective!r} gives sentences no score: leave it empty"
        )
    return minimal_pairs.PairSet(
        options.pairs_file,
        tokenizer.load(record_set.directory),
        rows=task.sentence_rows,
        max_length=config.model.max_position_embeddings,
        most_of_paradigm=options.pairs_per_paradigm,
    )


def _check_nothing_to_read(config: ml_collections.ConfigDict) -> None:
    options = {f"data.{name}": config.data[name] for name in ("train_dir", "eval_dir")}
    options["evaluation.pairs_file"] = config.evaluation.pairs_file
    if given := {name: value for name, value in options.items() if value}:
        raise ValueError(
            " and ".join(f"config.{name} is {value!r}" for name, value in given.items())
            + ", but config.data.source is 'synthetic', which reads no records: say "
            "--config.data.source=records, or leave them out"
        )


def outline(config: ml_collections.ConfigDict) -> base.Job:
    """Returns the job of a config whose vocabulary size is known, without opening its records.

    Its batches have the shapes that the config tells, and the manifests of records that are there;
    their tokens are random.
    """
    config = config.copy_and_resolve_references()
    manifests = known_manifests(config)
    config.data.source = "synthetic"
    lengths.set_steps(config, {})
    all_phases = lengths.phases(config)
    teacher = None
    if config.distillation.teacher:
        teacher = teachers.outline(config, _teacher_task(config))
    return _job(config, all_phases, {}, None, teacher=teacher, manifests=manifests)


def known_manifests(config: ml_collections.ConfigDict) -> dict[str, records.Manifest]:
    """Returns the manifests of the phases' records, of those that are on this machine.

    Raises:
      ValueError: if one is damaged.
    """
    found = {}
    if config.data.source == "records" and config.data.train_dir:
        for phase in lengths.phases(config):
            directory = config.data.train_dir.format(max_seq_length=phase.max_seq_length)
            if (epath.Path(directory) / records.MANIFEST_FILE).exists():
                found[phase.name] = records.Manifest.load(directory)
    return found


def evaluating(trained: reader.Description, data: str) -> base.Job:
    """Returns the job of a trained model that is evaluated on all records of a directory.

    Raises:
      FileNotFoundError: if there is no manifest.
      ValueError: if the records were made with another vocabulary, or are too long for the model.
    """
    config = trained.config
    record_set = records.open(
        data,
        tokenizer_sha256=trained.meta["identity"]["tokenizer_sha256"],
        pair_objective=config.pretraining.pair_loss,
    )
    config.evaluation.max_batches = 0
    trained_positions.warn_beyond(
        trained_positions.number(trained),
        record_set.manifest.max_seq_length,
        f"evaluating {trained.directory} on {data}",
    )
    held_out.check_evaluated(trained, record_set)
    chance = held_out.chance(held_out.training_contents(trained), record_set)
    return _job(config, lengths.phases(config), {}, record_set, chance)


def _open(
    config: ml_collections.ConfigDict, directory: str, length: int, sha256: str | None
) -> records.RecordSet:
    options = config.pretraining
    record_set = records.open(
        directory.format(max_seq_length=length),
        tokenizer_sha256=sha256,
        max_seq_length=length,
        pair_objective=options.pair_loss,
    )
    is_static = record_set.manifest.has_static_masks
    stored, built = ("static", "masks in them") if is_static else ("dynamic", "--mask=none")
    is_wanted = options.masking == stored or (options.masking, stored) == ("none", "dynamic")
    if not is_wanted:
        raise ValueError(
            f"config.pretraining.masking is {options.masking!r}, but the records in "
            f"{record_set.directory} were built with {built}: set "
            f"--config.pretraining.masking={stored}, or rebuild them with "
            f"{'another --mask' if options.masking == 'static' else '--mask=none'}"
        )
    return record_set


def _resolve_vocab_size(config: ml_collections.ConfigDict, record_set: records.RecordSet) -> None:
    found = record_set.manifest.tokenizer["vocab_size"]
    if config.model.vocab_size and config.model.vocab_size < found:
        # Too small a table would be read out of bounds, silently: on TPU and GPU a NaN later on.
        raise ValueError(
            f"config.model.vocab_size is {config.model.vocab_size}, but the vocabulary of "
            f"{record_set.directory} has {found} entries: set it to 0 (all of them) or more"
        )
    config.model.vocab_size = config.model.vocab_size or found
    if offset := config.model.position_offset:
        vocabulary = tokenizer.load(record_set.directory)
        tokenizer.check_padding(vocabulary, offset, str(record_set.directory))


def _largest_rate(phase: lengths.Phase) -> float:
    return phase.mask_rate.largest if phase.mask_rate else 0.0


def _rate_by_step(phase: lengths.Phase) -> Callable[[int], float] | None:
    """Returns the rate by the phase's own step; None where it is the config's at all of them."""
    rate, begun = phase.mask_rate, phase.first_step - phase.steps_before
    return None if rate is None else lambda step: rate.at(begun + step)


def _masking_options(
    options: ml_collections.ConfigDict,
    max_seq_length: int,
    max_sequences_per_row: int,
    masked_lm_prob: float = 0.0,
) -> masking.MaskingOptions:
    rate = masked_lm_prob or options.masked_lm_prob
    predictions = options.max_predictions_per_seq or masking.default_max_predictions(
        max_seq_length, rate, max_sequences_per_row
    )
    return masking.MaskingOptions(
        masked_lm_prob=rate,
        max_predictions_per_seq=predictions,
        strategy=options.mask_strategy,
        mask_share=options.mask_share,
        keep_share=options.keep_share,
    )
