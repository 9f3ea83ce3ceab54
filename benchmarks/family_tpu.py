r"""The step of every Base of the family, compiled for a TPU slice: cycles relative to BERT-base.

    python benchmarks/family_tpu.py [--topology=v5e-4] [--batch_size=256] [--length=128] \
        [--recipes=bert_base,electra:base] [--vocab_size=30522] \
        [--set=model.attention=xla] [--json]

Needs libtpu (`pip install 'bertjax[plan]'`) and no TPU. Each recipe keeps its vocabulary (unless
--vocab_size), objective, optimizer and precision; the batch, its length and the mesh are the same
for all. Cycles are the compiler's estimates for one device and one update, as `python -m
bertjax.plan` gives them; FLOPs are counted from the shapes. Compiled steps are cached.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
import train_step
from absl import logging

from bertjax import recipes
from bertjax.plan import cache, planner, targets

BASE = "bert_base"
RECIPES = (
    BASE,
    "roberta:base",
    "spanbert:base",
    "albert:base",
    "electra:base",
    "distilbert_base",  # the student's step: no teacher is at hand
    "left_to_right_base",
    "modernbert:base",
)


@dataclasses.dataclass(frozen=True)
class Step:
    """One recipe's step, per device; `flops` are of the model, forward and backward."""

    recipe: str
    vocab_size: int
    cycles: float
    flops: float
    memory_bytes: float
    parameter_bytes: float


def config_of(
    recipe: str, *, batch_size: int, length: int, vocab_size: int, settings: Mapping[str, str]
) -> ml_collections.ConfigDict:
    """Returns the recipe with one phase of this batch, on all devices; a size of 0 is its own."""
    config = recipes.load(recipe)
    with config.phases.unlocked():
        for name in set(config.phases) - {"phase1"}:
            del config.phases[name]
    config.phases.phase1.update(max_seq_length=length, num_epochs=0.0, num_steps=1_000_000)
    config.phases.phase1.update(num_tokens=0, ramp_from=0, ramp_tokens=0)
    config.phases.phase1.global_batch_size = batch_size
    config.gradient_accumulation_steps = 1
    config.mesh.data = -1
    if config.pretraining.masking != "none":
        predictions = math.ceil(config.pretraining.masked_lm_prob * length)
        config.pretraining.max_predictions_per_seq = predictions
    config.model.vocab_size = vocab_size or config.model.vocab_size
    train_step.set_options(config, settings)
    return config


def measure(recipe: str, topology: str, **shape: Any) -> Step:
    """Compiles a recipe's step, or finds it in the cache; `shape` is what `config_of` takes.

    Raises:
      ValueError: if the step does not fit, with what the compiler says.
    """
    config = config_of(recipe, **shape)
    target = targets.make_target(topology, config)
    made = planner.plan(config, targets.make_planner(target, cache.default_directory()))
    (phase,) = made.phases
    if phase.refusal:
        raise ValueError(
            f"{recipe} does not fit on {topology}: {phase.refusal}; give a smaller --batch_size or "
            "--set=gradient_accumulation_steps=2"
        )
    return Step(
        recipe,
        made.vocab_size,
        cycles=phase.speed["cycles"].value,
        flops=phase.model_flops.value,
        memory_bytes=phase.memory["total"].value,
        parameter_bytes=phase.memory["parameters"].value,
    )


def table(steps: Mapping[str, Step]) -> str:
    """Returns the table; ratios are to BERT-base, where that is among the steps."""
    base = steps.get(BASE)
    lines = [
        "| recipe | vocabulary | M cycles | of BERT-base | FLOPs, of BERT-base | GiB per device |",
        "|---" * 6 + "|",
    ]
    for step in steps.values():
        cells = [
            f"`{step.recipe}`",
            f"{step.vocab_size:,}",
            f"{step.cycles / 1e6:.2f}",
            f"{step.cycles / base.cycles:.3f}" if base else "",
            f"{step.flops / base.flops:.3f}" if base else "",
            f"{step.memory_bytes / 2**30:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles and prints, each line of JSON or the table as soon as it is known."""
    parser = argparse.ArgumentParser(description="TPU steps of the family, beside BERT-base's.")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="by commas")
    parser.add_argument("--topology", default="v5e-4", help="as bertjax.plan has it")
    parser.add_argument("--batch_size", type=int, default=256, help="sequences, of all devices")
    parser.add_argument("--length", type=int, default=128, help="tokens a sequence")
    parser.add_argument("--vocab_size", type=int, default=0, help="of all; 0: each its own")
    parser.add_argument("--json", action="store_true", help="a JSON object for each, as it is made")
    train_step.add_settings(parser, "--set", "NAME=VALUE of every config; may be repeated")
    options = parser.parse_args(argv)
    names = options.recipes.split(",")
    if unknown := set(names) - set(RECIPES):
        parser.error(f"--recipes: {', '.join(sorted(unknown))}; known are {', '.join(RECIPES)}")
    jax.config.update("jax_platforms", "cpu")
    logging.set_verbosity(logging.INFO)  # a line per compilation
    steps = {}
    for name in names:
        try:
            steps[name] = measure(
                name,
                options.topology,
                batch_size=options.batch_size,
                length=options.length,
                vocab_size=options.vocab_size,
                settings=dict(options.set),
            )
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if options.json:
            print(json.dumps(dataclasses.asdict(steps[name])), flush=True)
    if not options.json:
        print(table(steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
