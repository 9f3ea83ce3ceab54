"""Several trainings of one finetuning job: seeds, and the paper's grid of settings.

One process opens the data and compiles once; each training has a workdir of its own under the
common one, so that all of them resume as any run does. Training itself belongs to `train`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_collections
from absl import logging
from etils import epath

from bertjax import jobs
from bertjax.files import atomic, directories
from bertjax.jobs import finetuning
from bertjax.training import program as program_lib
from bertjax.training import protocols, writers
from bertjax.workdirs import reader, scalars

CURVES_FILE = "learning_curves.png"

Execute = Callable[[program_lib.Program, epath.Path], Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """The options that the grid varies."""

    global_batch_size: int
    peak_learning_rate: float
    num_epochs: float

    @property
    def name(self) -> str:
        rate = f"rate{self.peak_learning_rate:g}"
        return f"batch{self.global_batch_size}_{rate}_epochs{self.num_epochs:g}"


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training: `name` is its directory; `seed` draws head, order and dropout."""

    name: str
    setting: Setting
    seed: int


def are_configured(config: ml_collections.ConfigDict) -> bool:
    """Returns whether a config asks for more than one training."""
    config = protocols.applied(config)
    return config.seeds > 1 or config.search


def list_trials(config: ml_collections.ConfigDict) -> list[Trial]:
    """Returns every seed of every setting: of the grid, or of the config's own setting.

    The protocol of the config is applied already.
    """
    seeds = range(config.seed, config.seed + config.seeds)
    grid = protocols.of_config(config).grid
    if not config.search or grid is None:
        setting = Setting(
            config.global_batch_size,
            config.schedule.peak_learning_rate,
            config.finetuning.num_epochs,
        )
        return [Trial(f"seed_{seed}", setting, seed) for seed in seeds]
    settings = (
        Setting(*values)
        for values in itertools.product(grid.batch_sizes, grid.learning_rates, grid.epochs)
    )
    return [
        Trial(f"{setting.name}_seed{seed}", setting, seed) for setting in settings for seed in seeds
    ]


def workdirs(config: ml_collections.ConfigDict, workdir: epath.Path) -> list[epath.Path]:
    """Returns where the trainings that a config asks for have their checkpoints."""
    if not are_configured(config):
        return [workdir]
    return [workdir / trial.name for trial in list_trials(config)]


def run(program: program_lib.Program, workdir: epath.PathLike, execute: Execute) -> dict[str, Any]:
    """Trains them all one after the other and returns their results, which it also writes.

    `execute` trains a program in a workdir to the end. Trainings that are done stay as they are.
    In the workdir are then results.json (see `summarize`) and learning_curves.png.
    """
    if not program.job.evaluation.sets:
        raise ValueError(
            "config.seeds and config.search compare scores, but there is no evaluation set: give "
            "--config.finetuning.eval_file=FILE, or several by name, eval_files=NAME=FILE,..."
        )
    workdir = epath.Path(workdir)
    if jax.process_index() == 0:
        names = (reader.RESULTS_FILE, CURVES_FILE)
        directories.claim(workdir, "run", names, advice="give another --workdir")
    trials, curves = list_trials(program.config), {}
    for number, trial in enumerate(trials, start=1):
        logging.info("Training %d of %d: %s", number, len(trials), trial.name)
        trial_program = program_lib.for_job(program, job_of(program.job, trial))
        execute(trial_program, workdir / trial.name)
        if jax.process_index() == 0:
            curves[trial.name] = scalars.read(workdir / trial.name / scalars.FILE)
    if jax.process_index() != 0:
        return {}
    evaluation = program.job.evaluation
    score = f"eval/{evaluation.sets[0]}/{evaluation.best_score}"
    scores = {name: scores_of(program.config, lines, score) for name, lines in curves.items()}
    named = (*evaluation.averaged, jobs.MEAN) if len(evaluation.averaged) > 1 else ()
    results = summarize(
        trials,
        scores,
        score=score,
        is_higher_better=evaluation.is_higher_better,
        compared=[f"eval/{name}/{evaluation.best_score}" for name in named],
    )
    atomic.write(
        workdir / reader.RESULTS_FILE, json.dumps(results, indent=2, allow_nan=False) + "\n"
    )
    writers.save_picture(writers.draw_trials(curves, score), workdir / CURVES_FILE)
    for line in sentences(results):
        logging.info("%s", line)
    return results


def job_of(job: jobs.Job, trial: Trial) -> jobs.Job:
    """Returns the job of one training: its config asks for that one alone."""
    config = jobs.unfrozen(job.config)
    config.update(seed=trial.seed, seeds=1, search=False)
    config.global_batch_size = trial.setting.global_batch_size
    config.schedule.peak_learning_rate = trial.setting.peak_learning_rate
    config.finetuning.num_epochs = trial.setting.num_epochs
    phase: Any = next(iter(config.phases.values()))
    phase.global_batch_size = 0  # the config's
    return finetuning.with_config(job, config)


def scores_of(
    config: ml_collections.ConfigDict, lines: Sequence[Mapping[str, Any]], score: str
) -> dict[str, float]:
    """Returns the scores of a run: of its last evaluation, or of the one with the best `score`.

    The protocol decides; of equal ones the first counts. A score of GLUE is better if it is higher.
    """
    if not protocols.of_config(config).picks_epoch:
        return last_scores(lines)
    epochs = [last_scores([line]) for line in lines if score in line]
    return max(epochs, key=lambda it: -math.inf if math.isnan(it[score]) else it[score])


def last_scores(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the scores of a run's last evaluation, nan where one is not a number."""
    step, scores = scalars.last_evaluation(lines)
    if step is None:
        raise ValueError("the run has no evaluation in its metrics.jsonl")
    return {name: math.nan if value is None else value for name, value in scores.items()}


def summarize(
    trials: Sequence[Trial],
    scores: Mapping[str, Mapping[str, float]],
    *,
    score: str,
    is_higher_better: bool,
    compared: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the results as JSON objects.

    `settings` holds for each setting the score's median, mean, sample standard deviation and best
    over its seeds, and the medians of all scores in `compared`; `chosen` is the one with the best
    median, `best` the training with the best score, `trials` every training with all its scores. A
    score that is not a number is None, and counts as the worst.
    """
    sign = 1 if is_higher_better else -1

    def rank(value: float | None) -> float:
        return -math.inf if value is None else sign * value

    rows = [_trial_row(trial, scores[trial.name], score) for trial in trials]
    settings = []
    for setting in dict.fromkeys(trial.setting for trial in trials):
        seeds = [row for row, trial in zip(rows, trials, strict=True) if trial.setting == setting]
        values = [row["score"] for row in seeds]
        best = max(seeds, key=lambda row: rank(row["score"]))
        row = {**dataclasses.asdict(setting), **_statistics(values), "best": best["score"]}
        medians = {
            name: _statistics([it["scores"][name] for it in seeds])["median"] for name in compared
        }
        settings.append(row | ({"medians": medians} if medians else {}))
    return {
        "score": score,
        "is_higher_better": is_higher_better,
        "chosen": max(settings, key=lambda row: rank(row["median"])),
        "best": max(rows, key=lambda row: rank(row["score"])),
        "settings": settings,
        "trials": rows,
    }


def sentences(results: Mapping[str, Any]) -> list[str]:
    """Returns what people want to know of the results, a line for each setting and for the best."""
    lines = []
    for row in results["settings"]:
        setting = Setting(row["global_batch_size"], row["peak_learning_rate"], row["num_epochs"])
        numbers = ", ".join(
            f"{name} {_shown(row[name])}" for name in ("median", "mean", "std", "best")
        )
        lines.append(f"{setting.name}: {results['score']} of {row['seeds']} seeds: {numbers}")
        if medians := row.get("medians"):
            shown = ", ".join(f"{name} {_shown(value)}" for name, value in medians.items())
            lines.append(f"{setting.name}: medians by set: {shown}")
    best = results["best"]
    return [*lines, f"The best training is {best['name']}: {_shown(best['score'])}"]


def _trial_row(trial: Trial, scores: Mapping[str, float], score: str) -> dict[str, Any]:
    numbers = {name: _finite(value) for name, value in scores.items()}
    if score not in numbers:
        raise ValueError(f"{trial.name} has no score {score}; it has {', '.join(numbers)}")
    setting = dataclasses.asdict(trial.setting)
    return {"name": trial.name, "seed": trial.seed, **setting} | {
        "score": numbers[score],
        "scores": numbers,
    }


def _statistics(values: Sequence[float | None]) -> dict[str, Any]:
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return {"seeds": len(values), "median": None, "mean": None, "std": None}
    return {
        "seeds": len(values),
        "median": statistics.median(numbers),
        "mean": statistics.fmean(numbers),
        "std": statistics.stdev(numbers) if len(numbers) > 1 else None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"
