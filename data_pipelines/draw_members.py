r"""Members of clusters to FASTA: each pass over the clusters takes one member of each, at random.

    python -m data_pipelines.draw_members --input=members.tsv --cluster_column=cluster \
        --sequence_column=sequence --passes=4 --output=members.fasta

A large family would be read as often as it has members; so each counts once a pass, as ESM-2 was
trained on UniRef50 with members of UniRef90. All members that are drawn of a cluster are parts of
one document, so that `build --split` keeps them on one side.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator

import numpy as np
from etils import epath

from bertjax.cli import command_line
from bertjax.files import atomic, tables
from data_pipelines.formats import base

MOST_PASSES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Options:
    """The table of clusters, and the number of draws."""

    input: str = command_line.option(
        "a .csv, .tsv, .jsonl or .parquet file, a row for each member; the members of a "
        "cluster stand together"
    )
    output: str = command_line.option("the .fasta file to make")
    cluster_column: str = command_line.option("the column with the cluster", default="cluster")
    sequence_column: str = command_line.option("the column with the sequence", default="sequence")
    passes: int = command_line.option(
        "members of each cluster, one for each pass", default=1, at_least=1, at_most=MOST_PASSES
    )
    seed: int = command_line.option("seed of the draw", default=12345)
    overwrite: bool = command_line.option("replace the output", default=False)


@dataclasses.dataclass(frozen=True)
class Counts:
    """The members that were drawn."""

    clusters: int
    members: int
    drawn: int


def draw(options: Options) -> Counts:
    """Writes the FASTA file. A cluster with fewer members than passes has them again.

    Raises:
      FileNotFoundError: if there is no input.
      FileExistsError: if the output exists and is not to be overwritten.
      ValueError: if a row lacks a column, or the members of a cluster do not stand together.
    """
    output = epath.Path(options.output)
    if output.exists() and not options.overwrite:
        raise FileExistsError(f"{output} exists; choose another name or give --overwrite")
    command_line.check(options)
    clusters = members = drawn = 0
    seen: set[bytes] = set()
    with atomic.writing(output) as file:
        for name, group in itertools.groupby(_rows(options), key=lambda row: row[0]):
            digest = _digest(name)
            if digest in seen:
                raise ValueError(
                    f"the cluster {name!r} stands in two places of {options.input}: sort the file "
                    "by its column"
                )
            seen.add(digest)
            sequences = [sequence for _, sequence in group]
            clusters, members = clusters + 1, members + len(sequences)
            for number, sequence in enumerate(_chosen(name, sequences, options), start=1):
                file.write(f">{base.part_name(name, number)}\n{sequence}\n".encode())
                drawn += 1
    if not clusters:
        raise ValueError(f"{options.input} has no rows")
    return Counts(clusters, members, drawn)


def _rows(options: Options) -> Iterator[tuple[str, str]]:
    for row in tables.rows(options.input):
        values = [row.values.get(it) for it in (options.cluster_column, options.sequence_column)]
        cluster, sequence = ("" if it is None else "".join(str(it).split()) for it in values)
        if row.fault or not cluster or not sequence:
            raise ValueError(
                f"{options.input}:{row.number} has no {options.cluster_column!r} or no "
                f"{options.sequence_column!r}: give both columns in every row"
            )
        yield cluster, sequence


def _chosen(name: str, sequences: list[str], options: Options) -> Iterator[str]:
    """Yields a member for each pass: all in random order before one comes again."""
    rng = np.random.default_rng([options.seed, int.from_bytes(_digest(name), "big")])
    order: list[int] = []
    for _ in range(options.passes):
        order = order or rng.permutation(len(sequences)).tolist()
        yield sequences[order.pop()]


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def main(options: Options) -> None:
    """Draws and prints the numbers."""
    counts = draw(options)
    command_line.print_report(
        f"{counts.drawn:,} of {counts.members:,} members of {counts.clusters:,} clusters in "
        f"{options.output}"
    )


if __name__ == "__main__":
    command_line.parse(Options, __doc__)
    command_line.run(main)
