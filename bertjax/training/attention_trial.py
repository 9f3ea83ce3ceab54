"""Attention by the TPU kernels and in plain JAX, once at the start of a run, beside each other.

A kernel is compiled by other means than the rest of a step, so another version of the compiler or
another TPU may refuse it, or compute something else. Here that is found out before the run, on
rows as long as the run's own, with its heads, windows, rotary positions and order, forward and
backward.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh

from bertjax import jobs
from bertjax.devices import sharding
from bertjax.models import attention, encoder, pallas_attention, visibility

# Of the norm of what plain JAX gives. Rounding to bfloat16 makes 0.3% to 0.6%; a mask or a sum that
# is wrong in a few places makes more than ten times that.
TOLERANCE = 0.02
ROWS_PER_DEVICE = 2


def agrees(job: jobs.Job, mesh: Mesh) -> bool:
    """Returns whether the kernels compute what plain JAX does, on rows as the job's; logs both."""
    config = encoder.EncoderConfig(**job.config.model)
    for length, is_packed in sorted(_rows(job)):
        if not pallas_attention.takes(length, config.hidden_size // config.num_attention_heads):
            continue
        kinds = {
            (config.window_of(layer), config.rotary_base_of(layer))
            for layer in range(config.num_hidden_layers)
        }
        for window, rotary_base in sorted(kinds, key=str):
            where = f"rows of {length} positions, {f'window {window}' if window else 'no window'}"
            try:
                errors = _errors(config, mesh, length, is_packed, window, rotary_base)
            except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError) as error:
                logging.warning(
                    "The attention kernel does not compile for %s (%s); the run goes on with "
                    "config.model.attention=xla, which computes the same and is slower",
                    where, str(error).splitlines()[0],
                )  # fmt: skip
                return False
            if not max(errors.values()) <= TOLERANCE:  # a NaN is no agreement
                logging.warning(
                    "The attention kernel is off by %s for %s; at most %.0f%% was expected. The "
                    "run goes on with config.model.attention=xla, which is slower",
                    _told(errors), where, 100 * TOLERANCE,
                )  # fmt: skip
                return False
            logging.info("The attention kernel agrees with plain JAX for %s: off by %s",
                         where, _told(errors))  # fmt: skip
    return True


def _told(errors: dict[str, float]) -> str:
    return ", ".join(f"{error:.2%} ({name})" for name, error in errors.items())


def _rows(job: jobs.Job) -> Iterator[tuple[int, bool]]:
    """Yields the length of each phase's rows, and whether they hold several sequences."""
    for phase in job.phases:
        yield phase.max_seq_length, "sequence_ids" in job.data.abstract_batch(phase)


def _errors(
    config: encoder.EncoderConfig,
    mesh: Mesh,
    length: int,
    is_packed: bool,
    window: int | None,
    rotary_base: float | None,
) -> dict[str, float]:
    """Returns the relative errors of the context and of the gradients of query, keys, values."""
    rows = ROWS_PER_DEVICE * mesh.shape[sharding.DATA]
    inputs = _inputs(rows, length, is_packed)
    size = config.hidden_size // config.num_attention_heads
    shape = (rows, length, config.num_attention_heads, size)
    narrowed = functools.partial(
        visibility.Visibility.narrowed, window=window, left_to_right=config.left_to_right
    )
    rate = config.attention_probs_dropout_prob

    # On several hosts every one of them is to have the answer.
    @functools.partial(jax.jit, out_shardings=jax.sharding.NamedSharding(mesh, sharding.P()))
    def errors(inputs: dict[str, Any]) -> jax.Array:
        draws = jax.random.split(jax.random.key(0), 5)
        *tensors, grad = (
            jax.random.normal(key, shape, jnp.float32).astype(config.dtype) for key in draws[:4]
        )
        tensors[0] = tensors[0] * jnp.asarray(size**-0.5, tensors[0].dtype)
        visible = narrowed(visibility.of(inputs))

        def made(implementation: str) -> tuple[jax.Array, ...]:
            def attend(query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
                how = {"dropout_rate": rate, "key": draws[4], "implementation": implementation}
                return attention.attend(
                    query, keys, values, visible, rotary_base=rotary_base, **how
                )

            context, backward = jax.vjp(attend, *tensors)
            return (context, *backward(grad))

        return jnp.stack([_error(x, y) for x, y in zip(made("pallas"), made("xla"), strict=True)])

    with jax.set_mesh(mesh):
        placed = {
            name: jax.make_array_from_callback(
                x.shape, sharding.batch_sharding(mesh), lambda index, x=x: x[index]
            )
            for name, x in inputs.items()
        }
        found = np.asarray(errors(placed))
    return dict(zip(("context", "query", "keys", "values"), found.tolist(), strict=True))


def _error(found: jax.Array, expected: jax.Array) -> jax.Array:
    found, expected = (x.astype(jnp.float32) for x in (found, expected))
    return jnp.linalg.norm((found - expected).ravel()) / jnp.linalg.norm(expected.ravel())


def _inputs(rows: int, length: int, is_packed: bool) -> dict[str, np.ndarray]:
    """Returns what says what may see what: a third of every second row is padding."""
    numbers = np.ones((rows, length), np.int32)
    if is_packed:
        numbers[:, length // 4 :] = 2
        numbers[:, length // 2 :] = 3
    numbers[1::2, 2 * length // 3 :] = 0
    return {"sequence_ids" if is_packed else "input_mask": numbers}
