"""bertjax from Python, for notebooks and scripts: `bertjax.run` trains, `bertjax.load` loads.

    config = bertjax.recipes.load("bert_mini")
    config.data.train_dir = "train_{max_seq_length}"
    done = bertjax.run(config, "runs/mini")
    done.model.fill_mask("The [MASK] statement is used to import modules.")

The programs do the same, with the same files in the workdir. A run in a notebook is shown as one
line, the newest one of its log, and its curves, which are replaced in place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging as std_logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import logging
from etils import epath

from bertjax import encode, evaluate, fill_mask, generate, inference, predict, recipes, train
from bertjax.inference import likelihood
from bertjax.training import evaluation, trials, writers
from bertjax.workdirs import checkpoint, reader, scalars

__all__ = ["Attention", "Done", "Model", "load", "run"]

DRAWING_SHARE = 0.05  # most of the time that drawing the curves takes
DPI = 60


class Attention(NamedTuple):
    """The tokens of a text, with [CLS] and [SEP], and `weights` [layers, heads, L, L].

    The weights of a token are a row, and sum to one.
    """

    tokens: tuple[str, ...]
    weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Model:
    """The model of a checkpoint: `step` is "newest", "best" or the number of one.

    Parameters are read when the first method needs them. `language` names the language of the texts
    for a model with embeddings of languages.
    """

    workdir: epath.Path
    step: str | int = "newest"

    def fill_mask(
        self, text: str, *, num_candidates: int = 5, language: str = ""
    ) -> list[list[dict[str, Any]]]:
        """Returns, for each [MASK] of the text, its best tokens with probabilities, best first.

        Raises:
          ValueError: as `fill_mask.fill_mask`.
        """
        model = self._encoder if self._encoder.fills_masks else self._generator
        model = inference.in_language(model, language)
        return fill_mask.fill_mask(model, text, num_candidates=num_candidates)

    def encode(
        self,
        texts: Sequence[str] | np.ndarray,
        *,
        batch_size: int = 32,
        language: str = "",
        **options: Any,
    ) -> dict[str, np.ndarray]:
        """Returns `features` of the texts, a row each, and their `lengths` in tokens.

        `options` are fields of `cli.programs.Vectors`: `layers`, `pooling`, `normalize`, `prompt`,
        `dims`, `truncate`. In place of texts, a model of values takes them [rows, length, width],
        nan for missing values.

        Raises:
          ValueError: as `encode.encode`, or for one text in place of a list.
        """
        _check_list(texts)
        if isinstance(texts, np.ndarray) and texts.dtype.kind == "f":
            features = encode.encode_values(self._encoder, texts, batch_size=batch_size, **options)
            return {"features": features}
        return encode.encode(
            inference.in_language(self._encoder, language),
            [*map(str, texts)] if isinstance(texts, np.ndarray) else texts,
            batch_size=batch_size,
            **options,
        )

    def predict(
        self, records: Iterable[Mapping[str, Any]], *, batch_size: int = 32, language: str = ""
    ) -> list[dict[str, Any]]:
        """Returns the finetuned model's answer to each record, such as {"text": ...}.

        Raises:
          ValueError: as `predict.predict`, or for one record in place of a list.
        """
        if isinstance(records, Mapping | str):
            raise ValueError(f"records is {records!r:.60}; give a list of objects, [{{...}}]")
        model = inference.in_language(self._finetuned, language)
        return list(predict.predict(model, records, batch_size=batch_size))

    def generate(
        self, texts: Sequence[str], *, language: str = "", **options: Any
    ) -> list[list[dict[str, Any]]]:
        """Returns the best texts for each text, with scores, by a model of sequences.

        `options` are as in `generate.generate`: `outputs`, `seed`, `batch_size`, and the fields of
        `models.generation.Search`, such as `beams`.

        Raises:
          ValueError: as `generate.generate`, or for one text in place of a list.
        """
        _check_list(texts)
        model = inference.in_language(self._finetuned, language)
        return list(generate.generate(model, iter(texts), **options))

    def score(
        self, texts: Sequence[str], *, language: str = "", **options: Any
    ) -> list[likelihood.Score | likelihood.NoScore]:
        """Returns the pseudo-log-likelihood of each text.

        `options` are as in `likelihood.scores`: `masking`, `reading`, `batch_size`.

        Raises:
          ValueError: as `likelihood.scores`, or for one text in place of a list.
        """
        _check_list(texts)
        model = inference.in_language(self._encoder, language)
        return list(likelihood.scores(model, texts, **options))

    def attention(self, text: str, *, language: str = "") -> Attention:
        """Returns the attention weights of each head of each layer, for `pictures.attention_heads`.

        Raises:
          ValueError: if the text is longer than the model reads.
        """
        model = inference.in_language(self._encoder, language)
        ids = model.vocabulary.encode_with_masks(text)
        batch = inference.single_segment_batch([ids], model, unit=1)
        weights = model.module().encoder.attention_weights(jax.tree.map(jnp.asarray, batch))
        tokens = tuple(model.vocabulary.token(number) for number in batch["input_ids"][0].tolist())
        return Attention(tokens, np.concatenate([np.asarray(layer) for layer in weights]))

    def evaluate(
        self, data: epath.PathLike, *, batch_size: int = 64, language: str = ""
    ) -> dict[str, Any]:
        """Returns the scores on a record directory, or on labelled files for a finetuned model.

        Raises:
          FileNotFoundError, ValueError: as `evaluate.evaluate_checkpoint`.
        """
        shared = {"batch_size": batch_size, "step": self.step, "language": language}
        return evaluate.evaluate_checkpoint(self.workdir, str(data), chance=True, **shared)

    @functools.cached_property
    def _encoder(self) -> inference.TrainedModel:
        return inference.load(self.workdir, step=self.step)

    @functools.cached_property
    def _generator(self) -> inference.TrainedModel:
        return inference.load(self.workdir, step=self.step, generator=True)

    @functools.cached_property
    def _finetuned(self) -> inference.FinetunedModel:
        return inference.load_finetuned(self.workdir, step=self.step)


def _check_list(texts: Any) -> None:
    if isinstance(texts, str):
        raise ValueError(f"texts is {texts!r:.60}; give a list of texts, [{texts!r:.40}]")


@dataclasses.dataclass(frozen=True)
class Done:
    """A finished run. With several seeds or settings it is the best training.

    scores: of the last evaluation, by the names of metrics.jsonl ("eval/dev/accuracy"); {} without
      an evaluation set
    paths: the items of `PATHS` that exist
    results: with several seeds or settings, the scores of all trainings (results.json)
    """

    workdir: epath.Path
    scores: dict[str, float | None]
    paths: dict[str, epath.Path]
    model: Model
    results: dict[str, Any] | None = None


# Name -> file or directory of a workdir.
PATHS = {
    "checkpoints": checkpoint.DIRECTORY,
    "config": reader.CONFIG_FILE,
    "vocabulary": reader.VOCABULARY_DIRECTORY,
    "metrics": scalars.FILE,
    "curves": writers.CURVES_FILE,
    "tensorboard": scalars.TENSORBOARD_DIRECTORY,
    "predictions": evaluation.PREDICTIONS_DIRECTORY,
}


def run(
    config: ml_collections.ConfigDict | str, workdir: epath.PathLike, *, verbose: bool = True
) -> Done:
    """Trains as `python -m bertjax.train` does, or resumes the run in the workdir.

    `config` is a config or the name of a recipe. With `verbose` the log is shown.

    Raises:
      FileNotFoundError: if there is no such recipe.
      ValueError, checkpoint.CheckpointError, monitor.DivergedError, preemption.Preempted: as
        `train.train`.
    """
    if isinstance(config, str):
        config = recipes.load(config)
    best, results = epath.Path(workdir), None
    with _shown(best) if verbose else contextlib.nullcontext():
        if trials.are_configured(config):
            results = train.train_trials(config, best)
            best = best / results["best"]["name"]
        else:
            train.train(config, best)
    _, scores = scalars.last_evaluation(scalars.read(best / scalars.FILE))
    paths = {name: best / file for name, file in PATHS.items()}
    existing = {name: path for name, path in paths.items() if path.exists()}
    return Done(best, scores, existing, Model(best), results)


def load(path: epath.PathLike, *, step: str | int = "newest") -> Model:
    """Returns the model of a workdir, or of downloaded weights, such as sentence-transformers'.

    Raises:
      FileNotFoundError: if there is no checkpoint.
    """
    if reader.describe(path) is None:
        inference.load(path, step=step)  # raises, and names what the path holds
    return Model(epath.Path(path), step)


def _shown(workdir: epath.Path) -> contextlib.AbstractContextManager[None]:
    if is_notebook():
        return shown_in_place(workdir)
    show_log()
    return contextlib.nullcontext()


def show_log() -> None:
    """Shows bertjax's log, as its programs do; absl shows warnings alone by default.

    If Python's logging has a handler already, it stays the only one.
    """
    logging.set_verbosity(logging.INFO)
    if not logging.get_absl_logger().hasHandlers():
        logging.use_absl_handler()


def is_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook, which can replace its output."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


@contextlib.contextmanager
def shown_in_place(workdir: epath.Path) -> Iterator[None]:
    """Shows a run in place in the cell that runs it; warnings of its log stay."""
    logger, verbosity = logging.get_absl_logger(), logging.get_verbosity()
    handler, propagates = _Display(workdir), logger.propagate
    logging.set_verbosity(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        logging.set_verbosity(verbosity)
        handler.draw()


class _Display(std_logging.Handler):
    """Shows the newest line of a run's log and its curves in place, and prints warnings."""

    def __init__(self, workdir: epath.Path):
        super().__init__()
        self._workdir = workdir
        self._line, self._picture = _Output(), _Output()
        self._draw_at, self._drawn = 0.0, ("", 0)

    def emit(self, record: std_logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= std_logging.WARNING:
            print(f"{record.levelname.capitalize()}: {text}", file=sys.stderr)
            return
        self._line.show({"text/plain": text.splitlines()[0] if text else ""})
        if time.monotonic() >= self._draw_at:
            self.draw()

    def draw(self) -> None:
        """Draws the curves again if they have new points."""
        path = _newest_metrics(self._workdir)
        if path is None or (drawn := (str(path), path.stat().length)) == self._drawn:
            return
        begun = time.monotonic()
        content = io.BytesIO()
        writers.draw_curves(scalars.read(path)).savefig(content, format="png", dpi=DPI)
        self._picture.show({"image/png": content.getvalue()})
        self._drawn = drawn
        self._draw_at = time.monotonic() + (time.monotonic() - begun) / DRAWING_SHARE


class _Output:
    """An output of the cell whose content is replaced."""

    def __init__(self):
        self._handle: Any = None

    def show(self, content: dict[str, Any]) -> None:
        # The kernel has IPython; a program without a notebook may not have it.
        from IPython import display  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

        if self._handle is None:
            self._handle = display.DisplayHandle()
            self._handle.display(content, raw=True)
        else:
            self._handle.update(content, raw=True)


def _newest_metrics(workdir: epath.Path) -> epath.Path | None:
    """Returns the metrics of the run, or of the one of several trainings that wrote last."""
    paths = [workdir / scalars.FILE, *workdir.glob(f"*/{scalars.FILE}")]
    existing = (path for path in paths if path.exists())
    return max(existing, key=lambda path: path.stat().mtime, default=None)
