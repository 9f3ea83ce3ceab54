"""bertjax from Python, for notebooks and scripts: `bertjax.run` trains, `bertjax.load` loads.

    config = bertjax.recipes.load("bert_mini")
    config.data.train_dir = "train_{max_seq_length}"
    done = bertjax.run(config, "runs/mini")
    done.model.fill_mask("The [MASK] statement is used to import modules.")

This is what the programs do, with the same files in the workdir; how it is done belongs to them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import logging
from etils import epath

from bertjax import (
    encode,
    evaluate,
    fill_mask,
    inference,
    likelihood,
    live,
    predict,
    recipes,
    train,
)
from bertjax.training import evaluation, trials, writers
from bertjax.workdirs import checkpoint, reader, scalars


class Attention(NamedTuple):
    """The tokens of a text, [CLS] and [SEP] among them, and `weights` [layers, heads, L, L].

    The weights of a token, those of its row, sum to one.
    """

    tokens: tuple[str, ...]
    weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Model:
    """The model of a checkpoint: `step` is "newest", "best" or the number of one.

    Parameters are read when the first method needs them, and kept.
    """

    workdir: epath.Path
    step: str | int = "newest"

    def fill_mask(self, text: str, *, num_candidates: int = 5) -> list[list[dict[str, Any]]]:
        """Returns, for each [MASK] of the text, its best tokens with probabilities, best first.

        Raises:
          ValueError: as `fill_mask.fill_mask`.
        """
        model = self._encoder if self._encoder.fills_masks else self._generator
        return fill_mask.fill_mask(model, text, num_candidates=num_candidates)

    def encode(
        self,
        texts: Sequence[str],
        *,
        layers: str = "last",
        pooling: str | None = None,
        normalize: bool | None = None,
        prompt: str | None = None,
        dims: int = 0,
        truncate: bool = False,
        batch_size: int = 32,
    ) -> dict[str, np.ndarray]:
        """Returns `features` of the texts, a row each, and their `lengths` in tokens.

        What is None is as the model was trained for embeddings, the prompt that of documents.

        Raises:
          ValueError: as `encode.encode`, or for one text in place of a list.
        """
        if isinstance(texts, str):
            raise ValueError(f"texts is {texts!r:.60}; give a list of texts, [{texts!r:.40}]")
        return encode.encode(
            self._encoder,
            texts,
            layers=layers,
            pooling=pooling,
            normalize=normalize,
            prompt=prompt,
            dims=dims,
            truncate=truncate,
            batch_size=batch_size,
        )

    def predict(
        self, records: Iterable[Mapping[str, Any]], *, batch_size: int = 32
    ) -> list[dict[str, Any]]:
        """Returns the finetuned model's answer to each record: {"text": ...}, {"words": [...]}.

        Raises:
          ValueError: as `predict.predict`, or for one record in place of a list.
        """
        if isinstance(records, Mapping | str):
            raise ValueError(f"records is {records!r:.60}; give a list of objects, [{{...}}]")
        return list(predict.predict(self._finetuned, records, batch_size=batch_size))

    def score(
        self, texts: Sequence[str], *, masking: str = "token", batch_size: int = 64
    ) -> list[likelihood.Score | likelihood.NoScore]:
        """Returns how likely the model holds each text to be, its pseudo-log-likelihood.

        Raises:
          ValueError: as `likelihood.scores`, or for one text in place of a list.
        """
        if isinstance(texts, str):
            raise ValueError(f"texts is {texts!r:.60}; give a list of texts, [{texts!r:.40}]")
        return list(likelihood.scores(self._encoder, texts, masking=masking, batch_size=batch_size))

    def attention(self, text: str) -> Attention:
        """Returns what each head of each layer looks at in a text, for `pictures.attention_heads`.

        Raises:
          ValueError: if the text is longer than the model reads.
        """
        model = self._encoder
        vocabulary = model.vocabulary
        ids = [vocabulary.cls_id, *vocabulary.encode_with_masks(text), vocabulary.sep_id]
        inference.single_segment_batch([ids[1:-1]], model)  # says where it is too long
        row = jnp.array([ids], jnp.int32)
        batch = {"input_ids": row, "input_mask": row * 0 + 1, "segment_ids": row * 0}
        weights = model.module().encoder.attention_weights(batch)
        tokens = tuple(vocabulary.token(number) for number in ids)
        return Attention(tokens, np.concatenate([np.asarray(it) for it in weights]))

    def evaluate(self, data: epath.PathLike, *, batch_size: int = 64) -> dict[str, Any]:
        """Returns the scores on a record directory or, of a finetuned model, on a labelled file.

        Raises:
          FileNotFoundError, ValueError: as `evaluate.evaluate_checkpoint`.
        """
        return evaluate.evaluate_checkpoint(
            self.workdir, str(data), batch_size=batch_size, step=self.step, chance=True
        )

    @functools.cached_property
    def _encoder(self) -> inference.TrainedModel:
        return inference.load(self.workdir, step=self.step)

    @functools.cached_property
    def _generator(self) -> inference.TrainedModel:
        return inference.load(self.workdir, step=self.step, generator=True)

    @functools.cached_property
    def _finetuned(self) -> inference.FinetunedModel:
        return inference.load_finetuned(self.workdir, step=self.step)


@dataclasses.dataclass(frozen=True)
class Done:
    """What a run leaves: the scores of its last evaluation, where its files are, and its model.

    `scores` have the names of metrics.jsonl ("eval/dev/accuracy"), and are {} without an evaluation
    set. `paths` has those of `PATHS` that are there. With several seeds or settings all of this is
    of the best training, and `results` holds every score of all of them (results.json).
    """

    workdir: epath.Path
    scores: dict[str, float | None]
    paths: dict[str, epath.Path]
    model: Model
    results: dict[str, Any] | None = None


# What a workdir may hold.
PATHS = {
    "checkpoints": checkpoint.DIRECTORY,
    "config": reader.CONFIG_FILE,
    "vocabulary": reader.VOCABULARY_DIRECTORY,
    "metrics": scalars.FILE,
    "curves": writers.CURVES_FILE,
    "tensorboard": writers.TENSORBOARD_DIRECTORY,
    "predictions": evaluation.PREDICTIONS_DIRECTORY,
}


def run(
    config: ml_collections.ConfigDict | str, workdir: epath.PathLike, *, verbose: bool = True
) -> Done:
    """Trains as `python -m bertjax.train` does, or goes on with the run in the workdir.

    `config` is a config or the name of a recipe. With `verbose` the log is shown; in a notebook it
    is one line and the curves, which change in place (`live`).

    Raises:
      FileNotFoundError: if there is no such recipe.
      ValueError, checkpoint.CheckpointError, monitor.DivergedError, preemption.Preempted: as
        `train.train`.
    """
    if isinstance(config, str):
        config = recipes.load(config)
    chosen, results = epath.Path(workdir), None
    with _shown(chosen) if verbose else contextlib.nullcontext():
        if trials.are_wanted(config):
            results = train.train_trials(config, chosen)
            chosen = chosen / results["best"]["name"]
        else:
            train.train(config, chosen)
    _, scores = scalars.last_evaluation(scalars.read(chosen / scalars.FILE))
    paths = {name: chosen / file for name, file in PATHS.items()}
    there = {name: path for name, path in paths.items() if path.exists()}
    return Done(chosen, scores, there, Model(chosen), results)


def load(path: epath.PathLike, *, step: str | int = "newest") -> Model:
    """Returns the model of a workdir, or of weights of others, such as sentence-transformers'.

    Raises:
      FileNotFoundError: if there is no checkpoint.
    """
    if reader.describe(path) is None:
        inference.load(path, step=step)  # raises, and names what lies there
    return Model(epath.Path(path), step)


def _shown(workdir: epath.Path) -> contextlib.AbstractContextManager[None]:
    if live.is_notebook():
        return live.shown(workdir)
    show_log()
    return contextlib.nullcontext()


def show_log() -> None:
    """Shows what bertjax logs, as its programs do: where absl is not told, it shows warnings alone.

    A handler that Python's logging has already stays the only one.
    """
    logging.set_verbosity(logging.INFO)
    if not logging.get_absl_logger().hasHandlers():
        logging.use_absl_handler()
