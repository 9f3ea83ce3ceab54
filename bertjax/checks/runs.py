"""The series and the facts of a run, read from its workdir; the checks see nothing else.

A run may still go on, and its records may be elsewhere by now: then the facts that need them are
missing, and the checks that need those say nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Float

from bertjax import config as config_lib
from bertjax import jobs, tasks
from bertjax.checks import references as references_lib
from bertjax.data import contents, records
from bertjax.files import json_text
from bertjax.jobs import lengths
from bertjax.models import encoder_config
from bertjax.options import faults
from bertjax.workdirs import reader, scalars

HELD_OUT = "eval/heldout/"
SECONDS_PER_HOUR = 3600
MOST_COMPARED = 100_000_000  # bytes of a file of examples
OF_A_LINE = ("table", "sequences")  # kinds of finetuning whose examples are lines


@dataclasses.dataclass(frozen=True)
class DataFacts:
    """The figures of the records of a run; None where they are unknown.

    `passes` counts how often the text is read, each copy (--dupe_factor) as a pass.
    `documents` is the number of training documents, `overlap` the share of the held-out documents
    that are trained on, in finetuning of the lines of the evaluation file, `held_out_fraction` the
    share that the split holds out.
    """

    passes: float | None = None
    unigram_entropy: float | None = None
    documents: int | None = None
    held_out_documents: int | None = None
    held_out_fraction: float | None = None
    overlap: float | None = None


@dataclasses.dataclass(frozen=True)
class Run:
    """A run by its name.

    `lines` are from metrics.jsonl; each has `tokens` (batch x length so far) where the phases
    tell, and `hours` (of steps, without evaluation and compiling). `options` are the config by
    dotted names, `identity` the hashes of the data. `resumed` are the steps from which it was
    continued, `phase_ends` the last steps of the phases, the last of them the end of the run.
    """

    name: str
    lines: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    phase_ends: tuple[int, ...] = ()
    resumed: tuple[int, ...] = ()
    data: DataFacts = DataFacts()
    references: tuple[references_lib.Reference, ...] = ()

    def series(self, name: str) -> tuple[Float[np.ndarray, " lines"], Float[np.ndarray, " lines"]]:
        """Returns the steps and values of a scalar, NaN where it was not finite."""
        pairs = [(line["step"], line[name]) for line in self.lines if name in line]
        steps, values = zip(*pairs, strict=True) if pairs else ((), ())
        return np.array(steps, float), np.array(values, float)

    def last(self, name: str) -> float:
        """Returns the last finite value of a scalar, NaN without one."""
        values = self.series(name)[1]
        finite = values[np.isfinite(values)]
        return float(finite[-1]) if len(finite) else math.nan

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """The scores of the last evaluation by set; of several sets with means, the means."""
        found: dict[str, dict[str, float]] = {}
        for name, value in scalars.last_evaluation(self.lines)[1].items():
            _, of_set, score = name.split("/", 2)
            found.setdefault(of_set, {})[score] = math.nan if value is None else value
        return {jobs.MEAN: found[jobs.MEAN]} if jobs.MEAN in found else found

    @property
    def key(self) -> str:
        """The digest of data, vocabulary, model and tokens that a reference curve must have."""
        return references_lib.key_of(self.options, self.identity)

    @property
    def step(self) -> int:
        return self.lines[-1]["step"] if self.lines else 0

    @property
    def is_finished(self) -> bool:
        return bool(self.phase_ends) and self.step >= self.phase_ends[-1]

    @property
    def reads_values(self) -> bool:
        """Whether rows hold values, whose recipes need no warm-up and read them many times."""
        return self.options["model.embeddings"] not in encoder_config.OF_TOKENS

    @property
    def warmup_steps(self) -> int:
        """The steps in which the learning rate rises; 0 where tokens say them."""
        if self.options["schedule.warmup_tokens"]:
            return 0
        if share := self.options["schedule.warmup_share"]:
            return round(share * self.phase_ends[-1])
        steps, decisions = self.options["schedule.warmup_steps"], self.options["budget.decisions"]
        # With config.budget.hours it is a part of the plan, which the run follows at its own pace.
        return round(steps * self.phase_ends[-1] / sum(decisions[0][1:])) if decisions else steps

    @property
    def is_pretraining(self) -> bool:
        return self.options["task"] == "pretraining"

    @property
    def main_loss(self) -> str:
        """The name of the loss that says whether something is learnt, of tokens or of values."""
        if not self.is_pretraining:
            return "loss"
        usual = tasks.OBJECTIVES[self.options["pretraining.objective"]].token_loss
        names = (usual, "replaced_loss", "category_loss")  # cells may be predicted as such
        logged = {name for line in self.lines for name in line}
        return next((it for it in names if f"train/{it}" in logged), usual)

    def chance(self, averages: Mapping[str, float]) -> Mapping[str, float]:
        """Returns the baselines that follow from averages of the objective's metrics."""
        if not self.is_pretraining:
            return {}
        return tasks.OBJECTIVES[self.options["pretraining.objective"]].chance(averages)


def of_config(
    config: ml_collections.ConfigDict,
    phases: Sequence[lengths.Phase],
    lines: Sequence[Mapping[str, Any]] = (),
    name: str = "",
    **facts: Any,
) -> Run:
    """Returns the run of a config without open options; `facts` are further fields.

    It is what a run knows of itself while it trains.
    """
    return Run(
        name=name,
        lines=lines,
        options=dict(config_lib.flatten(config)),
        phase_ends=tuple(phase.end_step for phase in phases if phase.is_last),
        **facts,
    )


def read(
    workdir: epath.PathLike, references: Sequence[references_lib.Reference] | None = None
) -> Run:
    """Returns the run of a workdir, with the references that have its data and model.

    None: the references of the package.
    """
    directory = epath.Path(workdir)
    lines = scalars.read(directory / scalars.FILE)
    if not lines:
        raise FileNotFoundError(
            f"{directory / scalars.FILE} has no lines; give the workdir of a run that has logged "
            "some steps (config.log_every_steps)"
        )
    trained = reader.describe(directory)
    path = directory / reader.CONFIG_FILE
    saved = trained.meta["config"] if trained else json_text.read_object(path)
    faults.check(f"{path} cannot be read", config_lib.type_faults(saved))
    config = ml_collections.ConfigDict(config_lib.completed(saved))
    if (objective := config.pretraining.objective) not in tasks.OBJECTIVES:
        raise faults.unknown(f"pretraining.objective of {path}", objective, tasks.OBJECTIVES)
    phases = lengths.phases(config)
    run = of_config(
        config,
        phases,
        _with_places(lines, phases if config.task == "pretraining" else ()),
        directory.name,
        identity=dict(trained.meta["identity"]) if trained else {},
        resumed=_resumed(directory / scalars.TENSORBOARD_DIRECTORY, lines[-1]["step"]),
        data=_data_facts(trained) if trained else DataFacts(),
    )
    known = references_lib.load_all() if references is None else references
    own = tuple(it for it in known if it.key == run.key)
    return dataclasses.replace(run, references=own)


def read_all(
    workdirs: Sequence[epath.PathLike],
    references: Sequence[references_lib.Reference] | None = None,
) -> list[Run]:
    """Returns the runs, each with a name of its own."""
    if not workdirs:
        raise ValueError("no run was given: bertjax compare RUN [RUN ...]")
    read_runs = [read(workdir, references) for workdir in workdirs]
    names = [run.name for run in read_runs]
    if len(set(names)) == len(names):
        return read_runs
    return [
        dataclasses.replace(run, name=str(workdir))
        for run, workdir in zip(read_runs, workdirs, strict=True)
    ]


def _with_places(
    lines: Sequence[Mapping[str, Any]], phases: Sequence[lengths.Phase]
) -> list[dict[str, Any]]:
    """Returns the lines with their tokens and hours."""
    ends = [0, *(phase.end_step for phase in phases)]
    tokens = [0, *itertools.accumulate(it.num_steps * it.tokens_per_step for it in phases)]
    placed, hours, step = [], 0.0, 0
    for line in lines:
        hours += (line["step"] - step) * line.get("perf/step_seconds", 0.0) / SECONDS_PER_HOUR
        step = line["step"] if "perf/step_seconds" in line else step
        places = {"hours": hours}
        if phases:
            places["tokens"] = float(np.interp(line["step"], ends, tokens))
        placed.append({**places, **line})
    return placed


def _resumed(directory: epath.Path, last_step: int) -> tuple[int, ...]:
    """Returns the steps from which a run was continued, by the starts in its TensorBoard events."""
    steps = set()
    for path in sorted(directory.glob("events.*")) if directory.exists() else ():
        steps |= {event.step - 1 for event in _events(path.read_bytes())
                  if event.HasField("session_log")}  # fmt: skip
    return tuple(sorted(step for step in steps if 0 < step < last_step))


def _events(content: bytes) -> list[Any]:
    """Returns the events of a file that are complete: each has length, crc, bytes and crc."""
    from tensorboardX.proto import event_pb2  # the package imports torch where that is installed

    events, place = [], 0
    while place + 16 <= len(content):
        length = int.from_bytes(content[place : place + 8], "little")
        if place + 16 + length > len(content):
            break
        events.append(event_pb2.Event.FromString(content[place + 12 : place + 12 + length]))
        place += 16 + length
    return events


def _data_facts(trained: reader.Description) -> DataFacts:
    """Returns what the records tell, if they are still there, and the copies in the workdir."""
    if trained.config.task == "finetuning":
        return DataFacts(overlap=_shared_lines(trained))
    if trained.config.data.source != "records":
        return DataFacts()
    phases = lengths.phases(trained.config)
    train_sets = reader.training_records(trained)
    manifests = {name: it.manifest for name, it in train_sets.items()}
    held_out = _held_out(trained)
    facts: dict[str, Any] = {}
    if manifests:
        facts["passes"] = _passes(manifests, phases)
        # The last phase: its loss is the one that is compared.
        statistics = manifests[phases[-1].name].statistics
        facts["unigram_entropy"] = statistics.get("unigram_entropy")
        facts["documents"] = statistics.get("documents")
    if held_out is not None:
        facts["held_out_documents"] = held_out.manifest.statistics.get("documents")
        facts["held_out_fraction"] = held_out.manifest.arguments.get("heldout_fraction")
        facts["overlap"] = _overlap(trained, held_out)
    return DataFacts(**facts)


def _held_out(trained: reader.Description) -> records.RecordSet | None:
    directory = trained.located(trained.config.data.eval_dir)
    try:
        return records.RecordSet(epath.Path(directory), records.Manifest.load(directory))
    except (FileNotFoundError, ValueError) as error:
        if directory:
            logging.info("The held-out records are not compared: %s", error)
        return None


def _shared_lines(trained: reader.Description) -> float | None:
    """Returns the share of the lines of the evaluation file that are in the training file.

    None if they are not single files, or no longer there.
    """
    options = trained.config.finetuning
    paths = [trained.located(it) for it in (options.train_file, options.eval_file)]
    if not all(os.path.isfile(it) and os.path.getsize(it) < MOST_COMPARED for it in paths):
        return None
    training, evaluation = (pathlib.Path(it).read_bytes() for it in paths)
    if training == evaluation:
        return 1.0
    if options.dataset not in OF_A_LINE:
        return None
    header, *lines = evaluation.splitlines()
    of_training = {*training.splitlines()} - {header}
    return sum(it in of_training for it in lines) / max(len(lines), 1)


def _passes(
    manifests: Mapping[str, records.Manifest], phases: Sequence[lengths.Phase]
) -> float | None:
    """Returns how often the records are read, all phases together."""
    passes = 0.0
    for phase in phases:
        manifest = manifests[phase.name]
        copies = manifest.arguments.get("dupe_factor") or 1
        passes += phase.num_steps * phase.global_batch_size * copies / manifest.num_examples
    return passes


def _overlap(trained: reader.Description, held_out: records.RecordSet) -> float | None:
    """Returns the share of the held-out documents that were trained on, None if unknown."""
    if held_out.manifest.digest in trained.identity("manifests").values():
        return 1.0
    ours = contents.load(trained.directory / reader.TRAINING_DATA_DIRECTORY)
    theirs = held_out.contents
    if not ours or not theirs or ours.documents is None or theirs.documents is None:
        return None
    return theirs.documents.share_in(ours.documents)
