"""Workdirs of finetuning with random weights, as training leaves them, for tests that train not."""

import json

import jax
import numpy as np

import bertjax
from bertjax import config as config_lib
from bertjax import finetuning, jobs
from bertjax.tasks import base as tasks_base
from bertjax.workdirs import checkpoint, reader
from tests import made_once, small_records

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "dtype": "float32",
    "attention": "xla",
}
LABELS = {
    "glue": ("entailment", "not_entailment"),
    "table": ("bad", "good", "so-so"),
    "conll": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
}
NAMES = {"glue": "rte", "squad": "v1"}


def config(dataset, **options):
    made = config_lib.default_config()
    made.task = "finetuning"
    vocabulary = small_records.vocabulary()
    made.model.update(vocab_size=vocabulary.vocab_size, **SIZES)
    is_regression = options.get("is_regression", False)
    labels = () if is_regression else LABELS.get(dataset, ())
    made.finetuning.update(dataset=dataset, name=NAMES.get(dataset, ""), labels=labels)
    made.finetuning.update(max_seq_length=32, doc_stride=8, max_query_length=8)
    made.finetuning.update(options)
    made.phases.phase1.update(num_steps=1, max_seq_length=32)
    made.schedule.warmup_steps = 0
    return made


def random_params(made, *, seed=0):
    """Every parameter of the config's task, N(0, 0.2) so that a mistake shows in the outputs.

    LayerNorm's scales are about 1: with smaller ones all tokens would be alike.
    """
    _, shapes = tasks_base.abstract_model(jobs.JOBS["finetuning"].task(made))
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        mean = 1.0 if path[-1].key == "scale" else 0.0
        return rng.normal(mean, 0.2, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def write(directory, dataset, *, seed=0, **options):
    """Writes a checkpoint at step 0 of `random_params`, and returns its config."""
    made = config(dataset, **options)
    vocabulary = small_records.vocabulary()
    vocabulary.save(directory / reader.VOCABULARY_DIRECTORY)
    meta = {
        "config": json.loads(json.dumps(made.to_dict())),
        "identity": {"manifests": {}, "tokenizer_sha256": vocabulary.describe()["sha256"]},
        "skipped": {},
        **finetuning.checkpoint_meta(made),
        "versions": {"bertjax": bertjax.__version__},
    }
    with checkpoint.Checkpointer(directory, checkpoint.RetentionOptions()) as checkpointer:
        checkpointer.save_params(random_params(made, seed=seed), meta)
    return made


def made(dataset, **options):
    """The directory of `write` with these options, made once: read it only."""
    return made_once.directory(
        f"finetuned_{dataset}", lambda path: write(path, dataset, **options), **options
    )
