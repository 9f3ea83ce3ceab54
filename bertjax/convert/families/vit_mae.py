"""MAE's vision transformers, with the decoder that they were pretrained with.

Sources: transformers, models/vit_mae (modeling_vit_mae.py, configuration_vit_mae.py) of 4.57 and
5.24; facebookresearch/mae, models_mae.py, util/pos_embed.py.

Positions are computed here and stored in their files; only a square grid's are supported. Layers
are written with the names of version 4, which version 5 reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax import models
from bertjax.convert import heads, names
from bertjax.convert.families import base, bert
from bertjax.convert.names import Name
from bertjax.models import values

ARCHITECTURES = heads.classes("ViTMAE", ("masked_autoencoder", "none"))

IMAGE = {"image_size": 224, "patch_size": 16, "num_channels": 3}

# A file without one of them has the value of ViTMAEConfig.
FIELDS: dict[str, base.Field] = {
    **{
        name: base.Field(name, int)
        for name in bert.SIZES
        if name not in ("vocab_size", "max_position_embeddings")
    },
    **{name: base.Field(name, float) for name in bert.RATES},
    "hidden_act": base.Field("hidden_act", str, values=bert.ACTIVATIONS),
    "positions": base.Field("max_position_embeddings", int, stated=False),
    "patch_values": base.Field("value_width", int, stated=False),
}

_BODY = "vit"
_POSITIONS = f"{_BODY}.embeddings.position_embeddings"
_DECODER_POSITIONS = "decoder.decoder_pos_embed"


def _of_layers(theirs: str, ours: str) -> tuple[Name, ...]:
    theirs, ours = f"{theirs}.{{layer}}", f"{ours}.layers.{{layer}}"
    return (
        *names.torch_norm(f"{theirs}.layernorm_before", f"{ours}.attention_norm"),
        *names.torch_dense(f"{theirs}.attention.attention.query", f"{ours}.attention.query"),
        *names.torch_dense(f"{theirs}.attention.attention.key", f"{ours}.attention.key"),
        *names.torch_dense(f"{theirs}.attention.attention.value", f"{ours}.attention.value"),
        *names.torch_dense(f"{theirs}.attention.output.dense", f"{ours}.attention.output"),
        *names.torch_norm(f"{theirs}.layernorm_after", f"{ours}.output_norm"),
        *names.torch_dense(f"{theirs}.intermediate.dense", f"{ours}.intermediate"),
        *names.torch_dense(f"{theirs}.output.dense", f"{ours}.output"),
    )


_PATCHES = f"{_BODY}.embeddings.patch_embeddings.projection"
TENSORS: tuple[Name, ...] = (
    Name(f"{_BODY}.embeddings.cls_token", "encoder.embeddings.empty.embedding", "row"),
    Name(f"{_PATCHES}.weight", "encoder.embeddings.patches.kernel", "convolution"),
    Name(f"{_PATCHES}.bias", "encoder.embeddings.patches.bias"),
    *_of_layers(f"{_BODY}.encoder.layer", "encoder"),
    *names.torch_norm(f"{_BODY}.layernorm", "encoder.final_norm"),
    Name("decoder.mask_token", "decoder.embeddings.mask.embedding", "row"),
    *names.torch_dense("decoder.decoder_embed", "decoder.embeddings.projection"),
    *_of_layers("decoder.decoder_layers", "decoder"),
    *names.torch_norm("decoder.decoder_norm", "decoder.final_norm"),
    *names.torch_dense("decoder.decoder_pred", "value_head.dense"),
)


def in_patches(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields with the number of positions and of values of a patch."""
    image, size, channels = (fields.get(name, default) for name, default in IMAGE.items())
    sides: list[Any] = [image, size]
    square: list[Any] = [it[0] if isinstance(it, list) and len({*it}) == 1 else it for it in sides]
    are_whole = all(isinstance(it, int) and it > 0 for it in (*square, channels))
    if not are_whole or square[0] % square[1]:
        raise ValueError(
            f"image_size is {image!r}, patch_size {size!r} and num_channels {channels!r}; the "
            "image must be a square of square patches"
        )
    positions = (square[0] // square[1]) ** 2 + 1
    return {**fields, "positions": positions, "patch_values": square[1] ** 2 * channels}


def of_image(config: models.EncoderConfig) -> dict[str, Any]:
    """Returns the fields of the image and its patches."""
    size, channels = names.patch_sides(config.value_width)
    side = round((config.max_position_embeddings - 1) ** 0.5)
    return {"image_size": side * size, "patch_size": size, "num_channels": channels}


def constants(
    config: models.EncoderConfig, decoder: models.EncoderConfig | None
) -> dict[str, np.ndarray]:
    """Returns the positions of encoder and decoder."""
    tables = {_POSITIONS: config} | ({_DECODER_POSITIONS: decoder} if decoder else {})
    return {
        name: values.sines_of_grid(sizes.max_position_embeddings, sizes.hidden_size)[None]
        for name, sizes in tables.items()
    }


def stored_positions(config: models.EncoderConfig, weights: Mapping[str, np.ndarray]) -> str:
    """Returns the kind of positions that the weights hold."""
    for name, array in weights.items():
        if not name.endswith(("position_embeddings", "decoder_pos_embed")):
            continue
        expected = values.sines_of_grid(config.max_position_embeddings, array.shape[-1])[None]
        if array.shape != expected.shape or not np.allclose(array, expected, atol=1e-5):
            raise ValueError(
                f"{name} is not the table of sines and cosines of a square grid; others, such as "
                "positions that were trained, are not supported"
            )
    return "sines_of_grid"


FAMILY = base.Family(
    model_type="vit_mae",
    title="ViT-MAE",
    fields=FIELDS,
    fixed={"qkv_bias": True},
    stated={"qkv_bias": True},
    without_effect=base.BOOKKEEPING | {*IMAGE},
    architectures=ARCHITECTURES,
    tensors=TENSORS,
    prefix=f"{_BODY}.",
    tokenizer=base.TokenizerFiles((), {}, "", "", {}),
    older=(
        (r"^decoder\.decoder_encoder\.layer\.", "decoder.decoder_layers."),
        (r"(?<=\d\.)attention\.(query|key|value)(?=\.)", r"attention.attention.\1"),
    ),
    ignored=(_POSITIONS.replace(".", r"\."), _DECODER_POSITIONS.replace(".", r"\.")),
    traits={
        **{"embeddings": "patches", "position_embedding": "sines_of_grid"},
        **{"hidden_input": "none", "partial_patches": False, "type_vocab_size": 0},
        **{"layer": "full_pre_norm", "vocab_size": 0},
    },
    of_weights={"position_embedding": stored_positions},
    read=in_patches,
    restated=of_image,
    constants=constants,
    decoder={
        "decoder_hidden_size": ("hidden_size", 512),
        "decoder_num_hidden_layers": ("num_hidden_layers", 8),
        "decoder_num_attention_heads": ("num_attention_heads", 16),
        "decoder_intermediate_size": ("intermediate_size", 2_048),
    },
    objective={
        "norm_pix_loss": ("normalized_patches", False),
        "mask_ratio": ("masked_lm_prob", 0.75),
    },
)
