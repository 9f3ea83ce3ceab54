"""A summary of a record directory: how often each token is predicted, and hashes of documents.

It is a small file next to the manifest, and a run keeps a copy. Training and evaluation compute
from it the scores of a model that ignores the context, and whether two directories hold the same
documents, wherever and by whatever command they were built.
"""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Int, UInt64

from bertjax.files import atomic, opening

FILE = "contents.npz"


@dataclasses.dataclass(frozen=True, eq=False)
class Documents:
    """A sample of the texts of documents: their 64-bit hashes below 2^(64 - halvings), ascending.

    Two samples are compared below the lower bound, where both are complete.
    """

    hashes: UInt64[np.ndarray, " documents"]
    halvings: int = 0

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Documents)
            and self.halvings == other.halvings
            and np.array_equal(self.hashes, other.hashes)
        )

    def below(self, halvings: int) -> UInt64[np.ndarray, " fewer"]:
        """Returns the hashes below 2^(64 - halvings)."""
        if not halvings:
            return self.hashes
        return self.hashes[: np.searchsorted(self.hashes, np.uint64(1 << (64 - halvings)))]

    def merged(self, other: Documents) -> Documents:
        """Returns the sample of the documents of both."""
        halvings = max(self.halvings, other.halvings)
        return Documents(np.union1d(self.below(halvings), other.below(halvings)), halvings)

    def share_in(self, other: Documents) -> float:
        """Returns the share of these documents that the other has too, 0 if it is unknown."""
        halvings = max(self.halvings, other.halvings)
        hashes = self.below(halvings)
        return float(np.isin(hashes, other.below(halvings)).mean()) if len(hashes) else 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class RecordSummary:
    """Counts of the tokens to predict, by id, and a sample of the documents.

    Without stored masks, the tokens are those that could be masked. `documents` is None if the
    records came without their text.
    """

    token_counts: Int[np.ndarray, " vocabulary"]
    documents: Documents | None = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RecordSummary)
            and np.array_equal(self.token_counts, other.token_counts)
            and self.documents == other.documents
        )

    def merged(self, other: RecordSummary) -> RecordSummary:
        """Returns the summary of both together; their vocabularies are the same."""
        documents = None
        if self.documents is not None and other.documents is not None:
            documents = self.documents.merged(other.documents)
        return RecordSummary(self.token_counts + other.token_counts, documents)

    def save(self, directory: epath.PathLike) -> None:
        """Writes the file into `directory`, which is made if missing, whole or not at all."""
        arrays: dict[str, Any] = {"token_counts": self.token_counts}
        if self.documents is not None:
            arrays["document_hashes"] = self.documents.hashes
            arrays["halvings"] = np.array(self.documents.halvings)
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        atomic.write(directory / FILE, content.getvalue())


def load(directory: epath.PathLike) -> RecordSummary | None:
    """Returns the summary in a directory, None if there is none."""
    path = epath.Path(directory) / FILE
    if not path.exists():
        return None
    try:
        arrays = opening.read_arrays(path)
    except ValueError as error:
        raise ValueError(f"{error}: {_REMEDY}") from error
    counts, hashes = arrays.get("token_counts"), arrays.get("document_hashes")
    halvings = int(arrays.get("halvings", 0))
    is_whole = counts is not None and _is_row_of(counts, np.int64) and (counts >= 0).all()
    if hashes is not None:
        is_whole = is_whole and _is_row_of(hashes, np.uint64) and 0 <= halvings < 64
    if counts is None or not is_whole:
        raise ValueError(f"{path} does not hold counts of tokens: {_REMEDY}")
    return RecordSummary(counts, None if hashes is None else Documents(hashes, halvings))


def _is_row_of(values: np.ndarray, dtype: type) -> bool:
    return values.ndim == 1 and values.dtype == dtype


_REMEDY = "copy it again, or delete it to run without the overlap check"
