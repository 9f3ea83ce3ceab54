"""Is this machine fit to train on? Versions, devices, memory and the workdir, a line each.

python -m bertjax.doctor --workdir=gs://BUCKET/runs

Each line has a status (ok or fault), the value, and what was expected. The exit code is 1 if there
is a fault, else 0. Probes that may hang or die run in a process of their own, with a time limit.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Doctor, __doc__)

import collections
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import jax
import psutil
from etils import epath

import bertjax
from bertjax.cli import command_line, programs
from bertjax.devices import accelerators
from bertjax.files import atomic, mounts

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
OPTIONAL_PACKAGES = ("libtpu", "tensorflow", "tensorflow-cpu")
LEAST_PYTHON = (3, 11)
GB, GIB = 10**9, 2**30
# A checkpoint of BERT-base with the optimizer's state has 1.3 GB, and up to five are kept.
LEAST_FREE = 7 * GB
PROBE_SECONDS = 120.0

# A file that a driver makes -> what JAX calls such devices, and what installs JAX for them.
DRIVERS = {
    "/proc/driver/nvidia/version": ("an NVIDIA GPU", "pip install 'jax[cuda13]'"),
    "/dev/accel0": ("a TPU", "pip install 'bertjax[tpu]'"),
    "/dev/vfio/0": ("a TPU", "pip install 'bertjax[tpu]'"),
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line: the subject, its value, and what was expected ("" for anything)."""

    what: str
    found: str
    expected: str = ""
    status: str = "ok"  # or "fault"


def versions() -> Iterator[Finding]:
    """Yields the versions of Python, bertjax and its packages, and the memory of the host."""
    status = "ok" if sys.version_info[:2] >= LEAST_PYTHON else "fault"
    least = ".".join(map(str, LEAST_PYTHON))
    yield Finding("python", platform.python_version(), f"{least} or newer", status)
    yield Finding("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    memory = psutil.virtual_memory()
    shown = f"{memory.total / GIB:.0f} GiB, {memory.available / GIB:.0f} free"
    yield Finding("host", f"{os.cpu_count()} CPUs, {shown}")
    yield Finding("bertjax", bertjax.__version__)
    required = _required_versions()
    for name in (*PACKAGES, *OPTIONAL_PACKAGES):
        version, least = _version(name), required.get(name, "")
        expected = f">={least}" if least else ""
        if version is not None:
            is_new = _numbers(version) >= _numbers(least)
            yield Finding(name, version, expected, "ok" if is_new else "fault")
        elif name in PACKAGES:
            yield Finding(name, "not installed", expected, "fault")


def _required_versions() -> dict[str, str]:
    """Returns the least version of each package that bertjax requires; {} in a bare checkout."""
    try:
        lines = importlib.metadata.requires("bertjax") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    pattern = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*>=\s*([\w.]+)\s*(;.*)?$")
    matches = filter(None, map(pattern.match, lines))
    return {it[1]: it[2] for it in matches if "extra" not in (it[3] or "")}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def devices(workdir: str) -> Iterator[Finding]:
    """Yields the devices of JAX, devices of the machine that JAX does not use, and their memory."""
    del workdir
    first, *_ = all_devices = jax.devices()
    counts = collections.Counter(device.device_kind for device in all_devices)
    shown = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
    if platforms := os.environ.get("JAX_PLATFORMS"):
        shown += f" (JAX_PLATFORMS={platforms})"
    unused = ""
    for file, (name, remedy) in DRIVERS.items():
        if first.platform == "cpu" and pathlib.Path(file).exists():
            unused = f"{name} is there and not used: {remedy}, unset JAX_PLATFORMS"
    yield Finding("devices", shown, unused, "fault" if unused else "ok")
    stats = first.memory_stats() or {}
    if limit := stats.get("bytes_limit"):
        total = accelerators.memory_bytes(first.device_kind)
        memory = f"{limit / GIB:.1f} GiB to use, {stats.get('bytes_in_use', 0) / GIB:.1f} in use"
        yield Finding("device memory", memory, f"of {total / GIB:.0f} GiB" if total else "")


def storage(workdir: str) -> Iterator[Finding]:
    """Yields the free space, and whether a file is written, renamed, read and removed there."""
    root, kind = epath.Path(workdir), workdir.partition("://")[0]
    # The last three of gs://bucket/a are gs://bucket, gs:// and /: no directories.
    ancestors = (root, *root.parents)[: -3 if atomic.is_remote(workdir) else None]
    missing = [path for path in ancestors if not path.exists()]
    scratch, content = root / f".bertjax_doctor_{uuid.uuid4().hex}", os.urandom(1024)
    try:
        scratch.mkdir(parents=True)
        (scratch / "written").write_bytes(content)
        (scratch / "written").replace(scratch / "renamed")
        is_same = (scratch / "renamed").read_bytes() == content
        if not atomic.is_remote(workdir):
            free = shutil.disk_usage(root).free
            status = "ok" if free >= LEAST_FREE else "fault"
            expected = f"{LEAST_FREE / GB:.0f} GB, five checkpoints of BERT-base"
            yield Finding("free disk", f"{free / GB:.1f} GB", expected, status)
            kind = "a local disk"
            if not mounts.is_like_a_disk(scratch):
                kind = "a mount without the locks or the syncs of a disk, for one session at a time"
    finally:
        if scratch.exists():
            scratch.rmtree()
        for path in missing:  # the innermost first
            if path.exists() and not any(path.iterdir()):
                path.rmdir()
    status = "ok" if is_same else "fault"
    done = "written, renamed, read back, removed" if is_same else "reads back other bytes"
    yield Finding("workdir", f"{kind}: {done}", status=status)


# Name -> a probe that may hang or die, and the likely reason.
PROBES: dict[str, tuple[Callable[[str], Iterator[Finding]], str]] = {
    "devices": (devices, "a TPU serves one process: end the other one (lsof /dev/accel*)"),
    "workdir": (storage, "the store does not answer: see the network and the rights"),
}


def findings(workdir: str) -> Iterator[Finding]:
    """Yields the findings of every probe; one that fails, hangs or dies is a fault."""
    yield from versions()
    for name, (_, hint) in PROBES.items():
        command = [sys.executable, "-m", "bertjax.doctor", f"--workdir={workdir}", f"--only={name}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            yield Finding(name, f"no answer in {PROBE_SECONDS:.0f} s; {hint}", status="fault")
            continue
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        yield from (Finding(**json.loads(line)) for line in lines)
        if done.returncode and not any('"fault"' in line for line in lines):
            *_, reason = ["", *filter(str.strip, done.stderr.splitlines())]
            reason = reason.removeprefix("bertjax: ") or f"ended with {done.returncode}; {hint}"
            yield Finding(name, reason, status="fault")


def main(options: programs.Doctor) -> None:
    """Prints each finding at once; exits with 1 if one is a fault."""
    faults = 0
    probe = PROBES[options.only][0] if options.only else findings
    for finding in probe(options.workdir):
        faults += finding.status == "fault"
        expected = f"   (expected: {finding.expected})" if finding.expected else ""
        line = f"{finding.status:<6} {finding.what:<17} {finding.found}{expected}"
        as_json = options.json or options.only
        print(json.dumps(dataclasses.asdict(finding)) if as_json else line, flush=True)
    if not options.json and not options.only:
        print(f"{faults} faults")
    if faults:
        sys.exit(1)


if __name__ == "__main__":
    command_line.run(main)
