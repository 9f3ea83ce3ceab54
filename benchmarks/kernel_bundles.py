"""Counts the instruction bundles of the attention kernels, for which XLA estimates no cycles.

    python benchmarks/kernel_bundles.py [--topology=v5e:2x2] [--length=512] [--window=64] \
        [--packed] [--rotary] [--rate=0.1]
    python benchmarks/kernel_bundles.py --all

Needs libtpu (`pip install 'bertjax[plan]'`) and no TPU. A bundle is what a core issues in a cycle,
so their number is a kernel's time without any stall. Printed for one grid step, or one chunk of it
where a step walks over several, with the fewest cycles that the instructions of the matrix and
vector units take by themselves, and for one layer of BERT-base over 8,192 tokens of a device. What
a step does once, however many chunks it has, is counted with each: longer rows take a bit less.
--all prints, for the cases of CASES, the bundles of 1,000 scores: the table of
`bertjax/planning/kernels.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

import tpu_peer

TOKENS = 8192  # of a device
HEADS, HEAD_SIZE = 12, 64  # BERT-base
# Columns of libtpu's table of units, a row for each bundle.
MATRIX, VECTOR = 0, 2
# Those of the recipes: BERT's rows whole and packed; ModernBERT's global layers and windows.
CASES = (
    *(f"--length={length} {rest}" for length in (128, 512) for rest in ("", "--packed")),
    *(f"--length={length} --rate=0" for length in (128, 512)),
    *("--length=256", "--length=384", "--length=512 --packed --rate=0"),
    *(f"--length=1024 {rest}" for rest in ("", "--packed", "--rate=0", "--packed --rate=0")),
    *(f"--length=1024 --rotary --rate=0 {rest}" for rest in ("", "--packed")),
    *(f"--length=1024 --window=64 --rotary --rate=0 {rest}" for rest in ("", "--packed")),
    *(f"--length=1024 --window=64 {rest}" for rest in ("", "--rate=0")),
)


@dataclasses.dataclass(frozen=True)
class Count:
    """Of one kernel: bundles, and the fewest cycles of two units, of `scores` scores."""

    name: str
    bundles: int
    matrix: int
    vector: int
    scores: int

    @property
    def per_thousand(self) -> float:
        """Bundles of 1,000 scores."""
        return 1000 * self.bundles / self.scores


def compile_kernels(options: argparse.Namespace) -> None:
    """Compiles the forward and the backward kernel; libtpu leaves its files where it was told."""
    import jax
    import jax.numpy as jnp

    from bertjax.devices import sharding
    from bertjax.models import pallas_attention, visibility
    from bertjax.planning import topologies

    devices = topologies.devices(topologies.parse(options.topology))
    mesh = sharding.make_mesh(devices, data=len(devices), tensor=1)
    rows = sharding.batch_sharding(mesh)
    batch = len(devices) * TOKENS // options.length

    def array(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *shape), jnp.dtype(dtype), sharding=rows)

    tensor = array((options.length, HEADS, HEAD_SIZE), "bfloat16")
    seeds = (array((HEADS,), "uint32"),) * 2 if options.rate else None
    numbers = array((options.length,), "int32")

    def both(query, keys, values, numbers, seeds, grad):
        visible = visibility.of({"sequence_ids" if options.packed else "input_mask": numbers})
        visible = visible.narrowed(window=options.window or None, left_to_right=False)
        forward = query, keys, values, visible, seeds
        how = {"rate": options.rate, "rotary_base": 1e4 if options.rotary else None}
        made = pallas_attention.context(*forward, **how)
        return made, *pallas_attention.gradients(*forward, *made, grad, **how)

    with jax.set_mesh(mesh):
        jax.jit(both).lower(tensor, tensor, tensor, numbers, seeds, tensor).compile()


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
        module = path.name.partition("-")[2].rpartition("-schedule")[0].rpartition("-")[0]
        (table,) = directory.glob(f"*-{module}-*-final_hlo-static-per-bundle-utilization.txt")
        numbers = [
            [int(number) for number in line.split()]
            for line in table.read_text().splitlines()
            if re.fullmatch(r"(\d+\s*){10}", line.strip())
        ]
        capacity, *used = numbers
        cycles = [-(-sum(row[unit] for row in used) // capacity[unit]) for unit in (MATRIX, VECTOR)]
        assert match and name, f"{path} tells no bundles, or of another kernel"
        found.append(Count(name[1], int(match[1]), *cycles, scores))
    if not found:
        raise FileNotFoundError(f"libtpu left no schedule of a kernel in {directory}")
    return sorted(found, key=lambda count: count.bundles)


def scores_of_step(options: argparse.Namespace) -> int:
    """Returns how many scores a grid step makes, or a chunk of it."""
    import jax.numpy as jnp

    from bertjax.models import pallas_parts, pallas_rows, pallas_tiles

    heads, window = pallas_parts.LANES // HEAD_SIZE, options.window or None
    cut = pallas_tiles.tiles(options.length, window)
    if options.length in pallas_rows.LENGTHS and cut.chunk >= options.length:
        batch = TOKENS // options.length
        rows = pallas_rows.rows_per_step(batch, options.length, jnp.dtype(jnp.bfloat16))
        return heads * rows * options.length**2
    return heads * cut.blocks * cut.block * cut.chunk


def scores_of_layer(options: argparse.Namespace) -> int:
    """Returns how many scores a layer of BERT-base makes of TOKENS tokens."""
    from bertjax.models import pallas_tiles

    cut = pallas_tiles.tiles(options.length, options.window or None)
    return HEADS * TOKENS * (cut.chunk if cut.is_windowed else options.length)


def measure(options: argparse.Namespace) -> list[Count]:
    """Compiles in this process, which libtpu tells at its start where to leave its files."""
    with tempfile.TemporaryDirectory() as directory:
        dump = f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true"
        os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {dump}"
        tpu_peer.prepare_process()
        compile_kernels(options)
        return counts(pathlib.Path(directory), scores_of_step(options))


def all_cases(topology: str) -> Iterator[Count]:
    """Yields the counts of CASES, each from a process of its own."""
    for case in CASES:
        command = [sys.executable, __file__, f"--topology={topology}", "--json", *case.split()]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for line in told.splitlines():
            if line.startswith("{"):
                yield Count(**json.loads(line))


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles and prints."""
    parser = argparse.ArgumentParser(description="Bundles of the attention kernels.")
    parser.add_argument("--topology", default="v5e:2x2", help="libtpu's name of a slice")
    parser.add_argument("--length", type=int, default=512, help="tokens a sequence")
    parser.add_argument("--window", type=int, default=0, help="tokens to each side; 0: all")
    parser.add_argument("--packed", action="store_true", help="several sequences a row")
    parser.add_argument("--rotary", action="store_true", help="rotary positions")
    parser.add_argument("--rate", type=float, default=0.1, help="dropout of the weights")
    parser.add_argument("--json", action="store_true", help="a JSON object for each kernel")
    parser.add_argument("--all", action="store_true", help="the table of bertjax.planning.kernels")
    options = parser.parse_args(argv)
    if options.all:
        for count in all_cases(options.topology):
            print(f'    "{count.name}": {count.per_thousand:.2f},', flush=True)
        return 0
    found = measure(options)
    if options.json:
        for count in found:
            print(json.dumps(dataclasses.asdict(count)))
        return 0
    print(f"{'kernel':50} bundles  matrix  vector   a layer")
    layer = scores_of_layer(options)
    for count in found:
        total = count.bundles * layer // count.scores
        print(f"{count.name:50} {count.bundles:7,} {count.matrix:7,} {count.vector:7,} {total:9,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
