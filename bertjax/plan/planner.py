"""Plans a config: builds its job for the target's devices, compiles each phase, searches.

Nothing here prints or knows flags. Steps that were compiled before are read from the cache.
"""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections
from absl import logging

from bertjax import jobs
from bertjax.data import mixtures
from bertjax.devices import accelerators, sharding
from bertjax.plan import cache, compiled, estimates, search
from bertjax.training import config_faults, planned
from bertjax.training import program as program_lib


@dataclasses.dataclass(frozen=True)
class PhaseSearch:
    """The trials of `search` for a phase: batches by size, and changes to make the batch fit."""

    batches: dict[int, search.Trial]
    changes: tuple[search.Trial, ...]

    @property
    def largest_batch(self) -> int | None:
        """The largest batch size tried that fits."""
        return search.best_batch(self.batches)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a run; `totals` is empty if no step time is known.

    `languages` has by phase each language's part, for records in several languages.
    """

    date: str
    target: estimates.Target
    mesh: dict[str, int]
    vocab_size: int
    assumptions: tuple[str, ...]
    versions: dict[str, str]
    phases: tuple[estimates.PhasePlan, ...]
    totals: dict[str, estimates.Figure]
    searches: dict[str, PhaseSearch]
    languages: dict[str, dict[str, mixtures.Part]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Planner:
    """Compiles variants of configs for one target.

    With `compiles` False the `devices` only stand in for the target's: shapes are counted and
    nothing is compiled. Without a `cache_directory` nothing is kept.
    """

    target: estimates.Target
    devices: Sequence[Any]
    compiles: bool
    cache_directory: pathlib.Path | None

    def build(self, config: ml_collections.ConfigDict) -> program_lib.Program:
        """Returns the program of a config with a vocabulary size."""
        mesh = sharding.make_mesh(self.devices, data=config.mesh.data, tensor=config.mesh.tensor)
        resolved = program_lib.resolve(config, self.target.platform, self.target.device_kind)
        job = jobs.JOBS[config.task].abstract(resolved)
        if job.config.data.source == "synthetic":
            config_faults.validate(job.config)
        return program_lib.build(job, mesh)

    def phase_plan(
        self, program: program_lib.Program, phase: jobs.Phase
    ) -> tuple[estimates.PhasePlan, compiled.Outcome | None]:
        """Returns the plan of a phase, and the compiler's outcome if it compiles."""
        outcome = self.outcome(program, phase) if self.compiles else None
        made = estimates.of_phase(
            phase,
            self.target,
            compiled.count_bytes(program, phase),
            outcome,
            flops=jobs.train_flops(program.job, phase),
            fingerprint=planned.fingerprint(program, phase),
            fill=program.job.data.of_phase(phase).fill,
        )
        return made, outcome

    def outcome(self, program: program_lib.Program, phase: jobs.Phase) -> compiled.Outcome:
        """Returns the compiler's outcome for the phase's step, if possible from the cache."""
        key = planned.digest(
            {
                "step": planned.fingerprint(program, phase),
                "target": dataclasses.asdict(self.target),
                "environment": cache.environment(),
            }
        )
        entry = cache.read(self.cache_directory, key) if self.cache_directory else None
        if entry is not None:
            try:
                return compiled.from_json(entry)
            except (KeyError, TypeError) as error:
                logging.warning("The cached plan %s is damaged (%r); compiling again", key, error)
        logging.info(
            "Compiling %s for %s: %d x %d tokens ...",
            phase.title, self.target.name, phase.global_batch_size, phase.max_seq_length,
        )  # fmt: skip
        outcome = compiled.compile_step(program, phase)
        if self.cache_directory is not None:
            cache.write(self.cache_directory, key, compiled.to_json(outcome))
        return outcome


def plan(
    config: ml_collections.ConfigDict,
    planner: Planner,
    *,
    with_search: bool = False,
    assumptions: Sequence[str] = (),
) -> Plan:
    """Returns the plan of all phases of a config with a vocabulary size."""
    program = planner.build(config)
    pairs = [planner.phase_plan(program, phase) for phase in program.job.phases]
    searches = {}
    limit = accelerators.memory_bytes(planner.target.device_kind)
    if with_search and limit is None:
        logging.warning("No search: the memory of %s is not known", planner.target.name)
    if with_search and planner.compiles and limit is not None:
        for (made, outcome), phase in zip(pairs, program.job.phases, strict=True):
            searches[made.name] = search_phase(
                config, planner, program, phase, outcome, limit=limit
            )
    made = tuple(phase_plan for phase_plan, _ in pairs)
    hours = [phase.speed["hours"].value for phase in made if "hours" in phase.speed]
    totals = {}
    if len(hours) == len(made):
        totals["hours"] = estimates.Figure(sum(hours), "hours", estimates.ESTIMATED, "steps alone")
    return Plan(
        date=datetime.date.today().isoformat(),
        target=planner.target,
        mesh=dict(program.mesh.shape),
        vocab_size=program.config.model.vocab_size,
        assumptions=tuple(assumptions),
        versions=cache.versions(),
        phases=made,
        totals=totals,
        searches=searches,
        languages={
            made.name: dict(program.job.data.of_phase(phase).languages)
            for (made, _), phase in zip(pairs, program.job.phases, strict=True)
            if phase.is_last
        },
    )


def search_phase(
    config: ml_collections.ConfigDict,
    planner: Planner,
    program: program_lib.Program,
    phase: jobs.Phase,
    outcome: compiled.Outcome | None,
    *,
    limit: int,
) -> PhaseSearch:
    """Returns a phase's largest batch that fits and, if its own does not, changes that help.

    `limit` is the memory of a device in bytes.
    """
    counted = compiled.count_bytes(program, phase)
    attempt = _attempts(config, planner, phase)
    batch_option = f"phases.{phase.name}.global_batch_size"
    data_devices = program.mesh.shape[sharding.DATA]
    accumulation_steps = config.gradient_accumulation_steps
    batches = search.largest_batch(
        lambda size: attempt({batch_option: size}),
        phase.global_batch_size,
        search.Limits(limit, counted.parameters + counted.optimizer),
        unit=data_devices * accumulation_steps,
    )
    changes: list[search.Trial] = []
    if estimates.fits(outcome, planner.target) is False:
        settings = search.Settings(
            remat=config.model.remat,
            accumulation_steps=accumulation_steps,
            sharding=config.sharding,
            data_devices=data_devices,
        )
        changes = search.changes_that_fit(attempt, settings, phase.global_batch_size)
    return PhaseSearch(batches, tuple(changes))


def _attempts(
    config: ml_collections.ConfigDict, planner: Planner, phase: jobs.Phase
) -> Callable[[dict[str, Any]], search.Trial]:
    def attempt(changes: dict[str, Any]) -> search.Trial:
        try:
            program = planner.build(of_one_phase(config, phase, changes))
        except ValueError as error:
            return search.Trial(changes, fits=False, fault=str(error).splitlines()[0])
        made, outcome = planner.phase_plan(program, program.job.phases[0])
        assert outcome is not None  # a search is of a planner that compiles
        trial = search.Trial(
            changes,
            fits=made.fits is True,
            needed_bytes=estimates.needed_bytes(outcome),
            step_seconds=made.step_seconds,
            lacked_bytes=estimates.lacked_bytes(outcome, planner.target),
        )
        logging.info("Tried %s: %s", changes, "fits" if trial.fits else "does not fit")
        return trial

    return attempt


def of_one_phase(
    config: ml_collections.ConfigDict, phase: jobs.Phase, changes: Mapping[str, Any]
) -> ml_collections.ConfigDict:
    """Returns the config with these options, and without the other phases and their batches."""
    changed = config.copy_and_resolve_references()
    with changed.phases.unlocked():
        for name in set(changed.phases) - {phase.name}:
            del changed.phases[name]
    changed.phases[phase.name].update(ramp_from=0, ramp_tokens=0)
    changed.phases[phase.name].global_batch_size = phase.global_batch_size
    changed.update_from_flattened_dict(changes)
    return changed


def price_totals(
    plan: Plan, *, only_spot: bool, price_per_chip_hour: float | None
) -> dict[str, estimates.Figure]:
    """Returns the plan's totals with the price of its hours, on demand and spot."""
    totals = dict(plan.totals)
    if "hours" not in totals:
        return totals
    return totals | prices(
        *(totals["hours"].value, plan.target),
        only_spot=only_spot,
        price_per_chip_hour=price_per_chip_hour,
    )


def prices(
    hours: float, target: estimates.Target, *, only_spot: bool, price_per_chip_hour: float | None
) -> dict[str, estimates.Figure]:
    """Returns the known costs of the target for `hours`, on demand and spot."""
    names = {"spot price": True} if only_spot else {"price on demand": False, "spot price": True}
    if price_per_chip_hour is not None:
        names = {"price": False}
    found = {
        name: estimates.dollars(hours, target, spot=spot, price_per_chip_hour=price_per_chip_hour)
        for name, spot in names.items()
    }
    return {name: price for name, price in found.items() if price is not None}
