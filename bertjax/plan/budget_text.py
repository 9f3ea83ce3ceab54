"""A budget as a table for people, and as JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from bertjax.plan import budget

# Tokens for each parameter that others chose, to compare with --tokens_per_parameter.
# Sources: Hoffmann et al. 2022, table 3. Devlin et al. 2019, appendix A.2: 1,000,000 steps of 256
# sequences of 512 tokens, of 85 M. Warner et al. 2024, table 3: 2 T tokens, of 111 M (our count).
OTHERS = (
    "decoders' rule is 20 (Hoffmann et al. 2022); BERT-base read about 1,500 (512 tokens in every "
    "row), ModernBERT-base 18,000"
)
LEFT_OUT = "start, compilation, evaluation, saving and waiting for data are not counted"
HEADER = ("recipe", "parameters", "without embeddings", "tokens/s", "tokens", "a parameter")


def to_json(made: budget.Budget) -> dict[str, Any]:
    """Returns the budget as JSON objects; `largest` is the name of the recipe that is marked."""
    fields = dataclasses.asdict(made)
    for entry, shown in zip(made.entries, fields["entries"], strict=True):
        shown["tokens_per_parameter"] = entry.tokens_per_parameter
    return fields | {"largest": made.largest.recipe if made.largest else None}


def lines(made: budget.Budget) -> Iterator[str]:
    """Yields the budget line by line."""
    target = made.target
    yield (
        f"Budget of {made.date}: {_time(made.hours)} on {target.name}, "
        f"{target.num_devices} x {target.device_kind}"
    )
    yield "  " + ", ".join(f"{name} {version}" for name, version in made.versions.items())
    for name, price in made.prices.items():
        yield f"  {name} ${price.value:,.2f} ({price.source})"
    yield f"  tokens are positions of rows, padding too; {LEFT_OUT}"
    yield (
        f"  enough are {made.enough:g} tokens a parameter outside of embeddings, by our own choice "
        f"(--tokens_per_parameter): {OTHERS}"
    )
    for assumption in made.assumptions:
        yield f"  assumed: {assumption}"
    yield ""
    yield from _table(made)
    yield ""
    yield _verdict(made)


def summary(entry: budget.Entry) -> str:
    """Returns an entry in a line."""
    recipe, *figures, note = _cells(entry)
    named = zip(HEADER[1:], figures, strict=True)
    shown = ", ".join(f"{figure} {name}" for name, figure in named if figure)
    return f"{recipe}: {shown}{f'; {note}' if note else ''}"


def short(number: float) -> str:
    """Returns a number with at most three digits, and k, M, G or T."""
    for unit, size in {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}.items():
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def _table(made: budget.Budget) -> Iterator[str]:
    rows = [(*HEADER, ""), *map(_cells, made.entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    marks = ["", *("*" if entry is made.largest else "" for entry in made.entries)]
    for mark, (recipe, *figures, note) in zip(marks, rows, strict=True):
        cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:-1], strict=True)]
        yield f"{mark:2}{recipe:{widths[0]}}  {'  '.join(cells)}  {note}".rstrip()


def _cells(entry: budget.Entry) -> tuple[str, ...]:
    figures = (entry.rate.tokens_per_second, entry.tokens, entry.tokens_per_parameter)
    return (
        entry.recipe,
        *map(short, (entry.parameters, entry.without_embeddings)),
        *("" if figure is None else short(figure) for figure in figures),
        ", ".join(part for part in (entry.rate.how, entry.rate.note) if part),
    )


def _verdict(made: budget.Budget) -> str:
    if (largest := made.largest) is None:
        return f"None of them sees {made.enough:g} tokens a parameter in {_time(made.hours)}."
    assert largest.tokens is not None
    return (
        f"* the largest that sees {made.enough:g} tokens a parameter: {_time(made.hours)} on "
        f"{made.target.name} are {short(largest.tokens)} tokens of {largest.recipe}"
    )


def _time(hours: float) -> str:
    return f"{hours:g} h" if hours >= 1 else f"{60 * hours:g} min"
