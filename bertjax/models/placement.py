"""The sharding of activations: rows over `data`, heads and intermediate units over `tensor`.

`bertjax.devices.sharding` has the sharding of parameters and batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

DATA, TENSOR = "data", "tensor"
# The tables with which a head's logits are products: the words', or an untied head's own.
WORDS = (".embeddings.word.embedding", "_head.output.embedding")
# A table of embeddings with at least this number of entries is split over `data`: updating a
# smaller one costs a TPU little, and a usual batch has as many rows (docs/performance.md).
LARGE_TABLE = 2**17


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Pins `x` to mesh axes inside jit, under `jax.set_mesh`.

    Without a mesh, or with other axis names (another project's), it returns `x` unchanged.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not set(axes) - {None} <= set(mesh.axis_names):
        return x
    return jax.lax.with_sharding_constraint(x, P(*axes))


@jax.custom_vjp
def gathered(x: jax.Array) -> jax.Array:
    """Gathers `x`, which may be split over `data`, on every device.

    The gradient is not constrained. It returns `x` unchanged if a `tensor` axis may split it as
    well, inside shard_map, without a mesh, or with other axis names.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not {DATA, TENSOR} <= set(mesh.axis_names) or mesh.shape[TENSOR] > 1:
        return x
    works_alone = AxisType.Manual in mesh.axis_types
    return x if works_alone else jax.lax.with_sharding_constraint(x, P())


gathered.defvjp(lambda x: (gathered(x), None), lambda _, grad: (grad,))


def splits_entries(entries: int, devices: int) -> bool:
    """Returns whether a table is split over the `devices` of `data`: if large and divisible."""
    return devices > 1 and entries >= LARGE_TABLE and not entries % devices


def has_own_entries(table: jax.Array, rows: int) -> bool:
    """Returns whether each device reads its own entries of `table` for the `rows` of all devices.

    If there are fewer rows than entries, less is sent over the devices that way.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not {DATA, TENSOR} <= set(mesh.axis_names) or mesh.shape[TENSOR] > 1:
        return False
    works_alone = table.ndim != 2 or AxisType.Manual in mesh.axis_types
    is_split = splits_entries(len(table), mesh.shape[DATA])
    return is_split and rows < len(table) and not works_alone


def copied(table: jax.Array, mesh: Mesh) -> jax.Array:
    """Returns a copy of `table` on each device of `data`, [devices, *shape].

    A reader of the copies by `with_own_copy` has its gradient on its device, so the gradients of
    all readers and micro-batches are added there and summed over the devices once. If they read one
    table, the compiler sums each reader's gradient over the devices.
    """
    copies = jnp.broadcast_to(table, (mesh.shape[DATA], *table.shape))
    return jax.lax.with_sharding_constraint(copies, NamedSharding(mesh, P(DATA)))


def with_own_copy(
    function: Callable[[jax.Array, jax.Array], jax.Array], table: jax.Array, rows: jax.Array
) -> jax.Array:
    """Returns `function(table, rows)` for a table [entries, width] or its `copied`.

    The function must keep the first axis of `rows`, which is split over the devices.
    """
    if table.ndim == 2:
        return function(table, rows)

    def on_device(copies: jax.Array, rows: jax.Array) -> list[jax.Array]:
        return [function(copies[0], rows)]

    return per_device(on_device, (table, rows), (P(DATA), P(DATA)), (P(DATA),))[0]


def per_device(
    function: Callable[..., Any],
    arguments: Sequence[jax.Array],
    in_specs: Sequence[P],
    out_specs: Sequence[P],
) -> Any:
    """Returns the list `function(*arguments)`, computed by each device from its own slices.

    It is for kernels, which the compiler cannot split. A mesh axis that does not divide all of its
    dimensions is left out: the devices along it then compute the same. Without a mesh, or with
    other axis names, it calls `function` directly.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not {DATA, TENSOR} <= set(mesh.axis_names):
        return function(*arguments)
    left_out = {
        axis
        for x, spec in zip(arguments, in_specs, strict=True)
        for size, axis in zip(x.shape, spec, strict=False)
        if axis is not None and size % mesh.shape[axis]
    }

    def kept(specs: Sequence[P]) -> list[P]:
        return [P(*(None if axis in left_out else axis for axis in spec)) for spec in specs]

    split = jax.shard_map(
        function, in_specs=tuple(kept(in_specs)), out_specs=kept(out_specs), check_vma=False
    )
    return split(*arguments)
