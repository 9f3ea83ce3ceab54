"""A trained model read from a workdir, ready for sentences: what fill_mask and encode share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath
from flax import nnx

from bertjax import checkpoint, jobs, state
from bertjax.data import tokenizer
from bertjax.models import encoder


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
    params: state.Params
    vocabulary: tokenizer.Tokenizer
    max_length: int
    fills_masks: bool


def load(workdir: epath.PathLike) -> TrainedModel:
    """Returns the newest checkpoint's model with its vocabulary.

    Weights without the masked-token head (converted, or finetuned) give the encoder alone.

    Raises:
      FileNotFoundError: if `workdir` holds no checkpoint, or no vocabulary (a synthetic run).
      checkpoint.CheckpointError: if the checkpoint cannot be read.
    """
    params, meta, _ = checkpoint.load_params(workdir)
    config = jobs.config_of(meta)
    directory = epath.Path(workdir) / jobs.VOCABULARY_DIRECTORY
    if not directory.exists():
        raise FileNotFoundError(
            f"{directory} does not exist: a run on synthetic data, or weights that came without "
            "their vocabulary, cannot read text"
        )
    fills_masks = "mlm_head" in params
    if fills_masks:
        graphdef, _ = state.abstract_model(jobs.JOBS[config.task].task(config))
    else:
        sizes = encoder.EncoderConfig(**config.model)
        graphdef, _ = state.split(nnx.eval_shape(lambda: EncoderAlone(sizes, rngs=nnx.Rngs(0))))
        params = {"encoder": params["encoder"]}
    return TrainedModel(
        graphdef=graphdef,
        params=params,
        vocabulary=tokenizer.load(directory),
        max_length=config.model.max_position_embeddings,
        fills_masks=fills_masks,
    )


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


def merge(model: TrainedModel, params: state.Params) -> Any:
    """Returns the module with `params`, to call inside a jitted function."""
    return state.merge(model.graphdef, params)
