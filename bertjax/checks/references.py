"""Reference curves: the losses of several seeds of a recipe, in small files.

A curve speaks only where data, vocabulary, model, objective and tokens are its own: on another
corpus or vocabulary another loss is right. The options of the training may differ, and are then
named. `benchmarks/reference_curves.py` makes the files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Float

from bertjax import config as config_lib
from bertjax.files import atomic, json_text

DIRECTORY = epath.Path(__file__).parent / "curves"
# The options by which a run is of a reference. Numbers of steps and batches are in the tokens.
OF_KEY = re.compile(
    r"model\.(?!dtype|remat|attention$|gradient_reduction|\w*dropout).*|pretraining\..*"
)
# The options of a training that are compared: the objective, the model and the schedule.
COMPARED = re.compile(
    r"optimizer\..*|schedule\..*|model\.\w*dropout\w*|global_batch_size|phases\.\w+\.\w+"
    r"|distillation\..*|init_from|data\.(length_buckets|max_streams)"
)
TRAINING_LOSSES, HELD_OUT_LOSSES = (
    re.compile(r"train/m?lm_loss"),
    re.compile(r"eval/heldout/m?lm_loss"),
)
POINTS = 30  # of a training loss


@dataclasses.dataclass(frozen=True)
class Curve:
    """A scalar of several seeds: `values` has for each its means over the tokens to each point."""

    tokens: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    def bands(self) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
        """Returns mean and standard deviation over the seeds at each point."""
        values = np.array(self.values)
        return values.mean(axis=0), values.std(axis=0, ddof=1)


@dataclasses.dataclass(frozen=True)
class Reference:
    """The curves of a recipe by the names of their scalars, and its options of training."""

    name: str
    key: str
    seeds: tuple[int, ...]
    options: Mapping[str, Any]
    curves: Mapping[str, Curve]


def key_of(options: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """Returns the digest of the data, the vocabulary, the model, the objective and the tokens.

    Options at their defaults are left out, so that an option that is added changes no key.
    """
    defaults = dict(config_lib.flatten(config_lib.default_config()))
    chosen = {
        name: value
        for name, value in options.items()
        if OF_KEY.fullmatch(name) and value != defaults.get(name)
    }
    facts = [identity.get("manifests"), identity.get("tokenizer_sha256"), chosen, _tokens(options)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def compared(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a training that a reference stores, as JSON has them."""
    chosen = {name: value for name, value in options.items() if COMPARED.fullmatch(name)}
    return json.loads(json.dumps(chosen))


def differences(reference: Reference, options: Mapping[str, Any]) -> list[str]:
    """Returns the options of a training that are not the reference's, in words."""
    ours = compared(options)
    return [
        f"{name} is {ours.get(name)!r}, not {value!r}"
        for name, value in reference.options.items()
        if ours.get(name) != value
    ]


def make(
    name: str,
    key: str,
    runs: Mapping[int, Sequence[Mapping[str, Any]]],
    options: Mapping[str, Any],
) -> Reference:
    """Returns the reference of several runs: their lines, with `tokens`, by seed."""
    if len(runs) < 2:
        raise ValueError(f"the reference {name!r} has {len(runs)} run; a spread needs two seeds")
    curves = {scalar: curve for pattern in (TRAINING_LOSSES, HELD_OUT_LOSSES)
              for scalar, curve in _curves(runs, pattern)}  # fmt: skip
    return Reference(name, key, tuple(runs), compared(options), curves)


def save(reference: Reference, directory: epath.PathLike) -> epath.Path:
    """Writes the reference as NAME.json, and returns the path."""
    path = epath.Path(directory) / f"{reference.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, json.dumps(dataclasses.asdict(reference), indent=1) + "\n")
    return path


def load_all(*directories: epath.PathLike) -> tuple[Reference, ...]:
    """Returns the references in directories, by default the package's own."""
    chosen = map(epath.Path, directories or (DIRECTORY,))
    return tuple(_load(path) for it in chosen for path in sorted(it.glob("*.json")))


def _load(path: epath.Path) -> Reference:
    fields = json_text.read_object(path)
    try:
        curves = {
            name: Curve(
                tuple(map(float, curve["tokens"])),
                tuple(tuple(map(float, seed)) for seed in curve["values"]),
            )
            for name, curve in fields["curves"].items()
        }
        fields |= {"curves": curves, "seeds": tuple(fields["seeds"])}
        return Reference(**fields)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a reference curve ({error!r}): make it with "
            "`python -m benchmarks.reference_curves`"
        ) from error


def _tokens(options: Mapping[str, Any]) -> list[float]:
    """Returns the tokens of each phase with its length, so that batch and steps may differ."""
    names = sorted({name.split(".")[1] for name in options if name.startswith("phases.")})
    of_phases = []
    for name in names:
        phase = {part: options[f"phases.{name}.{part}"] for part in ("num_steps", "max_seq_length")}
        batch = options[f"phases.{name}.global_batch_size"] or options["global_batch_size"]
        if phase["num_steps"]:
            tokens = phase["num_steps"] * batch * phase["max_seq_length"]
            of_phases += [phase["max_seq_length"], float(f"{tokens:.2g}")]
    return of_phases


def _curves(
    runs: Mapping[int, Sequence[Mapping[str, Any]]], pattern: re.Pattern[str]
) -> Iterator[tuple[str, Curve]]:
    lines = [line for one in runs.values() for line in one]
    for name in sorted({name for line in lines for name in line if pattern.fullmatch(name)}):
        tokens = [[line["tokens"] for line in one if name in line] for one in runs.values()]
        if any(other != tokens[0] for other in tokens):
            raise ValueError(
                f"the runs have {name} at other steps: give finished runs of one config, which "
                "differ in the seed alone"
            )
        values = [[line[name] for line in one if name in line] for one in runs.values()]
        parts = np.array_split(np.arange(len(tokens[0])), min(POINTS, len(tokens[0])))
        yield (
            name,
            Curve(
                tuple(tokens[0][part[-1]] for part in parts),
                tuple(
                    tuple(round(float(np.mean([one[i] for i in part])), 4) for part in parts)
                    for one in values
                ),
            ),
        )
