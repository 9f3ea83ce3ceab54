"""Writes a directory that transformers loads: weights, config, tokenizer and model card.

Weights are in torch's layout, under the names that transformers saves them by, the tied
ones once. The head decides the architecture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import ml_dtypes
import numpy as np
from etils import epath

from bertjax.convert import (
    heads,
    huggingface_config,
    huggingface_read,
    huggingface_tokenizer,
    names,
    pretrained,
    sentence_transformers,
)
from bertjax.convert.families import base
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
    family, head, sizes = weights.family, weights.head, weights.config
    config = huggingface_config.to_json(
        sizes,
        family,
        head=head,
        labels=weights.labels,
        pooling=weights.pooling,
        languages=weights.languages,
        is_shifted=weights.is_shifted,
        decoder=weights.decoder,
    )
    table = names.in_a_row(names.of_head(family.tensors, head), sizes.inner_group_num)

    def is_beside(path: str) -> bool:
        """Whether the head may have a parameter that the class lacks: it is left out."""
        if heads.is_required(path, head, sizes.pooler) or not heads.belongs(path, head):
            return False
        return not (heads.is_of_class(path, head, sizes.pooler) and names.knows(table, path))

    params = {path: array for path, array in weights.params.items() if not is_beside(path)}
    params = {**family.completion(sizes), **params}
    if head == huggingface_read.SEQUENCES:
        params = decoder_sharing.with_sharing(params, family.shares)
    tensors = names.fuse(names.to_theirs(params, table), family.fused)
    tensors = {**family.constants(sizes, weights.decoder), **tensors}
    if head == "none":  # then transformers saves the names without the prefix, too
        tensors = {name.removeprefix(family.prefix): array for name, array in tensors.items()}
    directory.mkdir(parents=True, exist_ok=True)
    config["dtype"] = dtype
    if weights.is_regression:
        config["problem_type"] = huggingface_config.REGRESSION
    if weights.is_multi_label:
        config["problem_type"] = huggingface_config.MULTI_LABEL
    if weights.vocabulary is not None:
        config |= _ids(weights.vocabulary, family)
        for name, part in family.nested.items():
            config[name] |= _ids(weights.vocabulary, part)
        files = family.tokenizer
        huggingface_tokenizer.write_tokenizer(
            weights.vocabulary,
            directory,
            files.with_segments() if sizes.type_vocab_size > 1 else files,
            max_length=sizes.max_position_embeddings,
        )
    ends = {huggingface_config.START: weights.start_id, huggingface_config.END: weights.end_id}
    config |= {field: number for field, number in ends.items() if number is not None}
    if huggingface_config.START in family.tokenizer.ids and huggingface_config.START not in config:
        raise ValueError(
            f"{weights.source} has no vocabulary and no start_id: nothing says what its decoder "
            "reads first. --format=bertjax keeps it"
        )
    text = json.dumps(config, indent=2, sort_keys=True)
    (directory / huggingface_config.CONFIG_FILE).write_text(text + "\n")
    (directory / CARD_FILE).write_text(card)
    write_safetensors(tensors, directory / WEIGHTS_FILE, dtype)
    if weights.sentence is not None and head == "none":
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


def _ids(vocabulary: tokenizer.Tokenizer, family: base.Family) -> dict[str, int]:
    """Returns the fields of config.json that are ids of the vocabulary."""
    return {field: getattr(vocabulary, name) for field, name in family.tokenizer.ids.items()}


def write_safetensors(
    tensors: Mapping[str, np.ndarray], path: epath.Path, dtype: str = "float32"
) -> None:
    """Writes float32 arrays as `dtype`, one after the other, without a second copy in memory.

    The library's own writer would hold all bytes once more. Source: the safetensors format: the
    header's length in 8 bytes, the header in JSON padded to 8 bytes, the data as
    little-endian numbers.
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
            with np.errstate(over="ignore"):  # said below, with the parameter's name
                rounded = np.ascontiguousarray(tensors[name], numbers)
            if (np.isinf(rounded) & np.isfinite(tensors[name])).any():
                raise ValueError(
                    f"{name} has {np.abs(tensors[name]).max():g}, which is too large for {dtype}: "
                    "write it as float32"
                )
            file.write(rounded.view(np.uint8).data)
