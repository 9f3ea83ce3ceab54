"""The device mesh, and the sharding of parameters and batches.

Two axes: `data` (rows of the batch; under fsdp also slices of the parameters) and `tensor` (heads
and intermediate units). A rule table maps parameter paths to PartitionSpecs; optimizer state has
its parameter's sharding. Library code takes its mesh as an argument and never asks JAX for devices,
so that the same code compiles for devices that do not exist here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.models import parameters, placement
from bertjax.models.placement import DATA, TENSOR
from bertjax.options import faults

# The number of vocabulary entries is seldom divisible, so embeddings are split along the hidden
# dimension under fsdp and replicated over the tensor axis.
_PATCHES = r".*\.embeddings\.patches\.kernel"  # the number of values is small, seldom divisible
# The table of distances is small, and T5's has a column for each head, which few meshes divide.
_DISTANCES = r".*\.relative\.table\.embedding"
_COLUMN = r".*\.(query|key|value|intermediate|gate)"
_COLUMN_BIAS = _COLUMN + r"\.bias"
_ROW = r".*\.(layers|cross)\.\d+\.(attention\.)?output"
# Part of the model -> its rule, before all others. These are small, and some sizes are divisible by
# no axis: LoRA's rank, the 200 numbers of a place in a span. A BiLSTM's kernels would be gathered
# again for every token.
_WHOLE = {part: (rf"{part}\..*", P()) for part in ("lora", "lstm", "sbo_head")}
RULES: dict[str, list[tuple[str, P]]] = {
    "data_parallel": [(r".*", P())],
    "fsdp": [
        (_DISTANCES, P()),
        (r".*\.embedding", P(None, DATA)),
        (_PATCHES, P(None, DATA)),
        (r".*\.kernel", P(DATA, None)),
        (r".*(bias|scale)", P()),
    ],
    "tensor": [
        (_COLUMN + r"\.kernel", P(None, TENSOR)),
        (_COLUMN_BIAS, P(TENSOR)),
        (_ROW + r"\.kernel", P(TENSOR, None)),
        (r".*", P()),
    ],
    "fsdp_tensor": [
        (_DISTANCES, P()),
        (r".*\.embedding", P(None, DATA)),
        (_PATCHES, P(None, DATA)),
        (_COLUMN + r"\.kernel", P(DATA, TENSOR)),
        (_COLUMN_BIAS, P(TENSOR)),
        (_ROW + r"\.kernel", P(TENSOR, DATA)),
        (r".*\.kernel", P(DATA, None)),
        (r".*(bias|scale)", P()),
    ],
}


def make_mesh(devices: Sequence[Any], *, data: int, tensor: int = 1) -> Mesh:
    """Returns a data x tensor mesh of JAX `devices`; `data` = -1 takes all of them."""
    if tensor < 1 or (data < 1 and data != -1):
        raise ValueError(
            f"config.mesh.data is {data} and config.mesh.tensor is {tensor}; both must be at "
            "least 1 (data may be -1: all devices)"
        )
    if data == -1:
        data = max(len(devices) // tensor, 1)
    if data * tensor != len(devices):
        raise ValueError(
            f"config.mesh is data={data} x tensor={tensor} = {data * tensor} devices, but there "
            f"are {len(devices)}: set --config.mesh.data=-1 to use all of them, or start on a "
            f"slice of {data * tensor}"
        )
    grid = np.asarray(devices).reshape(data, tensor)
    # Auto axes: the compiler propagates shardings. jax.make_mesh defaults to Explicit since 0.9.
    return Mesh(grid, (DATA, TENSOR), axis_types=(AxisType.Auto,) * 2)


def shardings(
    mesh: Mesh, params: Any, tree: Any, *, rule_table: str, split_kernels: bool = False
) -> Any:
    """Returns a NamedSharding for every leaf of `tree`, by the rules for `params`.

    A leaf whose path ends in a parameter's path has the parameter's sharding (as Adam's moments);
    every other leaf is replicated.

    With `split_kernels` a kernel that the rules replicate over the data devices is split over them,
    along the first divisible dimension: ZeRO's first stage (Rajbhandari et al. 2020, section 5.1),
    where the float32 parameters are part of the optimizer's state. A large table of words is split
    by entries, if divisible (`placement.splits_entries`).
    """
    table = f"sharding rule table {rule_table!r}"
    whole = [rule for part, rule in _WHOLE.items() if part in params]
    absent = [it for it in (_COLUMN_BIAS, _PATCHES, _DISTANCES) if not _has(params, it)]
    rules = [rule for rule in RULES[rule_table] if rule[0] not in absent]
    specs = parameters.assign([*whole, *rules], params, table=table)
    by_name = {
        parameters.path_name(path): spec
        for path, spec in jax.tree_util.tree_leaves_with_path(specs)
    }
    if split_kernels:
        kept_whole = tuple(f"{part}." for part in _WHOLE)
        for name, leaf in parameters.flat(params).items():
            if name.endswith(".kernel") and not name.startswith(kept_whole):
                by_name[name] = _split(by_name[name], leaf.shape, mesh.shape[DATA])
            if name.endswith(placement.WORDS) and placement.splits_entries(
                len(leaf), mesh.shape[DATA]
            ):
                by_name[name] = _split(by_name[name], leaf.shape[:1], mesh.shape[DATA])
    misfits = []

    def place(path: Sequence[Any], leaf: Any) -> NamedSharding:
        suffixes = (parameters.path_name(path[start:]) for start in range(len(path)))
        spec = next((by_name[suffix] for suffix in suffixes if suffix in by_name), P())
        for size, axis in zip(leaf.shape, spec, strict=False):
            if axis is not None and size % mesh.shape[axis]:
                misfits.append(
                    f"{parameters.path_name(path)} has a dimension of {size}, which the "
                    f"{mesh.shape[axis]} devices of mesh axis {axis!r} do not divide"
                )
        return NamedSharding(mesh, spec)

    placed = jax.tree_util.tree_map_with_path(place, tree)
    faults.check(f"{table} does not fit the mesh", misfits)
    return placed


def _split(spec: P, shape: Sequence[int], devices: int) -> P:
    """Returns `spec` with the first free divisible dimension split over `data`."""
    axes = [*spec, *[None] * (len(shape) - len(spec))]
    free = [at for at, axis in enumerate(axes) if axis is None and not shape[at] % devices]
    if DATA in axes or not free or devices == 1:
        return spec
    axes[free[0]] = DATA
    return P(*axes)


def _has(params: Any, pattern: str) -> bool:
    """Returns whether any parameter's path matches, as not all encoders have each of them."""
    return any(re.fullmatch(pattern, path) for path in parameters.flat(params))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: rows over the data axis."""
    return NamedSharding(mesh, P(DATA))


def local_rows(mesh: Mesh, global_batch_size: int) -> range:
    """Returns the rows of the global batch that this process's devices hold."""
    indices = batch_sharding(mesh).addressable_devices_indices_map((global_batch_size,))
    bounds = [slices[0].indices(global_batch_size) for slices in indices.values() if slices]
    return range(min(start for start, *_ in bounds), max(stop for _, stop, _ in bounds))


def to_devices(
    batch: Mapping[str, np.ndarray],
    mesh: Mesh,
    global_batch_size: int,
    *,
    with_places: bool = False,
) -> dict[str, jax.Array]:
    """Returns the global batch whose local rows are given.

    `record_positions` are left out, or with `with_places` placed on the devices like other rows.
    """
    where = batch_sharding(mesh)
    rows_of = {name: rows for name, rows in batch.items() if name != "record_positions"}
    if with_places and "record_positions" in batch:
        rows_of["record_positions"] = batch["record_positions"].astype(np.int32)
    return {
        name: jax.make_array_from_process_local_data(
            where, rows, (global_batch_size, *rows.shape[1:])
        )
        for name, rows in rows_of.items()
    }


def bytes_per_device(tree: Any, tree_shardings: Any) -> int:
    """Returns the bytes that one device holds of `tree` (arrays or shapes) under the shardings."""

    def leaf_bytes(leaf: Any, sharding: NamedSharding) -> int:
        return math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize

    return sum(jax.tree.leaves(jax.tree.map(leaf_bytes, tree, tree_shardings)))
