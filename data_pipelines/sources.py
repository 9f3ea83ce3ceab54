"""Where documents come from: every source is a generator of `Document`, in a fixed order.

A document's text is paragraphs separated by newlines. Cutting paragraphs into sentences belongs to
`sentences`, the extraction of prose from docstrings to `documentation`.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import pathlib
from collections.abc import Iterator

from data_pipelines import documentation

DOCUMENTATION = "documentation"
SPLITS = ("all", "train", "heldout")


@dataclasses.dataclass(frozen=True)
class Document:
    """One text and the name that stays its own whatever else the corpus holds."""

    id: str
    text: str


def documents(
    source: str,
    *,
    split: str = "all",
    heldout_fraction: float = 0.02,
    one_document_per_file: bool = False,
) -> Iterator[Document]:
    """Returns the documents of `source` that belong to `split`.

    `source` is "documentation" (the built-in corpus) or comma-separated paths and globs of UTF-8
    text files, in which a blank line ends a document unless `one_document_per_file`.

    Raises:
      FileNotFoundError: if a path or glob matches no file.
      ValueError: if split, fraction or a file's encoding are not what they must be.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; known are {', '.join(SPLITS)}")
    if not 0 <= heldout_fraction < 1:
        raise ValueError(
            f"heldout_fraction is {heldout_fraction}; it must be at least 0 and below 1"
        )
    if source == DOCUMENTATION:
        found = (Document(*pair) for pair in documentation.documents())
    else:
        found = _text_documents(_paths(source), one_document_per_file)
    if split == "all":
        return found
    wanted = split == "heldout"
    return (item for item in found if is_heldout(item.id, heldout_fraction) == wanted)


def is_heldout(document_id: str, heldout_fraction: float) -> bool:
    """Returns whether a document is held out: a function of its id and the fraction alone."""
    digest = hashlib.blake2b(document_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < heldout_fraction * 2**64


def _paths(source: str) -> list[pathlib.Path]:
    paths: list[str] = []
    for pattern in source.split(","):
        found = sorted(glob.glob(pattern, recursive=True)) if pattern else []
        if not found:
            raise FileNotFoundError(
                f"input {pattern!r} matches no file; give {DOCUMENTATION!r} or paths and globs of "
                "text files, separated by commas"
            )
        paths += found
    return [pathlib.Path(path) for path in dict.fromkeys(paths) if pathlib.Path(path).is_file()]


def _text_documents(paths: list[pathlib.Path], one_document_per_file: bool) -> Iterator[Document]:
    for path in paths:
        if one_document_per_file:
            paragraphs = [line.strip() for line in _lines(path)]
            yield Document(str(path), "\n".join(filter(None, paragraphs)))
            continue
        paragraphs, first_line = [], 0
        for number, line in enumerate(_lines(path), start=1):
            if text := line.strip():
                first_line = first_line if paragraphs else number
                paragraphs.append(text)
            elif paragraphs:
                yield Document(f"{path}:{first_line}", "\n".join(paragraphs))
                paragraphs = []
        if paragraphs:
            yield Document(f"{path}:{first_line}", "\n".join(paragraphs))


def _lines(path: pathlib.Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text ({error}); convert it, for example with "
            f"`iconv -f latin1 -t utf-8`"
        ) from error
