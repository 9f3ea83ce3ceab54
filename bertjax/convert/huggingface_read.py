"""Reads a Hugging Face model: a directory with config.json and weights, or a file of weights.

Weights are model.safetensors, shards with an index, or pytorch_model.bin, in this order. Other
files (optimizers, other frameworks' weights, model cards) are ignored.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import ml_dtypes  # noqa: F401  NumPy knows bfloat16, which safetensors asks it for, from here
import numpy as np
import safetensors
from absl import logging
from etils import epath

from bertjax import models
from bertjax.convert import (
    heads,
    huggingface_config,
    huggingface_tokenizer,
    image_processor,
    names,
    pickled_weights,
    pretrained,
    sentence_transformers,
)
from bertjax.convert.families import base
from bertjax.files import json_text, opening
from bertjax.models import decoder_sharing, sentence_vectors
from bertjax.options import faults
from bertjax.tokenization import tokenizer

SAFETENSORS_FILE = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
PICKLE_FILE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"
WEIGHTS_FILES = (SAFETENSORS_FILE, SAFETENSORS_INDEX, PICKLE_FILE, PICKLE_INDEX)

# Prefixes of all names if the saved module was wrapped: by torch's DataParallel and
# DistributedDataParallel, and by torch.compile.
WRAPPERS = ("module.", "_orig_mod.")

# Types of safetensors that NumPy has. Types of 8 and 4 bits hold quantized weights.
DTYPES = ("BF16", "F32", "F16", "F64", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")

SEQUENCES = "sequence_to_sequence"
GENERATING = (SEQUENCES, "causal_lm")  # heads with a generation_config.json
BIAS = "classifier.bias"  # our path of the parameter whose size is the number of labels

Weights = dict[str, np.ndarray]


def read(path: epath.PathLike, *, head: str | None = None) -> pretrained.Pretrained:
    """Returns the model at `path`: a directory, a file of weights or the index of its shards.

    The head is by default the one of the config's `architectures`, or follows from the weights
    (`heads.of_paths`). Parameters of other heads are `unused`.
    """
    if head is not None:
        heads.check(head)
    path = epath.Path(path)
    whole = path if path.is_dir() else path.parent  # with the files of sentence-transformers
    path = sentence_transformers.of_transformer(path) if path.is_dir() else path
    directory = path if path.is_dir() else path.parent
    description = huggingface_config.read_config(directory)
    family, sizes = description.family, description.encoder
    is_of_sentences = sentence_transformers.is_there(whole, description.architectures)
    weights_file = _weights_file(path)
    weights = _unwrapped(read_weights(weights_file))
    try:
        told = {name: tell(sizes, weights) for name, tell in family.of_weights.items()}
        sizes = dataclasses.replace(sizes, **told)
        description = dataclasses.replace(description, encoder=sizes)
        weights = names.unfuse(untie(weights, family), family.fused, spelling=family.spelling)
        weights |= _absent(weights, description)
        if head is None and is_of_sentences:
            head = "none"  # also if its weights have a head
        head = head or _head(description, weights)
        params = to_params(weights, description, head)
        unused = tuple(name for name in weights if not _is_of(name, description, head))
        of_class = {path for path in params if heads.is_of_class(path, head, sizes.pooler)}
        params = {path: array for path, array in params.items() if path in of_class}
        if head == SEQUENCES and description.decoder is not None:
            params = decoder_sharing.with_most_sharing(params, sizes, description.decoder)
            logging.info("The decoder shares with the encoder: %s", decoder_sharing.sharing(params))
    except ValueError as error:
        raise ValueError(f"{weights_file}: {error}") from error
    is_regression = description.is_regression and head == "sequence_classification"
    if is_regression and len(labels := _labels(description, weights, head)) > 1:
        raise ValueError(
            f"{directory / huggingface_config.CONFIG_FILE} has the problem_type regression and "
            f"{len(labels)} labels; one number is supported. --head=none reads the encoder alone"
        )
    vocabulary = huggingface_tokenizer.read_tokenizer(directory, family.tokenizer)
    sentence = None
    if head == "none" and is_of_sentences:
        sentence = _sentence_vectors(whole, sizes, vocabulary)
        params |= _projections(whole, sentence.projections, sizes.hidden_size)
    has_decoder = heads.HEADS[head].module is not None
    part = family.nested.get("encoder", family) if head == "none" else family
    return pretrained.Pretrained(
        config=sizes,
        params=params,
        vocabulary=vocabulary,
        head=head,
        labels=_labels(description, weights, head),
        source=str(whole if whole != directory else path),
        unused=unused,
        is_regression=is_regression,
        is_multi_label=description.is_multi_label and head == "sequence_classification",
        model_type=part.name,
        pooling=description.pooling if head == "sequence_classification" else "cls",
        sentence=sentence,
        languages=description.languages,
        is_shifted=description.is_shifted and head == "masked_lm",
        decoder=description.decoder if has_decoder else None,
        start_id=description.start_id if has_decoder else None,
        end_id=description.end_id if has_decoder else None,
        generation=description.generation if head in GENERATING else {},
        objective=description.objective,
        manifest=image_processor.read(directory, sizes) if sizes.embeddings == "patches" else None,
    )


def describe(path: epath.PathLike) -> pretrained.Description:
    """Returns the description of the model at `path`, without reading parameters."""
    path = epath.Path(path)
    path = sentence_transformers.of_transformer(path) if path.is_dir() else path
    directory = path if path.is_dir() else path.parent
    description = huggingface_config.read_config(directory)
    _weights_file(path)
    vocabulary = huggingface_tokenizer.read_tokenizer(directory, description.family.tokenizer)
    return pretrained.Description(description.encoder, vocabulary, str(path), description.languages)


def read_sentence_vectors(path: epath.PathLike) -> sentence_vectors.SentenceVectors | None:
    """Returns the sentence vectors of the model at `path`, None if its files describe none."""
    path = epath.Path(path)
    whole = path if path.is_dir() else path.parent
    directory = sentence_transformers.of_transformer(whole) if path.is_dir() else whole
    architectures = huggingface_config.read_config(directory).architectures
    if not sentence_transformers.is_there(whole, architectures):
        return None
    description = describe(path)
    return _sentence_vectors(whole, description.config, description.vocabulary)


def _sentence_vectors(
    directory: epath.Path, sizes: models.EncoderConfig, vocabulary: tokenizer.Tokenizer | None
) -> sentence_vectors.SentenceVectors:
    is_lowercase = vocabulary is not None and vocabulary.describe()["lowercase"]
    size = sizes.hidden_size
    return sentence_transformers.read(directory, hidden_size=size, is_lowercase=is_lowercase)


def _projections(
    directory: epath.Path, projections: Sequence[sentence_vectors.Projection], size: int
) -> Weights:
    """Returns the parameters of the dense layers, by our paths; the first reads `size` numbers."""
    params: Weights = {}
    places = sentence_transformers.dense_directories(directory)
    for number, (place, projection) in enumerate(zip(places, projections, strict=True)):
        ours, file = f"projections.{number}", _weights_file(place)
        shapes: dict[str, tuple[int, ...]] = {f"{ours}.kernel": (size, projection.size)}
        if projection.use_bias:
            shapes[f"{ours}.bias"] = (projection.size,)
        weights, size = _unwrapped(read_weights(file)), projection.size
        table = names.torch_dense("linear", ours)
        try:
            params |= names.to_ours(weights, table, shapes=shapes, required=[*shapes])
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
    return params


def untie(weights: Mapping[str, np.ndarray], family: base.Family) -> Weights:
    """Returns the weights without copies of tied tensors; a copy alone becomes the original."""
    weights = dict(weights)
    by_spelling = {family.spelling(name): name for name in weights}
    untied = []
    for copy, original in family.tied.items():
        if copy not in by_spelling:
            continue
        values = weights.pop(by_spelling[copy])
        if original not in by_spelling:
            weights[original] = values
        elif not np.array_equal(values, weights[by_spelling[original]]):
            untied.append(f"{by_spelling[copy]} differs from {by_spelling[original]}")
    faults.check("tensors must be tied, as this model computes with one of them", untied)
    return weights


def _absent(weights: Weights, description: huggingface_config.Description) -> Weights:
    """Returns the family's constants for parameters that the file lacks."""
    family = description.family
    constants = family.constants(description.encoder, description.decoder)
    there = names.our_paths(weights, family.tensors, spelling=family.spelling)
    paths_of = {name: _paths(name, family.tensors, family) for name in constants}
    others = {it.ours for it in family.tensors}.difference(*paths_of.values())
    # A part without any other of its parameters is not there.
    parts = {*map(heads.part_of, there)} | {
        heads.part_of(path)
        for paths in paths_of.values()
        for path in paths
        if heads.part_of(path) not in map(heads.part_of, others)
    }
    return {
        name: array
        for name, array in constants.items()
        if any(
            path not in there
            and heads.part_of(path) in parts
            and any(heads.is_required(path, it) for it in family.architectures)
            for path in paths_of[name]
        )
    }


def to_params(weights: Weights, description: huggingface_config.Description, head: str) -> Weights:
    """Returns the weights by our paths, including other heads'."""
    family, sizes = description.family, description.encoder
    count = 1 if head == "multiple_choice" else len(_labels(description, weights, head)) or None
    with_decoder = [it for it in family.architectures if heads.HEADS[it].module]
    shapes = pretrained.shapes(
        sizes,
        labels=count,
        decoder=description.decoder,
        decoder_head=with_decoder[0] if with_decoder else "",
        shares=family.shares,
    )
    table = names.of_head(family.tensors, head)
    named_otherwise = {
        name
        for name in weights
        if _paths(name, family.tensors, family) and not _paths(name, table, family)
    }
    return names.to_ours(
        {name: array for name, array in weights.items() if name not in named_otherwise},
        names.in_a_row(table, sizes.inner_group_num),
        ignored=family.ignored,
        shapes=shapes,
        required=[path for path in shapes if heads.is_required(path, head, sizes.pooler)],
        spelling=family.spelling,
    )


def _is_of(name: str, description: huggingface_config.Description, head: str) -> bool:
    """Returns whether a weight is unknown, or part of the model with this head."""
    family, sizes = description.family, description.encoder
    paths = _paths(name, names.of_head(family.tensors, head), family)
    is_known = paths or _paths(name, family.tensors, family)
    return not is_known or any(heads.is_of_class(path, head, sizes.pooler) for path in paths)


def _paths(name: str, table: Sequence[names.Name], family: base.Family) -> set[str]:
    return names.our_paths([name], table, spelling=family.spelling)


def read_weights(path: epath.PathLike) -> Weights:
    """Returns the arrays of a file, or of the shards of an index, under their names.

    Half precision becomes float32; float64 stays, so that numbers too large for float32 are found.
    """
    path = epath.Path(path)
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    opening.check_regular(path)
    with path.open("rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            raise ValueError(
                f"{path} is a Git LFS pointer, not the weights; fetch them with `git lfs pull`"
            )
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    loaded = pickled_weights.read_pickle(path)
    # Popped one by one, so that no more than the file and its float32 are in memory.
    return {name: _float32(loaded.pop(name)) for name in list(loaded)}


def _unwrapped(weights: Weights) -> Weights:
    """Returns the weights without the prefix of all names that a wrapped module has."""
    for wrapper in itertools.chain(WRAPPERS, WRAPPERS):  # one may be inside the other
        if weights and all(name.startswith(wrapper) for name in weights):
            logging.info("Removed the prefix %r of all names", wrapper)
            weights = {name.removeprefix(wrapper): array for name, array in weights.items()}
    return weights


def _weights_file(path: epath.Path) -> epath.Path:
    if not path.is_dir():
        return path
    for name in WEIGHTS_FILES:
        if (path / name).exists():
            return path / name
    raise FileNotFoundError(f"{path} holds no weights: none of {', '.join(WEIGHTS_FILES)}")


def _head(description: huggingface_config.Description, weights: Weights) -> str:
    family, stated = description.family, description.head
    paths = names.our_paths(weights, family.tensors, spelling=family.spelling)
    read_head = heads.of_paths(paths)
    # The released weights name BertForMaskedLM and have both heads; for a bare BertModel with a
    # head in its weights, the config was written for the encoder.
    richer = ("pretraining", "masked_lm")
    if stated is None or (stated in ("none", "masked_lm") and read_head in richer):
        logging.info("The head is inferred from the weights: %s", read_head)
        return read_head
    return stated


def _labels(
    description: huggingface_config.Description, weights: Weights, head: str
) -> Mapping[int, str]:
    """Returns the names of a classifier's labels, LABEL_0, ... if the config has none."""
    if not heads.HEADS[head].has_labels:
        return {}
    table = names.of_head(description.family.tensors, head)
    biases = [a for n, a in weights.items() if _paths(n, table, description.family) == {BIAS}]
    if description.labels or not biases:
        return description.labels
    return {number: f"LABEL_{number}" for number in range(biases[0].size)}


def _float32(array: np.ndarray) -> np.ndarray:
    is_half = array.dtype.name in ("float16", "bfloat16")
    return array.astype(np.float32) if is_half else array


def _read_safetensors(path: epath.Path) -> Weights:
    try:
        with safetensors.safe_open(path, framework="np") as file:
            names = list(file.keys())  # it cannot be iterated over
            dtypes = {name: file.get_slice(name).get_dtype() for name in names}
            if unread := [
                f"{name} of {dtype}" for name, dtype in dtypes.items() if dtype not in DTYPES
            ]:
                raise ValueError(
                    f"{path} has {len(unread)} parameters of unsupported types, such as "
                    f"{unread[0]}; save them as {DTYPES[0]} or {DTYPES[1]}"
                )
            return {name: _float32(file.get_tensor(name)) for name in names}
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}): it was cut short or altered; fetch "
            "it again"
        ) from error


def _read_shards(index: epath.Path) -> Weights:
    try:
        places = json_text.loads(opening.read(index))["weight_map"]
        shards = sorted(set(places.values()))
        is_plain = all("/" not in shard and "\\" not in shard for shard in shards)
        is_plain &= not any(shard.endswith(".index.json") for shard in shards)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{index} is not an index of shards ({error!r}): it must map names of parameters to "
            "files under weight_map"
        ) from error
    if not is_plain:
        raise ValueError(
            f"{index} names an index, or files outside its directory: {', '.join(shards)}"
        )
    if missing := [shard for shard in shards if not (index.parent / shard).exists()]:
        raise FileNotFoundError(
            f"{index} names {', '.join(missing)}, which {index.parent} does not hold; fetch all of "
            f"its {len(shards)} shards"
        )
    weights: Weights = {}
    misfits = []
    for shard in shards:
        held = read_weights(index.parent / shard)
        stated = {name for name, place in places.items() if place == shard}
        misfits += [f"{name} is not in {shard}" for name in sorted(stated - set(held))]
        misfits += [f"{name} of {shard} is not in the index" for name in sorted(set(held) - stated)]
        weights |= held
    faults.check(f"{index} does not fit its shards", misfits)
    return weights
