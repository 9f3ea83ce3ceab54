"""A directory of vectors with the lines that they are of, in shards, written in their order.

manifest.json says what the vectors are (model, choices, inputs, code) and which shards are whole.
A shard is listed there after its files have reached the disk, so a run that was stopped goes on
behind the last one that is listed, and whoever reads sees whole shards only. A run of something
else is refused, and the error names what differs. Formats are the table FORMATS.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from etils import epath

from bertjax.data import atomic, json_text, text_lines
from bertjax.vectors import codes
from bertjax.workdirs import ownership

MANIFEST_FILE = "manifest.json"
VERSION = 1


@dataclasses.dataclass(frozen=True)
class Shard:
    """A whole shard: how many texts, and of which of them the next one follows."""

    name: str
    rows: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a directory of vectors holds.

    `identity` is what must be the same for a run to go on: model, choices, inputs, code, format.
    `ranges` are those of the code, [2, size], None until they are known or where none are read.
    `model` says where the model was read, for people; `identity` has its hash.
    `texts_sha256` is of the ids and texts of all whole shards. `counts` are figures for people
    (texts that were cut), `recall` the recall that was lost by the code, once it was measured.
    """

    identity: Mapping[str, Any]
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shards: tuple[Shard, ...] = ()
    is_complete: bool = False
    texts_sha256: str = ""
    ranges: Sequence[Sequence[float]] | None = None
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    recall: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @classmethod
    def load(cls, directory: epath.PathLike) -> Manifest:
        """Reads the manifest of a directory.

        Raises:
          FileNotFoundError: if the directory is no directory of vectors.
          ValueError: if the manifest is damaged, or of a newer bertjax.
        """
        path = epath.Path(directory) / MANIFEST_FILE
        if not path.exists():
            raise FileNotFoundError(
                f"{directory} holds no {MANIFEST_FILE}, so no vectors; make them with "
                "`python -m bertjax.encode --checkpoint=DIR --input=FILES --output=DIR`"
            )
        fields = json_text.read_object(path)
        try:
            if fields.pop("version") != VERSION:
                raise ValueError(f"{path} is of another version of bertjax; encode the texts again")
            fields["shards"] = tuple(Shard(**shard) for shard in fields["shards"])
            return cls(**fields)
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is no manifest of vectors ({error}); give another directory, or remove it "
                "and encode the texts again"
            ) from error

    def save(self, directory: epath.PathLike) -> None:
        """Writes manifest.json, whole or not at all."""
        fields = {"version": VERSION, **dataclasses.asdict(self)}
        text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False)
        atomic.write(epath.Path(directory) / MANIFEST_FILE, text + "\n")


@dataclasses.dataclass(frozen=True)
class Rows:
    """Stored vectors, [rows, width], and the lines that they are of (text "" if not kept)."""

    vectors: np.ndarray
    lines: Sequence[text_lines.Line]


class Writer:
    """Writes a directory of vectors, or goes on with one. A context, in which no other run writes.

    Raises:
      ownership.WorkdirInUseError: on entering, if another run writes there.
      ValueError: on entering, if what lies there is of another model or of other options, naming
        what differs; or is something else.
    """

    def __init__(self, directory: epath.PathLike, identity: Mapping[str, Any]):
        self._directory = epath.Path(directory)
        self._identity = json.loads(json.dumps(identity))
        self._ownership = ownership.Ownership(directory, option="--output")
        self._digest = hashlib.sha256()
        self.manifest = Manifest(self._identity)

    def __enter__(self) -> Writer:
        self._check_directory()
        self._ownership.__enter__()
        try:
            self._begin()
        except BaseException:
            self._ownership.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ownership.__exit__()

    def skip(self, lines: Sequence[text_lines.Line]) -> None:
        """Takes notice of lines whose vectors are there already."""
        self._note(lines)

    def check_skipped(self) -> None:
        """Raises a ValueError if the lines that were skipped are not those that are there."""
        if self.manifest.shards and self._digest.hexdigest() != self.manifest.texts_sha256:
            raise ValueError(
                f"the first {self.manifest.num_rows} texts of the input are not those whose "
                f"vectors {self._directory} holds: give the same input, or another --output"
            )

    def update(self, **fields: Any) -> None:
        """Changes fields of the manifest."""
        self.manifest = dataclasses.replace(self.manifest, **fields)
        self.manifest.save(self._directory)

    def add(self, rows: Rows, lines: Sequence[text_lines.Line], counts: Mapping[str, int]) -> None:
        """Writes a shard, and then the manifest with it; `counts` are added to the manifest's.

        `lines` are those of the rows with their texts, whether they are kept or not.
        """
        name = f"vectors-{len(self.manifest.shards):05d}"
        FORMATS[self._identity["format"]].write(self._directory, name, rows)
        self._note(lines)
        self.update(
            shards=(*self.manifest.shards, Shard(name, len(rows.lines))),
            texts_sha256=self._digest.hexdigest(),
            counts={key: self.manifest.counts.get(key, 0) + n for key, n in counts.items()},
        )

    def _note(self, lines: Sequence[text_lines.Line]) -> None:
        for line in lines:
            self._digest.update(f"{line.source}\0{line.id}\0{line.text}\0".encode())

    def _check_directory(self) -> None:
        """Raises a ValueError before anything is written into a directory of something else."""
        directory = self._directory
        if directory.exists() and not directory.is_dir():
            raise ValueError(f"--output={directory} is a file; give a directory")
        if (directory / MANIFEST_FILE).exists() or not directory.exists():
            return
        strange = [path.name for path in directory.iterdir() if not _is_ours(path.name)]
        if strange:
            raise ValueError(
                f"--output={directory} holds {strange[0]}, and no vectors; give a new directory"
            )

    def _begin(self) -> None:
        has_begun = (self._directory / MANIFEST_FILE).exists()
        found = Manifest.load(self._directory) if has_begun else None
        atomic.remove_drafts(self._directory)
        if found is None or not found.shards:  # A run that was refused its input leaves no shard.
            self.manifest.save(self._directory)
            return
        differing = list(_differences(found.identity, self._identity))
        if differing:
            raise ValueError(
                f"{self._directory} holds vectors of something else: {'; '.join(differing)}. Give "
                "another --output, or the same options to go on"
            )
        self.manifest = found


class Store:
    """A directory of vectors to read, its shards one at a time.

    Raises:
      FileNotFoundError, ValueError: as `Manifest.load`, or for a directory without whole shards.
    """

    def __init__(self, directory: epath.PathLike):
        self.directory = epath.Path(directory)
        self.manifest = Manifest.load(directory)
        if not self.manifest.shards:
            raise ValueError(f"{directory} holds no whole shard yet; encode more texts into it")
        self._format = FORMATS[self.manifest.identity["format"]]

    @property
    def code(self) -> str:
        return self.manifest.identity["code"]

    @property
    def size(self) -> int:
        """How many dimensions the vectors have."""
        return self.manifest.identity["size"]

    @property
    def ranges(self) -> np.ndarray:
        """The ranges of the dimensions, [2, size]; of zeros where the code reads none."""
        if self.manifest.ranges is None:
            return np.zeros((2, self.size), np.float32)
        return np.asarray(self.manifest.ranges, np.float32)

    def blocks(self, most: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yields stored vectors of at most so many texts, and the place of the first of them.

        Raises:
          FileNotFoundError, ValueError: if a shard is missing, or not what the manifest says.
        """
        first = 0
        for shard in self.manifest.shards:
            count = 0
            for vectors in self._format.vectors(self.directory, shard.name, most):
                yield first + count, vectors
                count += len(vectors)
            if count != shard.rows:
                raise ValueError(
                    f"{self.directory}: {shard.name} holds {count} vectors; {MANIFEST_FILE} says "
                    f"{shard.rows}: it was altered; encode the texts again"
                )
            first += count

    def lines(self, places: Sequence[int]) -> dict[int, text_lines.Line]:
        """Returns the lines at these places in the store."""
        found, first = {}, 0
        for shard in self.manifest.shards:
            wanted = sorted(place for place in {*places} if 0 <= place - first < shard.rows)
            if wanted:
                rows = [place - first for place in wanted]
                lines = self._format.lines(self.directory, shard.name, rows)
                found.update(zip(wanted, lines, strict=True))
            first += shard.rows
        return found


@dataclasses.dataclass(frozen=True)
class Format:
    """How the files of a shard are written, its vectors read in blocks, and some lines of it."""

    write: Callable[[epath.Path, str, Rows], None]
    vectors: Callable[[epath.Path, str, int], Iterator[np.ndarray]]
    lines: Callable[[epath.Path, str, Sequence[int]], list[text_lines.Line]]


def _write_npy(directory: epath.Path, name: str, rows: Rows) -> None:
    """Writes NAME.npy and beside it the lines, as NAME.lines.parquet."""
    _write_table(directory / f"{name}.lines.parquet", _line_columns(rows.lines))
    with atomic.writing(directory / f"{name}.npy") as file:
        np.save(file, np.ascontiguousarray(rows.vectors))


def _npy_vectors(directory: epath.Path, name: str, most: int) -> Iterator[np.ndarray]:
    path = directory / f"{name}.npy"
    try:
        mapped = np.load(path, mmap_mode="r") if not atomic.is_remote(path) else _loaded(path)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}); encode the texts again") from error
    for start in range(0, len(mapped), most):
        yield np.asarray(mapped[start : start + most])


def _loaded(path: epath.Path) -> np.ndarray:
    with path.open("rb") as file:
        return np.load(file)


def _npy_lines(directory: epath.Path, name: str, rows: Sequence[int]) -> list[text_lines.Line]:
    return _lines_of(directory / f"{name}.lines.parquet", rows)


def _write_parquet(directory: epath.Path, name: str, rows: Rows) -> None:
    """Writes NAME.parquet: the lines' columns and `vector`, a list of a fixed size."""
    vectors = np.ascontiguousarray(rows.vectors)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    columns = _line_columns(rows.lines) | {"vector": lists}
    _write_table(directory / f"{name}.parquet", columns)


def _parquet_vectors(directory: epath.Path, name: str, most: int) -> Iterator[np.ndarray]:
    with (directory / f"{name}.parquet").open("rb") as file:
        for batch in pq.ParquetFile(file).iter_batches(most, columns=["vector"]):
            column = batch.column(0)
            yield column.flatten().to_numpy().reshape(len(column), -1)


def _parquet_lines(directory: epath.Path, name: str, rows: Sequence[int]) -> list[text_lines.Line]:
    return _lines_of(directory / f"{name}.parquet", rows)


def _line_columns(lines: Sequence[text_lines.Line]) -> dict[str, pa.Array]:
    return {
        "source": pa.array([line.source for line in lines], pa.int32()),
        "line": pa.array([line.number for line in lines], pa.int64()),
        "id": pa.array([line.id for line in lines], pa.large_string()),
        "text": pa.array([line.text for line in lines], pa.large_string()),
    }


def _write_table(path: epath.Path, columns: Mapping[str, Any]) -> None:
    with atomic.writing(path) as file:
        # Few rows in a group, so that some lines are read without all of them.
        pq.write_table(pa.table(dict(columns)), file, row_group_size=ROWS_IN_GROUP)


def _lines_of(path: epath.Path, rows: Sequence[int]) -> list[text_lines.Line]:
    """Returns the lines of some rows, in order; only the groups that hold them are read."""
    names = ["source", "line", "id", "text"]
    found = []
    with path.open("rb") as file:
        table = pq.ParquetFile(file)
        for group in sorted({row // ROWS_IN_GROUP for row in rows}):
            part = table.read_row_group(group, columns=names)
            inside = [row % ROWS_IN_GROUP for row in rows if row // ROWS_IN_GROUP == group]
            found += [text_lines.Line(*one.values()) for one in part.take(inside).to_pylist()]
    return [
        text_lines.Line(line.source, line.number, line.id or "", line.text or "") for line in found
    ]


ROWS_IN_GROUP = 8192

FORMATS: dict[str, Format] = {
    "npy": Format(_write_npy, _npy_vectors, _npy_lines),
    "parquet": Format(_write_parquet, _parquet_vectors, _parquet_lines),
}


def empty(size: int, code: str) -> np.ndarray:
    """Returns no stored vectors."""
    return np.zeros((0, codes.CODES[code].width(size)), codes.CODES[code].dtype)


def _is_ours(name: str) -> bool:
    return name == ownership.FILE or name.endswith(atomic.DRAFT_SUFFIX)


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*found, *wanted}):
        there, here = found.get(name), wanted.get(name)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            yield from (f"{name}.{inner}" for inner in _differences(there, here))
        elif there != here:
            yield f"{name} {there!r:.200} there, {here!r:.200} now"
