"""Visibility: the positions that each position of a row attends to.

A row of a batch holds one or more sequences. `sequence_ids` [batch, length] is 0 at padding, and a
position sees only the positions with its own number; `positions` count within a sequence. An
`input_mask` of ones and zeros says the same for one sequence per row. Each layer may restrict it
further by a window or an order (`attention.SelfAttention`), and rows may have an `order` as well.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from bertjax.models import layers, packed_rows


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["is_real", "sequence_ids", "positions", "order"],
    meta_fields=["window", "left_to_right"],
)
@dataclasses.dataclass(frozen=True)
class Visibility:
    """Arrays over [batch, length], and a window and an order for all rows of a layer.

    `is_real` is False at padding. `sequence_ids` is None if a row is one sequence, `positions` if
    they are the places in the row. With a `window` w position i sees j if |i - j| <= w; with
    `left_to_right` if j <= i. Positions are compared within a sequence, where they must rise by one
    from place to place: long rows are cut into blocks by their places.

    `order` holds numbers that `left_to_right` compares in place of positions. They need not rise:
    positions with the same number see each other.

    Nothing sees padding. If a row is one sequence, without a window or an order, padding itself
    sees the sequence, as in the released code; otherwise it sees nothing, and attention gives zeros
    there.
    """

    is_real: Any
    sequence_ids: Any = None
    positions: Any = None
    order: Any = None
    window: int | None = None
    left_to_right: bool = False

    @property
    def is_by_key(self) -> bool:
        """Whether all positions of a row see the same positions: all tokens."""
        return self.sequence_ids is None and self.window is None and not self.left_to_right

    @property
    def compared(self) -> Any:
        """The numbers [batch, length] that window and order compare; None: places in the row."""
        return self.positions if self.order is None else self.order

    def narrowed(self, *, window: int | None, left_to_right: bool) -> Visibility:
        """Returns the visibility of a layer with this window and order.

        Raises:
          ValueError: if the layer has a window and the rows have an `order`.
        """
        if window is not None and self.order is not None:
            raise ValueError(f"rows have an `order`, and the layer a window of {window}: not both")
        left_to_right |= self.left_to_right
        return dataclasses.replace(self, window=window, left_to_right=left_to_right)


def of(inputs: layers.Inputs) -> Visibility:
    """Returns the visibility by a batch's `sequence_ids` and `positions`, or its `input_mask`.

    With an `order` every position sees the positions with a number that is not above its own.
    """
    numbers, order = inputs.get("sequence_ids"), inputs.get("order")
    is_real = (inputs["input_mask"] if numbers is None else numbers) != 0
    has_order = order is not None
    return Visibility(is_real, numbers, positions(inputs), order, left_to_right=has_order)


def positions(inputs: layers.Inputs) -> Int[Array, "batch length"] | None:
    """Returns every token's place in its sequence, None if that is its place in the row.

    It is the batch's `positions`, or the number of places since the token's sequence began.
    """
    if "positions" in inputs:
        return inputs["positions"]
    if "sequence_ids" not in inputs:
        return None
    numbers = inputs["sequence_ids"]
    places = jax.lax.broadcasted_iota(jnp.int32, numbers.shape, 1)
    return places - packed_rows.first_of_each(numbers)


def placed(visible: Visibility, length: int) -> Visibility:
    """Returns the same with `positions`, which are the places in the row if there were none."""
    if visible.positions is not None:
        return visible
    places = jnp.arange(length, dtype=jnp.int32)
    return dataclasses.replace(
        visible, positions=jnp.broadcast_to(places, (visible.is_real.shape[0], length))
    )


def pairs(
    visible: Visibility, asking: Visibility | None = None
) -> Bool[Array, "rows 1 queries keys"]:
    """Returns whether a query sees a key, for all heads; one query if all see the same.

    The queries are at the places of the keys, or of `asking`; both need `positions` then.
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
