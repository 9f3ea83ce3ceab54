"""The config of a run, made of the rows in `options`; and what a resumed run may change.

A recipe in `configs/` starts from `default_config()` and changes what differs. The config is
locked: a misspelt option is an error. `training.config_faults` says what makes a config wrong.
`ConfigDict` stops at the entry points.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from bertjax.options import faults, run, schema, table
from bertjax.options.option import Option

# Options that a resumed run may change: they decide where and how fast the run goes and what is
# watched, not what is learned (rounding and dropout masks may differ). Any other change is
# refused. A moved train_dir is checked by its manifest, a moved finetuning.data_dir by its rows, a
# moved teacher by its parameters.
CHANGEABLE = (
    r"(mesh|checkpoint|evaluation|plateau)\..*",
    r"sharding|split_kernels|log_every_steps|max_skipped_steps|compilation_cache_dir|xla_preset",
    r"writers|profile_steps|budget\.(extend_to|decisions)",
    r"seeds|search|finetuning\.((data_dir|(train|eval|test)_file)|null_threshold)",
    r"finetuning\.(max_answer_length|n_best_size|tag_scheme)",
    r"phases\.\w+\.num_(epochs|tokens)",  # num_steps has what they came to
    r"gradient_accumulation_steps|model\.((gradient_reduction_)?dtype|remat|attention)",
    r"data\.((train|eval)_dir|eval_may_overlap)|distillation\.teacher",
)


class MisspeltOptionError(KeyError):
    """A locked config has no option of this name."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows what a Python string would look like


class _Group(ml_collections.ConfigDict):
    """Options by name; of one that it lacks, an error names no other than may be meant."""

    def __setitem__(self, key: str, value: Any) -> None:
        if self.is_locked and key not in self and "." not in key:
            raise MisspeltOptionError(_misspelt(key, self))
        if isinstance(value, ml_collections.ConfigDict) and not isinstance(value, _Group):
            value = _Group(value)  # as the type of an option may not change
        super().__setitem__(key, value)

    def __getitem__(self, key: str) -> Any:
        try:
            return super().__getitem__(key)
        except MisspeltOptionError:
            raise
        except KeyError:
            raise MisspeltOptionError(_misspelt(key, self)) from None


def _misspelt(name: str, group: Iterable[str]) -> str:
    """Returns in words that a group of options lacks a name."""
    keys = set(group)
    prefix = next((it for it, names in _names_of_groups().items() if keys == names), "")
    return f"{prefix}{name} is not an option{faults.suggestion(name, keys, of=prefix)}"


def _names_of_groups() -> dict[str, set[str]]:
    """Returns the names of the options of each group, by what stands before them."""
    nested = {"": table.groups(), "phases.phase1.": run.PHASE}
    nested |= {f"{name}.": it for name, it in table.groups().items() if isinstance(it, Mapping)}
    return {f"config.{prefix}": set(names) for prefix, names in nested.items()}


def phase_config() -> ml_collections.ConfigDict:
    """Returns the options of one phase of training."""
    return _defaults(run.PHASE)


def default_config() -> ml_collections.ConfigDict:
    """Returns every option with its default: BERT-base by the paper, one phase."""
    return _defaults(table.groups()).lock()


def _defaults(group: Mapping[str, Any]) -> ml_collections.ConfigDict:
    return _Group(
        {
            name: row.default if isinstance(row, Option) else _defaults(row)
            for name, row in group.items()
        }
    )


def phase_names(config: ml_collections.ConfigDict) -> list[str]:
    """Returns the names of the phases that have steps, in their order: phase2 before phase10."""
    names = sorted(config.phases, key=lambda name: (len(name), name))
    return [
        name
        for name in names
        if any(config.phases[name][length] for length in ("num_steps", "num_epochs", "num_tokens"))
    ]


# Options of config.model that a phase may change while it runs.
_OF_MODEL = ("rotary_base", "local_rotary_base")


def in_phase(config: ml_collections.ConfigDict, name: str) -> ml_collections.ConfigDict:
    """Returns a copy with the model of one phase, which no phase changes any more.

    Layers with a window keep their base of config.model (0: its `rotary_base`), unless the phase
    has a `local_rotary_base`.
    """
    options, config = config.phases[name], config.copy_and_resolve_references()
    model = config.model
    if any(options[option] for option in _OF_MODEL):
        local = options.local_rotary_base or model.local_rotary_base or model.rotary_base
        model.rotary_base = options.rotary_base or model.rotary_base
        differs = model.window and local != model.rotary_base
        model.local_rotary_base = local if differs else 0.0
    for phase in config.phases.values():
        phase.update(dict.fromkeys(_OF_MODEL, 0.0))
    return config


def phase_at(config: ml_collections.ConfigDict, step: int) -> str:
    """Returns the phase that trained the model of a step: at a border the one that ends there.

    The phases have their steps. Before the first step, and beyond the last, it is the nearest
    phase.
    """
    end, names = 0, phase_names(config)
    for name in names:
        end += config.phases[name].num_steps
        if step <= end:
            return name
    return names[-1]


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) of every option, in order of name; sequences as tuples."""
    for name in sorted(config):
        if isinstance(config[name], Mapping | ml_collections.ConfigDict):
            yield from flatten(config[name], f"{prefix}{name}.")
        else:
            yield prefix + name, _tupled(config[name])


def completed(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a saved config, with the defaults of options that were added since.

    Sequences are tuples again, which JSON has not.
    """

    def over(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        return {**defaults, **{name: _tupled(value) for name, value in values.items()}} | {
            name: over(value, values.get(name, {}))
            for name, value in defaults.items()
            if isinstance(value, Mapping)
        }

    whole = over({**default_config().to_dict(), "phases": {}}, saved)
    phases = {name: over(phase_config().to_dict(), it) for name, it in saved["phases"].items()}
    return whole | {"phases": phases}


def type_faults(saved: Any) -> Iterator[ValueError]:
    """Yields the options of a saved config that are of another type than their defaults."""
    defaults = {**default_config().to_dict(), "phases": {"*": phase_config().to_dict()}}
    return schema.faults(saved, schema.of(defaults), "config")


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list | tuple) else value


def defaults_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults of all options by dotted name, for the phases that the config has."""
    defaults = dict(flatten({**default_config().to_dict(), "phases": {}}))
    for name in config["phases"]:
        defaults |= dict(flatten(phase_config(), f"phases.{name}."))
    return defaults


def changes(config: Mapping[str, Any]) -> list[str]:
    """Returns the options that are not at their defaults, as one would give them: --config.X=Y."""
    defaults = defaults_of(config)
    return [
        f"--config.{name}={value}"
        for name, value in flatten(config)
        if name not in defaults or value != defaults[name]
    ]


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], changeable: Sequence[str] = CHANGEABLE
) -> tuple[list[str], list[str]]:
    """Returns the changes between two configs: those that a resumed run may make, and the others.

    `changeable` are regular expressions of the whole names that it may change.
    """
    before, after = dict(flatten(old)), dict(flatten(new))
    allowed, refused = [], []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name, "not set"), after.get(name, "not set")
        if was != now:
            is_in_both = name in before and name in after
            is_allowed = is_in_both and any(re.fullmatch(it, name) for it in changeable)
            (allowed if is_allowed else refused).append(f"config.{name}: was {was!r}, is {now!r}")
    return allowed, refused
