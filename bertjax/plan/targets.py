"""The devices that a plan compiles for: a TPU slice by its name, or this machine's."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import ml_collections

from bertjax.options import faults
from bertjax.plan import estimates, planner, topologies

LOCAL = ("cpu", "gpu")


def make_target(
    name: str, config: ml_collections.ConfigDict, *, num_slices: int = 1
) -> estimates.Target:
    """Returns the devices of a topology name, without asking JAX for them.

    `cpu` and `gpu` have the number of devices of the config's mesh.
    """
    num_devices = max(abs(config.mesh.data) * config.mesh.tensor, 1)
    if name in LOCAL:
        if num_slices != 1:
            raise faults.unread("--num_slices", num_slices, f"{name} has no slices", 1)
        return estimates.Target(name, name, name, num_devices)
    try:
        tpu_slice = topologies.parse(name, num_slices=num_slices)
    except ValueError as error:
        raise ValueError(f"--topology: {error}; or cpu, or gpu") from error
    _check_mesh(config, tpu_slice)
    return estimates.Target(name, "tpu", tpu_slice.device_kind, tpu_slice.num_devices, tpu_slice)


def make_planner(target: estimates.Target, cache_directory: pathlib.Path | None) -> planner.Planner:
    """Returns a planner with the target's devices, or with stand-ins if it cannot compile."""
    if target.tpu_slice is not None:
        try:
            devices = topologies.devices(target.tpu_slice)
        except (ImportError, RuntimeError) as error:
            raise ValueError(str(error)) from error
        return planner.Planner(target, devices, True, cache_directory)
    local = _local_devices(target.platform)
    if len(local) >= target.num_devices:
        kind = local[0].device_kind
        on_gpu = dataclasses.replace(target, device_kind=kind)
        return planner.Planner(on_gpu, local[: target.num_devices], True, cache_directory)
    stand_ins = _local_devices("cpu")
    if len(stand_ins) < target.num_devices:
        raise ValueError(
            f"config.mesh needs {target.num_devices} devices, but JAX was started with "
            f"{len(stand_ins)}: set JAX_NUM_CPU_DEVICES={target.num_devices}"
        )
    return planner.Planner(target, stand_ins[: target.num_devices], False, cache_directory)


def measuring_planner(platform: str) -> planner.Planner:
    """Returns a planner with all devices of this machine's `cpu` or `gpu`."""
    devices = _local_devices(platform)
    if not devices:
        raise ValueError(
            f"--topology is {platform}, but JAX finds no {platform} on this machine, where "
            "--budget measures steps: run it on the machine to plan for, or give a TPU slice, "
            "which needs no device"
        )
    target = estimates.Target(platform, platform, devices[0].device_kind, len(devices))
    return planner.Planner(target, devices, True, None)


def _check_mesh(config: ml_collections.ConfigDict, tpu_slice: topologies.Slice) -> None:
    mesh, there = config.mesh, tpu_slice.num_devices
    if mesh.tensor < 1:
        return  # sharding.make_mesh raises
    needed = mesh.data * mesh.tensor if mesh.data != -1 else there // mesh.tensor * mesh.tensor
    if needed == there:
        return
    fitting = [
        name
        for name in topologies.known()[tpu_slice.generation]
        if topologies.parse(name).num_devices * tpu_slice.num_slices == needed
    ]
    instead = f", or plan for --topology={fitting[0]}" if fitting else ""
    raise ValueError(
        f"config.mesh is data={mesh.data} x tensor={mesh.tensor}, but {tpu_slice.name} has {there} "
        f"devices: set --config.mesh.data=-1 to use all of them{instead}"
    )


def _local_devices(platform: str) -> list[Any]:
    try:
        return jax.devices(platform)
    except RuntimeError:  # JAX has no such backend here
        return []
