"""Attention of one layer, forward and backward, with DeBERTa's terms by distance made in some ways.

    python -m benchmarks.relative_attention [--length=512] [--rows=16] [--terms=kernel]
    python -m benchmarks.relative_attention --here --rows=8 --rounds=7

`kernel` is what a TPU gets for rows of its lengths, `tiles` what it gets for others, `skew` what
all other platforms get. `gather` is as in the released code: products with the 512 rows of the
table, and the entry of each pair is looked up. `none` has no terms. Attention has 12 heads of 64
and dropout of 0.1.

Without --here libtpu (extra `plan`) compiles for one TPU chip, in bfloat16, and nothing is run:
cycles are the compiler's estimates and the kernels' bundles, and parts without one are listed with
the bytes that they read and write. With --here gather, skew and none take turns on this machine, in
float32.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from bertjax.models import attention, relative, relative_tables, visibility
from bertjax.plan import hlo, topologies

HEADS, HEAD = 12, 64
BUCKETS, SPAN = 256, 512  # of DeBERTa-v3


def gathered(query: jax.Array, keys: jax.Array, terms: relative.Terms) -> jax.Array:
    """Returns the terms as the released code has them; each table has a row for each bucket."""
    distances = np.subtract.outer(np.arange(query.shape[1]), np.arange(keys.shape[1]))
    bucket = relative_tables.log_buckets(distances, BUCKETS, SPAN)[None, None]
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    to_keys = product("BLHK,DHK->BHLD", query, terms.of_key)
    to_queries = product("BSHK,DHK->BHSD", keys, terms.of_query)
    swapped = jnp.swapaxes(bucket, -1, -2)
    return jnp.take_along_axis(to_keys, bucket, -1) + jnp.swapaxes(
        jnp.take_along_axis(to_queries, swapped, -1), -1, -2
    )


# Function that makes the terms in plain JAX.
WAYS: dict[str, Callable[..., Any]] = {
    "none": relative.scores,
    "gather": gathered,
    "skew": relative._of_tables,
    "tiles": relative._tiled,
    "kernel": relative.scores,
}


def step_of(name: str) -> Callable[..., Any]:
    """Returns the step: the context, and the gradients of all that it is made of."""

    def terms_of(tables: tuple[jax.Array, jax.Array], length: int) -> relative.Terms | None:
        if name in ("none", "gather"):
            return relative.Terms(*tables) if name == "gather" else None
        distances = np.arange(length - 1, -length, -1)
        wanted = relative_tables.log_buckets(distances, BUCKETS, SPAN)
        return relative.Terms(*(table[wanted] for table in tables))

    def step(query, keys, values, tables, mask, grad, seed):
        visible = visibility.of({"input_mask": mask})

        def context(query, keys, values, tables):
            return attention.attend(
                *(query, keys, values, visible),
                dropout_rate=0.1,
                key=jax.random.wrap_key_data(seed),
                implementation="pallas" if name == "kernel" else "xla",
                terms=terms_of(tables, query.shape[1]),
            )

        with mock.patch.multiple(relative, scores=WAYS[name], between=lambda terms, *_: terms):
            found, pull = jax.vjp(context, query, keys, values, tables)
            return found, pull(grad)

    return step


def shapes(options: argparse.Namespace, dtype: Any) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of a step's arguments."""
    states = jax.ShapeDtypeStruct((options.rows, options.length, HEADS, HEAD), dtype)
    table = jax.ShapeDtypeStruct((2 * BUCKETS, HEADS, HEAD), dtype)
    mask = jax.ShapeDtypeStruct((options.rows, options.length), jnp.int32)
    seed = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return [states, states, states, (table, table), mask, states, seed]  # type: ignore[list-item]


def compiled_for_tpu(options: argparse.Namespace) -> None:
    """Prints the compiler's estimates for one chip."""
    device = SingleDeviceSharding(topologies.devices(topologies.parse("v5e-1"))[0])
    placed = jax.tree.map(
        lambda it: jax.ShapeDtypeStruct(it.shape, it.dtype, sharding=device),
        shapes(options, jnp.bfloat16),
    )
    compiled = jax.jit(step_of(options.terms)).lower(*placed).compile()
    analysis = hlo.analyze(str(compiled.as_text()))
    memory: Any = compiled.memory_analysis()
    print(f"cycles         {analysis.cycles / 1e6:.2f} M")
    print(f"not in them    {analysis.uncounted_bytes / 2**30:.2f} GiB of {analysis.uncounted}")
    print(f"temporaries    {memory.temp_size_in_bytes / 2**30:.2f} GiB")


def timed_here(options: argparse.Namespace) -> None:
    """Prints the median of the times of each way, in turns, and the ratios to none."""
    rng = np.random.default_rng(0)

    def filled(it: jax.ShapeDtypeStruct) -> Any:
        if it.dtype == jnp.float32:
            return jnp.asarray(rng.standard_normal(it.shape), it.dtype)
        return jnp.ones(it.shape, it.dtype)

    arguments = jax.tree.map(filled, shapes(options, jnp.float32))
    steps = {name: jax.jit(step_of(name)) for name in ("none", "gather", "skew")}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-1, options.rounds):  # the first compiles
        for name, step in steps.items():
            start = time.perf_counter()
            jax.block_until_ready(step(*arguments))
            if turn >= 0:
                times[name].append(time.perf_counter() - start)
    for name, found in times.items():
        ratios = [a / b for a, b in zip(found, times["none"], strict=True)]
        print(
            f"{name:8} {1e3 * statistics.median(found):8.1f} ms, of none "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def main() -> None:
    """Compiles or times, and prints."""
    parser = argparse.ArgumentParser(description="Attention of one layer with terms by distance.")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=16, help="rows of the batch, or of a chip")
    parser.add_argument("--terms", default="kernel", choices=WAYS, help="which to compile")
    parser.add_argument("--here", action="store_true", help="time them on this machine's device")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each, with --here")
    options = parser.parse_args()
    if options.here:
        timed_here(options)
    else:
        jax.config.update("jax_platforms", "cpu")
        compiled_for_tpu(options)


if __name__ == "__main__":
    main()
