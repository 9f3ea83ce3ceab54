"""Vectors of texts by an encoder: features for other programs, or a directory of them.

python -m bertjax.encode --checkpoint=DIR --layers=last4 --pooling=mean < lines.txt > features.npz
python -m bertjax.encode --checkpoint=DIR --input=a.txt,b.jsonl.gz --output=VECTORS
python -m bertjax.encode --checkpoint=DIR --records=RECORDS > features.npz     # of rows of values
"""

from __future__ import annotations

import io
import itertools
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, BinaryIO

import numpy as np
from absl import flags, logging
from etils import epath
from jaxtyping import Float

from bertjax import inference
from bertjax.cli import command_line, program_flags
from bertjax.data import records, text_lines, value_rows
from bertjax.files import path_lists, tables
from bertjax.inference import encoding, vector_files
from bertjax.tokenization import unknown_tokens

OF_EMPTY = "each keeps its row, which is that of [CLS] [SEP]"
OUTPUT_FLAGS = ("input", "format", "shard_size", "store_texts", "text_column", "id_column")


def encode(
    model: inference.TrainedModel, texts: Sequence[str], *, batch_size: int = 32, **options: Any
) -> dict[str, np.ndarray]:
    """Returns float32 `features` of the texts, and `lengths` in tokens with [CLS] and [SEP].

    With a pooling features are [texts, size]. With "none" they are [tokens of all texts, size],
    text i starting at row `offsets`[i], and `input_ids` names the tokens. The options are those of
    `encoding.options_for`.

    Raises:
      ValueError: for an unknown option, a model with too few layers, no texts, or a text that is
        too long, unless `truncate` cuts it.
    """
    members = _members(model, texts, encoding.options_for(model, **options), batch_size)
    return {name: np.concatenate(list(arrays)) for name, (_, arrays) in members.items()}


def encode_values(
    model: inference.TrainedModel,
    values: Float[np.ndarray, "rows length width"],
    *,
    batch_size: int = 32,
    **options: Any,
) -> Float[np.ndarray, "rows size"]:
    """Returns the vector of each row of values, scaled as the records of the training are.

    nan stands where nothing was observed. The options are `layers`, `pooling`, `normalize` and
    `dims`, as those of `encoding.options_for`.

    Raises:
      ValueError: for an unknown option, rows that the model does not read, or vectors of tokens.
    """
    chosen = encoding.options_for(model, **options)
    return encoding.value_vectors(model, values, chosen, batch_size=batch_size)


def write(
    model: inference.TrainedModel,
    texts: Iterable[str],
    file: BinaryIO,
    *,
    batch_size: int = 32,
    **options: Any,
) -> None:
    """Writes what `encode` returns as an .npz archive, and holds no more features than a block has.

    All texts are tokenized before anything is written; their ids stay in memory.

    Raises:
      ValueError: as `encode`.
    """
    members = _members(model, texts, encoding.options_for(model, **options), batch_size)
    # numpy.savez writes the same file; it needs whole arrays.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, (length, arrays) in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_array(member, arrays, length)


def _members(
    model: inference.TrainedModel, texts: Iterable[str], options: encoding.Options, batch_size: int
) -> dict[str, tuple[int, Iterator[np.ndarray]]]:
    """Returns the length of each array that `encode` returns, and its parts."""
    texts = iter(texts)
    chunks = iter(lambda: list(itertools.islice(texts, encoding.BLOCK_SIZE)), [])
    blocks = list(encoding.tokenize_blocks(model, chunks, options))
    if not blocks:
        raise ValueError("there are no texts; give at least one")
    counted = unknown_tokens.UnknownTokens(model.vocabulary.unk_id)
    for tokens in blocks:
        tokens.count_unknown(counted)
    counted.warn()
    lengths = np.concatenate([tokens.lengths for tokens in blocks]).astype(np.int64) + 2
    if options.pooling != "none":
        encoded = encoding.encode_blocks(model, blocks, options, batch_size=batch_size)
        vectors = (vectors for vectors, _ in encoded)
        return {"features": (len(lengths), vectors), "lengths": (len(lengths), iter([lengths]))}
    tokens = encoding.Tokens(np.concatenate([block.ids for block in blocks]), lengths - 2, 0)
    places = np.stack([tokens.starts, tokens.starts + tokens.lengths], axis=1).reshape(-1)
    specials = [model.vocabulary.cls_id, model.vocabulary.sep_id] * len(lengths)
    input_ids = np.insert(tokens.ids, places, specials).astype(np.int32)
    return {
        "features": (
            len(input_ids), encoding.token_features(model, tokens, options, batch_size=batch_size)
        ),
        "input_ids": (len(input_ids), iter([input_ids])),
        "lengths": (len(lengths), iter([lengths])),
        "offsets": (len(lengths), iter([np.cumsum(lengths) - lengths])),
    }  # fmt: skip


def _write_array(member: IO[bytes], arrays: Iterator[np.ndarray], length: int) -> None:
    """Writes arrays, one below the other, as one .npy of `length` rows."""
    first = next(arrays)
    header = {"descr": first.dtype.str, "fortran_order": False, "shape": (length, *first.shape[1:])}
    np.lib.format.write_array_header_1_0(member, header)  # pyright: ignore[reportArgumentType]
    for array in itertools.chain([first], arrays):
        member.write(np.ascontiguousarray(array).tobytes())


def _write_directory(model: inference.TrainedModel, options: flags.FlagValues) -> None:
    """Writes vectors of --input, or of standard input, to --output, and reports them."""
    chosen = encoding.options_for(model, **_vector_options(options, truncate=True))
    lines, inputs, total = _lines_of_stdin(), {"files": []}, None
    if options.input:
        columns = text_lines.Columns(options.text_column, options.id_column)
        names = path_lists.rejoined(options.input, lambda name: epath.Path(name).exists())
        lines = text_lines.read_lines(names, columns)
        paths = [epath.Path(name) for name in names]
        sizes = [path.stat().length if path.exists() else 0 for path in paths]
        inputs = {
            "files": [
                {"path": str(path), "size": size} for path, size in zip(paths, sizes, strict=True)
            ],
            "text_column": options.text_column,
            "id_column": options.id_column,
        }
        total = text_lines.count(names)
    manifest = vector_files.write(
        model,
        text_lines.with_remark(lines, OF_EMPTY),
        options.output,
        chosen,
        inputs=inputs,
        total=total,
        format=options.format,
        shard_size=options.shard_size,
        store_texts=options.store_texts,
        batch_size=options.batch_size,
    )
    if manifest.num_cut:
        logging.warning("%d texts were cut to %d tokens", manifest.num_cut, chosen.max_length)
    unknown_tokens.UnknownTokens(
        model.vocabulary.unk_id, manifest.num_unknown, manifest.num_tokens
    ).warn()
    vectors, shards = manifest.num_rows, len(manifest.shards)
    program_flags.print_report(f"{options.output}: {vectors} vectors in {shards} shards")


def _write_of_records(model: inference.TrainedModel, options: flags.FlagValues) -> None:
    """Writes `features` of the rows of records, and their `labels`, to standard output."""
    record_set = records.open(options.records)
    rows = np.stack(value_rows.as_arrays(record_set))
    chosen = {name: options[name].value for name in ("layers", "pooling", "normalize", "dims")}
    features = encode_values(model, rows, batch_size=options.batch_size, **chosen)
    labels = value_rows.columns(record_set).get(records.LABELS_FEATURE)
    arrays: dict[str, Any] = {"features": features} | ({} if labels is None else {"labels": labels})
    with io.BytesIO() as file:
        np.savez(file, **arrays)
        sys.stdout.buffer.write(file.getvalue())


def _vector_options(options: flags.FlagValues, *, truncate: bool) -> dict[str, Any]:
    names = ("layers", "pooling", "normalize", "prompt", "dims")
    cuts = truncate if options.truncate is None else options.truncate
    return {**{name: options[name].value for name in names}, "truncate": cuts}


def _lines_of_stdin() -> Iterator[text_lines.Line]:
    return text_lines.numbered(tables.text_lines_of(sys.stdin.buffer, "standard input"))


def _define_flags() -> None:
    inference.define_flags("Workdir of a training run, or a directory of downloaded weights.")
    flags.DEFINE_enum("layers", "last", list(encoding.LAYERS), "Which layers' hidden states.")
    flags.DEFINE_enum(
        "pooling",
        None,
        encoding.POOLINGS,
        "How tokens become one vector; none: all tokens. By default as the model was trained for "
        "embeddings, or the mean.",
    )
    flags.DEFINE_bool("normalize", None, "Vectors have length 1; by default as the model's do.")
    flags.DEFINE_string("prompt", None, "Stands before each text; by default the model's own.")
    program_flags.DEFINE_integer(
        "dims", None, "Number of first numbers of a vector to keep (Matryoshka); 0: all. By "
        "default as the model says.", lower_bound=0,
    )  # fmt: skip
    flags.DEFINE_bool("truncate", None, "Cut texts that are too long; by default with --output.")
    program_flags.DEFINE_batch_size(32, "Texts at a time.")
    flags.DEFINE_string("output", None, "Directory of vectors to write, or to resume.")
    flags.DEFINE_list(
        "input", [], "Files of texts, one a line; JSON objects in .jsonl, and packed ones."
    )
    flags.DEFINE_string("text_column", "text", "Field of JSON objects with the text.")
    flags.DEFINE_string("id_column", "id", "Field of JSON objects with an id, if they have one.")
    flags.DEFINE_enum("format", "npy", [*vector_files.FORMATS], "Format of the vector files.")
    program_flags.DEFINE_integer("shard_size", 65_536, "Texts in a file.", lower_bound=1)
    flags.DEFINE_bool("store_texts", True, "Write the texts as well.")
    flags.DEFINE_string("records", None, "Directory of records of values, in place of texts.")


def main(argv: list[str]) -> None:
    """Writes an .npz archive to standard output, or a directory of vectors."""
    if len(argv) > 1:
        raise ValueError(f"{argv[1]!r} is not a flag; give the texts on standard input: < FILE")
    options = flags.FLAGS
    unused = [name for name in OUTPUT_FLAGS if options[name].present and not options.output]
    if unused:
        raise ValueError(f"--{unused[0]} goes with --output=DIR, which is not given")
    if not options.output and sys.stdout.isatty():
        raise ValueError(
            "standard output is a terminal, and vectors are no text: write them with "
            "--output=DIRECTORY, or to a file with > features.npz"
        )
    model = inference.load(options.checkpoint, step=options.step, language=options.language)
    if options.records is not None:
        if options.output:
            raise ValueError("--output is for texts; vectors of --records go to standard output")
        _write_of_records(model, options)
        return
    if options.output:
        _write_directory(model, options)
        return
    texts = (line.text for line in text_lines.with_remark(_lines_of_stdin(), OF_EMPTY))
    chosen = _vector_options(options, truncate=False)
    write(model, texts, sys.stdout.buffer, batch_size=options.batch_size, **chosen)


if __name__ == "__main__":
    _define_flags()
    command_line.run(main)
