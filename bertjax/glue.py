"""Finetunes all tasks of GLUE from one checkpoint, and prints the paper's table with our rows.

python -m bertjax.glue --init_from=PATH --data=GLUE --workdir=DIR [--config.seeds=5]

Each task has its own workdir under the common one and resumes as any run does, by the same command.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Glue, __doc__, logs=True)

import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence

import ml_collections
from absl import logging
from etils import epath

from bertjax import train
from bertjax.cli import command_line, programs
from bertjax.files import directories
from bertjax.finetuning import glue_files, glue_submission
from bertjax.options import faults
from bertjax.training import config_faults, evaluation, preemption, protocols, trials
from bertjax.workdirs import scalars

TABLE_FILE, SCORES_FILE = "glue.md", "glue.json"
SUBMISSION_DIRECTORY, SUBMISSION_FILE = "submission", "submission.zip"


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table: a score of one evaluation set of a task."""

    title: str
    task: str
    evaluation_set: str = "dev"

    @property
    def score(self) -> str:
        """The name of the score in metrics.jsonl: Spearman for STS-B, F1 for MRPC and QQP."""
        return f"eval/{self.evaluation_set}/{glue_files.TASKS[self.task].scores[-1]}"


# Source: Devlin et al. 2019, table 1: its columns, in its order, without WNLI.
COLUMNS = (
    Column("MNLI-m", "mnli", "matched"),
    Column("MNLI-mm", "mnli", "mismatched"),
    Column("QQP", "qqp"),
    Column("QNLI", "qnli"),
    Column("SST-2", "sst2"),
    Column("CoLA", "cola"),
    Column("STS-B", "stsb"),
    Column("MRPC", "mrpc"),
    Column("RTE", "rte"),
)
TASKS = (*dict.fromkeys(column.task for column in COLUMNS), "wnli")
BABYLM_TASKS = protocols.PROTOCOLS["babylm"].tasks
_BABYLM_TITLES = ("BoolQ", "MNLI", "MRPC", "MultiRC", "QQP", "RTE", "WSC")
BABYLM_COLUMNS = tuple(map(Column, _BABYLM_TITLES, BABYLM_TASKS))
# Source: the same table, without its average, which is the mean of these: 79.6 and 82.1.
PAPER = {
    "BERT Base, paper, test": (84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4),
    "BERT Large, paper, test": (86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1),
}

# Name of the score -> the score, of one training.
Scores = Mapping[str, float | None]


@dataclasses.dataclass(frozen=True)
class Finetuned:
    """The scores of a finetuned task: of each seed of the best setting, and of the best training.

    `best_directory` is the workdir of the best training.
    """

    seeds: tuple[Scores, ...]
    best: Scores
    best_directory: epath.Path


def run(
    config: ml_collections.ConfigDict, workdir: epath.PathLike, tasks: Sequence[str]
) -> dict[str, Finetuned]:
    """Finetunes each of the tasks by `config`, the recipe of any of them.

    A task is evaluated after every epoch.

    Raises:
      ValueError: for all tasks that are unknown or have no files; or as `train.train`.
      directories.NotOursError: if the results would replace files of others.
    """
    check(config.finetuning.data_dir, tasks)
    configs = {task: _config_of(config, task) for task in tasks}
    names = (TABLE_FILE, SCORES_FILE, SUBMISSION_FILE, SUBMISSION_DIRECTORY)
    directories.claim(workdir, "run", names, advice="give another --workdir")
    finetuned = {}
    for number, task in enumerate(tasks, start=1):
        logging.info("Task %d of %d: %s", number, len(tasks), task)
        finetuned[task] = _finetune(configs[task], epath.Path(workdir) / task)
    return finetuned


def _config_of(config: ml_collections.ConfigDict, task: str) -> ml_collections.ConfigDict:
    config = config.copy_and_resolve_references()
    config.finetuning.name = task
    config.evaluation.every_steps = 0
    return protocols.applied(config)


def check(data_dir: str, tasks: Sequence[str]) -> None:
    """Raises a ValueError that names the tasks that are unknown or have no files."""
    known = (*TASKS, *BABYLM_TASKS)
    if unknown := [task for task in tasks if task not in known]:
        raise faults.unknown("--tasks", ", ".join(unknown), known)
    if not tasks:
        raise ValueError(f"--tasks is empty; known are {', '.join(TASKS)}")
    if data_dir.startswith(glue_files.TFDS_PREFIX):
        return
    rows = {task: glue_files.TASKS[task] for task in tasks}
    folders = {
        task: epath.Path(data_dir) / (row.folder or row.files["train"])
        for task, row in rows.items()
    }
    if missing := [task for task, folder in folders.items() if not folder.exists()]:
        rest = [task for task in tasks if task not in missing]
        raise ValueError(
            f"{', '.join(str(folders[task]) for task in missing)} must hold the files of "
            f"{', '.join(missing)} and do not exist; fetch them, or leave these tasks out: "
            f"--tasks={','.join(rest) or 'NAMES'}"
        )


def table(finetuned: Mapping[str, Finetuned], note: str = "") -> str:
    """Returns the paper's table in Markdown, in percent, with our rows, or BabyLM's table.

    Our scores are of the dev sets, the paper's of the test sets, which only the server can score;
    `note` says what the dev sets have chosen. A task that was not finetuned is "-", and an average
    needs all columns.
    """
    is_babylm = bool(finetuned.keys() & {*BABYLM_TASKS})
    columns = BABYLM_COLUMNS if is_babylm else COLUMNS
    num_seeds = max((len(task.seeds) for task in finetuned.values()), default=1)
    rows: dict[str, Sequence[float | None]] = {} if is_babylm else dict(PAPER)
    ours = f"ours, dev, {note}" if note else "ours, dev"
    if num_seeds > 1:
        rows[f"{ours}, median of {num_seeds} seeds"] = [_median(finetuned, it) for it in columns]
        rows[f"{ours}, best of them"] = [_best(finetuned, it) for it in columns]
    else:
        rows[ours] = [_best(finetuned, it) for it in columns]
    head = ["", *(column.title for column in columns), "average"]
    lines = [head, ["---"] * len(head)]
    for name, values in rows.items():
        numbers = [value for value in values if value is not None]
        average = statistics.fmean(numbers) if len(numbers) == len(values) else None
        lines.append([name, *map(_shown, values), _shown(average)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(finetuned: Mapping[str, Finetuned], workdir: epath.PathLike, note: str = "") -> str:
    """Writes the table, all scores and, if all test sets have predictions, the server's zip.

    Returns the table, and the path of the zip or the reason why there is no zip.
    """
    workdir = epath.Path(workdir)
    shown = table(finetuned, note)
    (workdir / TABLE_FILE).write_text(shown)
    scores = {name: {"seeds": task.seeds, "best": task.best} for name, task in finetuned.items()}
    (workdir / SCORES_FILE).write_text(json.dumps(scores, indent=2) + "\n")
    if finetuned.keys() & {*BABYLM_TASKS}:
        return shown
    try:
        submission = f"The server's zip is {pack(finetuned, workdir)}"
    except ValueError as error:
        submission = f"There is no zip for the server: {error}"
    return f"{shown}\n{submission}\n"


def pack(finetuned: Mapping[str, Finetuned], workdir: epath.Path) -> epath.Path:
    """Writes the zip of the best trainings' predictions, and returns its path.

    Raises:
      ValueError: as `glue_submission.pack_submission`, if a file is missing or wrong.
    """
    directory = workdir / SUBMISSION_DIRECTORY
    # The zip of an earlier call, whose best trainings may have been others.
    (workdir / SUBMISSION_FILE).unlink(missing_ok=True)
    directory.mkdir(parents=True, exist_ok=True)
    for name in glue_submission.TEST_ROWS:
        (directory / name).unlink(missing_ok=True)
    for task in finetuned.values():
        predictions = task.best_directory / evaluation.PREDICTIONS_DIRECTORY
        for name in glue_submission.TEST_ROWS:
            if (predictions / name).exists():
                (predictions / name).copy(directory / name)
    glue_submission.pack_submission(directory, workdir / SUBMISSION_FILE)
    return workdir / SUBMISSION_FILE


def _finetune(config: ml_collections.ConfigDict, workdir: epath.Path) -> Finetuned:
    if not trials.are_configured(config):
        train.train(config, workdir)
        task = config.finetuning.name
        column = next(it for it in (*COLUMNS, *BABYLM_COLUMNS, Column("", task)) if it.task == task)
        found = trials.scores_of(config, scalars.read(workdir / scalars.FILE), column.score)
        scores = {name: value if math.isfinite(value) else None for name, value in found.items()}
        return Finetuned((scores,), scores, workdir)
    results = train.train_trials(config, workdir)
    names = (field.name for field in dataclasses.fields(trials.Setting))
    setting = {name: results["chosen"][name] for name in names}
    seeds = [row for row in results["trials"] if setting.items() <= row.items()]
    best = results["best"]
    return Finetuned(tuple(row["scores"] for row in seeds), best["scores"], workdir / best["name"])


def _median(finetuned: Mapping[str, Finetuned], column: Column) -> float | None:
    if column.task not in finetuned:
        return None
    values = [scores[column.score] for scores in finetuned[column.task].seeds]
    numbers = [value for value in values if value is not None]
    return 100 * statistics.median(numbers) if len(numbers) == len(values) else None


def _best(finetuned: Mapping[str, Finetuned], column: Column) -> float | None:
    value = finetuned[column.task].best[column.score] if column.task in finetuned else None
    return None if value is None else 100 * value


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def main(options: programs.Glue) -> None:
    """Finetunes, prints the table and writes it; exits with 75 after a preemption."""
    config = options.config
    config.init_from, config.finetuning.data_dir = options.init_from, options.data
    protocol = protocols.PROTOCOLS.get(config.finetuning.protocol, protocols.PROTOCOLS[""])
    tasks = protocol.tasks or TASKS if options.tasks is None else options.tasks
    try:
        finetuned = run(config, options.workdir, tasks)
    except preemption.Preempted as notice:
        logging.warning("%s", notice)
        sys.exit(preemption.EXIT_CODE)
    report = write(finetuned, options.workdir, protocol.note)
    command_line.print_report(report.removesuffix("\n"))


if __name__ == "__main__":
    command_line.run(main, choices=config_faults.CHOICES)
