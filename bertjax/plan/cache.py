"""Results of earlier compilations, by a hash of all inputs of the compiler.

The inputs are the step's config and shapes, the mesh, the topology, the compiler's options, flags
and versions, and bertjax's source: hashing it costs milliseconds, while lowering the step to hash
its text would cost up to half a minute. An entry is a small JSON file.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from absl import logging

from bertjax.files import atomic

PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax")
FLAG_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def default_directory() -> pathlib.Path:
    """Returns bertjax's plan directory in the user's cache: $XDG_CACHE_HOME, or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(home) / "bertjax" / "plan"


def environment() -> dict[str, Any]:
    """Returns all that decides a compilation on this machine besides the step's config."""
    return {
        "versions": versions(),
        "flags": {name: os.environ.get(name, "") for name in FLAG_VARIABLES},
        "source": _source_sha256(),
    }


def versions() -> dict[str, str]:
    """Returns the installed versions of the packages that a compilation depends on."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def read(directory: pathlib.Path, key: str) -> dict[str, Any] | None:
    """Returns the entry of a key, None without one or if it is damaged."""
    path, reason = directory / f"{key}.json", "it holds no object"
    try:
        if isinstance(entry := json.loads(path.read_text(encoding="utf-8")), dict):
            return entry
    except FileNotFoundError:
        return None
    except ValueError as error:  # not UTF-8, or not JSON
        reason = str(error)
    logging.warning("The cached plan %s cannot be read (%s); compiling again", path, reason)
    return None


def write(directory: pathlib.Path, key: str, entry: Mapping[str, Any]) -> None:
    """Writes the entry of a key; a reader sees the old one or the new one."""
    directory.mkdir(parents=True, exist_ok=True)
    atomic.write(directory / f"{key}.json", json.dumps(entry))


@functools.cache
def _source_sha256() -> str:
    package = pathlib.Path(__file__).parents[1]
    hashed = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        hashed.update(path.relative_to(package).as_posix().encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()
