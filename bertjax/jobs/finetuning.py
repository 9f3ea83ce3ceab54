"""Finetuning as a job: a data set, the weights that are started from, and the task between them.

What differs from one kind of data set to another belongs to `bertjax.finetuning`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from absl import logging
from etils import epath

from bertjax import config as config_lib
from bertjax import finetuning
from bertjax.convert import formats, generation_config
from bertjax.convert.families import base as families_base
from bertjax.data import languages, padding, records, value_masking
from bertjax.files import directories
from bertjax.finetuning import base as kinds
from bertjax.finetuning import (
    batches,
    evaluation_files,
    feature_sets,
    imported,
    wrapped_tasks,
)
from bertjax.jobs import base, finetuning_rates, lengths, sources, teachers
from bertjax.models import (
    decoder_sharing,
    encoder,
    encoder_config,
    parameters,
    sentence_vectors,
)
from bertjax.options import faults as faults_lib
from bertjax.tasks import distillation
from bertjax.tokenization import tokenizer as tokenizers
from bertjax.tokenization import unknown_tokens
from bertjax.workdirs import reader


def finetuning_task(
    config: ml_collections.ConfigDict, teacher: teachers.Teacher | None = None
) -> kinds.FinetuningTask:
    """Returns the task of a resolved config (sizes, labels and dtype known)."""
    task = finetuning.head_task(config)
    if teacher is not None:
        task = task.taught_by(teacher.task) or wrapped_tasks.Distilled(
            task, teacher.task, distillation.of_config(config.distillation)
        )
    return wrapped_tasks.with_factors(task, config.finetuning)


# Head options that our checkpoints hold; models of other projects have the released code's.
_HEAD_OPTIONS = ("pooling", "bilstm_size", "feature_based", "normalize", "projections")


def _teacher_task(config: ml_collections.ConfigDict) -> kinds.FinetuningTask:
    """Returns the task of a model of the teacher's sizes with the teacher's head."""
    path, head = config.distillation.teacher, config_lib.default_config().finetuning
    kind = finetuning.KINDS[config.finetuning.dataset]
    options, sizes = base.unfrozen(config.finetuning), teachers.sizes_of(config)
    if "projections" in kind.options:
        head = _head_of_vectors(config)
    trained = reader.describe(epath.Path(path)) if formats.recognize(path) == "bertjax" else None
    if trained is not None and trained.config.task == "finetuning":
        head = trained.config.finetuning
    options.update({name: head[name] for name in _HEAD_OPTIONS})
    return kind.task(sizes, options)


def _head_of_vectors(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns the options of a teacher of vectors: as its files say, else as the student's."""
    options = base.unfrozen(config.finetuning)
    vectors = formats.vectors(config.distillation.teacher)
    options.projections = _rows_of(vectors.projections) if vectors else ()
    options.pooling = vectors.pooling if vectors else options.pooling
    return options


def _rows_of(projections: Sequence[sentence_vectors.Projection]) -> tuple[tuple[Any, ...], ...]:
    """Returns projections as config.finetuning.projections has them."""
    return tuple(map(dataclasses.astuple, projections))


def _read_teacher(
    config: ml_collections.ConfigDict, vocabulary: tokenizers.Tokenizer | None
) -> teachers.Teacher | None:
    if not config.distillation.teacher:
        return None
    if vocabulary is None:
        why = "only a model that reads tokens can have a teacher"
        raise faults_lib.unread("config.distillation.teacher", config.distillation.teacher, why, "")
    task = _teacher_task(config)
    return teachers.read(
        config,
        task,
        # A head that no format has is read whole: to ask for another would leave out parts of it.
        head=None if task.export_fault else task.head,
        vocabulary=vocabulary,
        labels=tuple(config.finetuning.labels),
    )


@dataclasses.dataclass(frozen=True)
class FinetuningData(base.Data):
    """The rows of a data set in batches.

    `reader` is None for an abstract job, which has shapes and no batches.
    """

    reader: kinds.Reader | None = None

    @functools.cached_property
    def _train_sha256(self) -> str:
        return _digest(self._reader().features(kinds.TRAIN))

    def identity(self) -> dict[str, Any]:
        """Returns hashes of the vocabulary and of the rows trained on, wherever the files lie."""
        return {
            "manifests": {},
            "tokenizer_sha256": self.vocabulary.describe()["sha256"] if self.vocabulary else None,
            "train_sha256": self._train_sha256,
        }

    def train_batches(
        self, phase: lengths.Phase, *, start_step: int, rows: range | None
    ) -> base.Batches:
        of_set = batches.train_batches(
            self._reader().features(kinds.TRAIN),
            global_batch_size=phase.global_batch_size,
            seed=self.config.seed,
            start_step=start_step - phase.first_step,
            buckets=_buckets(self.config.finetuning),
            rows=rows,
        )
        return self._with_language(of_set, kinds.TRAIN)

    def evaluation_batches(self, name: str, *, batch_size: int, rows: range | None) -> base.Batches:
        data = self._reader()
        known = (*data.evaluation_sets, *data.test_sets)
        if name not in known:
            raise faults_lib.unknown("the set", name, known)
        buckets = _buckets(self.config.finetuning)
        of_set = batches.evaluation_batches(
            data.features(name), batch_size=batch_size, buckets=buckets, rows=rows
        )
        return self._with_language(of_set, name)

    def _with_language(self, of_set: base.Batches, name: str) -> base.Batches:
        number = language_of(self.config, name)
        return (languages.with_language(batch, number) for batch in of_set)

    def num_examples(self, name: str) -> int:
        return len(self._reader().examples(name))

    def abstract_batch(self, phase: lengths.Phase) -> dict[str, jax.ShapeDtypeStruct]:
        task = finetuning.head_task(self.config)
        shapes = task.batch_shapes(phase.global_batch_size, phase.max_seq_length)
        if self.config.model.language_embeddings:
            shapes[records.LANGUAGE_FEATURE] = shapes["input_ids"]
        return shapes

    def of_phase(self, phase: lengths.Phase) -> base.PhaseData:
        del phase
        buckets = _buckets(self.config.finetuning)
        if self.reader is None:
            return base.PhaseData(buckets)
        examples = self.reader.features(kinds.TRAIN).epoch_size
        return base.PhaseData(buckets, examples, self._epoch_steps)

    @functools.cached_property
    def _epoch_steps(self) -> float:
        training = self._reader().features(kinds.TRAIN)
        steps = _steps_of(base.unfrozen(self.config), training)
        return steps / self.config.finetuning.num_epochs

    def _reader(self) -> kinds.Reader:
        if self.reader is None:
            raise ValueError("this is an abstract job; it has no data")
        return self.reader


def open_job(
    config: ml_collections.ConfigDict, workdirs: Sequence[epath.PathLike] = ()
) -> base.Job:
    """Returns the job after reading config.init_from's sizes and vocabulary, and the data.

    Once one of `workdirs` holds a checkpoint, they are read there: it is enough to resume. The
    config gets the values that follow from the files: sizes of the model, labels, steps of the
    phase and of the warm-up. All sets are read here, so that faults in them are reported first.
    """
    config = base.unfrozen(config)
    kind = finetuning.KINDS[config.finetuning.dataset]
    sizes, vocabulary, config.data.languages = _found(config, workdirs)
    if kind.length is not None:
        config.finetuning.max_seq_length = kind.length(config.finetuning)
    config.model.update(
        {name: sizes[name] for name in config.model if name not in base.OWN_MODEL_OPTIONS}
    )
    _take_projections(config, workdirs)
    _check_length(config)
    scorer = kind.open(config.finetuning, vocabulary)
    data = scorer.reader
    if missing := list(data.missing()):
        raise ValueError("; ".join(missing))
    for name in (kinds.TRAIN, *data.evaluation_sets):
        language_of(config, name)
    training = data.features(kinds.TRAIN)
    if data.reads_records:
        _check_values(config)
    _check_order(config)
    _warn_of_unknown(training, vocabulary, "Training set")
    _read_evaluation_sets(data)
    for name in data.test_sets:
        data.examples(name)
        logging.info("Test set %s is read; the model will predict it at the end", name)
    finetuning_rates.decide(config, len(training), workdirs)
    options = config.finetuning
    options.update(data.decided)
    config.phases.phase1.max_seq_length = options.max_seq_length
    config.phases.phase1.num_steps = _steps_of(config, training)
    logging.info(
        "Finetuning on %d examples, %g epochs of them; labels: %s",
        len(training), options.num_epochs, ", ".join(options.labels) or "none",
    )  # fmt: skip
    return _job(config, vocabulary, scorer, _read_teacher(config, vocabulary))


def _check_values(config: ml_collections.ConfigDict) -> None:
    """Raises a ValueError for columns, or a shape of pictures, that the pretraining had not."""
    record_set = records.open(config.finetuning.train_file)
    begun = reader.describe(epath.Path(config.init_from)) if config.init_from else None
    stored = begun.config.data.value_meaning if begun else ""
    if others := value_masking.other_columns(stored, record_set.manifest):
        names = ", ".join(map(repr, others)) if any(others) else "in another order"
        raise ValueError(
            f"the columns of {record_set.directory} differ from those that {config.init_from} was "
            f"pretrained on ({names}): build them with --like, the records of the pretraining"
        )
    rows = value_masking.grid_rows(record_set.manifest)
    has_grid = config.model.position_embedding == "sines_of_grid"
    has_grid &= records.PIXELS_FEATURE in record_set.manifest.features
    if has_grid and config.model.grid_rows != rows:
        must = f"{rows} for the pictures of {record_set.directory} (0: squares)"
        step = "build them in the shape of the pretraining's"
        raise faults_lib.wrong("config.model.grid_rows", config.model.grid_rows, must, step)
    config.data.value_meaning = value_masking.described(record_set.manifest)


def language_of(
    config: ml_collections.ConfigDict,
    name: str,
    options: tuple[str, str] = ("config.finetuning.language", evaluation_files.OPTION),
) -> int | None:
    """Returns the number of the language of a set, None if the model has no embeddings of any.

    A file of eval_files is in the language that it is named after. `options` are what name the
    languages; the first is for single files.
    """
    known = languages.names_of(config.model.language_embeddings, config.data.languages)
    of_file, of_named = options
    if known and name in evaluation_files.named(config.finetuning.eval_files):
        return languages.number_of(name, known, f"a name in {of_named}")
    return languages.number_of(config.finetuning.language, known, of_file)


def _read_evaluation_sets(data: kinds.Reader) -> None:
    """Reads all evaluation sets; ValueError with the faults of all their files."""
    faults: list[ValueError] = []
    for name in data.evaluation_sets:
        try:
            rows = data.features(name)
        except ValueError as error:
            faults.append(error)
            continue
        if rows.tokens:
            _warn_of_unknown(rows, data.tokenizer, f"Evaluation set {name}")
        logging.info("Evaluation set %s: %d examples", name, len(data.examples(name)))
    if len(faults) > 1:
        raise ValueError("several evaluation files are faulty:\n" + "\n".join(map(str, faults)))
    if faults:
        raise faults[0]


def _warn_of_unknown(
    rows: feature_sets.FeatureSet, vocabulary: tokenizers.Tokenizer | None, title: str
) -> None:
    if rows.tokens and vocabulary is not None:
        unknown_tokens.of_rows(rows.tokens["input_ids"], vocabulary).warn(title)


def with_config(job: base.Job, config: ml_collections.ConfigDict) -> base.Job:
    """Returns the job under another config, whose data and labels are the same."""
    data, scorer = job.data, job.evaluation.scorer
    assert isinstance(data, FinetuningData) and isinstance(scorer, kinds.Scorer)
    config.phases.phase1.num_steps = _steps_of(config, scorer.reader.features(kinds.TRAIN))
    return _job(config, data.vocabulary, scorer, job.teacher)


def kind_of(trained: reader.Workdir) -> kinds.FinetuningKind | None:
    """Returns the kind of a finetuned model, None if it was not finetuned.

    If it was finetuned elsewhere, the options of its config are set as its head needs them.
    """
    options = trained.config.finetuning
    if trained.config.task == "finetuning":
        return finetuning.KINDS[options.dataset]
    head = dict(trained.meta.get("converted", {}))
    if "classifier" in trained.params and not head.get("labels"):
        count = trained.params["classifier"]["bias"].size
        head["labels"] = {str(number): f"LABEL_{number}" for number in range(count)}
    if "decoder" in trained.params and trained.vocabulary is not None:
        paths = parameters.flat(trained.params)
        head["shares"] = decoder_sharing.sharing(paths)
        head["pad_id"] = trained.vocabulary.pad_id
        head["search"] = generation_config.options(head.get("generation", {}))
        _check_decoder(trained, head.get("decoder") or {})
    kind_and_options = imported.kind_of(head, trained.config.model.max_position_embeddings)
    if kind_and_options is None:
        return None
    kind, head_options = kind_and_options
    options.update(head_options)
    return kind


def _check_decoder(trained: reader.Workdir, sizes: Mapping[str, Any]) -> None:
    """Raises a ValueError if the decoder has other sizes than the encoder."""
    of_encoder = dataclasses.asdict(encoder.EncoderConfig(**trained.config.model))
    of_decoder = dataclasses.asdict(encoder.EncoderConfig(**{**of_encoder, **sizes}))
    others = [name for name, value in of_decoder.items() if value != of_encoder[name]]
    if differing := [name for name in others if name not in families_base.HOW]:
        raise ValueError(
            f"the decoder in {trained.directory} differs from its encoder in "
            f"{', '.join(differing)}; only decoders like their encoders generate texts here"
        )


def evaluating(trained: reader.Workdir, data: str, language: str = "") -> base.Job:
    """Returns the job of a finetuned model that is evaluated on the labelled files at `data`.

    `language` is the language of a single file; "": the one that the model was finetuned in.
    """
    config, kind = trained.config, kind_of(trained)
    if kind is None:
        raise ValueError(
            f"{trained.directory} holds a model that was not finetuned: finetune it with "
            f"--config.init_from={trained.directory}"
        )
    vocabulary = trained.vocabulary if kind.length else trained.needed_vocabulary()
    if language and evaluation_files.are_named(data):
        raise faults_lib.unread("--language", language, "--data names each file itself", "")
    config.finetuning.language = language or config.finetuning.language
    scorer = _scorer_of(data, kind, config.finetuning, vocabulary)
    for name in scorer.reader.evaluation_sets:
        language_of(config, name, ("--language", "--data"))
    return _job(config, vocabulary, scorer)


def _scorer_of(
    data: str,
    kind: kinds.FinetuningKind,
    options: ml_collections.ConfigDict,
    vocabulary: tokenizers.Tokenizer | None,
) -> kinds.Scorer:
    """Returns the scorer of the labelled files at `data`: a path, or NAME=PATH pairs."""
    named = evaluation_files.named(data, "--data") if evaluation_files.are_named(data) else {}
    paths = list(named.values()) or [data]
    if faults := [fault for path in paths if (fault := _directory_fault(kind.reader, path))]:
        raise ValueError("\n".join(f"--data: {fault}" for fault in faults))
    if named and (missing := _missing(paths)):
        raise FileNotFoundError(f"--data is {data}; there is no {' and no '.join(missing)}")
    given = {"eval_file": "" if named else data, "eval_files": data if named else ""}
    options.update(data_dir=data, train_file=paths[0], test_file="", **given)
    scorer = kind.open(options, vocabulary)
    if not named:
        return scorer
    if (sets := scorer.reader.evaluation_sets) != tuple(named):
        raise ValueError(
            f"--data is {data}; a model of the data set {options.dataset!r} is scored on the set "
            f"{' and the set '.join(sets)} of one path: give that"
        )
    _read_evaluation_sets(scorer.reader)
    return scorer


def _job(
    config: ml_collections.ConfigDict,
    tokenizer: tokenizers.Tokenizer | None = None,
    scorer: kinds.Scorer | None = None,
    teacher: teachers.Teacher | None = None,
) -> base.Job:
    phases, reader = lengths.phases(config), scorer.reader if scorer else None
    is_of_values = reader is not None and reader.reads_records
    manifest = records.Manifest.load(config.finetuning.train_file) if is_of_values else None
    return base.Job(
        config=config,
        phases=phases,
        task=finetuning_task(config, teacher),
        data=FinetuningData(config, tokenizer, reader=reader, manifest=manifest),
        evaluation=_evaluation(config, scorer, phases[-1].end_step),
        teacher=teacher,
        meta=finetuning.checkpoint_meta(config),
    )


def _evaluation(
    config: ml_collections.ConfigDict, scorer: kinds.Scorer | None, last_step: int
) -> base.Evaluation:
    every_steps = config.evaluation.every_steps
    sets = scorer.reader.evaluation_sets if scorer else ()
    return base.Evaluation(
        every_steps=every_steps or max(round(last_step / config.finetuning.num_epochs), 1),
        best_score=scorer.best_score if scorer else "",
        is_higher_better=scorer.is_higher_better if scorer else True,
        sets=sets,
        averaged=sets if config.finetuning.eval_files else (),
        test_sets=scorer.reader.test_sets if scorer else (),
        # keep_best needs a checkpoint at every evaluation.
        is_saved=not every_steps and config.checkpoint.keep_best > 0,
        scorer=scorer,
        tunes=scorer.tunes if scorer and sets else (),
    )


def num_steps(config: ml_collections.ConfigDict, num_examples: int) -> int:
    """Returns the steps that config.finetuning.num_epochs of `num_examples` examples take."""
    (phase,) = lengths.phases(config)
    steps = batches.steps_per_epoch(num_examples, phase.global_batch_size)
    return math.ceil(config.finetuning.num_epochs * steps)


def _steps_of(config: ml_collections.ConfigDict, training: feature_sets.FeatureSet) -> int:
    """Returns the steps that config.finetuning.num_epochs of the rows take."""
    (phase,) = lengths.phases(config)
    by_length = len(_buckets(config.finetuning)) > 1
    of_all = batches.Epochs(training, phase.global_batch_size, config.seed, by_length=by_length)
    return of_all.steps_in(config.finetuning.num_epochs)


def _buckets(options: ml_collections.ConfigDict) -> tuple[int, ...]:
    """Returns the lengths that batches are padded to."""
    longest: int = options.max_seq_length
    return padding.default_buckets(longest) if options.length_buckets else (longest,)


# Sizes, vocabulary and languages of the weights that a run starts from.
_Origin = tuple[Mapping[str, Any], tokenizers.Tokenizer | None, tuple[str, ...]]


def _found(config: ml_collections.ConfigDict, workdirs: Sequence[epath.PathLike]) -> _Origin:
    """Returns the origin; an error names its faults and the files that do not exist."""
    faults: list[Exception] = []
    origin = None
    reads_tokens = finetuning.KINDS[config.finetuning.dataset].length is None
    try:
        origin = _begun(workdirs, reads_tokens) or _origin(config.init_from, reads_tokens)
    except (ValueError, FileNotFoundError) as error:
        faults.append(error)
    try:
        faults += _file_faults(config.finetuning)
    except ValueError as error:  # of eval_files
        faults.append(error)
    if len(faults) > 1:
        raise type(faults[0])("several things are wrong:\n  " + "\n  ".join(map(str, faults)))
    if faults:
        raise faults[0]
    assert origin is not None
    return origin


def _file_faults(options: ml_collections.ConfigDict) -> Iterator[Exception]:
    """Yields the faults of the files that the options name, as far as their paths show them."""
    data = finetuning.KINDS[options.dataset].reader
    names = ("train_file", "eval_file", "test_file")
    by_option = {option: data.paths(options[option]) for option in names}
    by_option["eval_files"] = list(evaluation_files.named(options.eval_files).values())
    for option, paths in by_option.items():
        value = options[option]
        if missing := _missing(paths):
            which = " and ".join(missing) if [value] != missing else "which"
            do = "do" if len(missing) > 1 else "does"
            fault = f"config.finetuning.{option} is {value}, {which} {do} not exist"
            yield FileNotFoundError(fault)
        directories_given = [fault for path in paths if (fault := _directory_fault(data, path))]
        yield from (ValueError(f"config.finetuning.{option}: {it}") for it in directories_given)


def _missing(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if not epath.Path(path).exists()]


def _directory_fault(data: type[kinds.Reader], path: str) -> str:
    """Returns the fault of a directory in place of a file of examples, "" without one."""
    if not epath.Path(path).is_dir():
        return ""
    kind = directories.format_of(path)
    holds = directories.FORMATS.get(kind)
    if data.reads_records and kind == "records":
        return ""
    if data.reads_directories and not holds:
        return ""
    content = f" with {holds}" if holds else ""
    expected = "a file of examples or their directory" if data.reads_directories else "a file"
    return (
        f"{path} is a directory{content}, and finetuning reads texts with their labels: give "
        f"{expected}, as docs/finetuning.md has them"
    )


def _begun(workdirs: Sequence[epath.PathLike], reads_tokens: bool) -> _Origin | None:
    """Returns the origin of the run that the first workdir with one holds, if one does."""
    for workdir in map(epath.Path, workdirs):
        begun = reader.describe(workdir)
        if begun is not None and (begun.vocabulary is not None or not reads_tokens):
            named = tuple(begun.config.data.languages)
            return begun.config.model.to_dict(), begun.vocabulary, named
    return None


def _origin(path: str, reads_tokens: bool) -> _Origin:
    """Returns the origin at config.init_from."""
    if not path:
        raise ValueError(
            "config.init_from is empty; finetuning starts from weights and their vocabulary: give "
            "a workdir, a Hugging Face directory or a TF1 checkpoint, --config.init_from=PATH"
        )
    source = sources.read("config.init_from", path, formats.describe)
    if source.vocabulary is None and reads_tokens:
        raise ValueError(
            f"config.init_from, {source.source}, has no vocabulary; finetuning reads text with "
            "that of the weights: put its vocab.txt or spiece.model into their directory"
        )
    return dataclasses.asdict(source.config), source.vocabulary, source.languages


def _take_projections(
    config: ml_collections.ConfigDict, workdirs: Sequence[epath.PathLike]
) -> None:
    """Gives the config the dense layers that follow the pooling of the run's first weights."""
    options = config.finetuning
    if "projections" not in finetuning.KINDS[options.dataset].options:
        return
    begun = (reader.describe(workdir) for workdir in map(epath.Path, workdirs))
    source = next((str(it.directory) for it in begun if it is not None), config.init_from)
    vectors = formats.vectors(source)
    theirs = _rows_of(vectors.projections) if vectors else ()
    given = _rows_of(sentence_vectors.projections_of(options.projections))
    if theirs and given not in ((), theirs):
        must = f"{theirs!r}, as in {source}"
        option = "config.finetuning.projections"
        raise faults_lib.wrong(option, options.projections, must, "leave it out")
    options.projections = theirs or given


def abstract(config: ml_collections.ConfigDict) -> base.Job:
    """Returns the job of a config whose model sizes are known, without weights and without data.

    Labels that are not given are taken to be two, and open options are BERT-base's; the steps are
    those of the config's phase.
    """
    config = finetuning_rates.as_of_base(base.unfrozen(config))
    if not config.model.vocab_size and config.model.embeddings in encoder_config.OF_TOKENS:
        must = "given, as config.init_from is not read"
        step = "--config.model.vocab_size=ENTRIES"
        raise faults_lib.wrong("config.model.vocab_size", config.model.vocab_size, must, step)
    _check_length(config)
    config.finetuning.labels = tuple(config.finetuning.labels) or ("0", "1")
    config.phases.phase1.max_seq_length = config.finetuning.max_seq_length
    has_teacher = bool(config.distillation.teacher)
    teacher = teachers.abstract(config, _teacher_task(config)) if has_teacher else None
    return _job(config, teacher=teacher)


def _check_length(config: ml_collections.ConfigDict) -> None:
    longest, length = config.model.max_position_embeddings, config.finetuning.max_seq_length
    if length > longest:
        must = f"at most {longest}, the number of positions of the model"
        raise faults_lib.wrong("config.finetuning.max_seq_length", length, must)


def _check_order(config: ml_collections.ConfigDict) -> None:
    dataset = config.finetuning.dataset
    if config.model.left_to_right and finetuning.head_task(config).reads_only_first:
        ways = {
            "pooling": "set --config.finetuning.pooling=last",
            "bilstm_size": "put a BiLSTM on it, --config.finetuning.bilstm_size=WIDTH",
        }
        options = finetuning.KINDS[dataset].options
        remedies = ["take other weights", *(ways[name] for name in ways if name in options)]
        raise ValueError(
            f"config.finetuning.dataset is {dataset!r}, which reads the first position, [CLS]; the "
            "weights of config.init_from look to the left alone (left_to_right), so it has seen "
            f"nothing there: {', or '.join(remedies)}"
        )


def _digest(features: feature_sets.FeatureSet) -> str:
    digest = hashlib.sha256()
    parts = [(name, np.concatenate(rows)) for name, rows in sorted(features.tokens.items())]
    parts += sorted(features.columns.items())
    if any(part.weight != 1 for part in features.parts):
        parts.append(("parts", np.array([(it.examples, it.shown) for it in features.parts])))
    parts.append(("lengths", features.row_lengths))
    for name, values in parts:
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
