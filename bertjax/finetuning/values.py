"""Classes, numbers and forecasts from rows of values: series, images and tables as records.

A data set is a record directory whose rows have `labels`: the number of a class, numbers, or the
steps that follow a window. Its manifest says which (`statistics["labels"]`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.data import records, series_index, value_masking, value_rows
from bertjax.finetuning import base, feature_sets
from bertjax.models import classification, layers, parts, values
from bertjax.models import encoder as encoders
from bertjax.options import finetuning as options_lib
from bertjax.scores import baselines
from bertjax.scores import classification as scores
from bertjax.tasks import base as tasks

CLASSES, NUMBERS, FORECAST = "classes", "numbers", "forecast"


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of records: their `kind`, and the names of classes or numbers.

    Numbers are stored less their `means` and over their `deviations`. A forecast has `horizon`
    steps, scaled as the values are; the naive forecast is the value of the same phase of the last
    `season`, with 0 the last value. `width` is the number of values of a position, and `meaning` a
    hash of the columns or channels and their scaling.
    """

    kind: str
    names: tuple[str, ...] = ()
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()
    horizon: int = 0
    season: int = 0
    width: int = 0
    meaning: str = ""

    @property
    def size(self) -> int:
        """The number of outputs of a model."""
        return self.horizon or len(self.names)

    @classmethod
    def of(cls, manifest: records.Manifest, directory: epath.PathLike) -> Labels:
        """Returns the labels of records."""
        described = manifest.statistics.get("labels")
        if not described or records.LABELS_FEATURE not in manifest.features:
            raise ValueError(
                f"the records in {directory} have no labels: build them with a column or file of "
                "labels, or a series with --horizon"
            )
        shape = value_masking.features(manifest)[records.VALUES_FEATURE].shape
        meaning = value_masking.meaning(manifest)
        return cls.restored({**described, "width": int(shape[-1]), "meaning": meaning})

    @classmethod
    def restored(cls, fields: Mapping[str, Any]) -> Labels:
        """Returns the labels of fields from JSON."""
        known = {field.name for field in dataclasses.fields(cls)}
        lists: dict[str, Any] = {
            name: tuple(it) if isinstance(it, list) else it
            for name, it in fields.items()
            if name in known
        }
        return cls(**lists)


def is_forecast(options: Any) -> bool:
    """Returns whether a model with these options forecasts."""
    return bool(options.value_labels) and json.loads(options.value_labels)["kind"] == FORECAST


class ForecastModel(nnx.Module):
    """The encoder, and a dense layer from the states of all positions to the steps that follow.

    With `normalized_rows` the forecast is in the units of the row again. Source: Nie et al. 2023
    (PatchTST), section 3.1; yuqinie98/PatchTST, models/patchTST.py, PredictionHead.
    """

    def __init__(
        self, config: encoders.EncoderConfig, length: int, horizon: int, *, rngs: nnx.Rngs
    ):
        self.encoder = encoders.make_encoder(config, rngs=rngs)
        size = length * config.hidden_size
        self.classifier = parts.classifier(config, size, horizon, rngs=rngs)
        self.dropout_rate = config.hidden_dropout_prob
        self.normalized_rows = config.normalized_rows

    def __call__(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch horizon"]:
        encoder_key, head_key = layers.split(key, 2)
        states = self.encoder(inputs, key=encoder_key)
        flat = states.reshape(len(states), -1).astype(jnp.float32)
        forecast = self.classifier(layers.dropout(flat, self.dropout_rate, head_key))
        if not self.normalized_rows:
            return forecast
        mean, deviation = values.row_moments(inputs["values"], values.observed(inputs))
        return forecast * deviation[:, :, 0] + mean[:, :, 0]


@dataclasses.dataclass(frozen=True)
class Values(base.FinetuningTask):
    """Classes by cross-entropy; numbers and forecasts by the mean square of the error."""

    head: ClassVar[str] = "none"

    encoder: encoders.EncoderConfig
    labels: Labels
    length: int
    pooling: str = "cls"

    def __post_init__(self) -> None:
        if not self.encoder.reads_values:
            raise ValueError(
                "the encoder reads tokens, and finetuning.dataset='values' needs one that reads "
                "values: set config.init_from to a run of patchtst, tables or mae, or to plan "
                "without one, config.model.embeddings and its sizes"
            )

    @property
    def means(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("loss", "accuracy") if self.labels.kind == CLASSES else ("loss",)

    @property
    def export_fault(self) -> str:
        return "it reads values, and the other formats have no head of that kind"

    def init(self, rngs: nnx.Rngs) -> nnx.Module:
        if self.labels.kind == FORECAST:
            return ForecastModel(self.encoder, self.length, self.labels.horizon, rngs=rngs)
        return classification.SequenceClassifier(
            self.encoder, num_labels=self.labels.size, pooling=self.pooling, rngs=rngs
        )

    def label_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        if self.labels.kind == CLASSES:
            return super().label_shapes(batch_size, length)
        shape = (batch_size, self.labels.size)
        shapes = {"labels": jax.ShapeDtypeStruct(shape, np.float32)}
        if self.labels.kind == FORECAST:
            shapes[records.LABELS_OBSERVED_FEATURE] = jax.ShapeDtypeStruct(shape, np.int32)
        return shapes

    def batch_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        width = self.encoder.value_width or 1
        cells = (batch_size, length, width)
        return {
            "values": jax.ShapeDtypeStruct(cells, np.float32),
            "observed": jax.ShapeDtypeStruct(cells, np.int32),
            "input_mask": jax.ShapeDtypeStruct((batch_size, length), np.int32),
            **self.label_shapes(batch_size, length),
            "example_weights": jax.ShapeDtypeStruct((batch_size,), np.float32),
        }

    def scored(self, batch: tasks.Batch) -> Array:
        """Returns the weight of each example, or of each step of its forecast that was observed."""
        weights = batch["example_weights"]
        if records.LABELS_OBSERVED_FEATURE not in batch:
            return weights
        return weights[:, None] * batch[records.LABELS_OBSERVED_FEATURE]

    def loss(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> tasks.Means:
        if self.labels.kind == CLASSES:
            return super().loss(model, batch, key=key)
        squares, weights = jnp.square(model(batch, key=key) - batch["labels"]), self.scored(batch)
        return {
            "loss": tasks.weighted(squares if weights.ndim > 1 else squares.mean(axis=1), weights)
        }

    def predict(self, model: Any, batch: tasks.Batch) -> dict[str, Array]:
        """Returns `logits` and `predictions`: classes, or the numbers themselves."""
        if self.labels.kind == CLASSES:
            return super().predict(model, batch)
        numbers = model(batch)
        return {"logits": numbers, "predictions": numbers}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        size = self.encoder.hidden_size * (length if self.labels.kind == FORECAST else 1)
        forward = self.encoder.forward_flops(length) + 2.0 * size * self.labels.size
        return 3.0 * batch_size * forward


@dataclasses.dataclass(frozen=True)
class ValueRows(feature_sets.FeatureSet):
    """Rows of values; rows that forecast have channels, if the records name them."""

    index: series_index.SeriesIndex | None = None
    channels: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))


class ValueReader(base.Reader):
    """Record directories; in `predict`, "values" [length][width] with null for a missing value.

    In Python they may be an array, with nan in place of null.
    """

    reads_directories: ClassVar[bool] = True
    reads_records: ClassVar[bool] = True

    @functools.cached_property
    def _train(self) -> records.RecordSet:
        return records.open(self.options.train_file)

    @functools.cached_property
    def described(self) -> Labels:
        """The labels of the training set, or of the model; other sets must have the same."""
        if self.options.value_labels:
            return Labels.restored(json.loads(self.options.value_labels))
        return Labels.of(self._train.manifest, self._train.directory)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.described.names if self.described.kind == CLASSES else ()

    @property
    def is_regression(self) -> bool:
        return self.described.kind != CLASSES

    @property
    def decided(self) -> Mapping[str, Any]:
        kept = json.dumps(dataclasses.asdict(self.described), sort_keys=True)
        return {**super().decided, "value_labels": kept}

    def _examples(self, name: str) -> Sequence[int]:
        return range(len(self.features(name)))

    def _features(self, name: str) -> feature_sets.FeatureSet:
        record_set = records.open(self.file(name))
        if (found := Labels.of(record_set.manifest, record_set.directory)) != self.described:
            raise ValueError(
                f"the labels or the scaling of {record_set.directory} are {found}, in the "
                f"training set {self.described}: build both in one call, or these with --like"
            )
        columns = value_rows.columns(record_set)
        length, index = record_set.manifest.max_seq_length, None
        if "channel" in columns:
            index = series_index.SeriesIndex.load(record_set.directory)
        channels = columns.get("channel", np.zeros(0, np.int32))
        columns = {name: it for name, it in columns.items() if name not in series_index.FEATURES}
        return ValueRows({}, columns, row_length=length, index=index, channels=channels)

    def example(self, fields: base.Fields, source: str) -> np.ndarray:
        given: Any = fields.get("values")
        try:
            if not isinstance(given, np.ndarray):
                given = [[np.nan if it is None else it for it in row] for row in given]
            with np.errstate(over="ignore"):
                cells = np.array(given, np.float32)
        except (TypeError, ValueError):
            raise ValueError(
                f"'values' is {given!r:.60}; it must be a list for each position, of numbers and "
                "null"
            ) from None
        if np.isinf(cells).any():
            raise ValueError("'values' holds a number beyond float32 (3.4e38)")
        if cells.shape != (self.options.max_seq_length, self.described.width):
            raise ValueError(
                f"'values' has the shape {cells.shape}; the model reads "
                f"{self.options.max_seq_length} positions of {self.described.width}"
            )
        return cells

    def texts(self, example: Any) -> Sequence[str]:
        return ()

    def rows(self, examples: Sequence[np.ndarray]) -> feature_sets.FeatureSet:
        shapes = {example.shape for example in examples}
        if len(shapes) != 1:
            raise ValueError(f"rows have the shapes {sorted(shapes)}; all must have the same")
        cells = np.stack(examples)
        is_there = ~np.isnan(cells)
        columns = {
            "values": np.where(is_there, cells, 0).astype(np.float32),
            "observed": is_there.astype(np.int32),
        }
        return ValueRows({}, columns, row_length=cells.shape[1])


class ValueScorer(base.ClassScorer):
    """Accuracy, and the area under the ROC curve of two classes; RMSE and MAE; MSE of forecasts."""

    reader: ValueReader

    @property
    def best_score(self) -> str:
        return {CLASSES: "accuracy", NUMBERS: "rmse", FORECAST: "mse"}[self.reader.described.kind]

    @property
    def is_higher_better(self) -> bool:
        return self.reader.described.kind == CLASSES

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        labels = self.reader.features(name).columns["labels"]
        described = self.reader.described
        if described.kind == CLASSES:
            found = {
                "accuracy": scores.accuracy(labels, outputs["predictions"]),
                "constant_loss": baselines.entropy(np.bincount(labels)),
            }
            if described.size == 2:
                margins = outputs["logits"][:, 1] - outputs["logits"][:, 0]
                found |= {"roc_auc": scores.roc_auc(labels, margins), "chance_roc_auc": 0.5}
            return found
        errors = outputs["predictions"].astype(np.float64) - labels
        if described.kind == FORECAST:
            return self._forecast_scores(name, errors)
        of_mean = labels.mean(axis=0, dtype=np.float64) - labels
        return _number_scores(errors, described) | {
            "constant_loss": float((of_mean**2).mean()),
            **{f"mean_{name}": it for name, it in _number_scores(of_mean, described).items()},
        }

    def _forecast_scores(self, name: str, errors: np.ndarray) -> dict[str, float]:
        """Returns the scores of the steps that were observed; also for the naive forecast."""
        rows: Any = self.reader.features(name)
        columns = rows.columns
        is_observed = columns.get(records.LABELS_OBSERVED_FEATURE, np.ones_like(errors)) != 0
        if not is_observed.any():
            raise ValueError(
                f"no step behind the windows of {self.reader.file(name)} was observed: there is "
                "nothing to score; `python -m bertjax.predict` forecasts them"
            )
        naive = naive_forecast(columns, self.reader.described) - columns["labels"]
        found = {}
        for prefix, error in (("", errors), ("naive_", naive)):
            found[f"{prefix}mse"] = float((error[is_observed] ** 2).mean())
            found[f"{prefix}mae"] = float(np.abs(error[is_observed]).mean())
            for number, channel in enumerate(rows.index.channels if rows.index else ()):
                of_channel = error[is_observed & (rows.channels == number)[:, None]]
                if of_channel.size:
                    in_units = np.abs(of_channel).mean() * rows.index.deviations[number]
                    found[f"{prefix}mae_in_units/{channel}"] = float(in_units)
        return found

    def classes(self, name: str, outputs: base.Outputs | None = None) -> Sequence[str] | None:
        if self.reader.described.kind != CLASSES:
            return None
        return super().classes(name, outputs)

    def predictions(self, predicted: base.Predicted) -> list[base.Prediction]:
        if self.reader.described.kind == CLASSES:
            return super().predictions(predicted)
        numbers = self._in_units(predicted.outputs["predictions"], predicted.rows)
        return [{"numbers": it} for it in numbers.tolist()]

    def _in_units(self, numbers: np.ndarray, rows: ValueRows) -> np.ndarray:
        """Returns numbers in units; forecasts of rows that name no channel stay as they are."""
        described = self.reader.described
        if described.kind == FORECAST:
            return rows.index.in_units(numbers, rows.channels) if rows.index else numbers
        return numbers * np.array(described.deviations, np.float32) + np.array(
            described.means, np.float32
        )

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        is_classes = self.reader.described.kind == CLASSES
        found = outputs["predictions"]
        rows: Any = self.reader.features(name)
        found = found if is_classes else self._in_units(found, rows)
        with (directory / f"{name}.npy").open("wb") as file:
            np.save(file, found)


def naive_forecast(columns: Mapping[str, np.ndarray], described: Labels) -> np.ndarray:
    """Returns the last season of each row again and again, without one the last value.

    A step that was not observed takes the value a season before, or 0, the mean of the training.
    """
    past = columns["values"]
    past = np.where(columns.get("observed", np.ones_like(past)) != 0, past, np.nan)
    past = past.reshape(len(past), -1)
    season = described.season or 1
    if season > past.shape[1]:
        raise ValueError(
            f"the season of the records has {season} steps, and a row {past.shape[1]}: build them "
            "again with a larger --window, or another --season"
        )
    seasons = [past[:, end - season : end] for end in range(past.shape[1], season - 1, -season)]
    filled = functools.reduce(lambda a, b: np.where(np.isnan(a), b, a), seasons)
    return np.nan_to_num(filled)[:, np.arange(described.horizon) % season]


def _number_scores(errors: np.ndarray, described: Labels) -> dict[str, float]:
    """Returns the scores of errors of numbers, in the units of the labels."""
    in_units = errors * np.array(described.deviations)
    rmse = float(np.sqrt((in_units**2).mean()))
    return {"rmse": rmse, "mae": float(np.abs(in_units).mean())}


def _length(options: base.Options) -> int:
    return records.Manifest.load(options.train_file).max_seq_length


def _task(encoder: encoders.EncoderConfig, options: base.Options) -> Values:
    fields = json.loads(options.value_labels or "{}")
    labels = Labels.restored(fields) if fields else Labels(CLASSES, tuple(options.labels))
    return Values(encoder, labels, options.max_seq_length, options.pooling)


VALUES = base.FinetuningKind(
    ValueReader,
    _task,
    ValueScorer,
    options_lib.owned("pooling", "value_labels"),
    length=_length,
)
