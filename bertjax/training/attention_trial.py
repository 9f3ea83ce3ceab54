"""Checks at startup that the attention kernels agree with plain JAX.

A kernel is compiled by other means than the rest of a step, so another version of the compiler or
another device may refuse it, or compute something else. The check runs on rows as long as the
run's, with its heads, windows, rotary positions, order and terms by distance, forward and backward.
On a GPU, whose kernels take no dropout, it has none, as in evaluation.
"""

from __future__ import annotations

import dataclasses
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
from bertjax.models import attention, encoder, placement, relative, visibility
from bertjax.tasks import base

# The largest error of a position of a head, of the root mean square of all. Rounding to bfloat16
# made 0.1% to 2.0% (interpreted on CPU, 128 to 1,024 positions, 2026-11-23); a position that is
# left out makes 100%.
TOLERANCE = 0.1
ROWS_PER_DEVICE = 2


@dataclasses.dataclass(frozen=True)
class _Rows:
    """The rows of a layer's attention, which decide its kernel."""

    encoder: encoder.EncoderConfig
    layer: int
    length: int
    is_packed: bool
    rate: float
    reading: str

    @property
    def kernel(self) -> tuple[Any, ...]:
        """Equal for layers with the same kernel."""
        sizes, layer = self.encoder, self.layer
        return (
            *(self.length, self.is_packed, self.head_size, sizes.num_attention_heads),
            *(sizes.window_of(layer), sizes.rotary_base_of(layer), self.left_to_right),
            *(self.rate, sizes.dtype, self.has_order, sizes.relative),
        )

    @property
    def left_to_right(self) -> bool:
        return self.encoder.left_to_right or self.reading == "left_to_right"

    @property
    def has_order(self) -> bool:
        return self.reading == "order"

    @property
    def head_size(self) -> int:
        return self.encoder.hidden_size // self.encoder.num_attention_heads

    @property
    def kernel_platforms(self) -> tuple[str, ...]:
        dtype = jnp.dtype(self.encoder.dtype)
        sizes = self.length, self.head_size
        return attention.kernel_platforms("auto", *sizes, dtype, self.rate, self.terms)

    @property
    def terms(self) -> relative.Terms | None:
        """The shapes of the terms by distance."""
        distances, heads = 2 * self.length - 1, self.encoder.num_attention_heads
        table = jax.ShapeDtypeStruct((distances, heads, self.head_size), self.encoder.dtype)
        bias = jax.ShapeDtypeStruct((heads, distances), jnp.float32)
        kinds = {"disentangled": (table, table), "t5_bias": (None, None, bias)}
        terms: Any = kinds.get(self.encoder.relative)
        return terms and relative.Terms(*terms)

    def __str__(self) -> str:
        window = self.encoder.window_of(self.layer)
        order = ", from left to right" if self.left_to_right else ""
        order += ", with an order of each" if self.has_order else ""
        reach = f"window {window}" if window else "no window"
        return f"rows of {self.length} positions, {reach}{order}"


def agrees(job: jobs.Job, mesh: Mesh) -> bool:
    """Returns whether the kernels agree with plain JAX on rows like the job's; logs the errors."""
    for rows in {rows.kernel: rows for rows in _all_rows(job, _platform(mesh))}.values():
        try:
            errors = _errors(rows, mesh)
        except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError) as error:
            logging.warning(
                "The attention kernel does not compile for %s (%s); the run goes on with "
                "config.model.attention=xla, which computes the same and is slower",
                rows, str(error).splitlines()[0],
            )  # fmt: skip
            return False
        if not all(error <= TOLERANCE for error in errors.values()):  # False for NaN
            logging.warning(
                "The attention kernel is off by %s for %s; at most %.0f%% was expected. The run "
                "goes on with config.model.attention=xla, which is slower",
                _listed(errors), rows, 100 * TOLERANCE,
            )  # fmt: skip
            return False
        logging.info("The attention kernel agrees with plain JAX for %s: off by at most %s",
                     rows, _listed(errors))  # fmt: skip
    return True


def errors(sizes: encoder.EncoderConfig, length: int, mesh: Mesh) -> dict[str, float]:
    """Returns the relative errors of the kernel of an encoder's first layer, by tensor."""
    return _errors(_Rows(sizes, 0, length, False, _rate(sizes, _platform(mesh)), "whole"), mesh)


def _platform(mesh: Mesh) -> str:
    """Returns the platform whose kernels are tried."""
    return attention.CUDA if mesh.devices.flat[0].platform == "gpu" else attention.TPU


def _rate(sizes: encoder.EncoderConfig, platform: str) -> float:
    return 0.0 if platform == attention.CUDA else sizes.attention_probs_dropout_prob


def _all_rows(job: jobs.Job, platform: str) -> Iterator[_Rows]:
    """Yields the rows that the kernels would take of the batches of each phase and layer."""
    for phase in job.phases:
        is_packed = "sequence_ids" in job.data.abstract_batch(phase)
        for length in job.data.of_phase(phase).lengths:
            for sizes, reading in _encoders(jobs.in_phase(job, phase).task):
                rate = _rate(sizes, platform)
                for layer in range(sizes.num_hidden_layers):
                    rows = _Rows(sizes, layer, length, is_packed, rate, reading)
                    if platform in rows.kernel_platforms:
                        yield rows


def _encoders(task: Any) -> Iterator[tuple[encoder.EncoderConfig, str]]:
    """Yields the encoders of a task and of tasks in it that are left to the trial, by reading."""
    directions = task.readings if isinstance(task, base.HasKindsOfRows) else ("whole",)
    for part in vars(task).values():
        if isinstance(part, encoder.EncoderConfig):
            if part.attention in ("auto", "cudnn"):
                yield from ((part, reading) for reading in directions)
        elif dataclasses.is_dataclass(part):
            yield from _encoders(part)


def _listed(errors: dict[str, float]) -> str:
    return ", ".join(f"{error:.2%} ({name})" for name, error in errors.items())


def _errors(rows: _Rows, mesh: Mesh) -> dict[str, float]:
    """Returns the relative errors of the context and of the gradients, of terms too."""
    sizes, layer = rows.encoder, rows.layer
    count = ROWS_PER_DEVICE * mesh.shape[sharding.DATA]
    shape = (count, rows.length, sizes.num_attention_heads, rows.head_size)

    # Every host gets the errors.
    @functools.partial(jax.jit, out_shardings=jax.sharding.NamedSharding(mesh, sharding.P()))
    def errors(inputs: dict[str, Any]) -> jax.Array:
        draws = jax.random.split(jax.random.key(0), 7)
        # By rows, as in a run: a large slice has many, and no device has room for all of them.
        *tensors, grad = (
            placement.constrain(
                jax.random.normal(key, shape, jnp.float32).astype(sizes.dtype), placement.DATA
            )
            for key in draws[:4]
        )
        scale = jnp.asarray(rows.head_size**-0.5, tensors[0].dtype)
        tensors[0] = tensors[0] * scale
        shapes, kind = jax.tree.flatten(rows.terms)  # none or two, each with its own numbers
        terms = kind.unflatten(
            jax.random.normal(key, it.shape, it.dtype) * scale
            for key, it in zip(draws[5:], shapes, strict=False)
        )
        visible = visibility.of(inputs).narrowed(
            window=sizes.window_of(layer), left_to_right=rows.left_to_right
        )

        def context_and_gradients(implementation: str) -> tuple[jax.Array, ...]:
            def attend(query: Any, keys: Any, values: Any, terms: Any) -> jax.Array:
                return attention.attend(
                    *(query, keys, values, visible),
                    terms=terms,
                    dropout_rate=rows.rate,
                    key=draws[4],
                    implementation=implementation,
                    rotary_base=sizes.rotary_base_of(layer),
                )

            context, backward = jax.vjp(attend, *tensors, terms)
            return (context, *jax.tree.leaves(backward(grad)))

        pairs = zip(context_and_gradients("auto"), context_and_gradients("xla"), strict=True)
        return jnp.stack([_error(x, y) for x, y in pairs])

    numbers = np.ones((count, rows.length), np.int32)
    if rows.is_packed:
        numbers[:, rows.length // 4 :] = 2
        numbers[:, rows.length // 2 :] = 3
    numbers[1::2, 2 * rows.length // 3 :] = 0  # a third of every second row is padding
    where = sharding.batch_sharding(mesh)
    with jax.set_mesh(mesh):
        placed = jax.make_array_from_callback(numbers.shape, where, lambda index: numbers[index])
        name = "sequence_ids" if rows.is_packed else "input_mask"
        batch: dict[str, jax.Array] = {name: placed}
        if rows.has_order:  # a first half that sees itself alone
            places = jnp.arange(rows.length, dtype=jnp.int32)
            order = jnp.where(places < rows.length // 2, 0, places)
            batch["order"] = jnp.broadcast_to(order, numbers.shape)
        found = np.asarray(errors(batch)).tolist()
    names = ("context", "query", "keys", "values", "distances of queries", "distances of keys")
    return dict(zip(names, found, strict=False))


def _error(actual: jax.Array, expected: jax.Array) -> jax.Array:
    actual, expected = (x.astype(jnp.float32) for x in (actual, expected))
    squares = jnp.square(actual - expected).sum(axis=-1)
    return jnp.sqrt(squares.max() / jnp.square(expected).sum(axis=-1).mean())
