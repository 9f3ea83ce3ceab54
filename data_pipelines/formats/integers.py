"""Token ids as input: .npy files, and lists of integers in the fields of tables.

The rest of the pipeline sees them as text, digits with spaces between them, which a vocabulary of
integers reads back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertjax.files import opening
from data_pipelines.formats import base, input_files, text_files


def as_text(ids: Sequence[int] | np.ndarray) -> str:
    """Returns the ids as a vocabulary of integers reads them."""
    return " ".join(map(str, ids))


def are_integers(value: Any) -> bool:
    """Returns whether a field of a record is a list of whole numbers."""
    return isinstance(value, list) and all(
        isinstance(one, int) and not isinstance(one, bool) for one in value
    )


def check_npy(path: str, reading: base.Reading) -> None:
    """Raises ValueError unless a .npy file holds one or two dimensions of integers."""
    del reading
    _opened(path)


def read_npy(path: str, reading: base.Reading, log: input_files.Log) -> Iterator[tuple[str, str]]:
    """Yields ("path:number", ids as text) of the documents of an array, numbered from 1.

    In two dimensions a row is a document, and negative numbers in it are padding. In one dimension
    a negative number ends a document; without any the whole array is one.
    """
    del reading
    array = _opened(path)
    size, counted = input_files.size(path), 0
    number = 0
    for number, ids in enumerate(_documents(array), start=1):
        counted += ids.nbytes
        log.bytes_read += ids.nbytes
        yield from text_files.tidied(f"{path}:{number}", as_text(ids[ids >= 0].tolist()), log)
    log.bytes_read += max(size - counted, 0)
    if not number:
        log.problem("empty_files", path)


def _documents(array: np.ndarray) -> Iterator[np.ndarray]:
    if array.ndim == 2:
        yield from (np.asarray(row) for row in array)
        return
    ends = np.flatnonzero(array < 0)
    begins = np.concatenate([[0], ends + 1])
    for begin, end in zip(begins.tolist(), [*ends.tolist(), len(array)], strict=True):
        if end > begin:
            yield np.asarray(array[begin:end])


def _opened(path: str) -> np.ndarray:
    try:
        array = opening.open_array(path)
    except ValueError as error:
        raise ValueError(
            f"{error}: an array of integers is wanted; one of objects would run "
            "code: write rows of several lengths as a Parquet column of lists, or one behind the "
            "other with -1 after each"
        ) from error
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        raise ValueError(
            f"{path} holds {array.ndim} dimensions of {array.dtype}; one or two dimensions of "
            "integers are wanted"
        )
    return array
