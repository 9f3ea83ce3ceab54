"""A workdir of `objectives`: each piece of work is done once and leaves a file.

What is done is what a user's own programs do: data_pipelines, `train`, `evaluate`.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections
from absl import logging

from benchmarks import pretraining_rows, report
from bertjax import evaluate, interactive, jobs, recipes, train
from bertjax.data import minimal_pairs, records
from bertjax.files import atomic
from bertjax.finetuning import glue_files
from bertjax.models import parameters
from bertjax.workdirs import scalars

SETTINGS_FILE = "settings.json"
PRETRAINING = "pretraining"  # in the directory of a row
KEPT_CHECKPOINTS = 4  # of a pretraining


class Workshop:
    """A workdir with its settings: where each piece of work lies, and what makes it."""

    def __init__(self, workdir: str, settings: pretraining_rows.Settings):
        self.directory = pathlib.Path(workdir).absolute()
        self.settings = settings

    def begin(self) -> None:
        """Keeps the settings, or compares them with those that are kept.

        Raises:
          ValueError: naming each setting that differs, and what to do.
        """
        path = self.directory / SETTINGS_FILE
        own = {**dataclasses.asdict(self.settings), "versions": versions()}
        if path.exists():
            check_settings(json.loads(path.read_text()), own, self.directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        atomic.write(path, json.dumps(own, indent=1) + "\n")

    @classmethod
    def existing(cls, workdir: str) -> Workshop:
        """Returns a workdir as it is.

        Raises:
          FileNotFoundError: if nothing was begun there.
        """
        path = pathlib.Path(workdir) / SETTINGS_FILE
        if not path.exists():
            raise FileNotFoundError(f"--workdir, {workdir}, has no {SETTINGS_FILE}: run something")
        kept = known_settings(json.loads(path.read_text()))
        return cls(workdir, pretraining_rows.Settings(**kept))

    def of_row(self, name: str, seed: int) -> pathlib.Path:
        """Returns the directory of a pretraining and of its scores."""
        return self.directory / "rows" / name / f"seed_{seed}"

    @property
    def _compiled(self) -> str:
        """The directory of compiled programs: rows that differ in their data alone share them."""
        return str(self.directory / "compiled")

    # Inputs of several rows.

    def vocabulary(self) -> pathlib.Path:
        """Returns the vocabulary of all rows, trained on the text if it is not there."""
        output = self.directory / "vocabulary"
        options = {"input": self.settings.corpus, "size": self.settings.vocab_size}
        options["normalization"] = "bert_uncased"
        self._run_once(output, "train_vocabulary", options)
        return output

    def records(self, kind: str, split: str) -> pathlib.Path:
        """Returns records of a kind, of the text or the held-out text, built if not there."""
        settings, output = self.settings, self.directory / "records" / f"{kind}_{split}"
        is_train = split == "train"
        flags = {
            "input": settings.corpus if is_train else settings.heldout,
            "vocabulary": self.vocabulary(),
            "max_seq_length": settings.max_seq_length,
            "mask": "none",
            "dupe_factor": settings.dupe_factor if is_train else 1,
            **pretraining_rows.RECORDS[kind],
        }
        self._run_once(output, "build", flags)
        return output

    def fill(self, kind: str) -> float | None:
        """Returns the share of tokens, not padding, in training records; None if not built."""
        path = self.directory / "records" / f"{kind}_train"
        return records.Manifest.load(path).statistics["fill"] if path.exists() else None

    def _run_once(self, output: pathlib.Path, program: str, flags: Mapping[str, Any]) -> None:
        """Runs a program of data_pipelines, which leaves `output` when it is complete."""
        if output.exists():
            return
        output.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", f"data_pipelines.{program}", f"--output={output}"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        logging.info("%s", " ".join(command))
        subprocess.run(command, check=True)

    def first_pairs(self) -> pathlib.Path:
        """Returns a file of the first pairs of each paradigm."""
        path = self.directory / "pairs.jsonl"
        if not path.exists():
            _, pairs = minimal_pairs.read(self.settings.pairs)
            pairs = minimal_pairs.first_of_each(pairs, self.settings.pairs_per_paradigm)
            lines = []
            for pair in pairs:
                (_, good), (_, bad) = pair.texts
                fields = {"sentence_good": good, "sentence_bad": bad}
                names = {"UID": pair.paradigm, "linguistics_term": pair.phenomenon}
                lines.append(json.dumps(fields | names))
            atomic.write(path, "\n".join(lines) + "\n")
        return path

    def glue_data(self, task: str) -> pathlib.Path:
        """Returns a directory with the task's training and dev files, the former's first rows.

        The test sets, which would be predicted after each training, are not in it.
        """
        folder = glue_files.TASKS[task].folder
        source, copy = pathlib.Path(self.settings.glue) / folder, self.directory / "glue" / folder
        copy.mkdir(parents=True, exist_ok=True)
        header = not glue_files.TASKS[task].columns
        lines = (source / "train.tsv").read_text(encoding="utf-8").split("\n")
        lines = lines[: self.settings.most_examples + header]
        atomic.write(copy / "train.tsv", "\n".join(lines).rstrip("\n") + "\n")
        atomic.write(copy / "dev.tsv", (source / "dev.tsv").read_text(encoding="utf-8"))
        return copy.parent

    # The work for a row.

    def pretraining_config(self, row: pretraining_rows.Row, seed: int) -> ml_collections.ConfigDict:
        """Returns the config of a row with its steps; a quarter, a half and so on are kept."""
        settings = self.settings
        config = pretraining_rows.config_of(row, settings)
        config.seed, config.compilation_cache_dir = seed, self._compiled
        config.data.train_dir = str(self.records(row.records, "train"))
        config.data.eval_dir = str(self.records(row.records, "heldout"))
        steps = 1
        if row.length == "budget":
            steps = pretraining_rows.steps_within(settings.budget, self._step_flops(config))
        config.phases.phase1.num_steps = steps
        config.checkpoint.save_every_steps = -(-steps // KEPT_CHECKPOINTS)
        config.checkpoint.keep_every_steps = config.checkpoint.save_every_steps
        return config

    def _step_flops(self, config: ml_collections.ConfigDict) -> float:
        """Returns the model FLOPs of a step, as `bertjax.plan` counts them; compiles nothing."""
        job = train.prepare(config, self.directory / "not_written").job
        (phase,) = job.phases
        return jobs.train_flops(job, phase)

    def pretrain(self, name: str, row: pretraining_rows.Row, seed: int) -> None:
        """Pretrains a row, or goes on with it; leaves `pretrained.json`."""
        where, settings = self.of_row(name, seed), self.settings
        if finished(where, "pretrained", row.made_of):
            return
        config = self.pretraining_config(row, seed)
        steps = config.phases.phase1.num_steps
        logging.info("%s, seed %d: %d steps", name, seed, steps)
        params = train.train(config, where / PRETRAINING).params
        _, scores = scalars.last_evaluation(scalars.read(where / PRETRAINING / scalars.FILE))
        positions = steps * settings.batch_size * settings.max_seq_length
        found = {
            "made_of": row.made_of,
            "steps": steps,
            "flops": steps * self._step_flops(config),
            "tokens": round(positions * (self.fill(row.records) or 0.0)),  # without padding
            "parameters": sum(value.size for value in parameters.flat(params).values()),
            "scores": {key.removeprefix("eval/heldout/"): it for key, it in scores.items()},
        }
        finish(found, where, "pretrained")

    def score_pairs(self, name: str, seed: int) -> None:
        """Scores the minimal pairs by a pretrained row; leaves `pairs.json`."""
        where = self.of_row(name, seed)
        if not result(where, "pairs"):
            run = where / PRETRAINING
            found = evaluate.evaluate_pairs(run, self.first_pairs(), batch_size=256)
            finish(found, where, "pairs")

    def score_held_out(self, name: str, seed: int) -> None:
        """Scores a pretrained row on records that are the same for all; leaves `held_out.json`."""
        where = self.of_row(name, seed)
        if not result(where, "held_out"):
            held_out = str(self.records("masked", "heldout"))
            found = evaluate.evaluate_checkpoint(where / PRETRAINING, held_out, batch_size=256)
            finish(found, where, "held_out")

    def finetune(
        self, name: str, seed: int, task: str, options: Mapping[str, Any], seeds: int
    ) -> None:
        """Finetunes a pretrained row on a task of GLUE with several seeds; leaves `TASK.json`.

        `options` differ from the recipe's. The score is the leaderboard's.
        """
        where, settings = self.of_row(name, seed), self.settings
        done = finished(where, task, options)
        if done and len(done["values"]) >= seeds:
            return
        config = recipes.finetuning_config("glue")
        config.finetuning.update(name=task, data_dir=str(self.glue_data(task)))
        config.compilation_cache_dir = self._compiled
        config.finetuning.max_seq_length = settings.max_seq_length
        config.finetuning.num_epochs = settings.finetuning_epochs
        config.schedule.peak_learning_rate = settings.finetuning_rate
        config.update_from_flattened_dict(options)
        config.seeds, config.init_from = seeds, str(where / PRETRAINING)
        runs, score = where / "finetuned" / task, f"eval/dev/{glue_files.TASKS[task].scores[-1]}"
        run = interactive.run(config, runs, verbose=False)
        trials = run.results["trials"] if run.results else [{"scores": run.scores}]
        values = [trial["scores"][score] for trial in trials]
        finish({"made_of": dict(options), "score": score, "values": values}, where, task)
        shutil.rmtree(runs)


def result(directory: pathlib.Path, name: str) -> Any:
    """Returns what a finished piece of work has left, None if it is not finished."""
    path = directory / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def finish(value: Any, directory: pathlib.Path, name: str) -> None:
    """Leaves the result of a piece of work; the next one has other programs."""
    atomic.write(directory / f"{name}.json", json.dumps(value, indent=1) + "\n")
    jax.clear_caches()


def finished(directory: pathlib.Path, name: str, made_of: Mapping[str, Any]) -> Any:
    """Returns what a finished piece of work has left, None if it is not finished.

    Raises:
      ValueError: if it was made with other options than `made_of`.
    """
    found = result(directory, name)
    if found and found.get("made_of") != made_of:
        raise ValueError(
            f"{directory / name}.json was made with {found.get('made_of')}, and would be made with "
            f"{dict(made_of)} now; move {directory} away to make it anew"
        )
    return found


def versions() -> dict[str, str]:
    """Returns the versions that figures may depend on."""
    return report.versions("bertjax", "jax", "jaxlib")


def known_settings(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that a workdir keeps; one that is newer than it has its default."""
    defaults = dataclasses.asdict(pretraining_rows.Settings())
    return {name: kept.get(name, value) for name, value in defaults.items()}


def check_settings(
    kept: Mapping[str, Any], own: Mapping[str, Any], directory: pathlib.Path
) -> None:
    """Raises a ValueError if the settings of a workdir are not the wanted ones.

    A path that was not needed so far, "", may be given now.
    """
    kept = {**known_settings(kept), "versions": kept["versions"]}
    if changed := [name for name in own if kept[name] not in ("", own[name])]:
        lines = "".join(
            f"\n  --{name} is {own[name]!r}; there it is {kept[name]!r}" for name in changed
        )
        raise ValueError(
            f"--workdir, {directory}, was made with other settings:{lines}\nGive those to go on "
            "with it, or another --workdir: rows of different settings make no table"
        )
