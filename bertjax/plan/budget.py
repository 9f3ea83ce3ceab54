"""The tokens that recipes train on in a time on given devices, and the largest with enough.

`rates` has the rates of training. A budget is written as a table for people, and as JSON for
programs.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ml_collections

from bertjax import config as config_lib
from bertjax import recipes
from bertjax.jobs import automatic, pretraining
from bertjax.models import parameters
from bertjax.options import faults
from bertjax.plan import assumptions, estimates, planner, rates
from bertjax.tasks import base as tasks
from bertjax.training import program

# Recipes for one language, from text alone. By default others are left out: recipes with the same
# sizes and speed (RoBERTa, SpanBERT, left_to_right_base; modernbert is ettin:150m and 400m), with
# shared layers (ALBERT), several languages, given texts (babylm) or records (own), or a teacher,
# and demonstrations.
DEFAULT_RECIPES = (
    *("bert_tiny", "bert_mini", "bert_small", "bert_medium", "bert_base", "bert_large"),
    *("modern_mini", "ettin", "electra"),
)
# If a model sees less than this share of enough tokens, larger models are not planned.
LEAST_SHARE = 0.25
HOURS = {"m": 1 / 60, "h": 1.0, "d": 24.0}  # by unit of --budget
TABLES = re.compile(r".*embeddings\.\w+\.embedding")  # of words, positions, segments, languages
# Others' numbers of tokens for each parameter, to compare with --tokens_per_parameter.
# Sources: Hoffmann et al. 2022, table 3. Devlin et al. 2019, appendix A.2: 1,000,000 steps of 256
# sequences of 512 tokens, of 85 M. Warner et al. 2024, table 3: 2 T tokens, of 111 M (our count).
OTHERS = (
    "decoders' rule is 20 (Hoffmann et al. 2022); BERT-base read about 1,500 (512 tokens in every "
    "row), ModernBERT-base 18,000"
)
LEFT_OUT = "start, compilation, evaluation, saving and waiting for data are not counted"
HEADER = ("recipe", "parameters", "without embeddings", "tokens/s", "tokens", "a parameter")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A recipe in a budget; `without_embeddings` are the parameters outside of embedding tables.

    `tokens` are all positions of the rows in the budget; None if the recipe cannot run.
    """

    recipe: str
    parameters: int
    without_embeddings: int
    rate: rates.Rate
    tokens: float | None

    @property
    def tokens_per_parameter(self) -> float | None:
        """Tokens of the budget for each parameter outside of embedding tables."""
        return None if self.tokens is None else self.tokens / self.without_embeddings


@dataclasses.dataclass(frozen=True)
class Budget:
    """Recipes in a budget, smallest first; `enough` is the number of tokens for each parameter."""

    date: str
    hours: float
    target: estimates.Target
    enough: float
    entries: tuple[Entry, ...]
    prices: dict[str, estimates.Figure]
    assumptions: tuple[str, ...]
    versions: dict[str, str]

    @property
    def largest(self) -> Entry | None:
        """The largest entry that sees enough tokens, None without one."""
        fitting = [it for it in self.entries if (it.tokens_per_parameter or 0.0) >= self.enough]
        return max(fitting, key=_size, default=None)


def parse_hours(text: str) -> float:
    """Returns the hours of a time such as 24h, 90m or 2d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", text.strip().lower())
    hours = float(match[1]) * HOURS[match[2]] if match else 0.0
    if not hours:
        must = "a number above 0 and m, h or d (minutes, hours, days): 90m, 24h, 2d"
        raise faults.wrong("--budget", text, must)
    return hours


def candidates(
    names: Iterable[str], options: Mapping[str, Any], *, vocab_size: int
) -> tuple[dict[str, ml_collections.ConfigDict], list[str]]:
    """Returns the configs of recipes and of all sizes of families, and their assumptions.

    `options` are set in every config, by their dotted names. All devices share each batch, and
    batches do not grow.
    """
    sizes = dict.fromkeys(size for name in names for size in recipes.of_family(name))
    configs, assumed = {}, {}
    for name in sizes:
        config = recipes.load(name).copy_and_resolve_references()
        config.mesh.data = -1
        config.update_from_flattened_dict(options)
        config = automatic.decided(config, None)
        if config.task != "pretraining":
            raise ValueError(
                f"--budget plans pretraining, but config.task of {name} is {config.task!r}: plan "
                "it without --budget"
            )
        config, assumptions_of_it = assumptions.with_vocabulary(
            _of_full_batches(config), vocab_size
        )
        configs[name] = config
        for assumption in assumptions_of_it:
            assumed.setdefault(assumption, []).append(name)
    return configs, [f"{it} ({', '.join(names)})" for it, names in assumed.items()]


def _of_full_batches(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns the config without batch ramps and without passes over records that do not exist."""
    names = config_lib.phase_names(config)
    for name in names:
        config.phases[name].update(ramp_from=0, ramp_tokens=0)
    passes = [name for name in names if config.phases[name].num_epochs]
    if passes and len(names) > 1:
        raise ValueError(
            f"config.phases.{passes[0]}.num_epochs is {config.phases[passes[0]].num_epochs}, but "
            "there are no records to count: give num_steps or num_tokens instead"
        )
    # The only phase has all of the budget, with any number of steps.
    return automatic.with_steps(
        config, {name: 1_000 + config.schedule.warmup_steps for name in passes}
    )


def fill(
    configs: Mapping[str, ml_collections.ConfigDict],
    on_target: planner.Planner,
    *,
    hours: float,
    enough: float,
    with_all: bool,
) -> Iterator[Entry]:
    """Yields the entry of each config, smallest first, as soon as it is known.

    Unless `with_all`, it plans no model that is larger than one with far too few tokens.
    """
    stopped = ""
    for size, name in sorted((count(config), name) for name, config in configs.items()):
        rate = rates.Rate(None, "", stopped) if stopped else _rate(configs[name], on_target, hours)
        tokens = None if rate.tokens_per_second is None else rate.tokens_per_second * hours * 3600
        entry = Entry(name, size[1], size[0], rate, tokens)
        seen = entry.tokens_per_parameter
        if not with_all and seen is not None and seen < LEAST_SHARE * enough:
            stopped = f"not planned: the smaller {name} sees {seen:,.1f} a parameter"
        yield entry


def _rate(
    config: ml_collections.ConfigDict, on_target: planner.Planner, hours: float
) -> rates.Rate:
    try:
        return rates.RATES[on_target.target.platform](config, on_target, hours)
    except ValueError as error:  # other configs may run
        return rates.Rate(None, "", "not possible: " + " ".join(str(error).split()))


def count(config: ml_collections.ConfigDict) -> tuple[int, int]:
    """Returns the number of parameters that a config trains: outside of embeddings, and all."""
    task = pretraining.pretraining_task(program.resolve(config, "cpu"))
    _, params = tasks.abstract_model(task)
    sizes = {name: math.prod(leaf.shape) for name, leaf in parameters.flat(params).items()}
    tables = sum(size for name, size in sizes.items() if TABLES.fullmatch(name))
    return sum(sizes.values()) - tables, sum(sizes.values())


def _size(entry: Entry) -> tuple[int, float]:
    return entry.without_embeddings, entry.tokens or 0.0


def to_json(made: Budget) -> dict[str, Any]:
    """Returns the budget as JSON objects; `largest` is the name of the marked recipe."""
    fields = dataclasses.asdict(made)
    for entry, shown in zip(made.entries, fields["entries"], strict=True):
        shown["tokens_per_parameter"] = entry.tokens_per_parameter
    return fields | {"largest": made.largest.recipe if made.largest else None}


def lines(made: Budget) -> Iterator[str]:
    """Yields the budget line by line."""
    target = made.target
    yield (
        f"Budget of {made.date}: {_time(made.hours)} on {target.name}, "
        f"{target.num_devices} x {target.device_kind}"
    )
    yield "  " + ", ".join(f"{name} {version}" for name, version in made.versions.items())
    for name, price in made.prices.items():
        yield f"  {name} ${price.value:,.2f} ({price.source})"
    yield f"  tokens are positions of rows, including padding; {LEFT_OUT}"
    yield (
        f"  enough are {made.enough:g} tokens a parameter outside of embeddings, by our choice "
        f"(--tokens_per_parameter): {OTHERS}"
    )
    for assumption in made.assumptions:
        yield f"  assumed: {assumption}"
    yield ""
    yield from _table(made)
    yield ""
    yield _verdict(made)


def summary(entry: Entry) -> str:
    """Returns an entry as a line."""
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


def _table(made: Budget) -> Iterator[str]:
    rows = [(*HEADER, ""), *map(_cells, made.entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    marks = ["", *("*" if entry is made.largest else "" for entry in made.entries)]
    for mark, (recipe, *figures, note) in zip(marks, rows, strict=True):
        cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:-1], strict=True)]
        yield f"{mark:2}{recipe:{widths[0]}}  {'  '.join(cells)}  {note}".rstrip()


def _cells(entry: Entry) -> tuple[str, ...]:
    figures = (entry.rate.tokens_per_second, entry.tokens, entry.tokens_per_parameter)
    return (
        entry.recipe,
        *map(short, (entry.parameters, entry.without_embeddings)),
        *("" if figure is None else short(figure) for figure in figures),
        ", ".join(part for part in (entry.rate.how, entry.rate.note) if part),
    )


def _verdict(made: Budget) -> str:
    if (largest := made.largest) is None:
        return f"No recipe sees {made.enough:g} tokens a parameter in {_time(made.hours)}."
    assert largest.tokens is not None
    return (
        f"* the largest that sees {made.enough:g} tokens a parameter: {_time(made.hours)} on "
        f"{made.target.name} are {short(largest.tokens)} tokens of {largest.recipe}"
    )


def _time(hours: float) -> str:
    return f"{hours:g} h" if hours >= 1 else f"{60 * hours:g} min"
