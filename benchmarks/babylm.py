r"""Ten million English words for the recipe babylm, and the scores of what was trained on them.

    python -m benchmarks.babylm corpus --sources=DIR --output=DIR [--words=10000000]
    python -m benchmarks.babylm results --figure=docs/babylm.png [--scores=SCORES] RUN [RUN ...]

DIR has two folders of texts, one paragraph a line and a blank line between chapters, as .txt or
.txt.xz: `openstax` (the textbooks of openstax/osbooks-world-history @3e17beda, osbooks-us-history
@046331cf and osbooks-psychology @e061043b) and `eltec_eng` (the novels of COST-ELTeC/ELTeC-eng
@3db3b673: train-*.txt, and valid.txt). Taken are all textbooks, then the chapters of the novels in
the order of files and lines, as long as the words (what `str.split` gives) stay within --words.
Written are train.txt and heldout.txt, which has the novels of valid.txt whole but for chapters that
train.txt has too ("PART I."), and what was taken is printed.

RUN are finished runs of babylm.sh, SCORES those of babylm_scores.sh. The table goes to the
terminal: held-out losses, and BLiMP's accuracy (of all, and by phenomenon) at the end of each run.
Runs that differ in `_seedN` at the end of their names are one row: mean and standard deviation.
The figure has the accuracies and BLiMP by words seen for each reading.
"""

from __future__ import annotations

import argparse
import json
import lzma
import pathlib
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks import report
from bertjax.checks import runs
from bertjax.cli import command_line
from bertjax.workdirs import word_marks

if TYPE_CHECKING:
    from matplotlib import figure

PAIRS, HELD_OUT = "eval/pairs/accuracy", "eval/heldout/"
READINGS = ("masked", "causal", "fused")
Runs = Mapping[str, Mapping[str, Sequence[float]]]


def chapters(paths: Iterable[pathlib.Path]) -> Iterator[str]:
    """Yields the paragraphs of each chapter of files, joined by newlines."""
    for path in paths:
        opened = lzma.open if path.suffix == ".xz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            yield from filter(None, map(str.strip, file.read().split("\n\n")))


def files(sources: pathlib.Path, folder: str, pattern: str) -> list[pathlib.Path]:
    """Returns the files of a folder whose names match, in the order of their names."""
    found = sorted((sources / folder).glob(pattern))
    if not found:
        raise SystemExit(
            f"error: --sources: {sources / folder} has no file {pattern}; the first lines of "
            f"{pathlib.Path(__file__).name} say where the texts come from"
        )
    return found


def corpus(options: argparse.Namespace) -> None:
    """Writes both files, and prints the numbers of their chapters and words."""
    textbooks = files(options.sources, "openstax", "*.txt*")
    novels = files(options.sources, "eltec_eng", "train-*.txt*")
    held_out = files(options.sources, "eltec_eng", "valid.txt*")
    options.output.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    for name, texts in (
        ("train.txt", chapters([*textbooks, *novels])),
        ("heldout.txt", (it for it in chapters(held_out) if it not in seen)),
    ):
        count = total = 0
        with open(options.output / name, "w", encoding="utf-8") as file:
            for text in texts:
                words = len(text.split())
                if total + words > options.words:
                    break
                file.write(text + "\n\n")
                seen.add(text)
                count, total = count + 1, total + words
        print(f"{options.output / name}: {count:,} chapters, {total:,} words")


def figures(run: runs.Run) -> dict[str, float]:
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


def by_name(values: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Returns the figures of the seeds of each run, by its name without them."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, of_seed in values:
        merged = found.setdefault(re.sub(r"_seed\d+$", "", name), {})
        for column, value in of_seed.items():
            merged.setdefault(column, []).append(value)
    return found


def table(of_runs: Runs) -> str:
    """Returns the figures of the runs as a table in Markdown, a run a row."""
    columns = list(dict.fromkeys(name for it in of_runs.values() for name in it))

    def cell(values: Sequence[float]) -> str:
        deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.2f}{deviation}" if values else ""

    rows = [
        [name, *(cell(it.get(column, ())) for column in columns)] for name, it in of_runs.items()
    ]
    return report.table(("run", *columns), rows)


def by_words(scores: pathlib.Path, reading: str) -> list[tuple[float, float]]:
    """Returns the words of each checkpoint in millions, and BLiMP's accuracy there in percent."""
    points = []
    for path in scores.glob(f"blimp_{reading}_*.json"):
        mark = path.stem.rpartition("_")[2]
        if mark != "end":
            accuracy = json.loads(path.read_text())["accuracy"]
            points.append((int(mark) / word_marks.MILLION, 100 * accuracy))
    return sorted(points)


def draw(of_runs: Runs, scores: pathlib.Path | None) -> figure.Figure:
    """Returns the picture: BLiMP by phenomenon, and by words seen where there are scores."""
    from matplotlib import figure

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
            points = zip(*by_words(scores, reading), strict=True)
            right.plot(*points, marker="o", markersize=3, label=reading)
        right.set_xlabel("words seen, in millions")
        right.legend(fontsize=8)
    return picture


def results(options: argparse.Namespace) -> None:
    """Prints the table, and writes the figure."""
    of_runs = by_name((run.name, figures(run)) for run in runs.read_all(options.runs))
    command_line.print_report(table(of_runs))
    draw(of_runs, options.scores).savefig(options.figure, dpi=90)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one of the two parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    programs = parser.add_subparsers(required=True)
    program = programs.add_parser("corpus", help="cut the words")
    program.add_argument("--sources", type=pathlib.Path, required=True, help="the folder of both")
    program.add_argument("--output", type=pathlib.Path, required=True, help="where to write")
    program.add_argument("--words", type=int, default=10_000_000, help="of each file at most")
    program.set_defaults(run=corpus)
    program = programs.add_parser("results", help="table and figure of docs/results.md")
    program.add_argument("--figure", type=pathlib.Path, required=True, help="picture to write")
    program.add_argument("--scores", type=pathlib.Path, help="directory of babylm_scores.sh")
    program.add_argument("runs", nargs="+", type=pathlib.Path)
    program.set_defaults(run=results)
    options = parser.parse_args(argv)
    options.run(options)


if __name__ == "__main__":
    main()
