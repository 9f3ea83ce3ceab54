"""Masked values: the hidden part of a row of values is predicted from the rest of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.models import encoder, values
from bertjax.scores import baselines
from bertjax.tasks import base, config_needs, value_baselines

# Name -> the error of a prediction, elementwise.
ERRORS: dict[str, Callable[[Array], Array]] = {
    "squared": jnp.square,
    "absolute": jnp.abs,
    "huber": lambda error: jnp.where(
        jnp.abs(error) < 1.0, 0.5 * jnp.square(error), jnp.abs(error) - 0.5
    ),
}
# Added to the variance of a patch. Source: facebookresearch/mae, models_mae.py, forward_loss.
PATCH_EPSILON = 1e-6
MOST_FREQUENT = 1  # the code of the category that the training data have most often


class MaskedValuesModel(nnx.Module):
    """The encoder, and a head from a position's state to its values, its category, or a bit."""

    def __init__(self, config: encoder.EncoderConfig, *, predicts: str, rngs: nnx.Rngs):
        self.encoder = encoder.make_encoder(config, rngs=rngs)
        if predicts == "replaced":
            self.replaced_head = values.ColumnHead(
                dataclasses.replace(config, columns=(0,) * len(config.columns)), rngs=rngs
            )
        elif config.columns:
            self.column_head = values.ColumnHead(config, rngs=rngs)
        else:
            self.value_head = values.ValueHead(config, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class MaskedValues:
    """Predicts hidden values, and hidden categories; or which cells were exchanged.

    `value_loss` is the mean of `error` over hidden values that were observed, `category_loss` that
    of the cross-entropy over hidden categories. With `normalized_patches` the target of a patch has
    the mean 0 and the unbiased variance 1 (He et al. 2022, section 4.1). With `predicts` "replaced"
    `replaced_loss` is the mean binary cross-entropy over all observed cells of whether another
    value stands there (Rubachev et al. 2022, "mask").
    """

    encoder: encoder.EncoderConfig
    error: str = "squared"
    predicts: str = "values"
    normalized_patches: bool = False

    @property
    def objectives(self) -> Mapping[str, float]:
        if self.predicts == "replaced":
            return {"replaced_loss": 1.0}
        columns = self.encoder.columns
        has_numbers, has_categories = not columns or 0 in columns, any(columns)
        losses = {"value_loss": 1.0} if has_numbers else {}
        return losses | ({"category_loss": 1.0} if has_categories else {})

    @property
    def frozen(self) -> tuple[str, ...]:
        return ()

    def init(self, rngs: nnx.Rngs) -> MaskedValuesModel:
        return MaskedValuesModel(self.encoder, predicts=self.predicts, rngs=rngs)

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        if self.predicts == "replaced":
            return {"replaced_loss": _observed(batch)[:, :, 0].sum()}
        weights = scored(batch)
        if not self.encoder.columns:
            return {"value_loss": weights.sum()}
        is_category = jnp.array(self.encoder.columns) > 0
        by_column = weights[:, :, 0].sum(axis=0)
        totals = {
            "value_loss": jnp.where(is_category, 0.0, by_column).sum(),
            "category_loss": jnp.where(is_category, by_column, 0.0).sum(),
        }
        return {name: totals[name] for name in self.objectives}

    def loss(
        self, model: MaskedValuesModel, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns the objectives, value_mae, category_accuracy or replaced_accuracy; and baselines.

        `mean_loss` and `mean_mae` are the errors of the mean of what a row shows; for cells and for
        normalized patches of 0. An evaluation takes the training part's means of cells.
        """
        hidden = model.encoder(batch, key=key)
        if self.predicts == "replaced":
            return _replaced(model, hidden, batch)
        if self.encoder.columns:
            return self._of_columns(model, hidden, batch)
        targets = model.encoder.embeddings.targets(batch)
        if self.normalized_patches:
            targets = normalized(targets)
        weights = scored(batch)
        means = of_numbers(self.error, model.value_head(hidden) - targets, weights)
        mean = 0.0 if self.normalized_patches else value_baselines.mean_shown(targets, batch)
        return means | of_numbers(self.error, targets - mean, weights, "mean")

    def _of_columns(self, model: MaskedValuesModel, hidden: Array, batch: base.Batch) -> base.Means:
        cells, counted = batch["values"][:, :, 0], scored(batch)[:, :, 0]
        outputs = model.column_head(hidden)
        numbers = [at for at, count in enumerate(self.encoder.columns) if not count]
        means: base.Means = {}
        if numbers:
            predicted = jnp.concatenate([outputs[at] for at in numbers], axis=1)
            places = jnp.array(numbers)
            targets, weights = cells[:, places], counted[:, places]
            means |= of_numbers(self.error, predicted - targets, weights)
            means |= of_numbers(self.error, targets, weights, "mean")
        for at, count in enumerate(self.encoder.columns):
            if count:
                codes, weights = cells[:, at].astype(jnp.int32), counted[:, at]
                losses = base.cross_entropy(outputs[at], codes)
                of_column = {
                    "category_loss": base.weighted(losses, weights),
                    "category_accuracy": base.accuracy(outputs[at], codes, weights),
                    "most_frequent_accuracy": base.weighted(
                        (codes == MOST_FREQUENT).astype(jnp.float32), weights
                    ),
                }
                means = {
                    **means,
                    **{name: means[name] + it if name in means else it
                       for name, it in of_column.items()},
                }  # fmt: skip
        return means

    def evaluate(self, model: MaskedValuesModel, batch: base.Batch) -> base.Means:
        """Returns `loss`, and where values follow each other two baselines more."""
        means = self.loss(model, batch, key=None)
        is_in_order = self.encoder.position_embedding != "sines_of_grid"
        if self.encoder.columns or self.normalized_patches or not is_in_order:
            return means
        targets = model.encoder.embeddings.targets(batch)
        last, line = value_baselines.neighbours(targets, batch)
        for name, predicted in (("last_value", last), ("interpolation", line)):
            means |= of_numbers(self.error, targets - predicted, scored(batch), name)
        return means

    def predict(self, model: MaskedValuesModel, batch: base.Batch) -> dict[str, Array]:
        """Returns "values" [batch, length, width], in the units of the records; {} of tables."""
        if self.predicts == "replaced" or self.encoder.columns:
            return {}
        predicted = model.value_head(model.encoder(batch))
        if self.normalized_patches:
            mean, deviation = patch_moments(batch["values"])
            return {"values": predicted * deviation + mean}
        if self.encoder.normalized_rows:
            mean, deviation = values.row_moments(batch["values"], values.observed(batch))
            return {"values": predicted * deviation + mean}
        return {"values": predicted}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Three times the forward pass: encoder, and a dense layer into values and out of them."""
        del predictions
        hidden = self.encoder.hidden_size
        width = self.encoder.value_width or 1
        forward = self.encoder.forward_flops(length) + 4.0 * length * hidden * width
        return 3.0 * batch_size * forward


def of_numbers(error: str, errors: Array, weights: Array, name: str = "value") -> base.Means:
    """Returns NAME_loss, by a key of ERRORS, and NAME_mae of the errors of predictions."""
    return {
        f"{name}_loss": base.weighted(ERRORS[error](errors), weights),
        f"{name}_mae": base.weighted(jnp.abs(errors), weights),
    }


def chance(averages: Mapping[str, float]) -> dict[str, float]:
    """Returns the scores of calling no cell replaced, by the share of those that are."""
    share = averages.get("replaced_share", math.nan)
    if not 0 < share < 1:
        return {}
    return {"always_no_loss": baselines.share_entropy(share), "always_no_accuracy": 1 - share}


def _replaced(model: MaskedValuesModel, hidden: Array, batch: base.Batch) -> base.Means:
    logits = jnp.concatenate(model.replaced_head(hidden), axis=1)
    is_replaced = (batch["shown_values"] != batch["values"])[:, :, 0]
    weights = _observed(batch)[:, :, 0]
    losses = jax.nn.softplus(jnp.where(is_replaced, -logits, logits))
    is_right = (logits > 0) == is_replaced
    return {
        "replaced_loss": base.weighted(losses, weights),
        "replaced_accuracy": base.weighted(is_right.astype(jnp.float32), weights),
        "replaced_share": base.weighted(is_replaced.astype(jnp.float32), weights),
    }


def _observed(batch: base.Batch) -> Float[Array, "batch length width"]:
    return values.observed(batch) * batch["example_weights"][:, None, None]


def scored(batch: base.Batch) -> Float[Array, "batch length width"]:
    """Returns the weight of every value: 1 where it was observed and is hidden."""
    return _observed(batch) * batch["hidden"].astype(jnp.float32)[:, :, None]


def patch_moments(patches: Array) -> tuple[Array, Array]:
    """Returns mean and deviation of each patch [batch, length, 1]."""
    variance = patches.var(axis=2, keepdims=True, ddof=1)
    return patches.mean(axis=2, keepdims=True), jnp.sqrt(variance + PATCH_EPSILON)


def normalized(patches: Array) -> Array:
    """Returns patches with the mean 0 and the unbiased variance 1 each."""
    mean, deviation = patch_moments(patches)
    return (patches - mean) / deviation


def of_options(sizes: encoder.EncoderConfig, options: Any) -> MaskedValues:
    """Returns the task that config.pretraining asks for."""
    return MaskedValues(
        sizes,
        error=options.value_error,
        predicts=options.predicts,
        normalized_patches=options.normalized_patches,
    )


def faults(config: Any) -> Iterator[str]:
    """Yields a sentence for each option that does not go together with this objective."""
    options, model = config.pretraining, config.model
    needed: config_needs.Needs = {
        "model.embeddings": (("patches", "columns"), "it predicts values"),
        "model.hidden_input": (("vector", "zeros"), "the encoder must not read what it predicts"),
        "pretraining.masking": (("dynamic",), "values are hidden as they are read"),
    }
    yield from config_needs.faults(config, "masked_values", needed)
    if options.predicts == "replaced" and not (
        options.exchanged_cells and model.embeddings == "columns"
    ):
        yield (
            "config.pretraining.predicts is 'replaced', which cells of tables were exchanged: set "
            "config.pretraining.exchanged_cells and config.model.embeddings='columns'"
        )
    if options.exchanged_cells and model.embeddings != "columns":
        yield (
            "config.pretraining.exchanged_cells is True, which exchanges cells of tables: set "
            "config.model.embeddings='columns', or leave it out"
        )
