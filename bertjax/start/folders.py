"""The texts of a folder, as `--input` of the programs that read them; which files are left out."""

from __future__ import annotations

import collections
import glob
import os
from collections.abc import Iterator

from bertjax.files import opening, path_lists

# Formats of text whose files say what they are.
SUFFIXES = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
MOST_SHOWN = 5
# A source of data_pipelines.build that is called by this word; ./documentation is a folder.
KEYWORD = "documentation"


def expanded(paths: str) -> tuple[str, list[str]]:
    """Returns a list of paths with globs in place of folders, and the files that these leave out.

    Folders are read to their depths, but for hidden files.

    Raises:
      ValueError: if a folder has no text.
    """
    patterns, others = [], []
    for path in path_lists.rejoined(paths.split(","), os.path.exists):
        if path == KEYWORD or not os.path.isdir(path):
            patterns.append(path)
            continue
        files = sorted(_files(path))
        texts = [it for it in files if opening.suffixes(it)[0] in SUFFIXES]
        others += sorted({*files} - {*texts})
        kept = sorted({it[-len("".join(opening.suffixes(it))) :] for it in texts})
        if not kept:
            raise ValueError(
                f"--input={path} is a folder without text: its files must end in "
                f"{', '.join(SUFFIXES)}, compressed or not{_listed(others, '; it has ')}"
            )
        patterns += [os.path.join(glob.escape(path), "**", f"*{end}") for end in kept]
    return ",".join(patterns), others


def left_out(files: list[str]) -> str:
    """Returns a sentence about files that are not read, "" without any."""
    counts = collections.Counter(os.path.splitext(it)[1] or "no suffix" for it in files)
    kinds = ", ".join(f"{count} of {kind}" for kind, count in counts.most_common())
    return f"{len(files)} files are not read ({kinds}){_listed(files, ': ')}" if files else ""


def _files(folder: str) -> Iterator[str]:
    found = glob.glob(os.path.join(glob.escape(folder), "**", "*"), recursive=True)
    return (it for it in found if not os.path.isdir(it))


def _listed(files: list[str], before: str) -> str:
    more = ", ..." * (len(files) > MOST_SHOWN)
    return f"{before}{', '.join(files[:MOST_SHOWN])}{more}" if files else ""
