r"""What a sum of gradients over devices loses in bfloat16, and what it costs in float32.

    python benchmarks/gradient_sums.py [--shards=4,16,64] [--rows=32768] [--seed=0] [--json]
    python benchmarks/gradient_sums.py --model [--devices=8]
    python benchmarks/tpu_step.py --only=ours [--set=model.gradient_reduction_dtype=compute]

Without an option: kernels of BERT-base. The factors of the product, random numbers in bfloat16, are
split over shards by their rows; each shard's product is rounded to the type of the sum, and so is
the sum, after every addition ("ring") or once at the end ("at once": what XLA does on CPU). The
reference is the product in float64, so the figures are of the sum alone. "norm" is the norm of the
error over that of the gradient, "median" and "largest" are of |error| / |element| and of |error| /
root mean square of the elements.

--model: a BERT of 4 layers, 256 wide, on fake CPU devices and synthetic tokens: the gradient of all
kernels in bfloat16 beside the one in float32, with both values of
config.model.gradient_reduction_dtype. It tells how much of the error of a bfloat16 step is the
sum's.

`tpu_step.py` counts what the other side costs: cycles, memory, and the bytes of the collectives.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

# Name -> (inputs, outputs) of a kernel. Source: Devlin et al. 2019, section 3, BERT-base.
KERNELS = {"attention": (768, 768), "feed_forward": (768, 3072)}
SUMS = ("bfloat16, ring", "bfloat16, at once", "float32, ring")
MODEL = {
    **{"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4},
    **{"intermediate_size": 1024, "vocab_size": 8192, "max_position_embeddings": 128},
}


def rounded(x: np.ndarray, to: str) -> np.ndarray:
    """Returns float32 numbers rounded to `to`, as float32."""
    import ml_dtypes

    return x if to == "float32" else x.astype(ml_dtypes.bfloat16).astype(np.float32)


def shard_products(x: np.ndarray, grad: np.ndarray, shards: int) -> Iterator[np.ndarray]:
    """Yields each shard's part of x^T grad, in float32."""
    for rows, grads in zip(np.split(x, shards), np.split(grad, shards), strict=True):
        yield rows.T @ grads


def summed(parts: Iterator[np.ndarray], to: str) -> np.ndarray:
    """Returns the sum of the parts in one of SUMS."""
    dtype, how = to.split(", ")
    total = 0.0
    for part in parts:
        total = total + rounded(part, dtype)
        if how == "ring":
            total = rounded(total, dtype)
    return rounded(np.asarray(total), dtype)


def errors(found: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """Returns the errors as the head of this file names them."""
    off = np.abs(found - expected)
    return {
        "norm": float(np.linalg.norm(off) / np.linalg.norm(expected)),
        "median": float(np.median(off / np.abs(expected))),
        "largest": float(off.max() / np.sqrt(np.mean(expected**2))),
    }


def sum_errors(shards: Sequence[int], rows: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yields a row per kernel, number of shards and way to sum."""
    rng = np.random.default_rng(seed)
    for name, (inputs, outputs) in KERNELS.items():
        x, grad = (
            rounded(rng.standard_normal((rows, size), np.float32), "bfloat16")
            for size in (inputs, outputs)
        )
        expected = x.T.astype(np.float64) @ grad.astype(np.float64)
        for count in shards:
            for way in SUMS:
                found = summed(shard_products(x, grad, count), way)
                yield {"kernel": name, "shards": count, "sum": way} | errors(found, expected)


def model_errors(devices: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yields a row per type of the sums: the error of all kernels' gradients in a bfloat16 step."""
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    )
    expected = kernel_gradients("float32", "float32", devices, seed)
    for reduction in ("compute", "float32"):
        found = kernel_gradients("bfloat16", reduction, devices, seed)
        yield {"gradient_reduction_dtype": reduction} | errors(found, expected)


def kernel_gradients(dtype: str, reduction: str, devices: int, seed: int) -> np.ndarray:
    """Returns the gradients of all kernels, flat, as a step on `devices` computes them."""
    import jax
    import jax.numpy as jnp

    from bertjax import config as config_lib
    from bertjax import jobs
    from bertjax.devices import sharding
    from bertjax.models import parameters
    from bertjax.training import program

    config = config_lib.default_config()
    config.seed, config.data.source, config.global_batch_size = seed, "synthetic", 8 * devices
    config.model.update(MODEL, dtype=dtype, gradient_reduction_dtype=reduction)
    job = jobs.JOBS[config.task].open(program.resolve(config, "cpu"))
    mesh = sharding.make_mesh(jax.devices(), data=devices)
    built = program.build(job, mesh)
    batch = next(job.data.train_batches(job.phases[0], start_step=0, rows=None))
    with jax.set_mesh(mesh):
        inputs = sharding.to_devices(batch, mesh, config.global_batch_size)

        def loss(params: Any) -> jax.Array:
            model = parameters.merge(built.learner.graphdef, params)
            means = job.task.loss(model, inputs, key=None)
            objectives = job.task.objectives.items()
            losses = [it * means[name].total / means[name].weight for name, it in objectives]
            return jnp.stack(losses).sum()

        replicated = jax.sharding.NamedSharding(mesh, sharding.P())
        found = jax.jit(jax.grad(loss), out_shardings=replicated)(built.init(seed).params)
    leaves = jax.tree_util.tree_leaves_with_path(found)
    kernels = [np.asarray(leaf) for path, leaf in leaves if path[-1].key == "kernel"]
    return np.concatenate([kernel.ravel() for kernel in kernels]).astype(np.float64)


def shown(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the rows as lines of a table."""
    lines = ["  ".join(f"{name:>18}" for name in rows[0])] if rows else []
    for row in rows:
        cells = [f"{it:.2e}" if isinstance(it, float) else str(it) for it in row.values()]
        lines.append("  ".join(f"{cell:>18}" for cell in cells))
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what is asked and prints."""
    parser = argparse.ArgumentParser(description="Sums of gradients over devices.")
    parser.add_argument("--shards", default="4,16,64", help="numbers of devices")
    parser.add_argument("--rows", type=int, default=256 * 128, help="tokens, of all devices")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", action="store_true", help="the gradients of a whole model")
    parser.add_argument("--devices", type=int, default=8, help="of --model")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    if options.model:
        rows = list(model_errors(options.devices, options.seed))
    else:
        shards = [int(count) for count in options.shards.split(",")]
        rows = list(sum_errors(shards, options.rows, options.seed))
    print(json.dumps(rows, indent=2) if options.json else "\n".join(shown(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
