"""Reads checkpoints of released TensorFlow 1 code: bert_config.json, bert_model.ckpt.*, vocab.txt.

The family has the names of the variables and the fields of the config. TensorFlow, from
`records.import_tensorflow`, reads the checkpoint as a table of arrays, without a graph.

Source: google-research/bert, optimization.py (slots); tokenization.py,
validate_case_matches_checkpoint (casing).
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from bertjax.convert import families, heads, names, pretrained
from bertjax.convert.families import base
from bertjax.data import records
from bertjax.files import json_text, opening
from bertjax.models import embedding_sharing, encoder, encoder_config, parameters
from bertjax.options import faults
from bertjax.tokenization import sentence_piece, tokenizer, wordpiece

Shapes = Mapping[str, Sequence[int]]

# The slots of the optimizers of BERT, ALBERT and NVIDIA's BERT (Adam, LAMB) and of TensorFlow's,
# loss scaling, and the temperature of ELECTRA's samples.
OPTIMIZER_SLOT = re.compile(
    r".+/(adam_[mv]|lamb_[mv]|Adam(_1)?|Momentum)|global_step|beta[12]_power"
    r"|(current_)?loss_scale|(good|bad)_steps|temperature"
)
# The variable with which TensorFlow 2 marks a checkpoint of objects.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

# Vocabularies of lowercase text have capitals only in brackets ([CLS]), apart from a few entries
# that users added.
CASED_SHARE = 0.01


def read(path: epath.PathLike) -> pretrained.Pretrained:
    """Returns the weights in a directory, or at a checkpoint prefix, of the released code.

    Without vocab.txt the vocabulary is None. `unused` has the slots of the optimizer and the
    variables outside of the head's model.
    """
    prefix = find_checkpoint(path)
    misfits: list[str] = []
    configs = vocabulary = converted = None
    variables, slots = None, ()
    with _noting(misfits):
        variables, slots = read_variables(prefix)
    family = families.releasing(variables or (), [file.name for file in prefix.parent.iterdir()])
    released = _released(family)
    shapes = {
        path: array.shape
        for name, array in (variables or {}).items()
        for path in names.our_paths([name], released.names)
    }
    with _noting(misfits):
        configs = read_configs(prefix.parent / released.config, family, shapes)
    with _noting(misfits):
        vocabulary = read_vocabulary(prefix.parent, released)
    with _noting(misfits):
        if variables is not None:
            converted = _convert(variables, released, configs)
    vocab_size = configs[0].vocab_size if configs else None
    if vocabulary and vocab_size and vocabulary.vocab_size > vocab_size:
        misfits.append(
            f"the vocabulary has {vocabulary.vocab_size} entries, {released.config} says "
            f"vocab_size {vocab_size}: they belong to different models"
        )
    faults.check(f"{prefix} cannot be used", misfits)
    assert configs and converted
    head, params, outside = converted
    config, generator = configs
    return pretrained.Pretrained(
        config=config,
        params=params,
        vocabulary=vocabulary,
        head=head,
        labels=pretrained.named_labels({}, params, head),
        source=f"{prefix} (TensorFlow 1 checkpoint)",
        unused=(*outside, *slots),
        model_type=family.model_type,
        generator=generator,
    )


def describe(path: epath.PathLike) -> pretrained.Description:
    """Returns config and vocabulary of the weights, which are read to find their family."""
    weights = read(path)
    return pretrained.Description(weights.config, weights.vocabulary, weights.source)


def find_checkpoint(path: epath.PathLike) -> epath.Path:
    """Returns the absolute prefix of the checkpoint at `path`.

    `path` is a directory, a prefix (bert_model.ckpt) or one of the prefix's files.
    """
    path = epath.Path(path)
    known = [family.released for family in families.FAMILIES.values() if family.released]
    examples = " or ".join(f"{released.example}/{released.checkpoint}" for released in known)
    if not path.is_dir():
        prefix = path.parent / re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", path.name)
        if not (prefix.parent / f"{prefix.name}.index").exists():
            raise FileNotFoundError(
                f"{prefix}.index does not exist; give the directory or the prefix of a TensorFlow "
                f"checkpoint, such as {examples}"
            )
        return prefix.resolve()
    matches = sorted(file.stem for file in path.iterdir() if file.suffix == ".index")
    for name in [released.checkpoint for released in known if released.checkpoint in matches]:
        return path.resolve() / name
    if len(matches) == 1:
        return path.resolve() / matches[0]
    if matches:
        raise ValueError(
            f"{path} holds several checkpoints ({', '.join(matches)}); give one, as in "
            f"{path / matches[-1]}"
        )
    raise FileNotFoundError(
        f"{path} holds no TensorFlow 1 checkpoint, which is "
        + " or ".join(
            f"{it.config}, {it.checkpoint}.index, {it.checkpoint}.data-00000-of-00001 and the "
            f"vocabulary ({wordpiece.VOCABULARY_FILE}, {sentence_piece.MODEL_FILE})"
            for it in known
        )
    )


def read_variables(prefix: epath.Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Returns the weights at `prefix` by the checkpoint's names, and the names of the slots."""
    if missing := _missing_data_files(prefix):
        raise ValueError(
            f"{prefix.name}.index is there, but not its data, {', '.join(missing)}: copy all files "
            f"of {prefix.name} into {prefix.parent}"
        )
    for path in prefix.parent.glob(f"{prefix.name}.*"):
        opening.check_regular(path)
    tf = records.import_tensorflow()
    # A file that ends too early is a LookupError (an IndexError), all else an OpError.
    damage = (tf.errors.OpError, LookupError)
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = reader.get_variable_to_shape_map()
    except damage as error:
        raise ValueError(f"{prefix.name}.index cannot be read ({error}): copy it again") from error
    if OBJECT_GRAPH in shapes:
        raise ValueError(
            "it is a checkpoint of TensorFlow 2 objects, which is not supported (TensorFlow 1's "
            "variables are): export it to Hugging Face's format with the code that made it"
        )
    slots = tuple(sorted(filter(OPTIMIZER_SLOT.fullmatch, shapes)))
    weights = sorted(shapes.keys() - {*slots})
    variables: dict[str, np.ndarray] = {}
    damaged: dict[str, BaseException] = {}
    for name in weights:
        try:
            variables[name] = np.asarray(reader.get_tensor(name))
        except damage as error:
            damaged[name] = error
    if damaged:
        raise ValueError(
            f"the data of {len(damaged)} of {len(weights)} variables cannot be read "
            f"({next(iter(damaged.values()))}): {', '.join(damaged)}: copy "
            f"{prefix.name}.data-* again"
        )
    return variables, slots


def _released(family: base.Family) -> base.Released:
    """Returns the format of the family's released code."""
    if family.released is None:
        known = [name for name, other in families.FAMILIES.items() if other.released]
        raise faults.unknown("the family of a TensorFlow 1 checkpoint", family.title, known)
    return family.released


def read_configs(
    path: epath.Path, family: base.Family, shapes: Shapes | None = None
) -> tuple[encoder.EncoderConfig, encoder.EncoderConfig | None]:
    """Returns the config at `path`, and the generator's if there is one.

    `shapes` are the variables' shapes, by our paths; they replace the file for code without one.

    "gelu" is the exact form, as in transformers and when the models were released; since February
    2019 the released code computes the tanh form under that name.
    """
    code, shapes = _released(family), shapes or {}
    if code.head_size and not path.exists() and shapes:
        fields: dict[str, Any] = pretrained.sizes_of(shapes, "encoder", head_size=code.head_size)
    else:
        fields = _read_fields(path)
    defaults = {**code.defaults, "vocab_size": None}
    misfits = [] if "vocab_size" in fields else ["vocab_size is missing"]
    misfits += [
        f"{name} is {fields[name]!r}; the released {family.title} has no such option: if it does "
        "not change the model, remove it from the file"
        for name in sorted(fields.keys() - defaults.keys() - {*code.unread})
    ]
    sizes = {name: fields.get(name, default) for name, default in defaults.items()}
    sizes |= {  # "hidden_dropout_prob": 0
        name: float(value)
        for name, value in sizes.items()
        if isinstance(defaults[name], float) and type(value) is int
    }
    sizes["vocab_size"] = sizes["vocab_size"] or 1
    sizes |= {**family.traits, **code.computed_with}
    if isinstance(activation := sizes["hidden_act"], str):
        sizes["hidden_act"] = code.means.get(activation, activation)
    try:
        if wrong := list(encoder_config.type_faults(sizes)):
            raise encoder_config.FaultyConfigError(wrong)
        config = encoder.EncoderConfig(**sizes)
        generator = _generator(config, shapes, code)
    except (ValueError, TypeError) as error:
        misfits.append(str(error))
        config, generator = encoder.EncoderConfig(), None
    faults.check(f"{path.name} does not describe a {family.title}", misfits)
    return config, generator


def _generator(
    config: encoder.EncoderConfig, shapes: Shapes, code: base.Released
) -> encoder.EncoderConfig | None:
    path = f"{embedding_sharing.GENERATOR}.encoder"
    if not any(name.startswith(f"{path}.layers.") for name in shapes):
        return None
    sizes = pretrained.sizes_of(shapes, path, head_size=code.head_size)
    shared = {} if "embedding_size" in sizes else {"embedding_size": config.embedding_width}
    return dataclasses.replace(config, **sizes | shared)


def _read_fields(path: epath.Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"{path.name} is missing: copy the model's into {path.parent}")
    return json_text.read_object(path)


def read_vocabulary(directory: epath.Path, released: base.Released) -> tokenizer.Tokenizer | None:
    """Returns the vocabulary in `directory` with its casing, None without one.

    The casing comes from tokenizer_config.json, else from `is_lowercase`.
    """
    path, model = directory / wordpiece.VOCABULARY_FILE, b""
    if path.exists():
        config = directory / wordpiece.CONFIG_FILE
        fields = json_text.read_object(config) if config.exists() else {}
        if fields.get("do_lower_case") is not None:
            return tokenizer.load(directory)
        content = opening.read_tokenizer(path)
        entries = content.decode("utf-8", errors="replace").splitlines()
    elif (directory / sentence_piece.MODEL_FILE).exists():
        return tokenizer.load(directory)
    elif released.model and (directory / released.model).exists():
        model = opening.read_tokenizer(directory / released.model)
        entries = sentence_piece.SentencePieceTokenizer(model).vocabulary
    else:
        return None
    lowercase, reason = is_lowercase(directory.name, entries, released)
    logging.info("Text is taken as %s: %s", "lowercase" if lowercase else "cased", reason)
    if model:
        return sentence_piece.SentencePieceTokenizer(model, lowercase=lowercase)
    return tokenizer.load(directory, lowercase=lowercase)


def is_lowercase(
    directory_name: str, vocabulary: Sequence[str], released: base.Released
) -> tuple[bool, str]:
    """Returns whether a released model lowercases its text, and the evidence.

    The config does not say it; the names of the released directories do.
    """
    by_name = re.search("|".join(released.casing), directory_name) if released.casing else None
    entries = [entry for entry in vocabulary if not entry.startswith("[")]
    capitals = sum(entry != entry.lower() for entry in entries)
    has_capitals = capitals > CASED_SHARE * len(entries)
    if not by_name:
        return not has_capitals, f"{capitals} of {len(entries)} entries have capitals"
    cases = released.casing.items()
    lowercase = next(is_lower for regex, is_lower in cases if re.fullmatch(regex, by_name[0]))
    if lowercase == has_capitals:
        logging.warning(
            "The directory's name, %s, says %s, but %d of %d entries of its vocabulary have "
            "capitals; the name is followed. If it is wrong, put a tokenizer_config.json with "
            "do_lower_case beside vocab.txt",
            directory_name, "lowercase" if lowercase else "cased", capitals, len(entries),
        )  # fmt: skip
    return lowercase, f"the directory is called {directory_name}"


def _missing_data_files(prefix: epath.Path) -> list[str]:
    """Returns the names of the missing data files; each name holds the number of files."""
    pattern = re.compile(re.escape(prefix.name) + r"\.data-(\d+)-of-(\d+)")
    files = {file.name: pattern.fullmatch(file.name) for file in prefix.parent.iterdir()}
    count = max((int(match[2]) for match in files.values() if match), default=1)
    expected = [f"{prefix.name}.data-{shard:05d}-of-{count:05d}" for shard in range(count)]
    return [name for name in expected if name not in files]


def _convert(
    variables: Mapping[str, np.ndarray],
    released: base.Released,
    configs: tuple[encoder.EncoderConfig, encoder.EncoderConfig | None] | None,
) -> tuple[str, dict[str, np.ndarray], list[str]]:
    """Returns the head, the parameters of its model, and the names of the other variables.

    Without configs it checks the names, but not the shapes.
    """
    paths = {name: names.our_paths([name], released.names) for name in variables}
    head = heads.of_paths(set().union(*paths.values()))
    outside = [name for name in paths if not all(heads.belongs(p, head) for p in paths[name])]
    shapes = pretrained.shapes(configs[0], generator=configs[1]) if configs else None
    in_a_row = configs[0].inner_group_num if configs else 1
    params = names.to_ours(
        {name: array for name, array in variables.items() if name not in outside},
        names.in_a_row(names.of_head(released.names, head), in_a_row),
        shapes=shapes,
        required=[path for path in shapes or () if _must_have(path, head)],
    )
    whole = embedding_sharing.apart(parameters.nested(params))
    return head, parameters.flat(whole), outside


def _must_have(path: str, head: str) -> bool:
    is_generators = path.startswith(f"{embedding_sharing.GENERATOR}.")
    # Shared embeddings are missing in the generator.
    return heads.is_required(path, head) or (is_generators and ".embeddings." not in path)


@contextlib.contextmanager
def _noting(misfits: list[str]) -> Iterator[None]:
    """Adds a ValueError to the misfits, so that later ones are reported as well."""
    try:
        yield
    except ValueError as error:
        misfits.append(str(error))
