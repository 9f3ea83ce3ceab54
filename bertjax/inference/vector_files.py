"""A directory with the vectors of texts, written shard by shard in constant memory.

manifest.json holds what the vectors are (model, options, inputs) and lists the finished shards. A
shard is listed after its files have reached the disk. A run that was stopped therefore resumes
behind the last shard that is listed, and a reader sees finished shards only. A run with another
model, other options or another input is refused, and the error names what differs.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tqdm
from absl import logging
from etils import epath

from bertjax.data import text_lines
from bertjax.files import atomic, directories, hashed_files, json_text
from bertjax.inference import encoding, saved_model
from bertjax.options import faults, schema
from bertjax.tokenization import unknown_tokens
from bertjax.workdirs import ownership

MANIFEST_FILE = "manifest.json"
VERSION = 4
DTYPE = "float32"  # of all vectors
FAULTS_SHOWN = 10
ROWS_IN_GROUP = 8192  # of a Parquet file
# The fields of a manifest.
_SCHEMA = {
    "identity": {},
    "model": {},
    "shards": [
        {
            "name": str,
            "rows": schema.Whole(1),
            "size": schema.Whole(1),
            "dtype": str,
            "files": tuple,
        }
    ],
    "is_complete": bool,
    "texts_sha256": str,
    "num_cut": int,
    "num_tokens": int,
    "num_unknown": int,
}


@dataclasses.dataclass(frozen=True)
class Shard:
    """A finished shard: the name of its files without their suffixes, its vectors, its files.

    `rows` is the number of its vectors, `size` their width, `dtype` the type of their numbers.
    """

    name: str
    rows: int
    size: int
    dtype: str
    files: tuple[hashed_files.HashedFile, ...]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Shard:
        """Returns the shard of an entry that fits _SCHEMA; a ValueError for another dtype."""
        files = tuple(map(hashed_files.HashedFile.from_json, fields["files"]))
        if fields["dtype"] != DTYPE or not files:
            raise ValueError(f"a shard is {fields!r:.100}; its dtype must be {DTYPE}")
        return cls(**{**fields, "files": files})


class VersionError(ValueError):
    """A manifest is of another version of bertjax."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The manifest of a directory of vectors.

    identity: what must be equal for a run to resume: hash of the model, options, inputs
    model: where the model was read, for people
    shards: the finished ones, in the order of the texts
    is_complete: whether these are the vectors of all texts
    texts_sha256: hash of the sources, ids and texts of all shards
    num_cut: number of texts that were cut
    num_tokens, num_unknown: number of tokens without [CLS] and [SEP], and of the [UNK] among them
    """

    identity: Mapping[str, Any]
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shards: tuple[Shard, ...] = ()
    is_complete: bool = False
    texts_sha256: str = ""
    num_cut: int = 0
    num_tokens: int = 0
    num_unknown: int = 0

    @property
    def unknown_rate(self) -> float:
        return self.num_unknown / self.num_tokens if self.num_tokens else 0.0

    @property
    def num_rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @classmethod
    def load(cls, directory: epath.PathLike) -> Manifest:
        """Reads the manifest of a directory.

        Raises:
          ValueError: if the manifest is damaged, or of another version of bertjax.
        """
        path = epath.Path(directory) / MANIFEST_FILE
        fields = json_text.read_object(path)
        try:
            if fields.pop("version") != VERSION:
                raise VersionError(
                    f"{path} is of another version of bertjax; encode the texts again"
                )
            fields.pop(unknown_tokens.KEY)
            if found := list(schema.faults(fields, _SCHEMA, "", is_whole=True)):
                raise ValueError("; ".join(map(str, found)))
            return cls(**{**fields, "shards": tuple(map(Shard.from_json, fields["shards"]))})
        except VersionError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is not a manifest of vectors ({error}); give another directory, or remove "
                "it and encode the texts again"
            ) from error

    def check_files(self, directory: epath.PathLike) -> None:
        """Raises a ValueError unless all files of the shards are those that were written."""
        files = (file for shard in self.shards for file in shard.files)
        found = list(itertools.islice(hashed_files.faults(directory, files), FAULTS_SHOWN))
        if found:
            raise ValueError(
                f"{directory} does not hold the vectors that its {MANIFEST_FILE} lists:\n  "
                + "\n  ".join(found)
                + "\nCopy these files again, or remove the directory and encode the texts again"
            )

    def save(self, directory: epath.PathLike) -> None:
        """Writes manifest.json as a whole or not at all."""
        fields = {"version": VERSION, **dataclasses.asdict(self)}
        fields[unknown_tokens.KEY] = self.unknown_rate
        text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False)
        atomic.write(epath.Path(directory) / MANIFEST_FILE, text + "\n")


def write(
    model: saved_model.TrainedModel,
    lines: Iterable[text_lines.Line],
    directory: epath.PathLike,
    options: encoding.Options,
    *,
    inputs: Mapping[str, Any],
    total: int | None = None,
    format: str = "npy",
    shard_size: int = 65_536,
    store_texts: bool = True,
    batch_size: int = 32,
) -> Manifest:
    """Writes the vectors of lines into a directory, or resumes after its last shard.

    `inputs` describe the lines, and `total` is their number for the log, if it is known. `format`
    is a key of FORMATS. With `store_texts` the texts are written as well.

    Raises:
      ownership.WorkdirInUseError: if another run writes into the directory.
      directories.NotOursError: if the directory holds files of others.
      ValueError: if the directory holds vectors of another model, with other options or of other
        texts, or other files than its manifest lists; or as `encoding.encode_blocks`.
    """
    if format not in FORMATS:
        raise faults.unknown("format", format, FORMATS)
    if options.pooling == "none":
        raise ValueError("pooling is 'none'; a directory of vectors has one for each text")
    identity = {
        "model_sha256": model.sha256(),
        "vocabulary_sha256": model.vocabulary.describe()["sha256"],
        "language": model.language or None,
        "options": dataclasses.asdict(options),
        "similarity": model.sentence.similarity if model.sentence else "cosine",
        "inputs": inputs,
        "format": format,
        "shard_size": shard_size,
        "store_texts": store_texts,
    }
    directory, lines = directories.real_path(directory), iter(lines)
    _claim(directory)
    with ownership.Ownership(directory, option="--output"):
        manifest = _begin(directory, json.loads(json.dumps(identity)))
        manifest.check_files(directory)
        digest = _skip(directory, manifest, lines)
        if manifest.is_complete:
            logging.info("%s holds all %d vectors already", directory, manifest.num_rows)
            return manifest
        if manifest.shards:
            logging.info("Resuming behind the first %d texts", manifest.num_rows)
        manifest = dataclasses.replace(manifest, model={"path": model.source, "step": model.step})
        shards = _shards(
            model, lines, options, shard_size, batch_size, first=manifest.num_rows, total=total
        )
        manifest = _write_shards(directory, manifest, shards, digest, total)
        if not manifest.shards:
            raise ValueError("there are no texts; give at least one")
        manifest = dataclasses.replace(manifest, is_complete=True)
        manifest.save(directory)
    return manifest


def _write_shards(
    directory: epath.Path,
    manifest: Manifest,
    shards: Iterable[tuple[list[text_lines.Line], np.ndarray, Mapping[str, int]]],
    digest: Any,
    total: int | None,
) -> Manifest:
    """Writes what `_shards` yields, and returns the manifest with these shards."""
    write_files = FORMATS[manifest.identity["format"]]
    first, start = manifest.num_rows, time.monotonic()
    for lines, vectors, counts in shards:
        name = f"vectors-{len(manifest.shards):05d}"
        columns = _columns(lines, manifest.identity["store_texts"])
        paths = write_files(directory / name, vectors, columns)
        files = tuple(map(hashed_files.HashedFile.of, paths))
        shard = Shard(name, len(lines), vectors.shape[1], str(vectors.dtype), files)
        _add(digest, lines)
        manifest = dataclasses.replace(
            manifest,
            shards=(*manifest.shards, shard),
            texts_sha256=digest.hexdigest(),
            **{name: getattr(manifest, name) + count for name, count in counts.items()},
        )
        manifest.save(directory)
        speed = (manifest.num_rows - first) / max(time.monotonic() - start, 1e-9)
        count = f"{manifest.num_rows} of {total}" if total else manifest.num_rows
        logging.info("Encoded %s texts, %.0f sentences/s", count, speed)
    return manifest


def _claim(directory: epath.Path) -> None:
    """Raises a NotOursError before anything is written into a directory of something else."""
    paths = directory.iterdir() if directory.is_dir() else ()
    names = {path.name for path in paths if not atomic.is_draft(path.name)} - {ownership.FILE}
    names |= {*ownership.others_file(directory)}
    directories.claim(directory, "vectors", names, advice="give a new directory as --output")


def _begin(directory: epath.Path, identity: Mapping[str, Any]) -> Manifest:
    """Returns the manifest to resume from, or a new one if there is no shard yet."""
    has_manifest = (directory / MANIFEST_FILE).exists()
    manifest = Manifest.load(directory) if has_manifest else Manifest(identity)
    atomic.remove_drafts(directory)  # of a run that was killed
    if not manifest.shards:  # a run whose input was refused leaves a manifest without shards
        manifest = Manifest(identity)
        manifest.save(directory)
    if differences := list(_differences(manifest.identity, identity)):
        raise ValueError(
            f"{directory} holds vectors of something else: {'; '.join(differences)}. Give "
            "another --output, or the same options to resume"
        )
    return manifest


def _differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*there, *now}):
        old, new = there.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from (f"{name}.{inner}" for inner in _differences(old, new))
        elif old != new:
            yield f"{name} {old!r:.200} there, {new!r:.200} now"


def _skip(directory: epath.Path, manifest: Manifest, lines: Iterator[text_lines.Line]) -> Any:
    """Reads past the lines of the finished shards, and returns their hashlib digest."""
    digest = hashlib.sha256()
    for shard in manifest.shards:
        _add(digest, itertools.islice(lines, shard.rows))
    if manifest.shards and digest.hexdigest() != manifest.texts_sha256:
        raise ValueError(
            f"the first {manifest.num_rows} texts of the input are not those whose vectors "
            f"{directory} holds: give the same input, or another --output"
        )
    if manifest.is_complete and next(lines, None) is not None:
        raise ValueError(
            f"{directory} is complete with {manifest.num_rows} vectors, and the input has more "
            "texts: give another --output"
        )
    return digest


def _add(digest: Any, lines: Iterable[text_lines.Line]) -> None:
    for line in lines:
        digest.update(f"{line.source}\0{line.id}\0{line.text}\0".encode())


def _shards(
    model: saved_model.TrainedModel,
    lines: Iterator[text_lines.Line],
    options: encoding.Options,
    shard_size: int,
    batch_size: int,
    *,
    first: int,
    total: int | None,
) -> Iterator[tuple[list[text_lines.Line], np.ndarray, Mapping[str, int]]]:
    """Yields the lines of each shard, their vectors, and counts of its texts and tokens."""
    under_way: list[text_lines.Line] = []
    whole, rest = divmod(shard_size, encoding.BLOCK_SIZE)
    sizes = [encoding.BLOCK_SIZE] * whole + [rest] * bool(rest)  # no block is of two shards

    def blocks() -> Iterator[list[str]]:
        for size in itertools.cycle(sizes):
            if not (block := list(itertools.islice(lines, size))):
                return
            under_way.extend(block)
            yield [line.text for line in block]

    parts, count, counts = [], 0, collections.Counter()
    tokenized = encoding.tokenize_blocks(model, blocks(), options, first=first + 1)
    encoded = encoding.encode_blocks(
        model, tokenized, options, batch_size=batch_size, first=first + 1
    )
    look = {"unit": "sentences", "unit_scale": True, "dynamic_ncols": True}
    is_quiet = not sys.stderr.isatty()
    with tqdm.tqdm(desc="encoding", initial=first, total=total, disable=is_quiet, **look) as bar:
        for vectors, tokens in encoded:
            bar.update(len(vectors))
            parts.append(vectors)
            count += len(vectors)
            unknown = np.count_nonzero(tokens.ids == model.vocabulary.unk_id)
            counts.update(
                num_cut=tokens.num_cut, num_tokens=len(tokens.ids), num_unknown=int(unknown)
            )
            if count == shard_size:
                yield under_way[:count], np.concatenate(parts), counts
                del under_way[:count]
                parts, count, counts = [], 0, collections.Counter()
    if count:
        yield under_way, np.concatenate(parts), counts


def _columns(lines: Sequence[text_lines.Line], store_texts: bool) -> dict[str, pa.Array]:
    texts = [line.text if store_texts else "" for line in lines]
    return {
        "source": pa.array([line.source for line in lines], pa.int32()),
        "line": pa.array([line.number for line in lines], pa.int64()),
        "id": pa.array([line.id for line in lines], pa.large_string()),
        "text": pa.array(texts, pa.large_string()),
    }


def _write_npy(
    stem: epath.Path, vectors: np.ndarray, columns: Mapping[str, Any]
) -> tuple[epath.Path, ...]:
    """Writes NAME.npy, and the lines as NAME.lines.parquet; returns their paths."""
    paths = tuple(stem.with_name(f"{stem.name}{end}") for end in (".npy", ".lines.parquet"))
    _write_table(paths[1], columns)
    with atomic.writing(paths[0]) as file:
        np.save(file, vectors)
    return paths


def _write_parquet(
    stem: epath.Path, vectors: np.ndarray, columns: Mapping[str, Any]
) -> tuple[epath.Path, ...]:
    """Writes NAME.parquet, with a column `vector` of fixed-size lists; returns its path."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    path = stem.with_name(f"{stem.name}.parquet")
    _write_table(path, {**columns, "vector": lists})
    return (path,)


def _write_table(path: epath.Path, columns: Mapping[str, Any]) -> None:
    with atomic.writing(path) as file:
        # Small groups, so that a few lines are read without all others.
        pq.write_table(pa.table(dict(columns)), file, row_group_size=ROWS_IN_GROUP)


# Name -> the function that writes the files of a shard and returns their paths.
FORMATS: dict[
    str, Callable[[epath.Path, np.ndarray, Mapping[str, Any]], tuple[epath.Path, ...]]
] = {
    "npy": _write_npy,
    "parquet": _write_parquet,
}
