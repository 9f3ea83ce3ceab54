"""The results of `objectives` as tables in Markdown, with spreads."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import pretraining_rows
from bertjax import glue

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
    return f"{spread(accuracies)} ± {100 * sampling_error(accuracies[0], scored[0]['pairs']):.1f}"


def sampling_error(accuracy: float, pairs: int) -> float:
    """Returns the standard error of a share of `pairs` independent draws."""
    return math.sqrt(accuracy * (1 - accuracy) / pairs)


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


def equal_compute(
    rows: Mapping[str, pretraining_rows.Row], found: Mapping[str, Found], tasks: Sequence[str]
) -> Iterator[str]:
    """Yields the lines of the table of all rows that are there."""
    head = ("", "parameters", "steps", "FLOPs", "BLiMP")
    yield from _head(*head, *_titles(tasks), "held-out loss, nats")
    for name, own in found.items():
        if name not in rows:
            continue
        first = own[0]["pretrained"]
        yield _line(
            rows[name].title,
            f"{first['parameters']:,}",
            f"{first['steps']:,}",
            f"{first['flops']:.2e}",
            pairs_cell([each["pairs"] for each in own if "pairs" in each]),
            *(spread(scores_of(own, task)) for task in tasks),
            held_out_cell(first["scores"]),
        )


def modern(
    rows: Mapping[str, pretraining_rows.Row], found: Mapping[str, Found], tasks: Sequence[str]
) -> Iterator[str]:
    """Yields the lines of the table of the modern encoder: losses of one held-out text.

    Behind each loss stands by how much it is above that of "modern", in pretrainings of the same
    seed. The last line is the loss of who knows the frequencies of tokens alone.
    """
    more = ("real tokens", "held-out loss, nats", "minus modern")
    yield from _head("", "parameters", "steps", "FLOPs", *more, *_titles(tasks))
    modern_found = found.get("modern", [])
    modern_losses = held_out_losses(modern_found)
    for name, own in found.items():
        first, losses = own[0]["pretrained"], held_out_losses(own)
        above = [
            loss - modern_losses[seed] for seed, loss in losses.items() if seed in modern_losses
        ]
        yield _line(
            rows[name].title,
            f"{first['parameters']:,}",
            f"{first['steps']:,}",
            f"{first['flops']:.2e}",
            f"{first['tokens']:,}",
            nats(losses.values()),
            nats(above, sign="+") if name != "modern" else "",
            *(spread(scores_of(own, task)) for task in tasks),
        )
    chance = [each["held_out"]["unigram_loss"] for each in modern_found if "held_out" in each]
    if chance:
        empty = [""] * 4
        yield _line("tokens' frequencies", *empty, nats(chance[:1]), "", *("" for _ in tasks))


def held_out_losses(found: Found) -> dict[int, float]:
    """Returns the losses of the text that all rows are scored on, by the pretraining's number."""
    return {
        number: each["held_out"]["mlm_loss"]
        for number, each in enumerate(found)
        if "held_out" in each
    }


def nats(losses: Iterable[float], sign: str = "") -> str:
    """Returns mean (least to most) of losses; "-" where there are none."""
    losses = [*losses]
    if not losses:
        return "-"
    mean, *ends = (f"{it:{sign}.3f}" for it in (statistics.fmean(losses), min(losses), max(losses)))
    return f"{mean} ({' to '.join(ends)})" if len(losses) > 1 else mean


def _titles(tasks: Sequence[str]) -> list[str]:
    return [next(it.title for it in glue.COLUMNS if it.task == task) for task in tasks]


def _head(*cells: str) -> Iterator[str]:
    yield _line(*cells)
    yield "|---" * len(cells) + "|"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
