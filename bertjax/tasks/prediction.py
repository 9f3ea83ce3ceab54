"""The predictions of a task for batches, of a saved model or during training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from bertjax.devices import sharding
from bertjax.models import parameters
from bertjax.tasks import base

Outputs = dict[str, np.ndarray]
# A jitted `predict_step` of one task.
PredictStep = Callable[[parameters.Params, base.Batch], Mapping[str, Any]]


def predict_step(
    task: base.Task, graphdef: nnx.GraphDef, params: parameters.Params, batch: base.Batch
) -> dict[str, Any]:
    """Returns the predictions for a batch without labels, and the batch's `record_positions`."""
    predictions = task.predict(parameters.merge(graphdef, params), batch)
    if not predictions:
        return {}
    return {**predictions, "record_positions": batch["record_positions"]}


def predict(
    step: PredictStep,
    params: parameters.Params,
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    mesh: Mesh,
    global_batch_size: int,
) -> Outputs:
    """Returns the predictions for batches without labels, as `in_order` does."""
    placed = (
        sharding.to_devices(batch, mesh, global_batch_size, with_places=True) for batch in batches
    )
    return in_order([jax.device_get(step(params, batch)) for batch in placed])


def in_order(parts: Sequence[Mapping[str, np.ndarray]]) -> Outputs:
    """Returns the predictions of all batches, one row for each example, in the examples' order.

    `record_positions` is the example of each row, -1 for padding. Where batches have different
    lengths, the shorter rows are padded: with -1, or with the lowest number of a float type.
    """
    if not parts or "record_positions" not in parts[0]:
        return {}
    positions = np.concatenate([part["record_positions"] for part in parts])
    order = np.argsort(positions, kind="stable")[np.count_nonzero(positions < 0) :]
    names = parts[0].keys() - {"record_positions"}
    return {name: _joined([part[name] for part in parts])[order] for name in sorted(names)}


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    is_float = np.issubdtype(arrays[0].dtype, np.floating)
    padding = np.finfo(arrays[0].dtype).min if is_float else -1
    longest = max(array.shape[1] for array in arrays)
    rest = [(0, 0)] * (arrays[0].ndim - 2)
    padded = []
    for array in arrays:
        widths = [(0, 0), (0, longest - array.shape[1]), *rest]
        padded.append(np.pad(array, widths, constant_values=padding))
    return np.concatenate(padded)


def check_numbers(outputs: Any, of_what: str) -> None:
    """Raises a ValueError if a number in the model's outputs, a tree of arrays, is not finite."""
    arrays = (np.asarray(leaf) for leaf in jax.tree.leaves(outputs))
    if not all(np.isfinite(array).all() for array in arrays):
        raise ValueError(
            f"the model's outputs for {of_what} hold NaN or infinite numbers, which are not "
            "predictions: its weights are damaged or have diverged; take another checkpoint "
            "(--step), or the weights that it was made from"
        )
