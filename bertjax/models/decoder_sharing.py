"""The parts that a decoder shares with its encoder, by the paths of their parameters.

A `decoder.Decoder` has no parameters for shared parts. Formats without ties hold two equal copies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from bertjax.models.encoder_config import EncoderConfig

# Sharing -> the parts that the decoder lacks, the most shared first; `decoder.SHARED` says more.
LACKING: dict[str, tuple[str, ...]] = {
    "layers": ("embeddings", "layers", "final_norm"),
    "embeddings": ("embeddings",),
    "words": ("embeddings.word",),
    "none": (),
}
# The fields in which a decoder may differ from an encoder that has the same embeddings.
OF_LAYERS = ("num_hidden_layers", "num_attention_heads", "intermediate_size")
_OURS, _THEIRS = "decoder", "encoder"


def sharing(paths: Collection[str]) -> str:
    """Returns the sharing of the encoder-decoder with parameters at these paths."""
    return next(
        name
        for name, parts in LACKING.items()
        if not any(_is_under(path, _OURS, parts) for path in paths)
    )


def with_sharing(params: Mapping[str, np.ndarray], shares: str) -> dict[str, np.ndarray]:
    """Returns the parameters by path of an encoder-decoder with this sharing.

    Raises:
      ValueError: listing the shared parameters that differ in encoder and decoder.
    """
    whole = {
        path.replace(_THEIRS, _OURS, 1): leaf
        for path, leaf in params.items()
        if _is_under(path, _THEIRS, LACKING[sharing(params)])
    } | dict(params)
    copies = [path for path in whole if _is_under(path, _OURS, LACKING[shares])]
    if differing := [path for path in copies if not _is_copy(path, whole)]:
        raise ValueError(
            f"a decoder that shares its encoder's {shares} has no {', '.join(differing)}, which "
            "differ from the encoder's"
        )
    return {path: leaf for path, leaf in whole.items() if path not in copies}


def with_most_sharing(
    params: Mapping[str, np.ndarray], config: EncoderConfig, decoder: EncoderConfig
) -> dict[str, np.ndarray]:
    """Returns the parameters without the decoder's copies of the encoder's.

    The table of words, all embeddings, or embeddings and layers are shared if all of their copies
    are equal and the two configs use them alike.
    """
    of_encoder = {name: getattr(config, name) for name in OF_LAYERS}
    alike = {
        "layers": decoder == config,
        "embeddings": dataclasses.replace(decoder, **of_encoder) == config,
        "words": decoder.embeddings == "learnt",
        "none": True,
    }
    for shares, are_alike in alike.items():
        copies = [path for path in params if _is_under(path, _OURS, LACKING[shares])]
        if are_alike and all(_is_copy(path, params) for path in copies):
            return with_sharing(params, shares)
    raise AssertionError("every decoder may share nothing")


def _is_under(path: str, model: str, parts: Collection[str]) -> bool:
    return any(path.startswith(f"{model}.{part}.") for part in parts)


def _is_copy(path: str, params: Mapping[str, np.ndarray]) -> bool:
    original = params.get(path.replace(_OURS, _THEIRS, 1))
    return original is not None and np.array_equal(params[path], original)
