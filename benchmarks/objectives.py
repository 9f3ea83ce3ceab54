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
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from absl import logging

from benchmarks import marked_tables, objective_tables, pretraining_rows, workshop
from bertjax import glue, interactive
from bertjax.cli import command_line
from bertjax.training import preemption

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "results.md"

Rows = Mapping[str, pretraining_rows.Row]
FoundByRow = Mapping[str, objective_tables.Found]
Tables = Iterable[Iterable[str]]  # of lines


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Rows that are compared: which, what is scored of each, the tables.

    `scores` are done behind each pretraining. `needs` are the settings without which nothing runs;
    `glue` is another where there are tasks.
    """

    help: str
    rows: Callable[[argparse.Namespace, pretraining_rows.Settings], Rows]
    tables: Callable[[Rows, FoundByRow, workshop.Workshop, argparse.Namespace], Tables]
    scores: Sequence[Callable[[workshop.Workshop, str, int], object]] = ()
    needs: Sequence[str] = ("corpus", "heldout")


def run(shop: workshop.Workshop, options: argparse.Namespace) -> None:
    """Does what is missing: all pretrainings with their scores first, then task after task."""
    comparison = COMPARISONS[options.comparison]
    rows = comparison.rows(options, shop.settings)
    pretrained = [(name, n) for n in range(options.pretraining_seeds) for name in options.rows]
    for name, seed in pretrained:
        shop.pretrain(name, rows[name], seed)
        for score in comparison.scores:
            score(shop, name, seed)
    for task in options.tasks:
        for name, seed in pretrained:
            finetuning = workshop.Finetuning(task, rows[name].finetuned)
            shop.finetune(name, seed, finetuning, options.seeds)


def results(
    shop: workshop.Workshop, rows: Mapping[str, pretraining_rows.Row]
) -> dict[str, objective_tables.Found]:
    """Returns what there is of each row that is pretrained.

    Raises:
      ValueError: if a row was pretrained with other options than it has now.
    """
    found: dict[str, objective_tables.Found] = {}
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


def report(shop: workshop.Workshop, options: argparse.Namespace) -> str:
    """Returns the tables with their date, versions and settings, and what is missing in them."""
    comparison = COMPARISONS[options.comparison]
    rows = comparison.rows(options, shop.settings)
    found = results(shop, rows)
    parts = [_conditions(shop, rows, found), *comparison.tables(rows, found, shop, options)]
    missing = [name for name in rows if name not in found and name not in pretraining_rows.LEFT_OUT]
    if missing:
        parts.append([f"Not run yet: {', '.join(f'`{name}`' for name in missing)}."])
    return "\n\n".join("\n".join(part) for part in parts)


# Name, which is a flag and that of the page's marks -> what is compared. The first needs no flag.
COMPARISONS: dict[str, Comparison] = {
    "objectives": Comparison(
        "objectives of pretraining",
        rows=lambda options, settings: pretraining_rows.ROWS,
        tables=lambda rows, found, shop, options: [
            objective_tables.equal_compute(rows, found, options.tasks)
        ],
        scores=(workshop.Workshop.score_pairs,),
        needs=("corpus", "heldout", "pairs"),
    ),
    "modern": Comparison(
        "the modern encoder, BERT of 2018, and what lies between",
        rows=lambda options, settings: pretraining_rows.MODERN_ROWS,
        tables=lambda rows, found, shop, options: [
            objective_tables.modern(rows, found, options.tasks)
        ],
        scores=(workshop.Workshop.score_held_out,),
    ),
}


def _conditions(shop: workshop.Workshop, rows: Rows, found: FoundByRow) -> Iterator[str]:
    settings = shop.settings
    has_pairs = any("pairs" in each for own in found.values() for each in own)
    pairs = f", {settings.pairs_per_paradigm or 'all'} pairs of each paradigm"
    told = ", ".join(f"{name} {version}" for name, version in workshop.versions().items())
    paths = [field.name for field in dataclasses.fields(settings) if field.default == ""]
    differing = [
        f"`--{field.name}={getattr(settings, field.name)}`"
        for field in dataclasses.fields(settings)
        if field.name not in paths and getattr(settings, field.name) != field.default
    ]
    yield (
        f"Measured until {datetime.date.today()} with {told}: {settings.budget:.3g} FLOPs a row, "
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
    parser.add_argument("--workdir", required=True, help="what is done lies here, and stays done")
    first, *others = COMPARISONS
    which = parser.add_mutually_exclusive_group()
    for name in others:
        told = f"{COMPARISONS[name].help}, in place of {COMPARISONS[first].help}"
        which.add_argument(
            f"--{name}", action="store_const", dest="comparison", const=name, help=told
        )
    parser.set_defaults(comparison=first)
    left_out = " and ".join(pretraining_rows.LEFT_OUT)
    parser.add_argument(
        "--rows", type=_names, help=f"those to run (default: all, but not {left_out})"
    )
    parser.add_argument(
        "--tasks",
        type=_names,
        default=list(pretraining_rows.TASKS),
        help="of GLUE, to finetune on; '': none",
    )
    parser.add_argument("--seeds", type=int, default=3, help="of each finetuning")
    parser.add_argument("--pretraining_seeds", type=int, default=1, help="of each pretraining")
    parser.add_argument("--only_table", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help=f"the table into {PAGE}")
    for field in dataclasses.fields(pretraining_rows.Settings):
        parser.add_argument(
            f"--{field.name}",
            type=_number if isinstance(field.default, int) else type(field.default),
            default=field.default,
            help=f"{_help(field.name)} (default: {field.default!r})",
        )
    options = parser.parse_args(argv)
    names = [field.name for field in dataclasses.fields(pretraining_rows.Settings)]
    options.settings = pretraining_rows.Settings(**{it: getattr(options, it) for it in names})
    comparison = COMPARISONS[options.comparison]
    rows = comparison.rows(options, options.settings)
    if options.rows is None:
        options.rows = [name for name in rows if name not in pretraining_rows.LEFT_OUT]
    for name, wanted in (("rows", rows), ("tasks", glue.TASKS)):
        if unknown := [each for each in getattr(options, name) if each not in wanted]:
            parser.error(f"--{name} has {', '.join(unknown)}; known are {', '.join(wanted)}")
    needed = [*comparison.needs, *(["glue"] if options.tasks else [])]
    needed = [name for name in needed if not getattr(options, name)]
    if needed and not options.only_table:
        told = "; ".join(f"--{name}: {pretraining_rows.HELP[name]}" for name in needed)
        parser.error(f"what is read must be given: {told}")
    return options


def _help(name: str) -> str:
    return pretraining_rows.HELP.get(name, name.replace("_", " "))


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
        text = report(shop, options)
    except preemption.Preempted as notice:
        logging.warning("%s", notice)
        return preemption.EXIT_CODE
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    if options.write:
        marked_tables.write(PAGE, options.comparison, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
