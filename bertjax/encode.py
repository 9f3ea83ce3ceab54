"""Vectors of texts by an encoder: features for other programs, stores of millions, and a search.

python -m bertjax.encode --checkpoint=DIR --layers=last4 --pooling=mean < lines.txt > features.npz
python -m bertjax.encode --checkpoint=DIR --input=a.txt,b.jsonl.gz --output=VECTORS --quantize=int8
python -m bertjax.encode --checkpoint=DIR --vectors=VECTORS --search="a question"
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, BinaryIO

import numpy as np
from absl import flags, logging
from etils import epath

from bertjax import command_line, inference, whole_numbers
from bertjax.data import text_lines
from bertjax.models import sentence_vectors
from bertjax.vectors import codes, encoding, search, store, writing

# What is in memory at a time: texts that are tokenized, and numbers that are copied.
TEXTS_READ, NUMBERS_READ = 1024, 2**20

# Flags that belong to one use of the program.
OF_OUTPUT = (
    *("input", "format", "shard_size", "store_texts", "text_column", "id_column"),
    *("quantize", "quantize_sample", "recall_sample"),
)
OF_SEARCH = ("search", "top_k", "similarity", "json")


def encode(
    model: inference.TrainedModel,
    texts: Sequence[str],
    *,
    layers: str = "last",
    pooling: str | None = None,
    normalize: bool | None = None,
    prompt: str | None = None,
    dims: int = 0,
    truncate: bool = False,
    batch_size: int = 32,
) -> dict[str, np.ndarray]:
    """Returns float32 `features` of the texts, and `lengths` in tokens with [CLS] and [SEP].

    With a pooling features are [texts, size]. With "none" they are [tokens of all texts, size],
    text i starting at row `offsets`[i], and `input_ids` names the tokens. What is None is as the
    model was trained for embeddings; of other models it is the mean, not normalized, no prompt.
    The prompt is that of documents. `dims` keeps the first numbers of each vector.

    Raises:
      ValueError: for an unknown option, a model with too few layers, no texts, or a text that is
        too long, unless `truncate` cuts it.
    """
    chosen = encoding.choices(
        model,
        layers=layers,
        pooling=pooling,
        normalize=normalize,
        prompt=prompt,
        dims=dims,
        truncate=truncate,
    )
    if chosen.pooling != "none":
        features, lengths = encoding.encode(model, texts, chosen, batch_size=batch_size)
        return {"features": features, "lengths": lengths}
    tokens = [encoding.tokenize(model, texts, chosen)]
    rows = encoding.rows_of(model, batch_size, len(texts))
    parts = list(encoding.token_features(model, tokens, chosen, rows=rows))
    lengths = np.concatenate([np.zeros(0, np.int64), *(mask.sum(axis=1) for _, mask, _ in parts)])
    return {
        "features": np.concatenate([f[mask != 0] for f, mask, _ in parts]),
        "input_ids": np.concatenate([ids[mask != 0] for _, mask, ids in parts]),
        "lengths": lengths,
        "offsets": np.cumsum(lengths) - lengths,
    }


def write(
    model: inference.TrainedModel,
    texts: Iterable[str],
    file: BinaryIO,
    *,
    batch_size: int = 32,
    **options: Any,
) -> None:
    """Writes what `encode` returns as an .npz archive, in memory that does not grow with the texts.

    All texts are tokenized before anything is written, and their ids are kept in a temporary file.

    Raises:
      ValueError: as `encode`, or if there are no texts.
    """
    chosen = encoding.choices(model, **options)
    is_of_tokens = chosen.pooling == "none"
    with tempfile.TemporaryFile() as ids, tempfile.TemporaryFile() as lengths:
        spool = _Spool(model, chosen, ids, lengths)
        spool.add(texts)
        if is_of_tokens:
            size = encoding.rows_of(model, batch_size, spool.count)
            parts = encoding.token_features(model, spool.blocks(size), chosen, rows=size)
            rows = (features[mask != 0] for features, mask, _ in parts)
        else:
            blocks = spool.blocks(encoding.BLOCK_SIZE)
            rows = encoding.in_blocks(model, blocks, chosen, batch_size=batch_size)
        counts = {"features": spool.num_tokens if is_of_tokens else spool.count}
        members: dict[str, Iterator[np.ndarray]] = {"features": rows}
        if is_of_tokens:
            members["input_ids"], counts["input_ids"] = spool.input_ids(), spool.num_tokens
        members["lengths"], counts["lengths"] = spool.lengths(), spool.count
        if is_of_tokens:
            members["offsets"], counts["offsets"] = spool.offsets(), spool.count
        # As numpy.savez writes it, which wants whole arrays.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, arrays in members.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    _write_array(member, arrays, counts[name])


class _Spool:
    """The tokens of texts in files, with [CLS] and [SEP], and how many each text has."""

    def __init__(
        self,
        model: inference.TrainedModel,
        chosen: encoding.Choices,
        ids: IO[bytes],
        lengths: IO[bytes],
    ):
        self._model, self._chosen, self._ids, self._lengths = model, chosen, ids, lengths
        self.count = self.num_tokens = 0

    def add(self, texts: Iterable[str]) -> None:
        """Tokenizes texts and keeps their tokens."""
        vocabulary, texts = self._model.vocabulary, iter(texts)
        while chunk := list(itertools.islice(texts, TEXTS_READ)):
            tokens = encoding.tokenize(self._model, chunk, self._chosen, first=self.count + 1)
            ids, lengths = tokens.ids, tokens.lengths
            ends = np.cumsum(lengths)
            specials = np.stack([ends - lengths, ends], axis=1).reshape(-1)
            values = [vocabulary.cls_id, vocabulary.sep_id] * len(chunk)
            self._ids.write(np.insert(ids, specials, values).astype(np.int32).tobytes())
            self._lengths.write((lengths + 2).astype(np.int64).tobytes())
            self.count, self.num_tokens = self.count + len(chunk), self.num_tokens + _total(lengths)
        if not self.count:
            raise ValueError("there are no texts; give at least one")

    def blocks(self, count: int) -> Iterator[encoding.Tokens]:
        """Yields the tokens of `count` texts at a time, without [CLS] and [SEP]."""
        self._ids.seek(0)
        for lengths in _numbers(self._lengths, np.dtype(np.int64), count):
            ids = np.frombuffer(self._ids.read(int(lengths.sum()) * 4), np.int32)
            ends = np.cumsum(lengths)
            is_special = np.zeros(len(ids), bool)
            is_special[ends - lengths] = is_special[ends - 1] = True
            yield encoding.Tokens(ids[~is_special], lengths - 2, 0)

    def input_ids(self) -> Iterator[np.ndarray]:
        """Yields the ids of all texts, with [CLS] and [SEP]."""
        return _numbers(self._ids, np.dtype(np.int32), NUMBERS_READ)

    def lengths(self) -> Iterator[np.ndarray]:
        """Yields how many tokens the texts have."""
        return _numbers(self._lengths, np.dtype(np.int64), NUMBERS_READ)

    def offsets(self) -> Iterator[np.ndarray]:
        """Yields where in the tokens of all texts each begins."""
        before = 0
        for lengths in self.lengths():
            yield before + np.cumsum(lengths) - lengths
            before += int(lengths.sum())


def _total(lengths: np.ndarray) -> int:
    return int((lengths + 2).sum())


def _numbers(file: IO[bytes], dtype: np.dtype, count: int) -> Iterator[np.ndarray]:
    """Yields the numbers of a file, `count` at a time; another reader may move it meanwhile."""
    place = 0
    while True:
        file.seek(place)
        read = file.read(count * dtype.itemsize)
        if not read:
            return
        place += len(read)
        yield np.frombuffer(read, dtype)


def _write_array(member: IO[bytes], arrays: Iterator[np.ndarray], count: int) -> None:
    """Writes arrays, one below the other, as one .npy of `count` rows."""
    first = next(arrays)
    header = {"descr": first.dtype.str, "fortran_order": False, "shape": (count, *first.shape[1:])}
    np.lib.format.write_array_header_1_0(member, header)  # pyright: ignore[reportArgumentType]
    for array in itertools.chain([first], arrays):
        member.write(np.ascontiguousarray(array).tobytes())


def write_directory(model: inference.TrainedModel, options: flags.FlagValues) -> None:
    """Writes vectors of --input, or of standard input, to --output, and says what was written."""
    chosen = _choices(model, options, truncate=True)
    columns = text_lines.Columns(options.text_column, options.id_column)
    lines = text_lines.read_lines(options.input, columns) if options.input else _lines_of_stdin()
    sample = options.quantize_sample
    manifest = writing.write(
        model,
        lines,
        options.output,
        chosen,
        writing.Options(
            format=options.format,
            shard_size=options.shard_size,
            code=options.quantize,
            recall_sample=options.recall_sample,
            ranges_from=text_lines.read_lines(sample, columns) if sample else None,
            store_texts=options.store_texts,
            batch_size=options.batch_size,
        ),
        inputs=_inputs(options),
        total=text_lines.count(options.input) if options.input else None,
    )
    cut = manifest.counts.get("texts_cut", 0)
    if cut:
        logging.warning("%d texts were cut to %d tokens", cut, chosen.max_length)
    print(f"{options.output}: {manifest.num_rows} vectors in {len(manifest.shards)} shards")
    if told := manifest.recall:
        print(
            f"{options.quantize}: recall@{told['at']} is {told['recall']:.4f} of float32's, "
            f"{told['lost']:.4f} lost ({told['queries']} texts as queries)"
        )


def print_nearest(model: inference.TrainedModel, options: flags.FlagValues) -> None:
    """Prints what lies nearest to --search, or to each line of standard input.

    Raises:
      ValueError: if the vectors are of another model.
    """
    stored = store.Store(options.vectors)
    _check_model(model, stored)
    made_with = stored.manifest.identity["choices"]
    chosen = encoding.choices(
        model,
        layers=made_with["layers"],
        pooling=made_with["pooling"],
        normalize=made_with["normalize"],
        dims=made_with["dims"],
        prompt=options.prompt,
        truncate=options.truncate is not False,
        of="query",
    )
    similarity = options.similarity or stored.manifest.identity["similarity"]
    queries = iter(options.search or (line.text for line in _lines_of_stdin()))
    while chunk := list(itertools.islice(queries, search.QUERIES)):
        vectors, _ = encoding.encode(model, chunk, chosen, batch_size=options.batch_size)
        found = search.search(stored, vectors, top_k=options.top_k, similarity=similarity)
        _print(chunk, stored, *found, as_json=options.json)


def _print(
    queries: Sequence[str],
    stored: store.Store,
    scores: np.ndarray,
    places: np.ndarray,
    *,
    as_json: bool,
) -> None:
    lines = stored.lines(places.reshape(-1).tolist())
    for query, its_scores, its_places in zip(queries, scores, places, strict=True):
        found = [
            {"rank": rank, "score": round(float(score), 6), **_told(lines[int(place)], stored)}
            for rank, (score, place) in enumerate(zip(its_scores, its_places, strict=True), start=1)
        ]
        if as_json:
            print(json.dumps({"query": query, "found": found}, ensure_ascii=False))
            continue
        print(query)
        for each in found:
            where = ":".join(str(part) for part in (each["file"], each["line"]) if part)
            columns = (each["rank"], f"{each['score']:.4f}", where, each["id"], each["text"])
            print("\t".join(str(column) for column in columns if column != ""))


def _told(line: text_lines.Line, stored: store.Store) -> dict[str, Any]:
    files = stored.manifest.identity["inputs"]["files"]
    name = files[line.source]["path"] if files else ""
    return {"file": name, "line": line.number, "id": line.id, "text": line.text}


def _check_model(model: inference.TrainedModel, stored: store.Store) -> None:
    identity = stored.manifest.identity
    sha256, vocabulary = model.sha256(), model.vocabulary.describe()["sha256"]
    if (identity["model_sha256"], identity["vocabulary_sha256"]) != (sha256, vocabulary):
        made = stored.manifest.model
        raise ValueError(
            f"{stored.directory} holds vectors of another model ({made.get('path')}, step "
            f"{made.get('step')}) than --checkpoint={model.source}, step {model.step}: search with "
            "the model that made them"
        )


def _choices(
    model: inference.TrainedModel, options: flags.FlagValues, *, truncate: bool
) -> encoding.Choices:
    return encoding.choices(
        model,
        layers=options.layers,
        pooling=options.pooling,
        normalize=options.normalize,
        prompt=options.prompt,
        dims=options.dims,
        truncate=truncate if options.truncate is None else options.truncate,
    )


def _lines_of_stdin() -> Iterator[text_lines.Line]:
    # An empty line keeps its row: [CLS] [SEP]. str.splitlines would also break a line at U+2028.
    return text_lines.numbered(line.removesuffix("\n") for line in sys.stdin)


def _inputs(options: flags.FlagValues) -> dict[str, Any]:
    """Returns which texts these are, as far as it is known before they are read."""
    paths = [epath.Path(path) for path in options.input]
    there = [path for path in paths if path.exists()]
    files = [{"path": str(path), "size": path.stat().length} for path in there]
    columns = {"text_column": options.text_column, "id_column": options.id_column}
    sample = {"quantize_sample": options.quantize_sample} if options.quantize_sample else {}
    return {"files": files, **(columns if files else {}), **sample}


def _define_flags() -> None:
    inference.define_flags("Workdir of a training run, or a directory of weights of others.")
    flags.DEFINE_enum("layers", "last", list(encoding.LAYERS), "Which layers' hidden states.")
    flags.DEFINE_enum(
        "pooling",
        None,
        encoding.POOLINGS,
        "How tokens become one vector; none: all tokens. Without it as the model was trained for "
        "embeddings, or the mean.",
    )
    flags.DEFINE_bool("normalize", None, "Vectors have length 1. Without it as the model's do.")
    flags.DEFINE_string("prompt", None, "Put before each text. Without it the model's own.")
    whole_numbers.DEFINE_integer(
        "dims", 0, "Keep the first numbers of a vector, so many (Matryoshka).", lower_bound=0
    )
    flags.DEFINE_bool(
        "truncate", None, "Cut texts that are too long; by default with --output and --search."
    )
    whole_numbers.DEFINE_integer("batch_size", 32, "Texts at a time.", lower_bound=1)
    _define_flags_of_output()
    _define_flags_of_search()


def _define_flags_of_output() -> None:
    flags.DEFINE_string("output", None, "Directory of vectors to write, or to go on with.")
    flags.DEFINE_list(
        "input", [], "Files of texts, one a line; JSON objects in .jsonl, and packed ones."
    )
    flags.DEFINE_string("text_column", "text", "Of JSON objects, where the text is.")
    flags.DEFINE_string("id_column", "id", "Of JSON objects, where an id may be.")
    flags.DEFINE_enum("format", "npy", [*store.FORMATS], "Files of the vectors.")
    whole_numbers.DEFINE_integer("shard_size", 65_536, "Texts of a file.", lower_bound=1)
    flags.DEFINE_bool("store_texts", True, "Keep the texts beside the vectors.")
    flags.DEFINE_enum(
        "quantize", "float32", [*codes.CODES], "A byte or a bit for each number of a vector."
    )
    flags.DEFINE_list(
        "quantize_sample", [], "Files of texts that tell the ranges of int8; else the first shard."
    )
    whole_numbers.DEFINE_integer(
        "recall_sample", 0, "Measure the recall that --quantize loses by so many texts.",
        lower_bound=0,
    )  # fmt: skip


def _define_flags_of_search() -> None:
    flags.DEFINE_string("vectors", None, "Directory of vectors to search.")
    flags.DEFINE_multi_string(
        "search", [], "A question, any number of times; else the lines of standard input."
    )
    whole_numbers.DEFINE_integer("top_k", 10, "How many of the nearest are shown.", lower_bound=1)
    flags.DEFINE_enum(
        "similarity", None, sentence_vectors.SIMILARITIES, "Without it that of the model."
    )
    flags.DEFINE_bool("json", False, "One JSON object for each question.")


def _check_flags(options: flags.FlagValues) -> None:
    """Raises a ValueError for a flag that would go unused."""
    if options.output and options.vectors:
        raise ValueError("--output writes vectors, --vectors searches them; give one of the two")
    unused = () if options.output else OF_OUTPUT
    unused += () if options.vectors else OF_SEARCH
    for name in unused:
        if options[name].present:
            wanted = "--output=DIR" if name in OF_OUTPUT else "--vectors=DIR"
            raise ValueError(f"--{name} goes with {wanted}, which is not given")
    for name in ("layers", "pooling", "normalize", "dims") if options.vectors else ():
        if options[name].present:
            raise ValueError(f"--{name} is that of --vectors={options.vectors}; leave it out")


def main(argv: list[str]) -> None:
    """Writes an .npz archive to standard output, or a directory of vectors, or searches one."""
    if len(argv) > 1:
        raise ValueError(f"{argv[1]!r} is no flag; a question is --search={argv[1]!r}")
    options = flags.FLAGS
    _check_flags(options)
    model = inference.load(options.checkpoint, step=options.step)
    if options.output:
        write_directory(model, options)
        return
    if options.vectors:
        print_nearest(model, options)
        return
    write(
        model,
        (line.text for line in _lines_of_stdin()),
        sys.stdout.buffer,
        layers=options.layers,
        pooling=options.pooling,
        normalize=options.normalize,
        prompt=options.prompt,
        dims=options.dims,
        truncate=bool(options.truncate),
        batch_size=options.batch_size,
    )


if __name__ == "__main__":
    _define_flags()
    command_line.run(main)
