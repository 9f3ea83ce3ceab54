"""Rows of values to records, shuffled over all shards, with a manifest.

Where rows come from, and what their positions are, belongs to the builders (`build_series`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import filecmp
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from absl import logging
from etils import epath

from bertjax.cli import command_line
from bertjax.data import encoding, record_files, records
from bertjax.files import atomic, directories
from bertjax.options import faults, schema
from data_pipelines.building import builders, tfds_metadata
from data_pipelines.partial_output import PartialOutput

PARTS = ("train", "heldout", "test")
# Arrays of further .npz files, by file name and name.
Files = Mapping[str, Mapping[str, np.ndarray]]
ROWS_PER_BATCH = 1_024


class Rows(Protocol):
    """The rows of a part of the data, which are taken by their numbers."""

    @property
    def length(self) -> int:
        """The number of positions of a row."""
        ...

    def __len__(self) -> int: ...

    def take(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the features of these rows: `values` [rows, length, width] and others."""
        ...


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Rows of arrays in memory: what a program of the user's has.

    values: [rows, length, width], nan where nothing was observed
    labels: the number of the class of each row, or numbers [rows, outputs]; None without
    """

    values: np.ndarray
    labels: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.values.ndim != 3:
            must = "[rows, positions, values of a position]"
            raise faults.wrong("the shape of values", self.values.shape, must)
        if self.labels is not None and len(self.labels) != len(self.values):
            must = f"{len(self.values):,}, one for each row of values"
            raise faults.wrong("the number of labels", len(self.labels), must)

    @property
    def length(self) -> int:
        """The number of positions of a row."""
        return self.values.shape[1]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        cells = self.values[numbers]
        seen = ~np.isnan(cells)
        row = {
            records.VALUES_FEATURE: np.where(seen, cells, 0).astype(np.float32),
            records.OBSERVED_FEATURE: seen.astype(np.int32),
        }
        if self.labels is not None:
            taken = self.labels[numbers]
            kind = np.float32 if taken.dtype.kind == "f" else np.int64
            row[records.LABELS_FEATURE] = taken.astype(kind)
        return row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of every builder; `taken` are those that come from the records of `like`.

    `kept` are the statistics that these must have; "" or the option, or the other statistic, that
    each comes with.
    """

    taken: ClassVar[tuple[str, ...]] = ()
    kept: ClassVar[Mapping[str, str]] = {}

    input: str = command_line.option("a file")
    output: str = command_line.option("the directory for the records of all parts")
    parts: str = command_line.option("the parts train, heldout and test", default="0.8,0.1,0.1")
    like: str = command_line.option(
        "a record directory, such as DIR/train: its columns or channels, its scaling and its "
        "classes are taken, and all rows of the input go into the directory output itself, in the "
        "order of the input: what predict and encode read",
        default="",
    )
    seed: int = command_line.option("seed of the shuffle", default=12345, at_least=0)
    overwrite: bool = command_line.option("replace all records in output", default=False)


AnyOptions = TypeVar("AnyOptions", bound=Options)
Fitted = TypeVar("Fitted")


class Builder(Protocol[Fitted]):
    """An input: what its training part decides, and the rows of its parts."""

    @property
    def parts(self) -> Iterable[str]:
        """The names of the parts, "" for all rows of new data."""
        ...

    def fit(self) -> Fitted:
        """Returns what the training part decides."""
        ...

    def adopt(self, fitted: Fitted) -> Fitted:
        """Returns what other records decided, checked against this input."""
        ...

    def rows(self, fitted: Fitted, part: str) -> tuple[Rows, Mapping[str, Any]]:
        """Returns the rows of a part, and what its manifest keeps."""
        ...

    def files(self, fitted: Fitted) -> Files:
        """Returns the further files of each part."""
        ...


def build(
    options: AnyOptions,
    open_input: Callable[[AnyOptions, Fitted | None], Builder[Fitted]],
    restore: Callable[[Mapping[str, Any], str], Fitted],
) -> dict[str, records.Manifest]:
    """Writes the records of all parts, and returns their manifests.

    With `like`, the statistics of its records are restored in place of a fit.
    """
    statistics, options = template(options)
    known = restore(statistics, options.like) if options.like else None
    builder = open_input(options, known)
    fitted = builder.fit() if known is None else builder.adopt(known)
    made = {part: builder.rows(fitted, part) for part in builder.parts}
    return write_parts(options, made, builder.files(fitted))


def template(options: AnyOptions) -> tuple[dict[str, Any], AnyOptions]:
    """Returns the statistics of `options.like`, and the options with those that made its rows.

    Without `like` they are {} and the options themselves, which are checked.
    """
    command_line.check(options)
    if not options.like:
        return {}, options
    manifest = records.Manifest.load(options.like)
    made_by = {it.name for it in dataclasses.fields(options)}
    if not set(manifest.arguments) - {"part"} <= made_by:
        raise ValueError(
            f"--like names records with the options {', '.join(sorted(manifest.arguments))}, "
            f"which another program made; this one has {', '.join(sorted(made_by))}"
        )
    path = epath.Path(options.like) / records.MANIFEST_FILE
    given = {**manifest.arguments, **manifest.statistics}
    needed = [name for name, by in options.kept.items() if not by or given.get(by)]
    lacking = [f"statistics.{name}" for name in needed if name not in manifest.statistics]
    lacking += [f"arguments.{name}" for name in options.taken if name not in manifest.arguments]
    if lacking:
        raise ValueError(
            f"{path} has no {', '.join(lacking)}: it is damaged, or not of records of this program"
        )
    taken = {name: manifest.arguments[name] for name in options.taken}
    if label := getattr(options, "label", ""):
        taken["label"] = label  # records may have had another, or none
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    for name, value in taken.items():
        if getattr(options, name) not in (defaults[name], value):
            logging.warning(
                "--%s is %r, but the records of --like have %r, which counts",
                name, getattr(options, name), value,
            )  # fmt: skip
    if not getattr(options, "missing", "") and "missing" in manifest.arguments:
        taken["missing"] = manifest.arguments["missing"]
    types = schema.of({name: getattr(options, name) for name in taken})
    try:
        if found := [*map(str, schema.faults(taken, types, "arguments"))]:
            raise ValueError("; ".join(found))
        options = dataclasses.replace(options, **taken)
        command_line.check(options)
    except ValueError as error:
        raise ValueError(f"{path} cannot be used for --like: {error}") from error
    return dict(manifest.statistics), options


def by_part(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the lines of the input in each part, by the number of the part of each line."""
    return {name: np.flatnonzero(numbers == at) for at, name in enumerate(PARTS)}


def write_parts(
    options: Options,
    parts: Mapping[str, tuple[Rows, Mapping[str, Any]]],
    files: Files | None = None,
) -> dict[str, records.Manifest]:
    """Writes the rows of each part with their statistics, and returns the manifests.

    All parts together are one output, which is there when the last one is complete. A part without
    rows is left out, if it is not the training part. Rows of the part without a name keep their
    order.

    Raises:
      FileExistsError: if the output holds other records, and they are not to be overwritten.
    """
    arguments = dataclasses.asdict(options)
    for name in ("output", "overwrite"):
        del arguments[name]
    is_again = not options.overwrite and _arguments(options.output) == arguments
    manifests = {}
    with _whole(options.output, arguments, options.overwrite or is_again) as directory:
        for part, (rows, statistics) in parts.items():
            if not len(rows) and part not in ("", "train"):
                continue
            manifests[part] = _write(
                directory / part,
                rows,
                seed=options.seed if part else None,
                arguments=arguments | ({"part": part} if part else {}),
                statistics=statistics,
                files=files,
            )
            if part:
                directories.mark(
                    directory / part, "records", [*directories.names_in(directory / part)]
                )
        if is_again and not _are_equal(directory, epath.Path(options.output)):
            raise directories.ExistsError(
                f"{options.output} holds other records, which the same options made of another "
                "input; give another --output, or --overwrite to replace them"
            )
    return manifests


def write(
    directory: epath.PathLike,
    rows: Rows,
    *,
    seed: int | None,
    arguments: Mapping[str, Any] | None = None,
    statistics: Mapping[str, Any] | None = None,
    files: Files | None = None,
    overwrite: bool = False,
) -> records.Manifest:
    """Writes all rows into a record directory and returns its manifest.

    Without a seed the rows keep their order. `statistics["labels"]` says what labels are:
    {"kind": "classes", "names": [...]}, or {"kind": "numbers", "names": [...], "means": [...],
    "deviations": [...]}, of which the stored numbers are less the mean and over the deviation.

    Raises:
      ValueError: if labels have another shape or class, a value is not finite, or a row has none.
    """
    with np.errstate(over="ignore"):  # a number beyond float32 is refused by its row
        for first in range(0, len(rows), ROWS_PER_BATCH):
            batch = rows.take(np.arange(first, min(first + ROWS_PER_BATCH, len(rows))))
            _check(batch, (statistics or {}).get("labels", {}), first)
    with _whole(directory, arguments or {}, overwrite) as draft:
        return _write(
            draft,
            rows,
            seed=seed,
            arguments=arguments or {},
            statistics=statistics or {},
            files=files,
        )


@contextlib.contextmanager
def _whole(
    output: epath.PathLike, arguments: Mapping[str, Any], overwrite: bool
) -> Iterator[epath.Path]:
    """Yields a directory that becomes the output when the block ends, and nothing if it raises."""
    # Parts that a killed build has finished are not kept: the input may have changed since.
    with PartialOutput(output, overwrite=overwrite, keeps_work=False) as partial:
        partial.begin({}, arguments)
        yield partial.records
        partial.publish()


def _arguments(output: str) -> Mapping[str, Any]:
    """Returns the options that made the records of an output, {} if it holds none."""
    for part in () if atomic.is_remote(output) else ("", "train"):
        with contextlib.suppress(OSError, ValueError):
            manifest = records.Manifest.load(epath.Path(output) / part)
            return {name: it for name, it in manifest.arguments.items() if name != "part"}
    return {}


def _are_equal(one: epath.Path, other: epath.Path) -> bool:
    """Returns whether two directories hold the same files; their marks are not compared."""
    names, others = ({*directories.names_in(it)} - {directories.MARKER} for it in (one, other))
    return names == others and all(
        filecmp.cmp(one / name, other / name, shallow=False) for name in names
    )


def _write(
    directory: epath.Path,
    rows: Rows,
    *,
    seed: int | None,
    arguments: Mapping[str, Any],
    statistics: Mapping[str, Any],
    files: Files | None,
) -> records.Manifest:
    if not len(rows):
        raise ValueError(
            f"there are no rows for {directory.name}: give more data, or smaller windows"
        )
    directory.mkdir(exist_ok=True)
    one = rows.take(np.zeros(1, np.int64))
    features = {name: _feature(name, array) for name, array in one.items()}
    size = sum(array.nbytes for array in one.values())
    number = builders.default_num_shards(len(rows), size, is_packed=False)
    parts = np.array_split(np.arange(len(rows)), number)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(len(rows))
        parts = [np.sort(order[index::number]) for index in range(number)]
    digest = hashlib.blake2b(digest_size=8)
    shards = tuple(
        record_files.write_shard(
            directory / record_files.shard_name(index, number),
            _encoded(rows, part, None if seed is None else seed + index, digest),
        )
        for index, part in enumerate(parts)
    )
    manifest = records.Manifest(
        tokenizer={},
        max_seq_length=rows.length,
        max_predictions_per_seq=0,
        masked_lm_prob=0.0,
        pair_objective="none",
        shards=shards,
        seed=seed or 0,
        arguments=arguments,
        statistics={**statistics, "examples": len(rows), records.CHECKSUM: digest.hexdigest()},
        features=features,
    )
    for name, arrays in (files or {}).items():
        with atomic.writing(directory / name) as file:
            np.savez_compressed(file, **dict[str, Any](arrays))
    manifest.save(directory)
    records.Manifest.load(directory)  # which checks `statistics`
    tfds_metadata.write(directory, manifest)
    return manifest


def _check(batch: Mapping[str, np.ndarray], described: Mapping[str, Any], first: int) -> None:
    """Raises a ValueError for rows that `write` does not take; they are numbered from `first`."""
    faulty: dict[str, Any] = {}
    if records.VALUES_FEATURE in batch:
        values = batch[records.VALUES_FEATURE]
        observed = batch.get(records.OBSERVED_FEATURE, np.ones_like(values))
        faulty["a value beyond float32"] = (~np.isfinite(values)).any(axis=(1, 2))
        faulty["no observed value"] = (observed == 0).all(axis=(1, 2))
    if records.LABELS_FEATURE in batch and described:
        faulty |= _label_faults(batch[records.LABELS_FEATURE], described)
    for fault, rows in faulty.items():
        if rows.any():
            raise ValueError(f"row {first + int(rows.argmax())} has {fault}")


def _label_faults(labels: np.ndarray, described: Mapping[str, Any]) -> dict[str, Any]:
    """Returns which labels are not as described, by fault; ValueError for another shape."""
    last = len(described.get("names", ())) - 1
    is_class = described.get("kind") == "classes"
    outputs = [] if is_class else [described.get("horizon", last + 1)]
    if [*labels.shape[1:]] != outputs or labels.dtype.kind != ("i" if is_class else "f"):
        must = "[rows] of whole numbers" if is_class else f"[rows, {outputs[0]}] of floats"
        shape = f"{labels.shape} of {labels.dtype}"  # others would broadcast it
        raise faults.wrong("the shape of labels", shape, f"{must}, as statistics['labels'] says")
    if is_class:
        return {f"a label that is not from 0 to {last}, as names": (labels < 0) | (labels > last)}
    return {"a label that is not a number of float32": (~np.isfinite(labels)).any(axis=1)}


def _encoded(
    rows: Rows, numbers: np.ndarray, seed: int | None, digest: hashlib.blake2b
) -> Iterator[bytes]:
    """Yields the records of a shard, with a seed in random order, and adds them to a digest."""
    if seed is not None:
        numbers = np.random.default_rng(seed).permutation(numbers)
    for first in range(0, len(numbers), ROWS_PER_BATCH):
        for record in encoding.encode_batch(rows.take(numbers[first : first + ROWS_PER_BATCH])):
            digest.update(record)
            yield record


def _feature(name: str, array: np.ndarray) -> records.Feature:
    by_position = (records.VALUES_FEATURE, records.OBSERVED_FEATURE, records.WORDS_FEATURE)
    sizes = array.shape[1:]
    shape = (records.LENGTH, *sizes[1:]) if name in by_position else sizes
    if array.dtype == np.uint8:
        return records.Feature(shape, "uint8")
    return records.Feature(shape, "float32" if array.dtype.kind == "f" else "int32")
