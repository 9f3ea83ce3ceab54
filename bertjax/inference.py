"""A trained model read from a workdir, ready for texts: for fill_mask, encode and predict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import ml_collections
import numpy as np
from etils import epath
from flax import nnx

from bertjax import jobs
from bertjax.data import tokenizer
from bertjax.models import encoder, lora, parameters
from bertjax.tasks import base as tasks_base
from bertjax.tasks import finetuning
from bertjax.workdirs import checkpoint


class EncoderAlone(nnx.Module):
    """What can be used of weights without the masked-token head: the encoder."""

    def __init__(self, config: encoder.EncoderConfig, *, rngs: nnx.Rngs):
        self.encoder = encoder.Encoder(config, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """The parts of a run that are needed to use its model.

    Its module has an `encoder`; and `mlm_logits`, if it `fills_masks`.
    """

    graphdef: nnx.GraphDef
    params: parameters.Params
    vocabulary: tokenizer.Tokenizer
    max_length: int
    fills_masks: bool


@dataclasses.dataclass(frozen=True)
class FinetunedModel:
    """A finetuned model, with LoRA merged into its kernels, and what its answers mean.

    `options` are config.finetuning as training left them: with the labels that it found and the
    no-answer threshold that it tuned.
    """

    task: finetuning.FinetuningTask
    graphdef: nnx.GraphDef
    params: parameters.Params
    vocabulary: tokenizer.Tokenizer
    options: ml_collections.ConfigDict


def load(workdir: epath.PathLike) -> TrainedModel:
    """Returns the newest checkpoint's model with its vocabulary.

    Weights without the masked-token head (converted, or finetuned) give the encoder alone.

    Raises:
      FileNotFoundError: if `workdir` holds no checkpoint, or no vocabulary (a synthetic run).
      checkpoint.CheckpointError: if the checkpoint cannot be read.
    """
    params, config, vocabulary = _read(workdir)
    fills_masks = "mlm_head" in params
    if fills_masks:
        graphdef, _ = tasks_base.abstract_model(jobs.JOBS[config.task].task(config))
    else:
        sizes = encoder.EncoderConfig(**config.model)
        graphdef, _ = parameters.split(
            nnx.eval_shape(lambda: EncoderAlone(sizes, rngs=nnx.Rngs(0)))
        )
        params = {"encoder": params["encoder"]}
    return TrainedModel(
        graphdef=graphdef,
        params=params,
        vocabulary=vocabulary,
        max_length=config.model.max_position_embeddings,
        fills_masks=fills_masks,
    )


def load_finetuned(workdir: epath.PathLike) -> FinetunedModel:
    """Returns the newest checkpoint's finetuned model with its vocabulary.

    Raises:
      FileNotFoundError, checkpoint.CheckpointError: as `load`.
      ValueError: if the run was no finetuning.
    """
    params, config, vocabulary = _read(workdir)
    if config.task != "finetuning":
        raise ValueError(
            f"{workdir} holds a model of task {config.task!r}, which was finetuned for nothing: "
            f"finetune it with --config.init_from={workdir}, or use `python -m bertjax.fill_mask` "
            "or `python -m bertjax.encode`"
        )
    options = config.finetuning
    options.lora_rank = 0  # merged
    task = jobs.finetuning_task(config)
    graphdef, _ = tasks_base.abstract_model(task)
    return FinetunedModel(task, graphdef, params, vocabulary, options)


def _read(
    workdir: epath.PathLike,
) -> tuple[dict[str, Any], ml_collections.ConfigDict, tokenizer.Tokenizer]:
    """Returns parameters (LoRA merged), config and vocabulary of the newest checkpoint."""
    params, meta, _ = checkpoint.load_params(workdir)
    config = jobs.config_of(meta)
    directory = epath.Path(workdir) / jobs.VOCABULARY_DIRECTORY
    if not directory.exists():
        raise FileNotFoundError(
            f"{directory} does not exist: a run on synthetic data, or weights that came without "
            "their vocabulary, cannot read text"
        )
    if "lora" in params:
        params = lora.merge(params, alpha=config.finetuning.lora_alpha)
    return dict(params), config, tokenizer.load(directory)


def single_segment_batch(
    sequences: Sequence[Sequence[int]], model: TrainedModel
) -> dict[str, np.ndarray]:
    """Returns [CLS] tokens [SEP] rows, padded to a multiple of 32: few programs are compiled.

    Raises:
      ValueError: if a sequence is longer than the model can read.
    """
    longest = max(len(sequence) for sequence in sequences) + 2
    if longest > model.max_length:
        raise ValueError(
            f"a text has {longest} tokens with [CLS] and [SEP]; the model reads at most "
            f"{model.max_length}: shorten it or split it"
        )
    length = min(-(-longest // 32) * 32, model.max_length)
    vocabulary = model.vocabulary
    input_ids = np.full((len(sequences), length), vocabulary.pad_id, np.int32)
    input_mask = np.zeros_like(input_ids)
    for row, sequence in enumerate(sequences):
        tokens = [vocabulary.cls_id, *sequence, vocabulary.sep_id]
        input_ids[row, : len(tokens)] = tokens
        input_mask[row, : len(tokens)] = 1
    return {
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": np.zeros_like(input_ids),
    }


def merge(model: TrainedModel, params: parameters.Params) -> Any:
    """Returns the module with `params`, to call inside a jitted function."""
    return parameters.merge(model.graphdef, params)
