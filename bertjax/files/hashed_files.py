"""Files as a manifest lists them, with size and sha256, and whether they are still the same."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from etils import epath

_PIECE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class HashedFile:
    """A file of a directory: its bare name, its size in bytes, the sha256 of its content."""

    name: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: epath.PathLike) -> HashedFile:
        """Returns the entry of a file as it is now; OSError if it cannot be read."""
        path, digest, size = epath.Path(path), hashlib.sha256(), 0
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
        return cls(path.name, size, digest.hexdigest())

    @classmethod
    def from_json(cls, fields: Any) -> HashedFile:
        """Returns the entry that a manifest holds."""
        types = {"name": str, "bytes": int, "sha256": str}
        is_entry = isinstance(fields, Mapping) and fields.keys() == types.keys()
        if not is_entry or any(type(fields[name]) is not kind for name, kind in types.items()):
            raise ValueError(f"{fields!r:.100} is no file with name, bytes and sha256")
        if not is_bare(fields["name"]):
            raise ValueError(f"{fields['name']!r} must be the name of a file in the directory")
        return cls(**fields)


def is_bare(name: str) -> bool:
    """Returns whether a name is a plain file name, which cannot leave its directory."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def faults(directory: epath.PathLike, files: Iterable[HashedFile]) -> Iterator[str]:
    """Yields a sentence for each file that is missing or has another size or content."""
    for file in files:
        path = epath.Path(directory) / file.name
        if not path.exists():
            yield f"{path} is missing"
        elif (size := path.stat().length) != file.bytes:
            yield f"{path} has {size:,} bytes, the manifest says {file.bytes:,}"
        elif HashedFile.of(path) != file:
            yield f"{path} has another content than the manifest says"
