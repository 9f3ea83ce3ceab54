"""How fast the first device is: matrix products, and attention by kernels and in plain JAX."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.checkup.findings import Finding
from bertjax.devices import accelerators, sharding
from bertjax.models import attention, encoder, visibility
from bertjax.training import attention_trial

PRODUCTS = 16  # one after the other, in one program
ROUNDS = 3  # of which the fastest counts
WIDTHS = {"cpu": 1024}
WIDTH = 4096  # of other devices
# A large product reaches 70% to 90% of the peak of a TPU or GPU that nobody else uses.
LEAST_SHARE = 0.5

ATTENTION = encoder.EncoderConfig(vocab_size=2, dtype="bfloat16", attention="auto")  # BERT-base
ATTENTION_ROWS, ATTENTION_LENGTH = 16, 512
# The kernels are there to be faster; a little slower is noise.
LEAST_GAIN = 0.9


def matmul(workdir: str) -> Iterator[Finding]:
    """Yields the FLOP/s of products of square matrices, in bfloat16 and in float32."""
    del workdir
    device = jax.devices()[0]
    width = WIDTHS.get(device.platform, WIDTH)
    peak = accelerators.peak_flops(device.device_kind)
    for dtype in ("bfloat16", "float32"):
        seconds = _seconds(_products, jnp.ones((width, width), dtype) / width)
        rate = PRODUCTS * 2 * width**3 / seconds
        expected, status = "", "ok"
        if peak and dtype == "bfloat16":
            expected = f"{LEAST_SHARE:.0%} or more of the peak, {peak / 1e12:.0f} TFLOP/s"
            status = "ok" if rate >= LEAST_SHARE * peak else "slow"
        yield Finding(f"matmul {dtype}", f"{rate / 1e12:.3g} TFLOP/s", expected, status)


@jax.jit
def _products(x: jax.Array) -> jax.Array:
    return functools.reduce(lambda product, _: product @ x, range(PRODUCTS), x)


def attention_kernel(workdir: str) -> Iterator[Finding]:
    """Yields whether the attention kernels compute what plain JAX does, and which is faster."""
    del workdir
    device = jax.devices()[0]
    if not _takes_kernels(device.platform):
        yield Finding("attention", f"plain JAX, as there are no kernels for {device.device_kind}")
        return
    errors = attention_trial.errors(
        ATTENTION, ATTENTION_LENGTH, sharding.make_mesh([device], data=1)
    )
    worst = max(errors.values())
    limit = attention_trial.TOLERANCE
    yield Finding(
        "attention kernel",
        f"off by {worst:.2%} of plain JAX",
        f"at most {limit:.0%}",
        "ok" if worst <= limit else "fault",
    )
    kernel, plain = (_attention_seconds(name) for name in ("auto", "xla"))
    yield Finding(
        "attention speed",
        f"kernel {1e3 * kernel:.2f} ms, plain {1e3 * plain:.2f} ms",
        "the kernel is faster",
        "ok" if kernel * LEAST_GAIN <= plain else "slow",
    )


def _takes_kernels(platform: str) -> bool:
    size = ATTENTION.hidden_size // ATTENTION.num_attention_heads
    rows = (ATTENTION_LENGTH, size, jnp.dtype(ATTENTION.dtype))
    found = attention.kernel_platforms("auto", *rows, 0.0)
    return (attention.CUDA if platform == "gpu" else platform) in found


def _attention_seconds(implementation: str) -> float:
    heads, width = ATTENTION.num_attention_heads, ATTENTION.hidden_size
    shape = (ATTENTION_ROWS, ATTENTION_LENGTH, heads, width // heads)
    x = jax.random.normal(jax.random.key(0), shape, jnp.bfloat16)
    visible = visibility.of({"input_mask": jnp.ones(shape[:2], jnp.int32)})

    @jax.jit
    def attended(x: jax.Array) -> jax.Array:
        return attention.attend(
            *(x, x, x, visible),
            dropout_rate=0.0,
            key=None,
            implementation=implementation,
        )

    return _seconds(attended, x)


def _seconds(function: Callable[[Any], jax.Array], argument: Any) -> float:
    """Returns the seconds of the fastest of some calls, after one that compiles."""
    jax.block_until_ready(function(argument))
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        jax.block_until_ready(function(argument))
        found.append(time.perf_counter() - start)
    return min(found)
