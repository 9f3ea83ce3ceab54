"""Versions, memory and devices of this machine."""

from __future__ import annotations

import collections
import importlib.metadata
import os
import pathlib
import platform
import re
import sys
from collections.abc import Iterator

import jax
import psutil

import bertjax
from bertjax.checkup.findings import Finding
from bertjax.devices import accelerators

PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy")
TENSORFLOWS = ("tensorflow", "tensorflow-cpu")
OPTIONAL = ("libtpu",)
LEAST_PYTHON = (3, 11)
GIB = 2**30

# A file that a driver makes -> what JAX calls such devices, and what installs JAX for them.
DRIVERS = {
    "/proc/driver/nvidia/version": ("gpu", "an NVIDIA GPU", "pip install 'jax[cuda13]'"),
    "/dev/accel0": ("tpu", "a TPU", "pip install 'bertjax[tpu]'"),
    "/dev/vfio/0": ("tpu", "a TPU", "pip install 'bertjax[tpu]'"),
}


def python(workdir: str) -> Iterator[Finding]:
    """Yields Python's version and the system's."""
    del workdir
    version = platform.python_version()
    least = ".".join(map(str, LEAST_PYTHON))
    is_new = sys.version_info[:2] >= LEAST_PYTHON
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Finding("python", version, f"{least} or newer", "ok" if is_new else "fault")
    yield Finding("system", system, "Linux or macOS")
    memory = psutil.virtual_memory()
    shown = f"{memory.total / GIB:.0f} GiB, {memory.available / GIB:.0f} free"
    yield Finding("host", f"{os.cpu_count()} CPUs, {shown}")


def packages(workdir: str) -> Iterator[Finding]:
    """Yields the versions of what bertjax stands on, beside those that it asks for."""
    del workdir
    yield Finding("bertjax", bertjax.__version__)
    asked = _asked_for()
    for name in PACKAGES:
        found, least = _version(name), asked.get(name, "")
        if found is None:
            status = "ok" if name in OPTIONAL else "fault"
            yield Finding(name, "not installed", f">={least}" if least else "", status)
            continue
        is_new = not least or _numbers(found) >= _numbers(least)
        yield Finding(name, found, f">={least}" if least else "", "ok" if is_new else "fault")
    found = [f"{name} {version}" for name in TENSORFLOWS if (version := _version(name))]
    yield Finding("tensorflow", ", ".join(found) or "not installed", "only to read records")


def _asked_for() -> dict[str, str]:
    """Returns the least version of each package that bertjax asks for; {} in a bare checkout."""
    try:
        lines = importlib.metadata.requires("bertjax") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*>=\s*([\w.]+)\s*(;.*)?$", it) for it in lines)
    return {it[1]: it[2] for it in found if it and "extra" not in (it[3] or "")}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def devices(workdir: str) -> Iterator[Finding]:
    """Yields the devices that JAX finds, and their memory."""
    del workdir
    found = jax.devices()
    kinds = collections.Counter(it.device_kind for it in found)
    shown = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    passed_over = _passed_over(found[0].platform)
    if wanted := os.environ.get("JAX_PLATFORMS"):
        shown += f" (JAX_PLATFORMS={wanted})"
    yield Finding("devices", shown, passed_over, "fault" if passed_over else "ok")
    stats = found[0].memory_stats() or {}
    if limit := stats.get("bytes_limit"):
        known = accelerators.memory_bytes(found[0].device_kind)
        used = stats.get("bytes_in_use", 0)
        yield Finding(
            "device memory",
            f"{limit / GIB:.1f} GiB to use, {used / GIB:.1f} in use",
            f"of {known / GIB:.0f} GiB" if known else "",
        )


def _passed_over(used: str) -> str:
    """Returns which devices of the machine JAX does not use, and what to do; "" if none."""
    for file, (kind, name, remedy) in DRIVERS.items():
        if used == "cpu" and pathlib.Path(file).exists():
            return f"{name} ({kind}) is there and not used: {remedy}, unset JAX_PLATFORMS"
    return ""
