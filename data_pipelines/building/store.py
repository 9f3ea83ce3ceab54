"""The tokenized corpus on disk: appended block by block, read through memory maps.

A journal names every finished block, so that a build that was killed keeps them: whatever follows
the last whole journal line is cut off when the store is opened again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from absl import logging

from bertjax.files import json_text
from data_pipelines.building import blocks
from data_pipelines.documents import sources
from data_pipelines.objectives import examples
from data_pipelines.reports import statistics

JOURNAL_FILE = "blocks.jsonl"
TOKENS, SENTENCES, DOCUMENTS = "tokens.bin", "sentence_starts.bin", "document_starts.bin"
POSITION = np.dtype("<i8")
PIECE_BYTES = 1 << 20  # read at a time


@dataclasses.dataclass(frozen=True)
class Block:
    """The text of a block and its arrays as hashes, and where it ends in each file of the store."""

    digest: str
    sha256: str
    tokens: int
    sentences: int
    documents: int
    journal_bytes: int = 0


class Store:
    """A directory of three arrays and their journal; see `examples.Corpus` for the arrays.

    Each journal line is a `Block` with the tally and the problems of its text, which stay on disk.
    """

    def __init__(self, directory: pathlib.Path, *, token_dtype: np.dtype):
        self._directory = directory
        self._token_dtype = token_dtype
        directory.mkdir(parents=True, exist_ok=True)
        self.blocks: list[Block] = []
        for number, line in enumerate(self._journal_lines(), start=1):
            try:
                block = _block(json_text.loads(line), self.end.journal_bytes + len(line))
                is_whole = self._is_whole(block)
            except (ValueError, KeyError, TypeError):
                is_whole = False
            # After a power failure the journal may have outlived the data.
            if not is_whole:
                journal = directory / JOURNAL_FILE
                logging.warning(
                    "%s:%d: that block and those after it are made again", journal, number
                )
                break
            self.blocks.append(block)
        self.truncate(len(self.blocks))

    def truncate(self, num_blocks: int) -> None:
        """Forgets all but the first blocks, and anything half written."""
        self.blocks = self.blocks[:num_blocks]
        for path, size in self._sizes(self.end).items():
            path.touch()
            # Growing an empty file fills it with zero, the first start.
            with path.open("r+b") as file:
                file.truncate(size)

    def append(self, digest: str, block: blocks.TokenizedBlock) -> None:
        """Writes a block's arrays, and then its journal line."""
        corpus, end, sha256 = block.corpus, self.end, hashlib.sha256()
        for name, array in (
            (TOKENS, corpus.tokens.astype(self._token_dtype, casting="safe")),
            (SENTENCES, (corpus.sentence_starts[1:] + end.tokens).astype(POSITION)),
            (DOCUMENTS, (corpus.document_starts[1:] + end.sentences).astype(POSITION)),
        ):
            content = array.tobytes()
            sha256.update(content)
            self._write(name, content)
        line = {
            "digest": digest,
            "sha256": sha256.hexdigest(),
            "tokens": end.tokens + len(corpus.tokens),
            "sentences": end.sentences + corpus.num_sentences,
            "documents": end.documents + corpus.num_documents,
            "tally": block.tally.to_json(),
            "log": dataclasses.asdict(block.log),
        }
        written = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        self._write(JOURNAL_FILE, written)
        self.blocks.append(_block(line, end.journal_bytes + len(written)))

    @property
    def end(self) -> Block:
        """Returns the last block, which ends where the next one begins."""
        return self.blocks[-1] if self.blocks else Block("", "", 0, 0, 0)

    def block_documents(self) -> tuple[int, ...]:
        """Returns the numbers of the blocks' first documents and, last, of all documents."""
        return 0, *(block.documents for block in self.blocks)

    def summary(self) -> tuple[statistics.CorpusTally, sources.Log]:
        """Returns what was counted in all blocks, and the problems found in their text."""
        tally, log = statistics.CorpusTally(), sources.Log()
        for line in self._journal_lines():
            fields = json.loads(line)
            tally = tally.merged(statistics.CorpusTally.from_json(fields["tally"]))
            log.merge(sources.Log(**fields["log"]))
        return tally, log

    def _journal_lines(self) -> Iterator[bytes]:
        path = self._directory / JOURNAL_FILE
        if not path.exists():
            return
        with path.open("rb") as journal:
            # A line without its end was being written when the process died.
            yield from (line for line in journal if line.endswith(b"\n"))

    def _is_whole(self, block: Block) -> bool:
        """Returns whether the files hold what was written of the block that comes next."""
        sha256, before = hashlib.sha256(), self._sizes(self.end)
        for path, size in self._sizes(block).items():
            if path.name == JOURNAL_FILE:
                continue
            if not path.exists() or path.stat().st_size < size:
                return False
            with path.open("rb") as file:
                file.seek(before[path])
                while piece := file.read(min(size - file.tell(), PIECE_BYTES)):
                    sha256.update(piece)
        return sha256.hexdigest() == block.sha256

    def _sizes(self, end: Block) -> dict[pathlib.Path, int]:
        """Returns the bytes that the blocks up to `end` take in each file."""
        sizes = {
            JOURNAL_FILE: end.journal_bytes,
            TOKENS: end.tokens * self._token_dtype.itemsize,
            # Both begin with the start of the first item, 0.
            SENTENCES: (end.sentences + 1) * POSITION.itemsize,
            DOCUMENTS: (end.documents + 1) * POSITION.itemsize,
        }
        return {self._directory / name: size for name, size in sizes.items()}

    def _write(self, name: str, content: bytes) -> None:
        with (self._directory / name).open("ab") as file:
            file.write(content)


def open_corpus(directory: pathlib.Path, token_dtype: np.dtype) -> examples.Corpus:
    """Returns the arrays of a store as memory maps."""

    def mapped(name: str, dtype: np.dtype) -> np.ndarray:
        path = directory / name
        # An empty file cannot be mapped.
        return np.asarray(np.memmap(path, dtype, "r") if path.stat().st_size else [], dtype)

    return examples.Corpus(
        tokens=mapped(TOKENS, np.dtype(token_dtype)),
        sentence_starts=mapped(SENTENCES, POSITION),
        document_starts=mapped(DOCUMENTS, POSITION),
    )


def block_of(corpus: examples.Corpus, first: int, last: int) -> tuple[examples.Corpus, int]:
    """Returns documents `first` to `last` as a corpus of its own, and its first token's position.

    Positions count from the beginning of the block.
    """
    document_starts = np.asarray(corpus.document_starts[first : last + 1])
    sentence_starts = np.asarray(
        corpus.sentence_starts[document_starts[0] : document_starts[-1] + 1]
    )
    begin, end = int(sentence_starts[0]), int(sentence_starts[-1])
    block = examples.Corpus(
        tokens=corpus.tokens[begin:end],
        sentence_starts=sentence_starts - begin,
        document_starts=document_starts - document_starts[0],
    )
    return block, begin


def _block(journal_line: Mapping[str, Any], journal_bytes: int) -> Block:
    names = ("digest", "sha256", "tokens", "sentences", "documents")
    return Block(**{name: journal_line[name] for name in names}, journal_bytes=journal_bytes)
