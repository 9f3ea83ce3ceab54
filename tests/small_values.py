"""Small records of values: patches of waves, cells of a table, pixels; each with labels."""

import dataclasses

import numpy as np

from bertjax import config as config_lib
from bertjax import recipes
from bertjax.data import records, value_masking
from bertjax.models import EncoderConfig
from data_pipelines.values import value_records
from tests import small_runs

SIZES = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 0},
    **{"intermediate_size": 32, "type_vocab_size": 0, "max_position_embeddings": 24},
}
WIDTH = 4
# Kind of records -> the options of a model that reads them.
MODELS = {
    "patches": {"embeddings": "patches", "normalized_rows": True},
    "cells": {"embeddings": "columns", "position_embedding": "none", "layer": "pre_norm"},
    "pixels": {
        **{"embeddings": "patches", "position_embedding": "sines_of_grid"},
        **{"layer": "full_pre_norm", "partial_patches": False, "hidden_input": "none"},
    },
}
COLUMNS = (0, 0, 3, *(0,) * 12, 5)  # [CLS], numbers, and two of categories
LENGTHS = {"patches": 16, "cells": len(COLUMNS), "pixels": 17}


@dataclasses.dataclass(frozen=True)
class Rows:
    """Arrays, a row each."""

    arrays: dict[str, np.ndarray]
    length: int

    def __len__(self):
        return len(next(iter(self.arrays.values())))

    def take(self, numbers):
        return {name: array[numbers] for name, array in self.arrays.items()}


def drawn(kind, rows, seed=0):
    """The features of some rows; the label is the sign of what a part of the row has."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows).astype(np.int32)
    shift = (2 * labels - 1)[:, None, None].astype(np.float32)
    if kind == "pixels":
        shades = 128 + 60 * shift[:, :, :, None] + rng.normal(0, 20, (rows, 8, 8, 1))
        return {"pixels": shades.clip(0, 255).astype(np.uint8), "labels": labels}
    if kind == "cells":
        cells = rng.normal(size=(rows, len(COLUMNS), 1)) + 2 * shift
        for at, count in enumerate(COLUMNS):
            if count:
                cells[:, at, 0] = rng.integers(0, count, rows)
        observed = (rng.random(cells.shape) < 0.9).astype(np.int32)
        observed[:, 0] = 0
        cells = np.where(observed, cells, 0).astype(np.float32)
        return {"values": cells, "observed": observed, "labels": labels}
    waves = np.sin(np.arange(LENGTHS[kind] * WIDTH) / (3 + 2 * labels)[:, None])
    waves = waves.reshape(rows, LENGTHS[kind], WIDTH) + rng.normal(0, 0.1, (rows, 1, 1))
    return {"values": waves.astype(np.float32), "labels": labels}


def write(directory, kind, rows=96, seed=0):
    """Writes a record directory and returns its manifest."""
    statistics = {"labels": {"kind": "classes", "names": ["low", "high"]}}
    if kind == "cells":
        statistics["columns"] = [
            {"name": f"c{at}", "categories": [f"{n}" for n in range(count)]} if count
            else {"name": f"c{at}"}
            for at, count in enumerate(COLUMNS)
        ]  # fmt: skip
    if kind == "pixels":
        statistics |= {"patch": 2, "channel_means": [0.5], "channel_deviations": [0.25]}
    return value_records.write(
        directory,
        Rows(drawn(kind, rows, seed), LENGTHS[kind]),
        seed=seed,
        arguments={"kind": kind},
        statistics=statistics,
        files={value_masking.DONORS_FILE: donors(kind, seed)} if kind == "cells" else None,
    )


def donors(kind, seed=0):
    """Training values to exchange with."""
    made = drawn(kind, 50, seed + 1)
    return {"values": made[records.VALUES_FEATURE], "observed": made[records.OBSERVED_FEATURE]}


def encoder(kind, **changes):
    """The sizes of a model of a kind of records."""
    known = {"value_width": WIDTH} | ({"columns": COLUMNS} if kind == "cells" else {})
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return EncoderConfig(**{**SIZES, **rates, **MODELS[kind], **known, **changes})


def finetuned_from_scratch(directory, kind="patches"):
    """Finetuning on labels, from a model that pretraining has only begun."""
    directory.mkdir(parents=True, exist_ok=True)
    write(directory / "train", kind, rows=24)
    small_runs.untrained(make_config(kind, directory / "train"), directory / "first")
    config = recipes.load("values").copy_and_resolve_references()
    config.init_from = str(directory / "first")
    config.finetuning.train_file = str(directory / "train")
    config.global_batch_size = 8
    return config


def make_config(kind, directory, **changes):
    """Pretraining on records of a kind: four steps of eight rows."""
    config = config_lib.default_config()
    config.model.update(**SIZES, **MODELS[kind])
    config.data.train_dir = str(directory)
    objective = "masked_autoencoder" if kind == "pixels" else "masked_values"
    config.pretraining.update(
        objective=objective, pair_loss="none", masking="dynamic", masked_lm_prob=0.5
    )
    if kind == "pixels":
        config.pretraining.decoder.update(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
    config.global_batch_size = 8
    config.phases.phase1.update(num_steps=4, max_seq_length=LENGTHS[kind])
    config.schedule.update(peak_learning_rate=1e-2, warmup_steps=1)
    config.log_every_steps = 1
    config.update_from_flattened_dict(changes)
    return config
