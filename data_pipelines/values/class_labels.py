"""The class of each row, as arrays and columns have it: numbers, texts, bytes, or one-hot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bertjax.options import faults

WITHOUT_CLASS = (None, "", b"", float("inf"), -float("inf"))


def read(
    cells: np.ndarray | list[Any], where: str, kept: Sequence[int], name: Callable[[int], str]
) -> list[Any]:
    """Returns the classes of the rows `kept`, as texts or numbers.

    `where` is the array or column and `name` the row in messages. [rows, 1] is read as [rows], and
    one-hot [rows, classes] as the numbers of the classes.

    Raises:
      ValueError: if a row has no class, as with NaN.
    """
    if isinstance(cells, np.ndarray) or any(isinstance(it, list) for it in cells):
        cells = _numbered(cells, where)
    chosen = [cells[row] for row in kept]
    pairs = zip(kept, chosen, strict=True)
    missing = [row for row, it in pairs if it in WITHOUT_CLASS or it != it]
    if missing:
        raise ValueError(
            f"{len(missing):,} of {len(kept):,} rows have no label in {where}, the first is "
            f"{name(missing[0])}: leave them out"
        )
    return [_class(it, name(row)) for row, it in zip(kept, chosen, strict=True)]


def _numbered(cells: np.ndarray | list[Any], where: str) -> list[Any]:
    """Returns a class for each row of an array."""
    try:
        array = np.asarray(cells)
    except ValueError:  # lists of several lengths
        raise faults.wrong(where, cells, "a class for each row") from None
    if array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "biuf":
        is_one_hot = ((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all()
        array = array.argmax(axis=1) if is_one_hot else array
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "biufSU":
        shape = f"{array.dtype} of the shape {list(array.shape)}"
        raise faults.wrong(where, shape, "numbers or texts [rows] or [rows, 1], or one-hot")
    return array.tolist()


def _class(cell: Any, name: str) -> Any:
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            raise faults.wrong(f"the label of {name}", cell, "UTF-8") from None
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    if isinstance(cell, dict):
        raise faults.wrong(f"the label of {name}", cell, "a number or a text")
    return cell
