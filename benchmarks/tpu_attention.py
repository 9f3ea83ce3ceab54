"""Attention of one layer compiled for a TPU chip, forward and backward, with terms by distance.

    python -m benchmarks.tpu_attention [--length=512] [--rows=16] [--terms=none|tables|tiles]

`tables` are products with tables and their skew, as on other platforms, `tiles` what a TPU gets. No
TPU is needed: libtpu (extra `plan`) compiles, and nothing is run. Cycles are the compiler's
estimates, for 12 heads of 64 in bfloat16 and dropout of 0.1. Parts without an estimate are listed
with the bytes that they read and write.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from bertjax.models import attention, relative, visibility
from bertjax.plan import hlo, topologies

HEADS, HEAD = 12, 64
TERMS = {"none": None, "tables": relative._of_tables, "tiles": relative._tiled}


def step(query, keys, values, tables, mask, grad, seed):
    """Returns the context and the gradients of all that it is made of."""
    visible = visibility.of({"input_mask": mask})

    def context(query, keys, values, tables):
        return attention.attend(
            *(query, keys, values, visible),
            dropout_rate=0.1,
            key=jax.random.wrap_key_data(seed),
            terms=tables and relative.Terms(*tables),
        )

    found, pull = jax.vjp(context, query, keys, values, tables)
    return found, pull(grad)


def main() -> None:
    """Compiles and prints."""
    parser = argparse.ArgumentParser(description="Attention of one layer compiled for a TPU.")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=16, help="rows of a chip")
    parser.add_argument("--terms", default="tiles", choices=TERMS, help="terms by distance")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    device = SingleDeviceSharding(topologies.devices(topologies.parse("v5e-1"))[0])

    def shaped(*shape, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=device)

    states = shaped(options.rows, options.length, HEADS, HEAD)
    table = shaped(2 * options.length - 1, HEADS, HEAD)
    mask = shaped(options.rows, options.length, dtype=jnp.int32)
    if TERMS[options.terms] is not None:
        relative._tiled = TERMS[options.terms]
    tables = None if options.terms == "none" else (table, table)
    seed = shaped(2, dtype=jnp.uint32)
    compiled = jax.jit(step).lower(states, states, states, tables, mask, states, seed).compile()
    analysis = hlo.analyze(str(compiled.as_text()))
    memory: Any = compiled.memory_analysis()
    print(f"cycles         {analysis.cycles / 1e6:.2f} M")
    print(f"not in them    {analysis.uncounted_bytes / 2**30:.2f} GiB of {analysis.uncounted}")
    print(f"temporaries    {memory.temp_size_in_bytes / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
