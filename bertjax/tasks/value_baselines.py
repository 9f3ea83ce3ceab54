"""Losses of predictions of hidden values without a model, which scores are compared with.

The mean of the row's visible values; and in rows whose values follow each other, the last value
shown before, and the straight line between the last and the next one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models import values
from bertjax.tasks import base


def mean_shown(targets: Float[Array, "batch length width"], batch: base.Batch) -> Array:
    """Returns the mean of the observed values of a row that are not hidden [batch, 1, 1]."""
    shown = _shown(batch)
    total = (shown * targets).sum(axis=(1, 2), keepdims=True)
    return total / jnp.maximum(shown.sum(axis=(1, 2), keepdims=True), 1.0)


def neighbours(
    targets: Float[Array, "batch length width"], batch: base.Batch
) -> tuple[Float[Array, "batch length width"], Float[Array, "batch length width"]]:
    """Returns the last value shown before each one, and the line from it to the next one shown.

    Where there is none before, the next one stands for it, and the other way round; a row that
    shows nothing has 0.
    """
    count = targets.shape[1] * targets.shape[2]
    flat = targets.reshape(-1, count)
    is_shown = _shown(batch).reshape(-1, count) > 0
    at = jnp.broadcast_to(jnp.arange(count), flat.shape)
    before = jax.lax.cummax(jnp.where(is_shown, at, -1), axis=1)
    after = jax.lax.cummin(jnp.where(is_shown, at, count), axis=1, reverse=True)
    is_none = before < 0, after >= count
    before, after = jnp.where(is_none[0], after, before), jnp.where(is_none[1], before, after)
    is_empty = is_none[0] & is_none[1]
    first, second = (
        jnp.where(is_empty, 0.0, jnp.take_along_axis(flat, it.clip(0, count - 1), axis=1))
        for it in (before, after)
    )
    share = (at - before) / jnp.maximum(after - before, 1)
    line = first + share * (second - first)
    return first.reshape(targets.shape), line.reshape(targets.shape)


def _shown(batch: base.Batch) -> Float[Array, "batch length width"]:
    return values.observed(batch) * (batch["hidden"] == 0).astype(jnp.float32)[:, :, None]
