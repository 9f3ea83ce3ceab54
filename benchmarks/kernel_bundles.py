"""Counts the instruction bundles of the attention kernels, for which XLA estimates no cycles.

    python benchmarks/kernel_bundles.py [--topology=v5e:2x2] [--length=512]

Needs libtpu (`pip install 'bertjax[plan]'`) and no TPU. A bundle is what a core issues in a cycle,
so their number is a kernel's time without any stall. Printed for one grid step, with the fewest
cycles that the instructions of the matrix and vector units take by themselves, and for one layer
of BERT-base over 8,192 tokens of a device.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Sequence

import tpu_peer

TOKENS = 8192  # of a device
HEADS, HEAD_SIZE = 12, 64  # BERT-base
RATE = 0.1
# Columns of libtpu's table of units, a row for each bundle.
MATRIX, VECTOR = 0, 2


def compile_kernels(topology: str, length: int) -> None:
    """Compiles the forward and the backward kernel; libtpu leaves its files where it was told."""
    import jax
    import jax.numpy as jnp

    from bertjax.devices import sharding
    from bertjax.models import pallas_attention, visibility
    from bertjax.planning import topologies

    devices = topologies.devices(topologies.parse(topology))
    mesh = sharding.make_mesh(devices, data=len(devices), tensor=1)
    rows = sharding.batch_sharding(mesh)
    batch = len(devices) * TOKENS // length

    def array(shape: tuple[int, ...], dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *shape), dtype, sharding=rows)

    tensor = array((length, HEADS, HEAD_SIZE), jnp.dtype(jnp.bfloat16))
    seeds = (array((HEADS,), jnp.dtype(jnp.uint32)),) * 2
    visible = visibility.Visibility(array((length,), jnp.dtype(bool)))
    inputs = (tensor, tensor, tensor, visible, seeds)

    def both(query, keys, values, visible, seeds, grad):
        forward = query, keys, values, visible, seeds
        context = pallas_attention.context(*forward, rate=RATE)
        return context, *pallas_attention.gradients(*forward, grad, rate=RATE)

    with jax.set_mesh(mesh):
        jax.jit(both).lower(*inputs, tensor).compile()


def counts(directory: pathlib.Path) -> list[tuple[int, int, int]]:
    """Returns (bundles, matrix, vector) of each kernel in libtpu's files, the smallest first.

    Raises:
      FileNotFoundError: if there are none; another libtpu may name them differently.
    """
    found = []
    for path in sorted(directory.glob("*schedule-analysis_final_bundles.txt")):
        schedule = path.read_text()
        if not re.search(r"\(100\.00%\): %.* custom-call\(.*tpu_custom_call", schedule):
            continue  # of the program around them
        match = re.search(r"non empty scheduled bundles:\s+(\d+)", schedule)
        module = path.name.partition("-")[2].rpartition("-schedule")[0].rpartition("-")[0]
        (table,) = directory.glob(f"*-{module}-*-final_hlo-static-per-bundle-utilization.txt")
        numbers = [
            [int(number) for number in line.split()]
            for line in table.read_text().splitlines()
            if re.fullmatch(r"(\d+\s*){10}", line.strip())
        ]
        capacity, *used = numbers
        cycles = [-(-sum(row[unit] for row in used) // capacity[unit]) for unit in (MATRIX, VECTOR)]
        assert match, f"{path} tells no bundles"
        found.append((int(match[1]), cycles[0], cycles[1]))
    if not found:
        raise FileNotFoundError(f"libtpu left no schedule of a kernel in {directory}")
    return sorted(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles and prints."""
    parser = argparse.ArgumentParser(description="Bundles of the attention kernels.")
    parser.add_argument("--topology", default="v5e:2x2", help="libtpu's name of a slice")
    parser.add_argument("--length", type=int, default=512, help="tokens a sequence")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        dump = f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true"
        os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {dump}"
        tpu_peer.prepare_process()
        compile_kernels(options.topology, options.length)
        rows = counts(pathlib.Path(directory))
    print("pass      bundles  matrix  vector   a layer")
    import jax.numpy as jnp

    from bertjax.models import pallas_attention

    batch = TOKENS // options.length
    rows_per_step = pallas_attention.rows_per_step(batch, options.length, jnp.dtype(jnp.bfloat16))
    heads_per_step = pallas_attention.LANES // HEAD_SIZE
    steps = batch // rows_per_step * HEADS // heads_per_step
    for name, (bundles, matrix, vector) in zip(("forward", "backward"), rows, strict=True):
        print(f"{name:9} {bundles:7,} {matrix:7,} {vector:7,} {steps} steps: {bundles * steps:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
