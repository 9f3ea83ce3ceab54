r"""Objectives of pretraining at equal compute, on text of one's own, by BLiMP and GLUE.

    python -m benchmarks.objectives --workdir=DIR --corpus='eltec_eng/train-*.txt.xz' \
        --heldout=eltec_eng/valid.txt.xz --pairs=blimp/pairs.jsonl.xz --glue=glue [--write]

Every row of ROWS trains a model of the same width and depth, with the same rate and vocabulary, for
as many steps as `--budget` FLOPs pay for: `jobs.train_flops`, the count that `bertjax.plan` shows.
Steps and updates differ between rows therefore, FLOPs do not. Nothing is tuned for any row.

Held-out losses are not comparable between these rows, which predict other tokens of other texts.

Each piece of work (vocabulary, records, a pretraining, a scoring) leaves a file in `--workdir` and
is not done again; the same command goes on after an interruption, in the middle of a pretraining
too. `--rows`, `--tasks`, `--seeds` and `--pretraining_seeds` choose what is done now, all
pretrainings before the first finetuning. The other settings are those of the workdir, and a workdir
made with others is refused. `--only_table` prints the finished results. Finetuned models are
removed once they are scored.

`--modern` compares the modern encoder and its recipe with BERT of 2018, and with itself without
each of its pieces, at equal FLOPs. Its held-out losses are comparable: all rows are scored on the
same records with the same masks.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from benchmarks import pretraining_rows, report, workshop
from bertjax import glue, interactive
from bertjax.cli import command_line
from bertjax.training import preemption

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "results.md"

Rows = Mapping[str, pretraining_rows.Row]
# The files of a row: for each of its pretrainings those of its work, by their names.
Found = Sequence[Mapping[str, Any]]


def spread(values: Sequence[float | None]) -> str:
    """Returns mean (least to most) of shares, in percent; "-" where there are none.

    Scores that are not numbers are left out; the cell has their number.
    """
    percent = [100 * value for value in values if value is not None]
    failed = f", {len(values) - len(percent)} no number" if len(percent) < len(values) else ""
    if not percent:
        return f"-{failed}"
    mean = f"{statistics.fmean(percent):.1f}"
    if len(percent) == 1:
        return mean + failed
    return f"{mean} ({min(percent):.1f} to {max(percent):.1f}{failed})"


def pairs_cell(scored: Sequence[Mapping[str, Any]]) -> str:
    """Returns the accuracy on minimal pairs; of one pretraining with the error of the sample."""
    accuracies = [each["accuracy"] for each in scored]
    if len(scored) != 1:
        return spread(accuracies)
    error = math.sqrt(accuracies[0] * (1 - accuracies[0]) / scored[0]["pairs"])
    return f"{spread(accuracies)} ± {100 * error:.1f}"


def held_out_cell(scores: Mapping[str, float | None]) -> str:
    """Returns the held-out losses by name, and that of tokens' frequencies where it is known."""
    told = [
        f"{name.removesuffix('_loss')} {value:.2f}"
        for name, value in scores.items()
        if name.endswith("_loss") and name != "unigram_loss" and value is not None
    ]
    chance = scores.get("unigram_loss")
    return ", ".join(told) + (f" (chance {chance:.2f})" if chance else "")


def scores_of(found: Found, name: str) -> list[float | None]:
    """Returns the scores of a finetuning, of all seeds of all pretrainings."""
    return [value for each in found if name in each for value in each[name]["values"]]


def nats(losses: Iterable[float], sign: str = "") -> str:
    """Returns mean (least to most) of losses; "-" where there are none."""
    losses = [*losses]
    if not losses:
        return "-"
    mean, *ends = (f"{it:{sign}.3f}" for it in (statistics.fmean(losses), min(losses), max(losses)))
    return f"{mean} ({' to '.join(ends)})" if len(losses) > 1 else mean


def _first_cells(row: pretraining_rows.Row, own: Found) -> list[str]:
    first = own[0]["pretrained"]
    figures = f"{first['parameters']:,}", f"{first['steps']:,}", f"{first['flops']:.2e}"
    return [row.title, *figures]


def _titles(tasks: Sequence[str]) -> list[str]:
    return [next(it.title for it in glue.COLUMNS if it.task == task) for task in tasks]


def equal_compute(rows: Rows, found: Mapping[str, Found], tasks: Sequence[str]) -> str:
    """Returns the table of all rows that are there."""
    head = ("", "parameters", "steps", "FLOPs", "BLiMP", *_titles(tasks), "held-out loss, nats")
    lines = [
        (
            *_first_cells(rows[name], own),
            pairs_cell([each["pairs"] for each in own if "pairs" in each]),
            *(spread(scores_of(own, task)) for task in tasks),
            held_out_cell(own[0]["pretrained"]["scores"]),
        )
        for name, own in found.items()
    ]
    return report.table(head, lines)


def modern(rows: Rows, found: Mapping[str, Found], tasks: Sequence[str]) -> str:
    """Returns the table of the modern encoder: losses of one held-out text.

    Behind each loss stands by how much it is above that of "modern", in pretrainings of the same
    seed. The last line is the loss of who knows the frequencies of tokens alone.
    """

    def losses_of(own: Found) -> dict[int, float]:
        held_out = {seed: each.get("held_out") for seed, each in enumerate(own)}
        return {seed: it["mlm_loss"] for seed, it in held_out.items() if it}

    base, lines = losses_of(found.get("modern", [])), []
    for name, own in found.items():
        losses = losses_of(own)
        above = [loss - base[seed] for seed, loss in losses.items() if seed in base]
        lines.append(
            (
                *_first_cells(rows[name], own),
                f"{own[0]['pretrained']['tokens']:,}",
                nats(losses.values()),
                nats(above, sign="+") if name != "modern" else "",
                *(spread(scores_of(own, task)) for task in tasks),
            )
        )
    for seed in list(base)[:1]:
        chance = found["modern"][seed]["held_out"]["unigram_loss"]
        lines.append(("tokens' frequencies", *[""] * 4, nats([chance]), "", *("" for _ in tasks)))
    more = ("real tokens", "held-out loss, nats", "minus modern")
    return report.table(("", "parameters", "steps", "FLOPs", *more, *_titles(tasks)), lines)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Rows that are compared: which, what is scored behind each pretraining, the table.

    `needs` are the settings without which nothing runs; `glue` is another where there are tasks.
    """

    help: str
    rows: Rows
    table: Callable[[Rows, Mapping[str, Found], Sequence[str]], str]
    score: Callable[[workshop.Workshop, str, int], object]
    needs: Sequence[str] = ("corpus", "heldout")


# Name, which is a flag and that of the page's marks -> what is compared. The first needs no flag.
COMPARISONS: dict[str, Comparison] = {
    "objectives": Comparison(
        "objectives of pretraining",
        pretraining_rows.ROWS,
        equal_compute,
        workshop.Workshop.score_pairs,
        needs=("corpus", "heldout", "pairs"),
    ),
    "modern": Comparison(
        "the modern encoder, BERT of 2018, and what lies between",
        pretraining_rows.MODERN_ROWS,
        modern,
        workshop.Workshop.score_held_out,
    ),
}


def run(shop: workshop.Workshop, options: argparse.Namespace) -> None:
    """Does what is missing: all pretrainings with their scores first, then task after task."""
    comparison = COMPARISONS[options.comparison]
    pretrained = [(name, n) for n in range(options.pretraining_seeds) for name in options.rows]
    for name, seed in pretrained:
        shop.pretrain(name, comparison.rows[name], seed)
        comparison.score(shop, name, seed)
    for task in options.tasks:
        for name, seed in pretrained:
            shop.finetune(name, seed, task, comparison.rows[name].finetuned, options.seeds)


def results(shop: workshop.Workshop, rows: Rows) -> dict[str, Found]:
    """Returns what there is of each row that is pretrained.

    Raises:
      ValueError: if a row was pretrained with other options than it has now.
    """
    found: dict[str, Found] = {}
    for name, row in rows.items():
        seeds = sorted((shop.directory / "rows" / name).glob("seed_*"))
        for seed in seeds:
            workshop.finished(seed, "pretrained", row.made_of)
        of_seeds = [
            {path.stem: json.loads(path.read_text()) for path in seed.glob("*.json")}
            for seed in seeds
        ]
        if done := [each for each in of_seeds if "pretrained" in each]:
            found[name] = done
    return found


def page(shop: workshop.Workshop, options: argparse.Namespace) -> str:
    """Returns the table with its date, versions and settings, and what is missing in it."""
    comparison = COMPARISONS[options.comparison]
    rows = comparison.rows
    found = results(shop, rows)
    parts = ["\n".join(_conditions(shop, rows, found))]
    parts.append(comparison.table(rows, found, options.tasks))
    missing = [name for name in rows if name not in found]
    if missing:
        parts.append(f"Not run yet: {', '.join(f'`{name}`' for name in missing)}.")
    return "\n\n".join(parts)


def _conditions(shop: workshop.Workshop, rows: Rows, found: Mapping[str, Found]) -> Iterator[str]:
    settings = shop.settings
    has_pairs = any("pairs" in each for own in found.values() for each in own)
    pairs = f", {settings.pairs_per_paradigm or 'all'} pairs of each paradigm"
    differing = [
        f"`--{field.name}={getattr(settings, field.name)}`"
        for field in dataclasses.fields(settings)
        if field.default != "" and getattr(settings, field.name) != field.default
    ]
    yield (
        f"Measured until {datetime.date.today()} with {report.named(workshop.versions())}: "
        f"{settings.budget:.3g} FLOPs a row, "
        f"{settings.num_layers} layers of {settings.hidden_size}, {settings.vocab_size:,} entries, "
        f"{settings.batch_size} x {settings.max_seq_length} tokens a step{pairs * has_pairs}."
    )
    fills = {kind: shop.fill(kind) for kind in dict.fromkeys(row.records for row in rows.values())}
    shares = [f"`{kind}` {fill:.1%}" for kind, fill in fills.items() if fill is not None]
    if shares:
        yield f"Tokens, not padding, in each kind of records: {', '.join(shares)}."
    if differing:
        yield f"Not at their defaults: {', '.join(differing)}."


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the options; `settings` are those of the workdir."""
    parser = argparse.ArgumentParser(description="Pretraining objectives at equal compute.")
    add, settings = parser.add_argument, dataclasses.fields(pretraining_rows.Settings)
    add("--workdir", required=True, help="what is done lies here, and stays done")
    first, *others = COMPARISONS
    for name in others:
        told = f"{COMPARISONS[name].help}, in place of {COMPARISONS[first].help}"
        add(f"--{name}", action="store_const", dest="comparison", const=name, help=told)
    parser.set_defaults(comparison=first)
    add("--rows", type=_names, help="those to run (default: all)")
    tasks = list(pretraining_rows.TASKS)
    add("--tasks", type=_names, default=tasks, help="of GLUE, to finetune on; '': none")
    add("--seeds", type=int, default=3, help="of each finetuning")
    add("--pretraining_seeds", type=int, default=1, help="of each pretraining")
    add("--only_table", action="store_true", help="run nothing")
    add("--write", action="store_true", help=f"the table into {PAGE}")
    for field in settings:
        told = pretraining_rows.HELP.get(field.name, field.name.replace("_", " "))
        kind: Any = _number if isinstance(field.default, int) else type(field.default)
        told = f"{told} (default: {field.default!r})"
        add(f"--{field.name}", type=kind, default=field.default, help=told)
    options = parser.parse_args(argv)
    options.settings = pretraining_rows.Settings(
        **{field.name: getattr(options, field.name) for field in settings}
    )
    comparison = COMPARISONS[options.comparison]
    options.rows = [*comparison.rows] if options.rows is None else options.rows
    for name, wanted in (("rows", comparison.rows), ("tasks", glue.TASKS)):
        if unknown := [each for each in getattr(options, name) if each not in wanted]:
            parser.error(f"--{name} has {', '.join(unknown)}; known are {', '.join(wanted)}")
    needed = [*comparison.needs, *(["glue"] if options.tasks else [])]
    needed = [name for name in needed if not getattr(options, name)]
    if needed and not options.only_table:
        told = "; ".join(f"--{name}: {pretraining_rows.HELP[name]}" for name in needed)
        parser.error(f"what is read must be given: {told}")
    return options


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _number(text: str) -> int:
    try:
        return command_line.WholeNumbers().convert(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Does what is missing and prints the table; returns 75 after a signal to stop."""
    options = parse(sys.argv[1:] if argv is None else argv)
    interactive.show_log()
    try:
        if options.only_table:
            shop = workshop.Workshop.existing(options.workdir)
        else:
            shop = workshop.Workshop(options.workdir, options.settings)
            shop.begin()
            run(shop, options)
        text = page(shop, options)
    except preemption.Preempted as notice:
        logging.warning("%s", notice)
        return preemption.EXIT_CODE
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    if options.write:
        report.write_marked(PAGE, options.comparison, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
