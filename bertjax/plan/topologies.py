"""TPU slices by the names of the cloud console, and their devices to compile for.

Only `devices` needs libtpu. `hlo` has the time of a program, `estimates` the cost.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from bertjax.devices import accelerators
from bertjax.options import faults


@dataclasses.dataclass(frozen=True)
class Slice:
    """TPU chips that are rented together; chips, devices and hosts are of all `num_slices`."""

    name: str
    generation: str
    topology: str
    num_chips: int
    num_devices: int
    num_hosts: int
    device_kind: str
    num_slices: int = 1

    @property
    def num_ports(self) -> int:
        """The least number of neighbours of a chip: one along each axis, or two on a ring.

        Axes are rings if they have 16 chips (v5e, v6e), or in slices of whole cubes of 4x4x4.
        Source: docs.cloud.google.com/tpu, "Cloud TPU architecture"; v2 and v3 from memory.
        """
        axes = [int(size) for size in self.topology.partition(":")[2].split("x")]
        unit = 16 if len(axes) == 2 else 4
        are_cubes = len(axes) == 2 or all(size % unit == 0 for size in axes)
        closed = [are_cubes and size % unit == 0 for size in axes]
        return sum((2 if ring else 1) for ring, size in zip(closed, axes, strict=True) if size > 1)


@dataclasses.dataclass(frozen=True)
class _Generation:
    """The slices of a generation; `shapes` are the chips along each axis of the torus.

    With `counts_cores` the number in a name is of TensorCores, two to a chip, else of chips.
    """

    prefixes: tuple[str, ...]
    device_kind: str
    counts_cores: bool
    shapes: tuple[str, ...]
    chip_config: str | None = None

    def offered(self) -> dict[int, str]:
        per_chip = 2 if self.counts_cores else 1
        return {_num_chips(shape) * per_chip: shape for shape in self.shapes}


_V5E_SHAPES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("4x4x4", "4x4x8", "4x4x12", "4x8x8", "8x8x8", "8x8x12", "8x8x16", "8x16x16")
_LARGE_CUBES = ("16x16x16", "16x16x24")
_PARTS_OF_A_CUBE = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")

# Sources: docs.cloud.google.com/tpu, pages v4 to v6e and tpu7x; accelerator_to_spec_map.py of
# MaxText (read 2026-11-21); shapes of v2 and v3 from memory. libtpu 0.0.42.1 makes all of them.
# Other shapes of v4, v5p and tpu7x are given as topologies, such as "v5p:4x8x20".
_GENERATIONS: dict[str, _Generation] = {
    "v2": _Generation(("v2",), "TPU v2", True, ("2x2", "4x4", "8x8", "8x16", "16x16")),
    "v3": _Generation(
        *(("v3",), "TPU v3", True), ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32")
    ),
    # Without "megacore" libtpu shows every core of a v4 chip as a device.
    "v4": _Generation(("v4",), "TPU v4", True, (*_PARTS_OF_A_CUBE, *_CUBES), "megacore"),
    "v5e": _Generation(("v5e", "v5litepod"), "TPU v5 lite", False, _V5E_SHAPES),
    "v5p": _Generation(("v5p", "v5"), "TPU v5", True, (*_PARTS_OF_A_CUBE, *_CUBES, *_LARGE_CUBES)),
    "v6e": _Generation(("v6e",), "TPU v6 lite", False, _V5E_SHAPES),
    "tpu7x": _Generation(
        ("tpu7x",), "TPU7x", True, ("1x1x1", *_PARTS_OF_A_CUBE, *_CUBES, *_LARGE_CUBES)
    ),
}
_NAME = re.compile(r"(?P<prefix>[a-z0-9]+)(-(?P<size>\d+)|:(?P<shape>[1-9]\d*(x[1-9]\d*)+))")
_CHIPS_PER_HOST = (2, 2, 1)
# Slices of one host other than 2x2: a single chip, and the machines with eight chips.
_ONE_HOST = {"1x1": (1, 1, 1), "1x1x1": (1, 1, 1), "2x4": (2, 4, 1)}
_LOCKED = ("lockfile", "already in use")


def known() -> dict[str, tuple[str, ...]]:
    """Returns the names of every generation, smallest slice first."""
    return {
        key: tuple(f"{generation.prefixes[0]}-{size}" for size in generation.offered())
        for key, generation in _GENERATIONS.items()
    }


def parse(name: str, *, num_slices: int = 1) -> Slice:
    """Returns the slice of a name such as "v5e-16", "v5litepod-16", "v4-8" or "v5e:4x4".

    The number is of TensorCores for v2, v3, v4, v5p and tpu7x, of chips for v5e and v6e.
    """
    if num_slices < 1:
        raise faults.wrong("num_slices", num_slices, "at least 1")
    match = _NAME.fullmatch(name.strip().lower())
    keys = {prefix: key for key, it in _GENERATIONS.items() for prefix in it.prefixes}
    if match is None or match["prefix"] not in keys:
        examples = ", ".join(f"{names[0]} ... {names[-1]}" for names in known().values())
        must = f"a generation and a size ({examples}) or a generation and a shape, such as v5e:4x4"
        raise faults.wrong("topology", name, must)
    key = keys[match["prefix"]]
    shape = match["shape"] or _shape_of_size(name, key, int(match["size"]))
    _check_shape(name, key, shape)
    num_chips = num_slices * _num_chips(shape)
    kind = _GENERATIONS[key].device_kind
    return Slice(
        name=name,
        generation=key,
        topology=f"{key}:{shape}",
        num_chips=num_chips,
        num_devices=num_chips * accelerators.ACCELERATORS[kind].devices_per_chip,
        num_hosts=num_chips // math.prod(_host_bounds(key, shape)),
        device_kind=kind,
        num_slices=num_slices,
    )


def devices(tpu_slice: Slice) -> list[Any]:
    """Returns the devices of all slices, host by host, to compile programs for."""
    # Otherwise libtpu warns on stderr that this machine is not a TPU worker.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    key, shape = tpu_slice.topology.split(":")
    options: dict[str, Any] = {"chips_per_host_bounds": _host_bounds(key, shape)}
    if chip_config := _GENERATIONS[key].chip_config:
        options["chip_config_name"] = chip_config
    try:
        description = topologies.get_topology_desc(
            tpu_slice.topology, platform="tpu", num_slices=tpu_slice.num_slices, **options
        )
    except jax.errors.JaxRuntimeError as error:
        raise _explained(error, tpu_slice) from error
    except RuntimeError as error:
        raise ImportError(
            f"compiling for {tpu_slice.name} needs libtpu, which this environment lacks: "
            "pip install 'bertjax[plan]'"
        ) from error
    return list(description.devices)


def _shape_of_size(name: str, key: str, size: int) -> str:
    offered = _GENERATIONS[key].offered()
    if size not in offered:
        counted = "TensorCores" if _GENERATIONS[key].counts_cores else "chips"
        must = f"{key} with {', '.join(map(str, offered))} {counted}"
        instead = f"give another shape as {key}:{offered[max(offered)]}"
        raise faults.wrong("topology", name, must, instead)
    return offered[size]


def _check_shape(name: str, key: str, shape: str) -> None:
    num_axes = _GENERATIONS[key].shapes[0].count("x") + 1
    chips = tuple(map(int, shape.split("x")))
    hosts_tile_it = all(
        count % unit == 0 for count, unit in zip(chips, _host_bounds(key, shape), strict=False)
    )
    if len(chips) != num_axes or not hosts_tile_it:
        shapes = ", ".join(_GENERATIONS[key].shapes)
        must = f"a shape with {num_axes} axes, the first two even: {shapes}"
        raise faults.wrong("topology", name, must)


def _host_bounds(key: str, shape: str) -> tuple[int, int, int]:
    if shape == "2x4" and key not in ("v5e", "v6e"):
        return _CHIPS_PER_HOST
    return _ONE_HOST.get(shape, _CHIPS_PER_HOST)


def _num_chips(shape: str) -> int:
    return math.prod(map(int, shape.split("x")))


def _explained(error: RuntimeError, tpu_slice: Slice) -> Exception:
    text = str(error)
    if any(sign in text for sign in _LOCKED):
        return RuntimeError(
            "another process has libtpu open, and only one may: wait for it to end (after a crash, "
            "remove /tmp/libtpu_lockfile), or set ALLOW_MULTIPLE_LIBTPU_LOAD=1 where no TPU is "
            f"attached. libtpu says: {text}"
        )
    return ValueError(
        f"this libtpu does not make the topology {tpu_slice.topology} of {tpu_slice.name}: {text}"
    )
