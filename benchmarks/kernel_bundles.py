"""Counts the instruction bundles of the attention kernels, for which XLA estimates no cycles.

    python benchmarks/kernel_bundles.py [--topology=v5e:2x2] [--length=512] [--window=64] \
        [--packed] [--positions] [--rotary] [--terms] [--rate=0.1]
    python benchmarks/kernel_bundles.py --all

Needs libtpu (`pip install 'bertjax[plan]'`) and no TPU. A bundle is what a core issues in a cycle,
so their number is a kernel's time without any stall. Printed for one grid step, or one chunk of it
where a step walks over several, and for one layer of BERT-base over 8,192 tokens of a device. The
work that is done once for a row (keys rotated, sums cleared and written) is found by leaving it
out, and shared among the row's chunks. Work done once in a step is counted with each chunk: an
upper bound.
--all prints, for the cases of CASES, the bundles of 1,000 scores: the table of
`bertjax/plan/hlo.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import peer
import peer_step

TOKENS = 8192  # of a device
HEADS, HEAD_SIZE = 12, 64  # BERT-base
# Those of the recipes: BERT's rows whole and packed; ModernBERT's global layers and windows; MASS's
# targets, which are read from left to right by their positions; DeBERTa's terms by distance.
CASES = (
    *(f"--length={length} {rest}" for length in (128, 512) for rest in ("", "--packed")),
    *(f"--length={length} --rate=0" for length in (128, 512)),
    "--length=128 --packed --rate=0",
    *("--length=256", "--length=384", "--length=512 --packed --rate=0"),
    *(f"--length=1024 {rest}" for rest in ("", "--packed", "--rate=0", "--packed --rate=0")),
    *(f"--length=1024 --rotary --rate=0 {rest}" for rest in ("", "--packed")),
    *(f"--length=1024 --window=64 --rotary --rate=0 {rest}" for rest in ("", "--packed")),
    *(f"--length=1024 --window=64 {rest}" for rest in ("", "--rate=0")),
    "--length=256 --positions",
    *(f"--length={length} --terms {rest}" for length in (128, 512) for rest in ("", "--packed")),
    *(f"--length={length} --terms --rate=0" for length in (128, 512)),
)


@dataclasses.dataclass(frozen=True)
class Count:
    """The bundles of a kernel for `scores` scores."""

    name: str
    bundles: int
    scores: int
    row_bundles: int = 0  # of `bundles`, those of the work done once for a row
    chunks_of_row: int = 1

    @property
    def per_thousand(self) -> float:
        """Bundles of 1,000 scores of a chunk, with its share of the work for the row."""
        of_chunk = self.bundles - self.row_bundles * (1 - 1 / self.chunks_of_row)
        return 1000 * of_chunk / self.scores


def compile_kernels(options: argparse.Namespace) -> None:
    """Compiles the forward and the backward kernel; libtpu writes its files where its flags say."""
    import jax
    import jax.numpy as jnp

    from bertjax.devices import sharding
    from bertjax.models import relative, visibility
    from bertjax.models.kernels import pallas_attention, pallas_blocks
    from bertjax.plan import topologies

    if options.without_rows:
        pallas_blocks._Step.by_parts = lambda self, body: None
    devices = topologies.devices(topologies.parse(options.topology))
    mesh = sharding.make_mesh(devices, data=len(devices), tensor=1)
    rows = sharding.batch_sharding(mesh)
    batch = len(devices) * (TOKENS // options.length)

    def array(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *shape), jnp.dtype(dtype), sharding=rows)

    tensor = array((options.length, HEADS, HEAD_SIZE), "bfloat16")
    seeds = (array((HEADS,), "uint32"),) * 2 if options.rate else None
    numbers = array((options.length,), "int32")
    distances = (2 * options.length - 1, HEADS, HEAD_SIZE)
    whole = jax.NamedSharding(mesh, jax.P())
    table: Any = jax.ShapeDtypeStruct(distances, jnp.bfloat16, sharding=whole)
    terms = relative.Terms(table, table) if options.terms else None

    def both(query, keys, values, numbers, seeds, terms, grad):
        features = {"sequence_ids" if options.packed else "input_mask": numbers}
        features |= {"positions": numbers} if options.positions else {}
        visible = visibility.of(features).narrowed(
            window=options.window or None, left_to_right=options.positions
        )
        forward = query, keys, values, visible, seeds
        base = 1e4 if options.rotary else None
        how: Any = {"rate": options.rate, "rotary_base": base, "terms": terms}
        made = pallas_attention.context(*forward, **how)
        return made, *pallas_attention.gradients(*forward, *made, grad, **how)

    with jax.set_mesh(mesh):
        jax.jit(both).lower(tensor, tensor, tensor, numbers, seeds, terms, tensor).compile()


def counts(directory: pathlib.Path, scores: int) -> list[Count]:
    """Returns what libtpu's files tell of each kernel, the smallest first.

    Raises:
      FileNotFoundError: if there are none; another libtpu may name them differently.
    """
    found = []
    for path in sorted(directory.glob("*schedule-analysis_final_bundles.txt")):
        schedule = path.read_text()
        if not re.search(r"\(100\.00%\): %.* custom-call\(.*tpu_custom_call", schedule):
            continue  # of the program around them
        match = re.search(r"non empty scheduled bundles:\s+(\d+)", schedule)
        name = re.search(r"\(100\.00%\): %(attention_\w+)", schedule)
        assert match and name, f"{path} tells no bundles, or of another kernel"
        found.append(Count(name[1], int(match[1]), scores))
    if not found:
        raise FileNotFoundError(f"libtpu left no schedule of a kernel in {directory}")
    return sorted(found, key=lambda count: count.bundles)


def tiles(options: argparse.Namespace) -> Any:
    """Returns how the kernels cut rows into blocks and chunks."""
    from bertjax.models.kernels import pallas_blocks

    return pallas_blocks.tiles(options.length, options.window or None)


def scores_of_step(options: argparse.Namespace) -> int:
    """Returns the number of scores of a grid step, or of a chunk of it."""
    import jax.numpy as jnp

    from bertjax.models.kernels import pallas_parts, pallas_rows

    heads, cut = pallas_parts.LANES // HEAD_SIZE, tiles(options)
    if options.length in pallas_rows.LENGTHS and cut.chunk >= options.length:
        batch = TOKENS // options.length
        dtype = jnp.dtype(jnp.bfloat16)
        rows = pallas_rows.rows_per_step(batch, options.length, dtype, has_terms=options.terms)
        return heads * rows * options.length**2
    return heads * cut.blocks * cut.block * cut.chunk


def measure(options: argparse.Namespace) -> list[Count]:
    """Compiles in this process, which libtpu tells at its start where to leave its files."""
    with tempfile.TemporaryDirectory() as directory:
        dump = f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true"
        os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {dump}"
        peer_step.prepare_process()
        compile_kernels(options)
        found = counts(pathlib.Path(directory), scores_of_step(options))
    cut = tiles(options)
    chunks = cut.steps * cut.chunks  # times that the blocks of a row walk over a chunk
    if options.without_rows or chunks == 1:
        return found
    others = in_a_process([*options.arguments, "--without_rows"])
    return [
        dataclasses.replace(count, row_bundles=count.bundles - other.bundles, chunks_of_row=chunks)
        for count, other in zip(found, others, strict=True)
    ]


def in_a_process(arguments: Sequence[str]) -> list[Count]:
    """Returns the counts that this program tells in a process of its own."""
    command = [sys.executable, __file__, "--child", *arguments]
    return [Count(**told) for told in peer.answers(command)]


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles and prints."""
    parser = argparse.ArgumentParser(description="Bundles of the attention kernels.")
    parser.add_argument("--topology", default="v5e:2x2", help="libtpu's name of a slice")
    parser.add_argument("--length", type=int, default=512, help="tokens a sequence")
    parser.add_argument("--window", type=int, default=0, help="tokens to each side; 0: all")
    parser.add_argument("--packed", action="store_true", help="several sequences a row")
    parser.add_argument("--positions", action="store_true", help="left to right by positions")
    parser.add_argument("--rotary", action="store_true", help="rotary positions")
    parser.add_argument("--terms", action="store_true", help="DeBERTa's terms by distance")
    parser.add_argument("--rate", type=float, default=0.1, help="dropout of the weights")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--all", action="store_true", help="the table of bertjax.plan.hlo")
    parser.add_argument("--without_rows", action="store_true", help="no work once for a row")
    options = parser.parse_args(argv)
    options.arguments = list(sys.argv[1:] if argv is None else argv)
    if options.all:
        for case in CASES:
            forward, backward = in_a_process([f"--topology={options.topology}", *case.split()])
            kind = forward.name.replace("_forward", "")
            bundles = f"{forward.per_thousand:.2f}, {backward.per_thousand:.2f}"
            print(f'    "{kind}": ({bundles}),', flush=True)
        return 0
    found = measure(options)
    if options.child:
        for count in found:
            peer.tell(**dataclasses.asdict(count))
        return 0
    print(f"{'kernel':50} bundles   a layer")
    cut = tiles(options)
    scores = HEADS * TOKENS * (cut.chunk if cut.is_windowed else options.length)
    for count in found:
        total = round(count.per_thousand * scores / 1000)
        print(f"{count.name:50} {count.bundles:7,} {total:9,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
