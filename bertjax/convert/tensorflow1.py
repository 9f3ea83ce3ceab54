"""Checkpoints of released TensorFlow 1 code: bert_config.json, bert_model.ckpt.*, vocab.txt.

Which variable is which parameter belongs to the family, what the config means to
`tensorflow1_config`; here belong the files. TensorFlow, from `records.import_tensorflow`, reads and
writes them as a plain table of arrays: no graph is read and none is written, for what the released
code restores with, `tf.train.Saver` and `tf.train.init_from_checkpoint`, needs none.

Source: google-research/bert, optimization.py (slots); tokenization.py,
validate_case_matches_checkpoint (casing).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from absl import logging
from etils import epath

from bertjax.convert import families, names, pretrained, tensorflow1_config
from bertjax.convert.families import base
from bertjax.data import added_tokens, json_text, records, sentence_piece, tokenizer, wordpiece
from bertjax.models import embedding_sharing, parameters

# What optimizers keep beside the weights: those of BERT, ALBERT and NVIDIA's BERT (Adam, LAMB),
# TensorFlow's own, loss scaling, and the temperature of ELECTRA's samples.
OPTIMIZER_SLOT = re.compile(
    r".+/(adam_[mv]|lamb_[mv]|Adam(_1)?|Momentum)|global_step|beta[12]_power"
    r"|(current_)?loss_scale|(good|bad)_steps|temperature"
)
# The variable in which TensorFlow 2 keeps the names of a checkpoint of objects.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

# Vocabularies made of lowercase text hold no capitals but in brackets ([CLS]); a few entries that
# somebody has put in by hand do not make them cased.
CASED_SHARE = 0.01


def read(path: epath.PathLike) -> pretrained.Pretrained:
    """Returns the weights in a directory, or at a checkpoint prefix, of the released code.

    Without vocab.txt the vocabulary is None. `unused` are the optimizer's slots, and what
    the head has no use for.

    Raises:
      FileNotFoundError: if there is no checkpoint.
      ValueError: listing all that is wrong with the files.
    """
    prefix = find_checkpoint(path)
    faults: list[str] = []
    description = vocabulary = converted = None
    variables, slots = None, ()
    with _noting(faults):
        variables, slots = read_variables(prefix)
    family = families.releasing(variables or (), [file.name for file in prefix.parent.iterdir()])
    released = tensorflow1_config.released(family)
    shapes = {
        path: array.shape
        for name, array in (variables or {}).items()
        for path in names.our_paths([name], released.names)
    }
    with _noting(faults):
        description = tensorflow1_config.read_config(
            prefix.parent / released.config, family, shapes
        )
    with _noting(faults):
        vocabulary = read_vocabulary(prefix.parent, released)
    with _noting(faults):
        if variables is not None:
            converted = _convert(variables, released, description)
    vocab_size = description.config.vocab_size if description else None
    if vocabulary and vocab_size and vocabulary.vocab_size > vocab_size:
        faults.append(
            f"the vocabulary has {vocabulary.vocab_size} entries, {released.config} says "
            f"vocab_size {vocab_size}: they belong to different models"
        )
    if description is None or converted is None or faults:
        raise ValueError(f"{prefix} cannot be used:\n  " + "\n  ".join(faults))
    head, params, outside = converted
    return pretrained.Pretrained(
        config=description.config,
        params=params,
        vocabulary=vocabulary,
        head=head,
        labels=pretrained.named_labels(description.labels, params, head),
        source=f"{prefix} (TensorFlow 1 checkpoint)",
        unused=(*outside, *slots),
        is_regression=description.is_regression,
        is_multi_label=description.is_multi_label,
        model_type=family.model_type,
        generator=description.generator,
    )


def describe(path: epath.PathLike) -> pretrained.Description:
    """Returns what is told of the weights; their names tell the family, so all are read.

    Raises:
      FileNotFoundError, ValueError: as `read`.
    """
    weights = read(path)
    return pretrained.Description(weights.config, weights.vocabulary, weights.source)


def write(weights: pretrained.Pretrained, directory: epath.PathLike) -> None:
    """Writes the config, the checkpoint's files and the vocabulary into `directory`.

    Raises:
      ValueError: if a parameter has no name in the released code, or the family has none.
      OSError: if the files cannot be written.
    """
    directory = epath.Path(directory)
    released = tensorflow1_config.released(weights.family)
    copies = embedding_sharing.copies(weights.params)  # which the released code has once
    params = {path: array for path, array in weights.params.items() if path not in copies}
    table = names.of_head(released.names, weights.head)
    variables = names.to_theirs(params, names.in_a_row(table, weights.config.inner_group_num))
    directory.mkdir(parents=True, exist_ok=True)
    write_variables(variables, directory / released.checkpoint)
    tensorflow1_config.write_config(weights, directory / released.config)
    if weights.vocabulary is not None:
        weights.vocabulary.save(directory)
        if isinstance(weights.vocabulary, added_tokens.WithAddedTokens):
            logging.warning(
                "The vocabulary has %d added tokens in %s: the released code reads vocab.txt alone "
                "and takes them apart",
                len(weights.vocabulary.tokens),
                added_tokens.LEGACY_FILE,
            )
        if weights.vocabulary.kind not in released.tokenizers:
            logging.warning(
                "The vocabulary is a %s model: the released code reads the weights in %s, but "
                "tokenizes with a vocab.txt alone",
                weights.vocabulary.kind,
                directory,
            )


def find_checkpoint(path: epath.PathLike) -> epath.Path:
    """Returns the prefix of the checkpoint files that `path` means, absolute.

    `path` is a directory, a prefix (bert_model.ckpt) or one of the prefix's files.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if a directory holds several and none is called as a family calls its own.
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
    found = sorted(
        file.name.removesuffix(".index") for file in path.iterdir() if file.suffix == ".index"
    )
    for name in [released.checkpoint for released in known if released.checkpoint in found]:
        return path.resolve() / name
    if len(found) == 1:
        return path.resolve() / found[0]
    if found:
        raise ValueError(
            f"{path} holds several checkpoints ({', '.join(found)}); give one, as in "
            f"{path / found[-1]}"
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
    """Returns the weights at `prefix` by the checkpoint's names, and the names of the slots.

    Raises:
      ValueError: if files are missing or damaged, or they hold the objects of TensorFlow 2.
    """
    if missing := _missing_data_files(prefix):
        raise ValueError(
            f"{prefix.name}.index is there, but not its data, {', '.join(missing)}: copy all files "
            f"of {prefix.name} into {prefix.parent}"
        )
    tf = records.import_tensorflow()
    # A file that ends too early is a LookupError (an IndexError), all else an OpError.
    damage = (tf.errors.OpError, LookupError)
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        found = reader.get_variable_to_shape_map()
    except damage as error:
        raise ValueError(f"{prefix.name}.index cannot be read ({error}): copy it again") from error
    if OBJECT_GRAPH in found:
        raise ValueError(
            "it is a checkpoint of TensorFlow 2 objects; only the variables of the released code "
            "(TensorFlow 1) are read: export it to Hugging Face's format with the code that made it"
        )
    slots = tuple(sorted(filter(OPTIMIZER_SLOT.fullmatch, found)))
    weights = sorted(found.keys() - {*slots})
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


def write_variables(variables: Mapping[str, np.ndarray], prefix: epath.Path) -> None:
    """Writes arrays as a checkpoint in the format of tf.train.Saver.

    Raises:
      OSError: if it cannot be written, because the disk is full, say.
    """
    tf = records.import_tensorflow()
    try:
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=list(variables),
            shape_and_slices=[""] * len(variables),
            tensors=[
                tf.experimental.dlpack.from_dlpack(_shareable(array).__dlpack__())
                for array in variables.values()
            ],
        )
    except tf.errors.OpError as error:
        raise OSError(f"{prefix} cannot be written: {error.message}") from error


def read_vocabulary(directory: epath.Path, released: base.Released) -> tokenizer.Tokenizer | None:
    """Returns the vocabulary in `directory` with its casing, None without one.

    The casing is what a tokenizer_config.json says, else what `is_lowercase` finds.

    Raises:
      ValueError: if the vocabulary cannot be used.
    """
    path = directory / wordpiece.VOCABULARY_FILE
    if not path.exists():
        if (directory / sentence_piece.MODEL_FILE).exists():
            return tokenizer.load(directory)
        model = directory / released.model if released.model else path
        return _read_model(model, released) if model.exists() else None
    config = directory / wordpiece.CONFIG_FILE
    fields = json_text.read_object(config) if config.exists() else {}
    if fields.get("do_lower_case") is not None:
        return tokenizer.load(directory)
    entries = path.read_bytes().decode("utf-8", errors="replace").splitlines()
    lowercase, reason = is_lowercase(directory.name, entries, released)
    logging.info("Text is taken as %s: %s", "lowercase" if lowercase else "cased", reason)
    return tokenizer.load(directory, lowercase=lowercase)


def _read_model(path: epath.Path, released: base.Released) -> tokenizer.Tokenizer:
    """Returns the tokenizer of a sentencepiece model that was released, by its own name."""
    model = path.read_bytes()
    entries = sentence_piece.SentencePieceTokenizer(model).vocabulary
    lowercase, reason = is_lowercase(path.parent.name, entries, released)
    logging.info("Text is taken as %s: %s", "lowercase" if lowercase else "cased", reason)
    return sentence_piece.SentencePieceTokenizer(model, lowercase=lowercase)


def is_lowercase(
    directory_name: str, vocabulary: Sequence[str], released: base.Released
) -> tuple[bool, str]:
    """Returns whether a released model lowercases its text, and what says so.

    Its config does not tell; the names of the released directories do.
    """
    by_name = re.search("|".join(released.casing), directory_name) if released.casing else None
    entries = [entry for entry in vocabulary if not entry.startswith("[")]
    capitals = sum(entry != entry.lower() for entry in entries)
    has_capitals = capitals > CASED_SHARE * len(entries)
    if not by_name:
        return not has_capitals, f"{capitals} of {len(entries)} entries have capitals"
    lowercase = next(
        told for pattern, told in released.casing.items() if re.fullmatch(pattern, by_name[0])
    )
    if lowercase == has_capitals:
        logging.warning(
            "The directory's name, %s, says %s, but %d of %d entries of its vocabulary have "
            "capitals; the name is followed. If it is wrong, put a tokenizer_config.json with "
            "do_lower_case beside vocab.txt",
            directory_name,
            "lowercase" if lowercase else "cased",
            capitals,
            len(entries),
        )
    return lowercase, f"the directory is called {directory_name}"


def _shareable(array: np.ndarray) -> np.ndarray:
    """Returns the array as TensorFlow can take it without a copy (tf.constant makes two)."""
    array = np.ascontiguousarray(array)
    return array if array.flags.writeable else array.copy()


def _missing_data_files(prefix: epath.Path) -> list[str]:
    """Returns the names of the data files that are not there; how many there are, each tells."""
    pattern = re.compile(re.escape(prefix.name) + r"\.data-(\d+)-of-(\d+)")
    found = {file.name: pattern.fullmatch(file.name) for file in prefix.parent.iterdir()}
    matches = [match for match in found.values() if match]
    count = max((int(match[2]) for match in matches), default=1)
    wanted = [f"{prefix.name}.data-{shard:05d}-of-{count:05d}" for shard in range(count)]
    return [name for name in wanted if name not in found]


def _convert(
    variables: Mapping[str, np.ndarray],
    released: base.Released,
    description: tensorflow1_config.Description | None,
) -> tuple[str, dict[str, np.ndarray], list[str]]:
    """Returns the head, its model's parameters, and their names of what is not part of it.

    Without a description the names are checked, the shapes are not.
    """
    paths = {name: names.our_paths([name], released.names) for name in variables}
    declared = description.head if description else ""
    head = declared or pretrained.head_of(set().union(*paths.values()))
    outside = [
        name for name in variables if any(not pretrained.belongs(p, head) for p in paths[name])
    ]
    shapes = None
    if description:
        shapes = pretrained.shapes(description.config, generator=description.generator)
    in_a_row = description.config.inner_group_num if description else 1
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
    # Embeddings that are shared it does not have itself.
    has_own = is_generators and ".embeddings." not in path
    return pretrained.is_required(path, head) or has_own


@contextlib.contextmanager
def _noting(faults: list[str]) -> Iterator[None]:
    """Adds a ValueError to the faults, so that what else is wrong is found too."""
    try:
        yield
    except ValueError as error:
        faults.append(str(error))
