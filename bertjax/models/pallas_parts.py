"""What the attention kernels share: how they multiply, and what they know of a `Visibility`."""

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

    A product with the other heads' lanes at zero is free where the core's matrix unit is 128 deep,
    and moves nothing between lanes, as slicing would.
    """
    return jnp.where(lanes, x, jnp.zeros((), x.dtype))


def dot(a: Array, b: Array, axes: tuple[int, int]) -> Array:
    """Returns the product over these axes, in float32."""
    dimensions = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def lanes_of_heads(rows: int, lanes: int, size: int) -> list[Array]:
    """Returns [rows, lanes] for each head: whether a lane is one of its."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (rows, lanes), 1)
    return [(lane >= start) & (lane < start + size) for start in range(0, lanes, size)]


class Sight(NamedTuple):
    """What a kernel knows of a `Visibility` when it is compiled."""

    is_by_key: bool
    has_positions: bool
    window: int | None
    left_to_right: bool

    @classmethod
    def of(cls, visible: Visibility) -> Sight:
        is_narrow = visible.window is not None or visible.left_to_right
        has_positions = is_narrow and visible.positions is not None
        return cls(visible.is_by_key, has_positions, visible.window, visible.left_to_right)

    def rows(self, visible: Visibility) -> list[Array]:
        """Returns [batch, length] in int32: numbers (or 1 and 0); positions if they are needed."""
        numbers = visible.is_real if visible.sequence_ids is None else visible.sequence_ids
        rows = [numbers] + ([visible.positions] if self.has_positions else [])
        return [x.astype(jnp.int32) for x in rows]

    def added(self, queries: list[Array], keys: list[Array], begins: tuple) -> Array:
        """Returns what to add to scores, [keys, queries] or [keys, 1]: LOWEST where unseen.

        Takes `rows` of queries and keys, [1, n] each, and at which places of the row they begin.
        """
        by_key = [_turned(x.astype(jnp.float32)) for x in keys]  # exact up to 2^24
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


def _turned(row: Array) -> Array:
    """Returns a row [1, length] as a column."""
    return jnp.broadcast_to(row, (8, row.shape[1])).T[:, :1]


class Operands(NamedTuple):
    """What a kernel reads of a device's rows and heads.

    `tensors` are query, keys and values, [batch, length, heads, head] each, whose heads fill the
    lanes of whole grid steps; of a backward pass also the context's gradient, and what comes before
    it. `statistics` [batch, heads, n] are those of the forward pass. `tables` are cosines and sines
    (`rotary.tables`) where queries and keys are to be rotated. `rows` are those of `Sight`, `seeds`
    [batch, heads] those of dropout, if there is any.
    """

    tensors: tuple[Array, ...]
    statistics: tuple[Array, ...]
    tables: tuple[Array, ...]
    rows: tuple[Array, ...]
    seeds: tuple[Array, ...]


def name_of(kind: str, sight: Sight, *, rotates: bool, has_dropout: bool) -> str:
    """Returns the name of a kernel, which `planning.kernels` knows it by: what it computes."""
    parts = [f"attention_{kind}"]
    parts += [] if sight.is_by_key else ["pairs"]
    parts += ["positions"] if sight.has_positions else []
    parts += ["rotary"] if rotates else []
    parts += ["dropout"] if has_dropout else []
    return "_".join(parts)
