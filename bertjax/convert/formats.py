"""The formats of weights: which one lies at a path, and writing any of them whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from absl import logging
from etils import epath

from bertjax.convert import (
    huggingface_config,
    huggingface_read,
    huggingface_write,
    model_card,
    pretrained,
    sentence_transformers,
    shipped,
    tensorflow1,
    workdir,
)
from bertjax.files import output
from bertjax.models import sentence_vectors
from bertjax.options import faults
from bertjax.workdirs import checkpoint


@dataclasses.dataclass(frozen=True)
class Format:
    """The functions of one format; `marks` tells from the names of files whether they are of it.

    `read` returns the weights at a path, with another head if one is given; `describe` returns
    their sizes and vocabulary, if possible without reading the weights. `vectors` returns how they
    make vectors of texts, None where they do not say. `write` fills a directory, with the text of a
    README.md and a type of the numbers if the format has them; None: the format is only read.
    """

    marks: Callable[[Collection[str]], bool]
    read: Callable[[epath.PathLike, str | None], pretrained.Pretrained]
    describe: Callable[[epath.PathLike], pretrained.Description]
    vectors: Callable[[epath.PathLike], sentence_vectors.SentenceVectors | None]
    write: Callable[[pretrained.Pretrained, epath.Path, str | None, str], None] | None = None


def _selected(weights: pretrained.Pretrained, head: str | None) -> pretrained.Pretrained:
    return weights if head is None else pretrained.select(weights, head)


FORMATS: dict[str, Format] = {
    "bertjax": Format(
        marks=lambda names: checkpoint.DIRECTORY in names,
        read=lambda path, head: _selected(workdir.read(path), head),
        describe=workdir.describe,
        vectors=workdir.read_sentence_vectors,
        write=lambda weights, directory, card, dtype: workdir.write(weights, directory, card),
    ),
    "huggingface": Format(
        marks=lambda names: any(
            name in names
            for name in (*huggingface_read.WEIGHTS_FILES, sentence_transformers.MODULES_FILE)
        ),
        # Only the weights tell whether what config.json calls no part of the model is there.
        read=lambda path, head: huggingface_read.read(path, head=head),
        describe=huggingface_read.describe,
        vectors=huggingface_read.read_sentence_vectors,
        write=lambda weights, directory, card, dtype: huggingface_write.write(
            weights,
            directory,
            card=model_card.text(weights) if card is None else card,
            dtype=dtype,
        ),
    ),
    "tf1": Format(
        marks=lambda names: any(name.endswith(".index") for name in names),
        read=lambda path, head: _selected(tensorflow1.read(path), head),
        describe=tensorflow1.describe,
        vectors=lambda path: None,
    ),
}

WRITERS = {name: format.write for name, format in FORMATS.items() if format.write}
WEIGHTS_SUFFIXES = (".safetensors", ".bin", ".safetensors.index.json", ".bin.index.json")


def recognize(path: epath.PathLike) -> str:
    """Returns the key of FORMATS for what lies at `path`, a directory or a file of weights.

    Here and below, `path` may also be the name of a model that comes with bertjax.

    Raises:
      FileNotFoundError: if nothing is there.
      ValueError: if it is none of them, or more than one, listing what was looked for.
    """
    path = shipped.located(path)
    if not path.is_dir():
        return _recognize_file(path)
    matches = [name for name, is_there in _signs(path).items() if is_there]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ValueError(
            f"{path} holds weights of several formats, {' and '.join(matches)}; give the file that "
            f"is meant, or a directory with one of them"
        )
    raise ValueError(
        f"{path} holds no weights that are known here: a workdir of bertjax has "
        f"{checkpoint.DIRECTORY}/, a Hugging Face directory {huggingface_config.CONFIG_FILE} and "
        f"{', '.join(huggingface_read.WEIGHTS_FILES)}, a TF1 checkpoint NAME.index"
    )


def read(
    path: epath.PathLike, *, format: str | None = None, head: str | None = None
) -> pretrained.Pretrained:
    """Returns the weights at `path`, of the format that is given or recognized.

    `head` overrules what the files say of the head, and leaves out what it has no use for.

    Raises:
      FileNotFoundError, ValueError: as `recognize`, the format's reader and `pretrained.select`.
    """
    return FORMATS[format or recognize(path)].read(shipped.located(path), head)


def describe(path: epath.PathLike) -> pretrained.Description:
    """Returns sizes and vocabulary of the weights at `path`, without reading them if it can.

    Raises:
      FileNotFoundError, ValueError: as `recognize` and the format's own.
    """
    return FORMATS[recognize(path)].describe(shipped.located(path))


def vectors(path: epath.PathLike) -> sentence_vectors.SentenceVectors | None:
    """Returns how the weights at `path` make vectors of texts, None where they do not say.

    Raises:
      FileNotFoundError, ValueError: as `recognize` and the format's own.
    """
    return FORMATS[recognize(path)].vectors(shipped.located(path))


def write(
    weights: pretrained.Pretrained,
    directory: epath.PathLike,
    *,
    format: str,
    card: str | None = None,
    dtype: str = "float32",
    overwrite: bool = False,
) -> None:
    """Writes `directory`, whole or not at all, see `output.Output`.

    `card` is the README.md, None: for "huggingface" one that describes the weights;
    `dtype` is the type of its numbers, a key of `huggingface_write.DTYPES`.

    Raises:
      ValueError: if the directory exists and `overwrite` is false or it holds something else than
        weights, the format is unknown, no format can hold the head, or as the format's writer.
    """
    if format not in WRITERS:
        raise faults.unknown("the format to write", format, WRITERS)
    if weights.export_fault:
        raise ValueError(
            f"{weights.source} cannot be converted: {weights.export_fault}. `python -m "
            "bertjax.predict` uses it as it is, and --head=none converts its encoder alone"
        )
    weights = pretrained.exported(weights)
    target = output_of(directory, overwrite=overwrite)
    with target.draft() as draft:
        WRITERS[format](weights, draft, card, dtype)
        target.publish(draft)
    logging.info("Wrote %s (%s), %d parameters", target.path, format, weights.num_parameters)


def output_of(directory: epath.PathLike, *, overwrite: bool) -> output.Output:
    """Returns the output that weights are written to; a ValueError if it must not be replaced."""
    return output.Output(directory, "weights", overwrite=overwrite, option="--to")


def _signs(directory: epath.Path) -> dict[str, bool]:
    """Returns for every format whether the directory holds its files."""
    entries = {path.name for path in directory.iterdir()}
    return {name: format.marks(entries) for name, format in FORMATS.items()}


def _recognize_file(path: epath.Path) -> str:
    if path.name.endswith(".index") or (path.parent / f"{path.name}.index").exists():
        return "tf1"  # a checkpoint's prefix, as TensorFlow names them
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.name.endswith(WEIGHTS_SUFFIXES):
        return "huggingface"
    raise ValueError(
        f"{path} is not a known file of weights: *{', *'.join(WEIGHTS_SUFFIXES)}, or the "
        "prefix or index of a TF1 checkpoint"
    )
