"""Compares the step time measured in a run with the one that its plan estimated.

`python -m bertjax.plan --workdir=DIR` leaves plan.json in the workdir; at its end `train` reads it.
`plan` makes plans; a fingerprint shows whether a run is the planned one.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from bertjax import config as config_lib
from bertjax import jobs
from bertjax.files import atomic, directories, json_text
from bertjax.training import program as program_lib
from bertjax.workdirs import scalars

PLAN_FILE = "plan.json"

# Options that do not reach the compiler; mesh and batch are in the shapes.
_NOT_COMPILED = (
    "data", "checkpoint", "evaluation", "plateau", "phases", "mesh", "global_batch_size",
    "init_from", "init_from_smaller", "resize_vocabulary", "exchange_vocabulary",
    "log_every_steps", "max_skipped_steps", "compilation_cache_dir",
)  # fmt: skip


def save(workdir: epath.Path, plan: Mapping[str, Any]) -> None:
    """Writes a plan (`text.to_json`) into a workdir."""
    workdir.mkdir(parents=True, exist_ok=True)
    path = workdir / PLAN_FILE
    if path.exists():
        try:
            is_plan = {"phases", "target"} <= json_text.read_object(path).keys()
        except ValueError:
            is_plan = False
        if not is_plan:
            raise directories.NotOursError(
                f"{path} is not a plan of bertjax. Nothing was changed; give another --workdir"
            )
    atomic.write(path, json.dumps(plan, indent=2) + "\n")


def lines(workdir: epath.Path, program: program_lib.Program) -> Iterator[str]:
    """Yields a sentence per phase of the run in `workdir` that its plan covers; none without one.

    A plan of another config, batch, mesh or kind of device is said to be one, and not compared.
    """
    path = workdir / PLAN_FILE
    if not path.exists():
        return
    try:
        plan = json_text.read_object(path)
        planned = {phase["name"]: phase for phase in plan["phases"]}
        target, kind = plan["target"]["name"], plan["target"]["device_kind"]
    except (ValueError, KeyError, TypeError) as error:
        yield f"{path} cannot be read ({error!r}): no comparison with a plan"
        return
    here = program.mesh.devices.flat[0].device_kind
    if kind != here:
        yield f"The plan in {path} is for {kind}, this run was on {here}: not compared"
        return
    measured = step_seconds(workdir, program)
    for phase in program.job.phases:
        if phase.title not in planned or phase.title not in measured:
            continue
        phase_plan = planned[phase.title]
        if phase_plan["fingerprint"] != fingerprint(program, phase):
            yield f"{phase.title}: the plan in {path} is of another step or mesh: not compared"
        elif "step_seconds" in phase_plan["speed"]:
            estimate, seconds = phase_plan["speed"]["step_seconds"], measured[phase.title]
            yield (
                f"{phase.title}: {seconds:.5f} seconds per step measured (median), "
                f"{estimate['value']:.5f} {estimate['how']} by the plan for {target}: "
                f"{seconds / estimate['value']:.2f} times the plan"
            )


def step_seconds(workdir: epath.Path, program: program_lib.Program) -> dict[str, float]:
    """Returns the median of perf/step_seconds in metrics.jsonl for each phase that has any."""
    lines = scalars.read(workdir / scalars.FILE)
    medians = {}
    for phase in program.job.phases:
        values = [
            line["perf/step_seconds"]
            for line in lines
            if phase.first_step < line["step"] <= phase.end_step
            and line.get("perf/step_seconds") is not None
        ]
        if values:
            medians[phase.title] = statistics.median(values)
    return medians


def fingerprint(program: program_lib.Program, phase: jobs.Phase) -> str:
    """Returns the hash of a phase's step and of the number of devices.

    A plan and the run that follows it have the same hash, whatever the data directories are. The
    number of steps, a constant of the schedule, does not change a compiler's estimate.
    """
    options = {
        name: value
        for name, value in config_lib.flatten(program.in_phase(phase).config)
        if name.split(".")[0] not in _NOT_COMPILED
    }
    batch = {
        name: [*shape.shape, str(shape.dtype)]
        for name, shape in program.job.data.abstract_batch(phase).items()
    }
    return digest({"options": options, "batch": batch, "mesh": dict(program.mesh.shape)})


def digest(inputs: Mapping[str, Any]) -> str:
    """Returns the hash of JSON-like `inputs`, the same whatever their order."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
