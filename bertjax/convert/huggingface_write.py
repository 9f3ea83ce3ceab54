"""Writes a directory for transformers: weights, config, tokenizer and model card.

Weights have torch's layout and transformers' names; tied ones are stored once. The head decides the
architecture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from etils import epath

from bertjax.convert import (
    generation_config,
    heads,
    huggingface_config,
    huggingface_read,
    huggingface_tokenizer,
    image_processor,
    names,
    pretrained,
    sentence_transformers,
)
from bertjax.convert.families import base
from bertjax.data import records
from bertjax.models import decoder_sharing
from bertjax.tokenization import tokenizer

WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"
POOLER = "pooler.dense.kernel"  # our path

# Types of the numbers of an export: NumPy's type, and the name in safetensors.
DTYPES = {
    "float32": (np.dtype("<f4"), "F32"),
    "float16": (np.dtype("<f2"), "F16"),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), "BF16"),
}


def write(
    weights: pretrained.Pretrained, directory: epath.PathLike, *, card: str, dtype: str = "float32"
) -> None:
    """Writes the directory's files; `card` is the text of README.md, `dtype` a key of DTYPES."""
    directory = epath.Path(directory)
    family, sizes = weights.family, weights.config
    fields = _config(weights, family, dtype)
    config = json.dumps(fields, indent=2, sort_keys=True)
    table = names.in_a_row(names.of_head(family.tensors, weights.head), sizes.inner_group_num)
    params = _params(weights, family, table)
    tensors = names.fuse(names.to_theirs(params, table), family.fused)
    constants = {
        name: array
        for name, array in family.constants(sizes, weights.decoder).items()
        if names.our_paths([name], table) or not names.our_paths([name], family.tensors)
    }
    tensors = {**constants, **tensors}
    if weights.head == "none":  # transformers saves these names without the prefix
        tensors = {name.removeprefix(family.prefix): array for name, array in tensors.items()}
    directory.mkdir(parents=True, exist_ok=True)
    if weights.vocabulary is not None:
        files = family.tokenizer
        huggingface_tokenizer.write_tokenizer(
            weights.vocabulary,
            directory,
            files.with_segments() if sizes.type_vocab_size > 1 else files,
            max_length=sizes.max_position_embeddings,
        )
    (directory / huggingface_config.CONFIG_FILE).write_text(config + "\n")
    if searched := _search(weights, fields):
        generation_config.write(searched, directory)
    (directory / CARD_FILE).write_text(card)
    if weights.manifest is not None and records.PIXELS_FEATURE in weights.manifest.features:
        image_processor.write(weights.manifest, directory)
    write_safetensors(tensors, directory / WEIGHTS_FILE, dtype)
    if weights.sentence is not None and weights.head == "none":
        sentence_transformers.write(
            weights.sentence,
            directory,
            size=sizes.hidden_size,
            longest=sizes.max_position_embeddings,
            lacks_pooler=POOLER not in params and names.knows(table, POOLER),
        )
        for number, place in enumerate(sentence_transformers.dense_directories(directory)):
            ours = f"projections.{number}"
            params = {path: x for path, x in weights.params.items() if path.startswith(f"{ours}.")}
            tensors = names.to_theirs(params, names.torch_dense("linear", ours))
            write_safetensors(tensors, place / WEIGHTS_FILE, dtype)


def _config(weights: pretrained.Pretrained, family: base.Family, dtype: str) -> dict[str, Any]:
    """Returns the fields of config.json."""
    config = huggingface_config.to_json(
        weights.config,
        family,
        head=weights.head,
        labels=weights.labels,
        pooling=weights.pooling,
        languages=weights.languages,
        is_shifted=weights.is_shifted,
        decoder=weights.decoder,
    )
    config["dtype"] = dtype
    for name, (ours, _) in family.objective.items():
        config |= {name: weights.objective[ours]} if ours in weights.objective else {}
    if weights.is_regression:
        config["problem_type"] = huggingface_config.REGRESSION
    if weights.is_multi_label:
        config["problem_type"] = huggingface_config.MULTI_LABEL
    if weights.vocabulary is not None:
        config |= _ids(weights.vocabulary, family)
        for name, part in family.nested.items():
            config[name] |= _ids(weights.vocabulary, part)
    ends = {huggingface_config.START: weights.start_id, huggingface_config.END: weights.end_id}
    config |= {field: number for field, number in ends.items() if number is not None}
    if huggingface_config.START in family.tokenizer.ids and huggingface_config.START not in config:
        raise ValueError(
            f"{weights.source} has no vocabulary and no start_id, so nothing gives the first id of "
            "its decoder. --format=bertjax keeps it"
        )
    return config


def _search(weights: pretrained.Pretrained, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of generation_config.json, {} without one; ids are as in config.json."""
    if weights.head != huggingface_read.SEQUENCES:
        return dict(weights.generation)
    ids = ("bos_token_id", "pad_token_id", huggingface_config.START, huggingface_config.END)
    fields = {**weights.generation, **{name: config[name] for name in ids if name in config}}
    longest = (weights.decoder or weights.config).max_position_embeddings
    return generation_config.with_length(fields, longest)


def _params(
    weights: pretrained.Pretrained, family: base.Family, table: Sequence[names.Name]
) -> dict[str, np.ndarray]:
    """Returns the parameters that the class has, by our paths, with what the family completes."""
    head, pooler = weights.head, weights.config.pooler

    def is_left_out(path: str) -> bool:
        """Whether the head may have this parameter, but the class lacks it."""
        if heads.is_required(path, head, pooler) or not heads.belongs(path, head):
            return False
        return not (heads.is_of_class(path, head, pooler) and names.knows(table, path))

    if no_class := {*map(heads.part_of, weights.params)} & {*heads.HEADS[head].of_config}:
        raise ValueError(
            f"transformers has no class with a {', '.join(no_class)}, without which the model "
            f"predicts other tokens (--head={head}): --format=bertjax keeps it"
        )
    params = {path: array for path, array in weights.params.items() if not is_left_out(path)}
    params = {**family.completion(weights.config), **params}
    if head == huggingface_read.SEQUENCES:
        params = decoder_sharing.with_sharing(params, family.shares)
    return params


def _ids(vocabulary: tokenizer.Tokenizer, family: base.Family) -> dict[str, int]:
    """Returns the fields of config.json that are ids of the vocabulary."""
    return {field: getattr(vocabulary, name) for field, name in family.tokenizer.ids.items()}


def write_safetensors(
    tensors: Mapping[str, np.ndarray], path: epath.Path, dtype: str = "float32"
) -> None:
    """Writes float32 arrays as `dtype`, one after the other, without a second copy in memory.

    The library's writer would hold all bytes once more. Source: the safetensors format: the
    header's length in 8 bytes, the header in JSON padded to 8 bytes, little-endian numbers.
    """
    numbers, title = DTYPES[dtype]
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors):
        start, end = end, end + tensors[name].size * numbers.itemsize
        shape = list(tensors[name].shape)
        header[name] = {"dtype": title, "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for name in sorted(tensors):
            with np.errstate(over="ignore"):  # reported below, with the parameter's name
                rounded = np.ascontiguousarray(tensors[name], numbers)
            if (np.isinf(rounded) & np.isfinite(tensors[name])).any():
                raise ValueError(
                    f"{name} has {np.abs(tensors[name]).max():g}, which is too large for {dtype}: "
                    "write it as float32"
                )
            file.write(rounded.view(np.uint8).data)
