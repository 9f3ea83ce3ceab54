"""What `objectives` has measured as tables in Markdown, with spreads, the paper's beside ours."""

from __future__ import annotations

import math
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib import figure

from benchmarks import pretraining_rows
from bertjax import glue
from bertjax.training import writers

# What there is of a row: for each of its pretrainings the files of its work, by their names.
Found = Sequence[Mapping[str, Any]]

# Source: Devlin et al. 2019, table 5, dev set, SST-2: BERT-base.
TABLE_5 = {"bert": 92.7, "no_nsp": 92.6, "ltr_no_nsp": 92.1, "ltr_no_nsp_bilstm": 91.6}
# Source: the same paper, table 6: size -> perplexity of held-out masked tokens, dev of SST-2.
TABLE_6 = {
    "3 layers of 768, 12 heads": (5.84, 88.4),
    "6 layers of 768, 3 heads": (5.24, 90.7),
    "6 layers of 768, 12 heads": (4.68, 91.3),
    "12 layers of 768, 12 heads": (3.99, 92.9),
    "12 layers of 1024, 16 heads": (3.54, 93.3),
    "24 layers of 1024, 16 heads": (3.23, 93.7),
}
# Source: the same paper, table 7, dev F1 of CoNLL-2003, BERT-base: finetuned, last four layers.
TABLE_7 = {"ner": 96.4, "ner_features": 96.1}


BILSTM = "bilstm_"  # before its width in the name of a finetuning


def spread(values: Sequence[float | None]) -> str:
    """Returns mean (least to most) of shares, in percent; "-" where there are none.

    A score that is no number counts as none; how many of them there are is told.
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
    """Returns the standard error of a share of so many, as if they had been drawn alone."""
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
    more = ("real tokens", "held-out loss, nats", "beside modern")
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


def paper_table_5(found: Mapping[str, Found], tasks: Sequence[str]) -> Iterator[str]:
    """Yields table 5: what NSP and looking both ways are worth."""
    yield from _head("table 5", "steps", "paper, SST-2", *(f"ours, {task}" for task in tasks))
    titles = {"bert": "BERT", "no_nsp": "No NSP", "ltr_no_nsp": "LTR & No NSP"}
    for name, title in titles.items():
        own = found.get(name, [])
        steps = f"{own[0]['pretrained']['steps']:,}" if own else "-"
        cells = (spread(scores_of(own, task)) for task in tasks)
        yield _line(title, steps, f"{TABLE_5[name]}", *cells)
    ltr = found.get("ltr_no_nsp", [])
    sizes = {name.partition(f"_{BILSTM}")[2] for each in ltr for name in each}
    for size in sorted(filter(None, sizes), key=int) or ["-"]:
        cells = (spread(scores_of(ltr, f"{task}_{BILSTM}{size}")) for task in tasks)
        yield _line(f"+ BiLSTM ({size})", "", f"{TABLE_5['ltr_no_nsp_bilstm']}", *cells)


def paper_table_6(
    rows: Mapping[str, pretraining_rows.Row], found: Mapping[str, Found], tasks: Sequence[str]
) -> Iterator[str]:
    """Yields table 6: what size is worth at the same steps; its sizes, then ours."""
    yield from _head("table 6", "perplexity", *(f"dev, {task}" for task in tasks))
    for size, (perplexity, sst2) in TABLE_6.items():
        shown = {"sst2": f"{sst2}"}
        yield _line(f"paper, {size}", f"{perplexity}", *(shown.get(task, "") for task in tasks))
    for name, row in rows.items():
        if own := found.get(name):
            perplexity = own[0]["pretrained"]["scores"]["mlm_perplexity"]
            cells = (spread(scores_of(own, task)) for task in tasks)
            yield _line(f"ours, {row.title}", f"{perplexity:.1f}", *cells)


def paper_table_7(found: Mapping[str, Found]) -> Iterator[str]:
    """Yields table 7: tags by a finetuned encoder, and by a BiLSTM on what it says untouched."""
    yield from _head("table 7", "paper, CoNLL-2003, dev F1", "ours, F1")
    titles = {"ner": "finetuned", "ner_features": "feature-based, last four layers"}
    for name, title in titles.items():
        yield _line(title, f"{TABLE_7[name]}", spread(scores_of(found.get("bert", []), name)))


def by_steps(found: Found, task: str) -> dict[int, list[float | None]]:
    """Returns the scores of a task finetuned from checkpoints along the way, by their steps."""
    prefix = f"{task}_step_"
    names = {name for each in found for name in each if name.startswith(prefix)}
    steps = sorted(int(name.removeprefix(prefix)) for name in names)
    return {step: scores_of(found, f"{prefix}{step}") for step in steps}


def figure_5_lines(found: Mapping[str, Found], task: str) -> Iterator[str]:
    """Yields figure 5 as a table: dev scores by the steps of pretraining."""
    curves = {name: by_steps(found.get(name, []), task) for name in FIGURE_5}
    steps = sorted({step for curve in curves.values() for step in curve})
    yield from _head(f"figure 5, {task}", *(f"{step:,} steps" for step in steps))
    for name, title in FIGURE_5.items():
        yield _line(title, *(spread(curves[name].get(step, [])) for step in steps))


FIGURE_5 = {"bert": "BERT (masked LM)", "ltr_no_nsp": "LTR & No NSP (left to right)"}


def draw_figure_5(found: Mapping[str, Found], task: str, path: pathlib.Path) -> None:
    """Draws the mean of the seeds and their range against the steps of pretraining."""
    drawn = figure.Figure(figsize=(6, 4), layout="constrained")
    axes = drawn.add_subplot(xlabel="pretraining steps", ylabel=f"{task}, dev, percent")
    for name, title in FIGURE_5.items():
        curve = {
            step: [100 * value for value in values if value is not None]
            for step, values in by_steps(found.get(name, []), task).items()
        }
        curve = {step: values for step, values in curve.items() if values}
        if curve:
            (line,) = axes.plot(
                list(curve), [statistics.fmean(it) for it in curve.values()], "o-", label=title
            )
            low, high = [[end(it) for it in curve.values()] for end in (min, max)]
            axes.fill_between(list(curve), low, high, alpha=0.2, color=line.get_color())
    axes.legend()
    writers.save_picture(drawn, path)


def _head(*cells: str) -> Iterator[str]:
    yield _line(*cells)
    yield "|---" * len(cells) + "|"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
