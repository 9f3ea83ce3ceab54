"""BERT's pretraining as a job: record directories, or random tokens, and the task over them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections
from absl import logging
from etils import epath

from bertjax import tasks
from bertjax.data import (
    languages,
    mixtures,
    records,
    translations,
    value_masking,
)
from bertjax.jobs import base, held_out, lengths, minimal_pairs, pretraining_data, teachers
from bertjax.jobs.pretraining_data import HELD_OUT, PAIRS, PretrainingData
from bertjax.models import encoder, encoder_config
from bertjax.options import faults as faults_lib
from bertjax.tasks import distillation, masked_values, pretraining
from bertjax.tokenization import tokenizer
from bertjax.workdirs import checkpoint, reader, trained_positions

# A table of this many times the entries of a vocabulary is warned of; padding to 128 is less.
MUCH_LARGER = 1.1


def pretraining_task(
    config: ml_collections.ConfigDict, teacher: teachers.Teacher | None = None
) -> tasks.base.Task:
    """Returns the pretraining task of a resolved config (vocabulary size and dtype known)."""
    objective = tasks.OBJECTIVES[config.pretraining.objective]
    task: Any = objective.make(encoder.EncoderConfig(**config.model), config.pretraining)
    if teacher is None:
        return task
    options = distillation.of_config(config.distillation)
    return distillation.Distillation(task, teacher.task, options)


def _teacher_task(config: ml_collections.ConfigDict) -> pretraining.Pretraining:
    """Returns the teacher's task: masked tokens, at the teacher's sizes."""
    if type(pretraining_task(config)) is not pretraining.Pretraining:
        must = "'masked_tokens' with config.distillation.teacher"
        raise faults_lib.wrong("config.pretraining.objective", config.pretraining.objective, must)
    return pretraining.Pretraining(teachers.sizes_of(config), pair_loss="none")


def _read_teacher(
    config: ml_collections.ConfigDict, vocabulary: tokenizer.Tokenizer | None
) -> teachers.Teacher | None:
    if not config.distillation.teacher:
        return None
    task = _teacher_task(config)
    return teachers.read(config, task, head="masked_lm", vocabulary=vocabulary)


def _job(data: PretrainingData, teacher: teachers.Teacher | None = None) -> base.Job:
    """Returns the job of its data; the contents of the training data give the scores of chance."""
    config, held, pairs = data.config, data.evaluation_sets, data.pairs
    by_pairs = not held and pairs is not None
    task = pretraining_task(config, teacher)
    by_set = {name: held_out.chance(data.contents, it) for name, it in held.items()}
    if config.model.columns and "replaced_loss" not in task.objectives:
        by_set = {name: by_set[name] | _of_columns(data, name) for name in held}
    per_byte = {name: held_out.tokens_per_byte(it) for name, it in held.items()}
    # Translations are easier than text of one language, and no language of their own.
    of_one = [name for name in held if not translations.are_named(name)]
    several = tuple(of_one or held) if len(held) > 1 else ()
    evaluation = base.Evaluation(
        every_steps=config.evaluation.every_steps,
        best_score="accuracy" if by_pairs else config.checkpoint.best_metric,
        is_higher_better=by_pairs,
        sets=(*held, *(PAIRS,) * bool(pairs)),
        averaged=several,
        best_set=base.MEAN if several else "",
        answered={PAIRS: pairs} if pairs else {},
        max_batches=config.evaluation.max_batches,
        chance={name: chance for name, chance in by_set.items() if chance},
        tokens_per_byte={name: share for name, share in per_byte.items() if share},
    )
    of_averages = tasks.OBJECTIVES[config.pretraining.objective].chance
    return base.Job(config, data.phases, task, data, evaluation, of_averages, teacher)


def _of_columns(data: PretrainingData, name: str) -> dict[str, float]:
    """Returns the baselines of hidden cells, {} if no training values are stored."""
    options = data.config.evaluation
    directory = data.evaluation_sets[name].directory
    training = pretraining_data.training_values(directory, data.config.data.train_dir)
    if training is None:
        return {}
    batches = data.evaluation_batches(name, batch_size=options.global_batch_size, rows=None)
    read = itertools.islice(batches, options.max_batches or None)
    error = masked_values.ERRORS[data.config.pretraining.value_error]
    return held_out.of_columns(data.config.model.columns, training, read, error)


def _by_language(record_set: records.RecordSet | None) -> dict[str, records.RecordSet]:
    """Returns the records of each language if there are several, else all under one name."""
    if record_set is None:
        return {}
    manifest = record_set.manifest
    if not manifest.is_mixture:
        return {HELD_OUT: record_set}
    return {name: record_set.of_language(name) for name in manifest.languages}


def open_job(
    config: ml_collections.ConfigDict, workdirs: Sequence[epath.PathLike] = ()
) -> base.Job:
    """Returns the job after checking its records against each other and against the config.

    A run that is in one of `workdirs` already may go on whatever it is evaluated on.
    """
    config = base.unfrozen(config)
    lengths.set_steps(config, {})
    all_phases = lengths.phases(config)
    if config.data.source == "synthetic":
        _check_nothing_to_read(config)
        data = PretrainingData(config, phases=all_phases)
        return _job(data, _read_teacher(config, None))
    train_sets: dict[str, records.RecordSet] = {}
    first: records.RecordSet | None = None
    for phase in all_phases:
        if phase.name in train_sets:
            continue
        try:
            record_set = _open(config, "train_dir", phase, first)
        except FileNotFoundError as error:
            if len(all_phases) == 1:
                raise
            raise FileNotFoundError(
                f"{error}. {phase.name} needs records of {phase.max_seq_length} tokens; "
                f"--config.phases.{phase.name}.num_steps=0 leaves it out"
            ) from error
        first = first or record_set
        train_sets[phase.name] = record_set
    lengths.set_steps(config, {name: it.manifest.num_examples for name, it in train_sets.items()})
    all_phases = lengths.phases(config)
    evaluation_set = None
    if config.data.eval_dir:
        evaluation_set = _open(config, "eval_dir", all_phases[-1], first)
        is_new = all(checkpoint.read_meta(workdir) is None for workdir in workdirs)
        held_out.check(config, train_sets.values(), evaluation_set, is_new=is_new)
    first = train_sets[all_phases[0].name]
    _resolve_vocab_size(config, first)
    _resolve_values(config, first.manifest, first.directory)
    _warn_of_unread_shares(config, train_sets)
    _resolve_languages(config, [*train_sets.values(), evaluation_set])
    data = PretrainingData(
        config,
        vocabulary=_vocabulary(first),
        contents=held_out.united(train_sets.values()),
        manifest=None if first.manifest.tokenizer else first.manifest,
        phases=all_phases,
        train_sets=train_sets,
        evaluation_sets=_by_language(evaluation_set),
        pairs=_open_pairs(config, first),
    )
    return _job(data, _read_teacher(config, data.vocabulary))


def _vocabulary(record_set: records.RecordSet) -> tokenizer.Tokenizer | None:
    """Returns the vocabulary of records, None if they have none."""
    if not record_set.manifest.tokenizer:
        return None
    vocabulary = tokenizer.load(record_set.directory)
    built_with = record_set.manifest.tokenizer_sha256
    if built_with and built_with != vocabulary.describe()["sha256"]:
        raise ValueError(
            f"the vocabulary in {record_set.directory} was changed after the records were built: "
            "its ids stand for other tokens now. Copy the vocabulary there that the records were "
            "built with, or build them again"
        )
    return vocabulary


def _open_pairs(
    config: ml_collections.ConfigDict, record_set: records.RecordSet
) -> minimal_pairs.PairSet | None:
    options = config.evaluation
    if not options.pairs_file:
        return None
    task = pretraining_task(config)
    if not isinstance(task, tasks.base.ScoresSentences):
        why = f"the objective {config.pretraining.objective!r} gives sentences no score"
        raise faults_lib.unread("config.evaluation.pairs_file", options.pairs_file, why, "")
    known = languages.names_of(config.model.language_embeddings, config.data.languages)
    return minimal_pairs.PairSet(
        options.pairs_file,
        tokenizer.load(record_set.directory),
        rows=task.sentence_rows,
        max_length=config.model.max_position_embeddings,
        left_to_right=config.model.left_to_right,
        most_of_paradigm=options.pairs_per_paradigm,
        language=languages.number_of(
            options.pairs_language, known, "config.evaluation.pairs_language"
        ),
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
    if config.model.embeddings not in encoder_config.OF_TOKENS:
        raise ValueError(
            "config.data.source is 'synthetic', which makes random tokens, and the model reads "
            "values: give records of them, --config.data.train_dir=DIR"
        )


def abstract(config: ml_collections.ConfigDict) -> base.Job:
    """Returns the job of a config whose vocabulary size is known, without opening its records.

    Its batches have the shapes of the config, and of the manifests of records that are there; their
    tokens are random.
    """
    config = base.unfrozen(config)
    manifests = known_manifests(config)
    for manifest in manifests.values():
        _resolve_values(config, manifest, config.data.train_dir)
    config.data.source = "synthetic"
    lengths.set_steps(config, {})
    has_teacher = bool(config.distillation.teacher)
    teacher = teachers.abstract(config, _teacher_task(config)) if has_teacher else None
    return _job(
        PretrainingData(config, phases=lengths.phases(config), manifests=manifests), teacher
    )


def known_manifests(config: ml_collections.ConfigDict) -> dict[str, records.Manifest]:
    """Returns the manifests of the phases' records that are on this machine."""
    manifests = {}
    if config.data.source == "records" and config.data.train_dir:
        for phase in lengths.phases(config):
            directory = records.directory_of(config.data.train_dir, phase.max_seq_length)
            if (epath.Path(directory) / records.MANIFEST_FILE).exists():
                manifests[phase.name] = records.Manifest.load(directory)
    return manifests


def evaluating(trained: reader.Description, data: str, language: str = "") -> base.Job:
    """Returns the job of a trained model that is evaluated on all records of a directory.

    On records without pairs there is no pair loss.
    """
    if language:
        why = f"the records in {data} name the language of each row where they have one"
        raise faults_lib.unread("--language", language, why, "")
    config = trained.config
    pair_loss = config.pretraining.pair_loss
    if pair_loss != "none" and records.Manifest.load(epath.Path(data)).pair_objective == "none":
        logging.info("The records in %s hold no pairs: there is no %s_loss", data, pair_loss)
        config.pretraining.pair_loss = "none"
    record_set = records.open(data, lambda manifest: _evaluation_misfits(trained, manifest))
    value_masking.check(config.data.value_meaning, record_set)
    most = config.evaluation.max_batches * config.evaluation.global_batch_size
    if 0 < most < record_set.manifest.num_examples:
        logging.info(
            "All %s examples are scored; the run itself scored the first %s "
            "(config.evaluation.max_batches)", f"{record_set.manifest.num_examples:,}", f"{most:,}"
        )  # fmt: skip
    config.evaluation.max_batches = 0
    trained_positions.warn_beyond(
        trained_positions.number(trained),
        record_set.manifest.max_seq_length,
        f"evaluating {trained.directory} on {data}",
    )
    held_out.check_evaluated(trained, record_set)
    _resolve_languages(config, [record_set])
    return _job(
        PretrainingData(
            config,
            contents=held_out.training_contents(trained),
            phases=lengths.phases(config),
            evaluation_sets=_by_language(record_set),
        )
    )


def _evaluation_misfits(trained: reader.Description, manifest: records.Manifest) -> Iterator[str]:
    if trained.identity("tokenizer_sha256") not in (None, manifest.tokenizer_sha256):
        yield f"{_vocabulary_misfit(manifest)} the one of {trained.directory}: build them with it"
    yield from _pair_misfit(manifest, trained.config.pretraining.pair_loss)
    objective = tasks.OBJECTIVES[trained.config.pretraining.objective]
    if objective.reads_sequences:  # other objectives score what records have
        for need in objective.needs:
            yield from need(manifest, trained.config.pretraining)


def _open(
    config: ml_collections.ConfigDict,
    option: str,
    phase: lengths.Phase,
    first: records.RecordSet | None,
) -> records.RecordSet:
    """Returns the records of config.data.`option` for a phase, with the vocabulary of `first`."""
    directory = records.directory_of(config.data[option], phase.max_seq_length)

    def misfits(manifest: records.Manifest) -> Iterator[str]:
        opened = _Opened(manifest, config, option, phase, first)
        return (fault for check in _MISFITS for fault in check(opened))

    return records.open(directory, misfits)


@dataclasses.dataclass(frozen=True)
class _Opened:
    """Records that are opened for a phase of a run; `first` are the first records of the run."""

    manifest: records.Manifest
    config: ml_collections.ConfigDict
    option: str  # train_dir | eval_dir
    phase: lengths.Phase
    first: records.RecordSet | None

    @property
    def trains(self) -> bool:
        return self.option == "train_dir"


def _other_vocabulary(it: _Opened) -> Iterator[str]:
    first = it.first
    if first is not None and it.manifest.tokenizer_sha256 != first.manifest.tokenizer_sha256:
        yield (
            f"{_vocabulary_misfit(it.manifest)} the one of {first.directory}: build both with the "
            "same --vocabulary"
        )


def _other_values(it: _Opened) -> Iterator[str]:
    means = value_masking.meaning
    if it.first is not None and means(it.manifest) != means(it.first.manifest):
        yield (
            f"their columns, channels or scaling are not those of {it.first.directory}: build both "
            "in one call, or these with --like"
        )


def _other_length(it: _Opened) -> Iterator[str]:
    held, read = it.manifest.max_seq_length, it.phase.max_seq_length
    if held != read:
        yield (
            f"their max_seq_length is {held}, and config.phases.{it.phase.name}.max_seq_length is "
            f"{read}: set the option, or build them with --max_seq_length={read}"
        )


def _other_pairs(it: _Opened) -> Iterator[str]:
    yield from _pair_misfit(it.manifest, it.config.pretraining.pair_loss)


def _no_words(it: _Opened) -> Iterator[str]:
    marks = it.config.checkpoint.save_at_words
    if it.trains and marks and records.WORD_COUNT_FEATURE not in it.manifest.features:
        yield (
            f"they count no words, and config.checkpoint.save_at_words is {tuple(marks)}: build "
            "them with --count_words, or set it to ()"
        )


def _other_languages(it: _Opened) -> Iterator[str]:
    options = it.config.phases[it.phase.name]
    if it.trains and (options.languages or it.manifest.is_mixture):
        try:
            mixtures.of_manifest(it.manifest, options.language_alpha, options.languages)
        except ValueError as error:
            yield f"config.phases.{it.phase.name}.{error}"


def _translations_in_part(it: _Opened) -> Iterator[str]:
    narrow = {name: it.config.model[name] for name in ("window", "left_to_right")}
    if translations.are_in(it.manifest) and any(narrow.values()):
        yield (
            f"they hold texts with their translations, which attention is to see whole, and "
            f"config.model has {narrow}: set window=0 and left_to_right=False, or leave out the "
            f"records of {', '.join(filter(translations.are_named, it.manifest.languages))}"
        )


def _objective_needs(it: _Opened) -> Iterator[str]:
    options = it.config.pretraining
    for need in tasks.OBJECTIVES[options.objective].needs:
        yield from need(it.manifest, options)


def _other_masks(it: _Opened) -> Iterator[str]:
    masking = it.config.pretraining.masking
    stored, built = "dynamic", "--mask=none"
    if it.manifest.has_static_masks:
        stored, built = "static", "masks in them"
    if masking != stored and (masking, stored) != ("none", "dynamic"):
        yield (
            f"they were built with {built}, and config.pretraining.masking is "
            f"{masking!r}: set --config.pretraining.masking={stored}, or rebuild them with "
            f"{'another --mask' if masking == 'static' else '--mask=none'}"
        )


# Each yields why records are not for a phase of the run.
_MISFITS = (
    _other_vocabulary,
    _other_values,
    _other_length,
    _other_pairs,
    _no_words,
    _other_languages,
    _translations_in_part,
    _objective_needs,
    _other_masks,
)


def _vocabulary_misfit(manifest: records.Manifest) -> str:
    described = manifest.tokenizer or {"kind": "no", "vocab_size": 0}
    return f"their vocabulary ({described['kind']}, {described['vocab_size']:,} entries) is not"


def _pair_misfit(manifest: records.Manifest, pair_loss: str) -> Iterator[str]:
    held = manifest.pair_objective
    if pair_loss not in ("none", held):
        usable = " or ".join(sorted({repr(held), "'none'"}))
        yield (
            f"their pair_objective is {held!r}, and config.pretraining.pair_loss is {pair_loss!r}: "
            f"set it to {usable}, or rebuild them with --pair_objective={pair_loss}"
        )


def _warn_of_unread_shares(
    config: ml_collections.ConfigDict, train_sets: Mapping[str, records.RecordSet]
) -> None:
    """Warns of phases with an exponent of languages whose records are not in several."""
    for name, record_set in train_sets.items():
        alpha = config.phases[name].language_alpha
        if alpha != 1 and not record_set.manifest.is_mixture:
            logging.warning(
                "config.phases.%s.language_alpha is %g, but the records in %s are not in several "
                "languages, so it has no effect: name them (docs/languages.md)",
                name, alpha, record_set.directory,
            )  # fmt: skip


def _resolve_languages(
    config: ml_collections.ConfigDict, record_sets: Iterable[records.RecordSet | None]
) -> None:
    """Names the languages of the model's embeddings; by default, the languages of the records."""
    if not config.model.language_embeddings:
        return
    read = [one for one in record_sets if one is not None]
    names = (name for one in read for name in one.manifest.languages)
    of_all = dict.fromkeys(it for name in names for it in translations.languages(name))
    config.data.languages = config.data.languages or tuple(of_all)
    known, size = config.data.languages, config.model.language_embeddings
    faults = [
        f"{one.directory} names no languages: build it with --language"
        for one in read
        if not one.manifest.languages
    ]
    if unknown := [name for name in of_all if name not in known]:
        faults.append(
            f"the records are in {', '.join(unknown)}, but the model has embeddings of "
            f"{', '.join(known)} (config.data.languages): leave these out of the records"
        )
    if len(known) > size:
        faults.append(f"config.model.language_embeddings is {size}, for {len(known)} languages")
    faults_lib.check("the model reads languages, but its records do not fit", faults)


def _resolve_values(
    config: ml_collections.ConfigDict, manifest: records.Manifest, directory: epath.PathLike
) -> None:
    """Sets the sizes of values that the config leaves to the records."""
    features = value_masking.features(manifest)
    columns = manifest.statistics.get("columns")
    found: dict[str, Any] = {}
    if records.VALUES_FEATURE in features:
        found["value_width"] = features[records.VALUES_FEATURE].shape[-1]
    is_grid = config.model.position_embedding == "sines_of_grid"
    if is_grid and records.PIXELS_FEATURE in manifest.features:
        found["grid_rows"] = value_masking.grid_rows(manifest)
    if columns:
        found["columns"] = tuple(len(column.get("categories", ())) for column in columns)
    for name, value in found.items():
        given = config.model[name]
        if given and given != value:
            must = f"{value}, as in the records in {directory}"
            raise faults_lib.wrong(f"config.model.{name}", given, must, "leave it out")
        config.model[name] = value
    if records.VALUES_FEATURE in features:
        config.data.value_meaning = value_masking.described(manifest)


def _resolve_vocab_size(config: ml_collections.ConfigDict, record_set: records.RecordSet) -> None:
    if not record_set.manifest.tokenizer:
        return
    entries = record_set.manifest.tokenizer["vocab_size"]
    if config.model.vocab_size and config.model.vocab_size < entries:
        # Too small a table would be read out of bounds, silently: on TPU and GPU a NaN later on.
        must = f"0, or at least the {entries} entries of the vocabulary of {record_set.directory}"
        raise faults_lib.wrong("config.model.vocab_size", config.model.vocab_size, must)
    config.model.vocab_size = config.model.vocab_size or entries
    if config.model.vocab_size > MUCH_LARGER * entries:
        logging.warning(
            "config.model.vocab_size is %s, but the vocabulary of %s has %s entries: the other "
            "rows are never read, and cost memory and time. 0 takes the entries of the vocabulary",
            f"{config.model.vocab_size:,}", record_set.directory, f"{entries:,}",
        )  # fmt: skip
    if offset := config.model.position_offset:
        vocabulary = tokenizer.load(record_set.directory)
        tokenizer.check_padding(vocabulary, offset, str(record_set.directory))
    if config.model.embeddings == "token_dropout":
        _resolve_mask_id(config, record_set)


def _resolve_mask_id(config: ml_collections.ConfigDict, record_set: records.RecordSet) -> None:
    mask_id = tokenizer.load(record_set.directory).mask_id
    if config.model.mask_id not in (-1, mask_id):
        must = f"-1, or {mask_id} as in the vocabulary of {record_set.directory}"
        raise faults_lib.wrong("config.model.mask_id", config.model.mask_id, must)
    config.model.mask_id = mask_id
