"""The parts that the attention kernels share: products, the rule of the mask, operands."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bertjax.models import visibility
from bertjax.models.visibility import Visibility

LANES = 128
LOWEST = jnp.finfo(jnp.float32).min


def only(lanes: Array, x: Array) -> Array:
    """Returns `x` with zeros in the other lanes.

    A product with the other heads' lanes at zero costs nothing on a matrix unit 128 deep; slicing
    would move numbers between lanes.
    """
    return jnp.where(lanes, x, jnp.zeros((), x.dtype))


def dot(a: Array, b: Array, axes: tuple[int, int]) -> Array:
    """Returns the product over these axes, in float32."""
    dimensions = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def lanes_of_heads(rows: int, lanes: int, size: int) -> list[Array]:
    """Returns [rows, lanes] for each head: whether a lane belongs to it."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (rows, lanes), 1)
    return [(lane >= start) & (lane < start + size) for start in range(0, lanes, size)]


class MaskRule(NamedTuple):
    """The part of a `Visibility` that is known when a kernel is compiled."""

    is_by_key: bool
    has_positions: bool  # or an order
    rises: bool  # the numbers that are compared rise from place to place
    window: int | None
    left_to_right: bool

    @classmethod
    def of(cls, visible: Visibility) -> MaskRule:
        is_narrow = visible.window is not None or visible.left_to_right
        has_positions = is_narrow and visible.compared is not None
        order = visible.window, visible.left_to_right
        return cls(visible.is_by_key, has_positions, visible.order is None, *order)

    def rows(self, visible: Visibility) -> list[Array]:
        """Returns int32 [batch, length]: sequence numbers (or 1 and 0); positions, if needed."""
        numbers = visible.is_real if visible.sequence_ids is None else visible.sequence_ids
        rows = [numbers] + ([visible.compared] if self.has_positions else [])
        return [x.astype(jnp.int32) for x in rows]

    def bias(self, queries: list[Array], keys: list[Array], begins: tuple) -> Array:
        """Returns the bias of scores, [keys, queries] or [keys, 1]: LOWEST where unseen.

        `queries` and `keys` are `rows`, [1, n] each; `begins` are the places of the first of each.
        """
        by_key = [_column(x.astype(jnp.float32)) for x in keys]  # exact up to 2^24
        if self.is_by_key:
            return jnp.where(by_key[0] != 0, 0.0, LOWEST)
        by_query = [x.astype(jnp.float32) for x in queries]
        seen = (by_key[0] == by_query[0]) & (by_key[0] != 0)
        query, key = by_query[-1], by_key[-1]
        if not self.has_positions:
            query, key = (
                jax.lax.broadcasted_iota(jnp.int32, seen.shape, axis) + begin
                for axis, begin in zip((1, 0), begins, strict=True)
            )
        seen &= visibility.within(query, key, window=self.window, left_to_right=self.left_to_right)
        return jnp.where(seen, 0.0, LOWEST)


def _column(row: Array) -> Array:
    """Returns a row [1, length] as a column [length, 1]."""
    return jnp.broadcast_to(row, (8, row.shape[1])).T[:, :1]


class Operands(NamedTuple):
    """The inputs of a kernel on one device; heads fill whole grid steps."""

    # [batch, length, heads, head]: query, keys, values; backward also (context,) and its gradient
    tensors: tuple[Array, ...]
    statistics: tuple[Array, ...]  # [batch, heads, n], from the forward pass
    tables: tuple[Array, ...]  # cosines and sines of `rotary.tables`, if the kernel rotates
    rows: tuple[Array, ...]  # of `MaskRule.rows`
    seeds: tuple[Array, ...]  # [batch, heads], if there is dropout
    terms: tuple[Array, ...]  # of `pallas_terms.tables`, [2 x length, heads, head]


def name_of(kind: str, rule: MaskRule, rotates: bool, has_dropout: bool) -> str:
    """Returns the name of a kernel, by which `plan.hlo` knows its cost."""
    parts = [f"attention_{kind}"]
    parts += [] if rule.is_by_key else ["pairs"]
    parts += ["positions"] if rule.has_positions else []
    parts += ["rotary"] if rotates else []
    parts += ["dropout"] if has_dropout else []
    return "_".join(parts)
