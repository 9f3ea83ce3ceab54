"""Vectors of texts by an encoder: features for other programs, or a directory of them.

python -m bertjax.encode --checkpoint=DIR --layers=last4 --pooling=mean < lines.txt > features.npz
python -m bertjax.encode --checkpoint=DIR --input=a.txt,b.jsonl.gz --output=VECTORS
python -m bertjax.encode --checkpoint=DIR --input=proteins.fasta > features.npz    # with their ids
python -m bertjax.encode --checkpoint=DIR --records=RECORDS > features.npz     # of rows of values
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Encode, __doc__)

import io
import itertools
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, BinaryIO

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Float

from bertjax import inference
from bertjax.cli import command_line, programs
from bertjax.data import records, text_lines, value_masking, value_rows
from bertjax.inference import encoding, vector_files
from bertjax.tokenization import unknown_tokens

OF_EMPTY = "each keeps its row, which is that of [CLS] [SEP]"


def encode(
    model: inference.TrainedModel, texts: Sequence[str], *, batch_size: int = 32, **options: Any
) -> dict[str, np.ndarray]:
    """Returns float32 `features` of the texts, and `lengths` in tokens with [CLS] and [SEP].

    With a pooling features are [texts, size]. With "none" they are [tokens of all texts, size],
    text i starting at row `offsets`[i], and `input_ids` names the tokens. The options are fields
    of `cli.programs.Vectors`.

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
    `dims` of `cli.programs.Vectors`.

    Raises:
      ValueError: for an unknown option, rows that the model does not read, or vectors of tokens.
    """
    chosen = encoding.options_for(model, **options)
    return encoding.value_vectors(model, values, chosen, batch_size=batch_size)


def write(
    model: inference.TrainedModel,
    texts: Iterable[str | text_lines.Line],
    file: BinaryIO,
    *,
    batch_size: int = 32,
    **options: Any,
) -> None:
    """Writes what `encode` returns as an .npz archive, and holds no more features than a block has.

    All texts are tokenized before anything is written; their tokens stay in memory. Where lines
    have ids, the archive has `ids`.

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
    model: inference.TrainedModel,
    texts: Iterable[str | text_lines.Line],
    options: encoding.Options,
    batch_size: int,
) -> dict[str, tuple[int, Iterator[np.ndarray]]]:
    """Returns the length of each array that `encode` returns, and its parts."""
    ids: list[str] = []

    def without_ids() -> Iterator[str]:
        for text in texts:
            if isinstance(text, text_lines.Line):
                ids.append(text.id)
                yield text.text
            else:
                yield text

    plain = without_ids()
    chunks = iter(lambda: list(itertools.islice(plain, encoding.BLOCK_SIZE)), [])
    blocks = list(encoding.tokenize_blocks(model, chunks, options))
    if not blocks:
        raise ValueError("there are no texts; give at least one")
    counted = unknown_tokens.UnknownTokens(model.vocabulary.unk_id)
    for tokens in blocks:
        tokens.count_unknown(counted)
    counted.warn()
    _warn_of_cuts(sum(tokens.num_cut for tokens in blocks), options)
    lengths = np.concatenate([tokens.lengths for tokens in blocks]).astype(np.int64) + 2
    of_texts = {"lengths": lengths} | ({"ids": np.array(ids)} if any(ids) else {})
    shared = {name: (len(lengths), iter([array])) for name, array in of_texts.items()}
    if options.pooling != "none":
        encoded = encoding.encode_blocks(model, blocks, options, batch_size=batch_size)
        return {"features": (len(lengths), (vectors for vectors, _ in encoded)), **shared}
    tokens = encoding.Tokens(np.concatenate([block.ids for block in blocks]), lengths - 2, 0)
    places = np.stack([tokens.starts, tokens.starts + tokens.lengths], axis=1).reshape(-1)
    specials = [model.vocabulary.cls_id, model.vocabulary.sep_id] * len(lengths)
    input_ids = np.insert(tokens.ids, places, specials).astype(np.int32)
    return {
        "features": (
            len(input_ids), encoding.token_features(model, tokens, options, batch_size=batch_size)
        ),
        "input_ids": (len(input_ids), iter([input_ids])),
        **shared,
        "offsets": (len(lengths), iter([np.cumsum(lengths) - lengths])),
    }  # fmt: skip


def _warn_of_cuts(count: int, options: encoding.Options) -> None:
    if count:
        logging.warning("%d texts were cut to %d tokens", count, options.max_length)


def _write_array(member: IO[bytes], arrays: Iterator[np.ndarray], length: int) -> None:
    """Writes arrays, one below the other, as one .npy of `length` rows."""
    first = next(arrays)
    header = {"descr": first.dtype.str, "fortran_order": False, "shape": (length, *first.shape[1:])}
    np.lib.format.write_array_header_1_0(member, header)  # pyright: ignore[reportArgumentType]
    for array in itertools.chain([first], arrays):
        member.write(np.ascontiguousarray(array).tobytes())


def _write_directory(model: inference.TrainedModel, output: str, options: programs.Encode) -> None:
    """Writes vectors of --input, or of standard input, to --output, and reports them."""
    vectors = command_line.subset(programs.Vectors, options)
    vectors["truncate"] = options.truncate is not False
    chosen = encoding.options_for(model, **vectors)
    lines, inputs, total = _lines(model, options), {"files": []}, None
    if options.input:
        names = text_lines.paths(options.input)
        paths = [epath.Path(name) for name in names]
        sizes = [path.stat().length if path.exists() else 0 for path in paths]
        inputs = {
            "files": [
                {"path": str(path), "size": size} for path, size in zip(paths, sizes, strict=True)
            ],
            "text_column": options.text_column,
            "id_column": options.id_column,
        }
        total = text_lines.count(names, model.vocabulary.letters)
    manifest = vector_files.write(
        model,
        lines,
        output,
        chosen,
        inputs=inputs,
        total=total,
        format=options.format,
        shard_size=options.shard_size,
        store_texts=options.store_texts,
        batch_size=options.batch_size,
    )
    _warn_of_cuts(manifest.num_cut, chosen)
    unknown_tokens.UnknownTokens(
        model.vocabulary.unk_id, manifest.num_unknown, manifest.num_tokens
    ).warn()
    shards = len(manifest.shards)
    command_line.print_report(f"{output}: {manifest.num_rows} vectors in {shards} shards")


def _write_of_records(
    model: inference.TrainedModel, directory: str, options: programs.Encode
) -> None:
    """Writes `features` of the rows of records, and their `labels`, to standard output."""
    record_set = records.open(directory)
    value_masking.check(model.value_meaning, record_set)
    rows = np.stack(value_rows.as_arrays(record_set))
    chosen = {name: getattr(options, name) for name in ("layers", "pooling", "normalize", "dims")}
    features = encode_values(model, rows, batch_size=options.batch_size, **chosen)
    labels = value_rows.columns(record_set).get(records.LABELS_FEATURE)
    arrays: dict[str, Any] = {"features": features} | ({} if labels is None else {"labels": labels})
    with io.BytesIO() as file:
        np.savez(file, **arrays)
        sys.stdout.buffer.write(file.getvalue())


def _lines(model: inference.TrainedModel, options: programs.Encode) -> Iterator[text_lines.Line]:
    """Yields the texts of --input, or of standard input."""
    columns = text_lines.Columns(options.text_column, options.id_column)
    lines = text_lines.given(options.input, model.vocabulary, columns)
    return text_lines.with_remark(lines, OF_EMPTY, model.vocabulary)


def main(options: programs.Encode) -> None:
    """Writes an .npz archive to standard output, or a directory of vectors."""
    if not options.output and sys.stdout.isatty():
        raise ValueError(
            "standard output is a terminal, and vectors are no text: write them with "
            "--output=DIRECTORY, or to a file with > features.npz"
        )
    model = inference.load(options.checkpoint, step=options.step, language=options.language)
    if options.records is not None:
        _write_of_records(model, options.records, options)
    elif options.output:
        _write_directory(model, options.output, options)
    else:
        chosen = command_line.subset(programs.Vectors, options)
        lines = _lines(model, options)
        write(model, lines, sys.stdout.buffer, batch_size=options.batch_size, **chosen)


if __name__ == "__main__":
    command_line.run(main)
