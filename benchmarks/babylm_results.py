r"""Table and figure of docs/results.md: five objectives on ten million words, and longer runs.

    python -m benchmarks.babylm_results --figure=docs/babylm.png [--scores=SCORES] RUN [RUN ...]

RUN are finished runs of babylm.sh, SCORES those of babylm_scores.sh. The table goes to the
terminal: held-out losses, and BLiMP's accuracy (of all, and by phenomenon) at the end of each run.
Runs that differ in `_seedN` at the end of their names are one row: mean and standard deviation.
The figure has the accuracies, too, and BLiMP by words seen for each reading.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import statistics
from collections.abc import Mapping, Sequence

from matplotlib import figure

from bertjax.cli import command_line
from bertjax.compare import runs
from bertjax.workdirs import word_marks

PAIRS, HELD_OUT = "eval/pairs/accuracy", "eval/heldout/"
READINGS = ("masked", "causal", "fused")


def of_run(run: runs.Run) -> dict[str, float]:
    """Returns losses in nats and accuracies in percent of a finished run.

    Raises:
      ValueError: if it has no score of minimal pairs yet.
    """
    scored = [line for line in run.lines if PAIRS in line]
    if not scored:
        raise ValueError(f"{run.name} has no {PAIRS} yet: let it end (benchmarks/babylm.sh)")
    last = scored[-1]
    losses = {
        name.removeprefix(HELD_OUT): value
        for name, value in last.items()
        if name.startswith(HELD_OUT) and name.endswith("_loss") and "unigram" not in name
    }
    accuracies = {
        name.removeprefix(f"{PAIRS}_"): 100 * value
        for name, value in last.items()
        if name.startswith(f"{PAIRS}_")
    }
    return {**losses, "BLiMP": 100 * last[PAIRS], **accuracies}


def by_words(scores: pathlib.Path, reading: str) -> tuple[list[float], list[float]]:
    """Returns the words of each checkpoint in millions, and BLiMP's accuracy there in percent."""
    points = []
    for path in scores.glob(f"blimp_{reading}_*.json"):
        mark = path.stem.rpartition("_")[2]
        if mark != "end":
            accuracy = json.loads(path.read_text())["accuracy"]
            points.append((int(mark) / word_marks.MILLION, 100 * accuracy))
    words, accuracies = zip(*sorted(points), strict=True) if points else ((), ())
    return [*words], [*accuracies]


def by_name(values: Sequence[tuple[str, Mapping[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Returns the values of the seeds of each run, by its name without them."""
    seeds: dict[str, dict[str, list[float]]] = {}
    for name, of_seed in values:
        merged = seeds.setdefault(re.sub(r"_seed\d+$", "", name), {})
        for column, value in of_seed.items():
            merged.setdefault(column, []).append(value)
    return seeds


def table(of_runs: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Returns the figures of the runs as a table in Markdown, a run a row."""
    columns = list(dict.fromkeys(name for it in of_runs.values() for name in it))
    lines = [["run", *columns], ["---"] * (1 + len(columns))]
    for name, values in of_runs.items():
        lines.append([name, *(_cell(values.get(it, ())) for it in columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}" if values else ""


def draw(
    of_runs: Mapping[str, Mapping[str, Sequence[float]]], scores: pathlib.Path | None
) -> figure.Figure:
    """Returns the picture: BLiMP by phenomenon, and by words seen where there are scores."""
    picture = figure.Figure((12 if scores else 8, 5), layout="constrained")
    left, *others = picture.subplots(
        1, 2 if scores else 1, squeeze=False, width_ratios=(2, 1) if scores else None
    )[0]
    first = next(iter(of_runs.values()))
    phenomena = list(first)[list(first).index("BLiMP") :]
    for place, (name, values) in enumerate(of_runs.items()):
        heights = [statistics.mean(values[it]) for it in phenomena]
        shift = (place - (len(of_runs) - 1) / 2) / (len(of_runs) + 3)
        places = [number + shift for number in range(len(phenomena))]
        left.plot(places, heights, linestyle="none", marker="o", markersize=4, label=name)
    names = ["all", *(it.replace("_", " ") for it in phenomena[1:])]
    left.set_xticks(range(len(phenomena)), names, rotation=40, ha="right", fontsize=8)
    left.axhline(50, color="gray", linewidth=0.8)
    left.set_ylabel("BLiMP, accuracy in percent")
    left.grid(axis="y", linewidth=0.3)
    left.legend(fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    if scores:
        (right,) = others
        for reading in READINGS:
            words, accuracies = by_words(scores, reading)
            right.plot(words, accuracies, marker="o", markersize=3, label=reading)
        right.set_xlabel("words seen, in millions")
        right.legend(fontsize=8)
    return picture


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table, and writes the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--figure", type=pathlib.Path, required=True, help="picture to write")
    parser.add_argument("--scores", type=pathlib.Path, help="directory of babylm_scores.sh")
    parser.add_argument("runs", nargs="+", type=pathlib.Path)
    options = parser.parse_args(argv)
    of_runs = by_name([(run.name, of_run(run)) for run in runs.read_all(options.runs)])
    command_line.print_report(table(of_runs))
    draw(of_runs, options.scores).savefig(options.figure, dpi=90)


if __name__ == "__main__":
    main()
