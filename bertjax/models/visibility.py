"""Visibility: the positions of a row that the attention of each position reaches.

A row of a batch holds one or more sequences. `sequence_ids` [batch, length] is 0 at padding, and a
position sees only those of its own number; `positions` count within a sequence. An `input_mask` of
ones and zeros says the same for one sequence per row. Each layer may narrow it further, by a window
or an order (`attention.SelfAttention`). The rows of a batch may have orders of their own (`order`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from bertjax.models import layers


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["is_real", "sequence_ids", "positions", "order"],
    meta_fields=["window", "left_to_right"],
)
@dataclasses.dataclass(frozen=True)
class Visibility:
    """Arrays over [batch, length], and what holds for all rows of a layer.

    `is_real` is False at padding. `sequence_ids` are None where a row is one sequence, `positions`
    where they are places in the row. `window` w lets i see j if |i - j| <= w, None lets all;
    `left_to_right` lets i see j if j <= i. Positions are compared within a sequence, where they are
    to rise by one from place to place: long rows are cut into blocks by their places.

    `order` holds numbers that `left_to_right` compares in place of positions. They may rise or not:
    positions of the same number see each other.

    Padding is seen by nothing. Where a row is one sequence, and neither a window nor an order
    narrows what is seen, padding itself sees the sequence, as in the released code; elsewhere it
    sees nothing, and attention gives zeros there.
    """

    is_real: Any
    sequence_ids: Any = None
    positions: Any = None
    order: Any = None
    window: int | None = None
    left_to_right: bool = False

    @property
    def is_by_key(self) -> bool:
        """Whether all positions of a row see the same ones: those that are real."""
        return self.sequence_ids is None and self.window is None and not self.left_to_right

    @property
    def compared(self) -> Any:
        """The numbers [batch, length] that window and order compare, None for places in the row."""
        return self.positions if self.order is None else self.order

    def narrowed(self, *, window: int | None, left_to_right: bool) -> Visibility:
        """Returns what a layer with this window and order sees, where all rows have none.

        Raises:
          ValueError: if there is a window, and rows have an `order` of their own.
        """
        if window is not None and self.order is not None:
            raise ValueError(f"rows have an order of their own, and a window of {window}: not both")
        left_to_right |= self.left_to_right
        return dataclasses.replace(self, window=window, left_to_right=left_to_right)


def of(inputs: layers.Inputs) -> Visibility:
    """Returns what a batch says: by its `sequence_ids` and `positions`, or its `input_mask`.

    With an `order` in it every position sees those whose number is not above its own.
    """
    numbers, order = inputs.get("sequence_ids"), inputs.get("order")
    is_real = (inputs["input_mask"] if numbers is None else numbers) != 0
    has_order = order is not None
    return Visibility(is_real, numbers, positions(inputs), order, left_to_right=has_order)


def positions(inputs: layers.Inputs) -> Int[Array, "batch length"] | None:
    """Returns every token's place in its sequence, None where that is its place in the row.

    They are the batch's `positions`, or of its `sequence_ids` counted from where a number begins.
    """
    if "positions" in inputs:
        return inputs["positions"]
    if "sequence_ids" not in inputs:
        return None
    numbers = inputs["sequence_ids"]
    place = jnp.broadcast_to(jnp.arange(numbers.shape[1], dtype=jnp.int32), numbers.shape)
    begins = jnp.diff(numbers, axis=1, prepend=numbers[:, :1]) != 0
    return place - jax.lax.cummax(jnp.where(begins, place, 0), axis=1)


def placed(visible: Visibility, length: int) -> Visibility:
    """Returns the same with `positions` for every row: places in the row where there were none."""
    if visible.positions is not None:
        return visible
    places = jnp.arange(length, dtype=jnp.int32)
    return dataclasses.replace(
        visible, positions=jnp.broadcast_to(places, (visible.is_real.shape[0], length))
    )


def pairs(
    visible: Visibility, asking: Visibility | None = None
) -> Bool[Array, "rows 1 queries keys"]:
    """Returns whether a query sees a key, for all heads; one query for all if all see the same.

    The queries are at the places of the keys, or at those of `asking`, both with `positions` then.
    """
    if visible.is_by_key:
        return visible.is_real[:, None, None, :]
    if asking is None:
        asking = visible
    seen = asking.is_real[:, :, None] & visible.is_real[:, None, :]
    if (numbers := visible.sequence_ids) is not None:
        seen &= asking.sequence_ids[:, :, None] == numbers[:, None, :]
    if (places := visible.compared) is None:
        places = jnp.arange(visible.is_real.shape[1], dtype=jnp.int32)[None]
    seen &= within(
        (places if asking.compared is None else asking.compared)[:, :, None],
        places[:, None, :],
        window=visible.window,
        left_to_right=visible.left_to_right,
    )
    return seen[:, None]


def within(query: Array, key: Array, *, window: int | None, left_to_right: bool) -> Array | bool:
    """Returns whether window and order let the positions `query` see the positions `key`."""
    seen: Any = True
    if window is not None:
        seen = jnp.abs(query - key) <= window
    if left_to_right:
        seen &= key <= query
    return seen
