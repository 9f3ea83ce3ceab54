r"""Cuts ten million English words of textbooks and novels, for the recipe babylm.

    python benchmarks/babylm_corpus.py --sources=DIR --output=DIR [--words=10000000]

DIR has two folders of texts, one paragraph a line and a blank line between chapters, as .txt or
.txt.xz: `openstax` (the textbooks of openstax/osbooks-world-history @3e17beda, osbooks-us-history
@046331cf and osbooks-psychology @e061043b) and `eltec_eng` (the novels of COST-ELTeC/ELTeC-eng
@3db3b673: train-*.txt, and valid.txt). Taken are all textbooks, then the chapters of the novels in
the order of files and lines, as long as the words (what `str.split` gives) stay within --words.
Written are train.txt and heldout.txt, which has the novels of valid.txt whole but for chapters that
train.txt has too ("PART I."), and what was taken is printed.
"""

from __future__ import annotations

import argparse
import lzma
import pathlib
import sys
from collections.abc import Iterable, Iterator, Sequence


def chapters(path: pathlib.Path) -> Iterator[str]:
    """Yields the paragraphs of each chapter of a file, joined by newlines."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for chapter in file.read().split("\n\n"):
            if text := chapter.strip():
                yield text


def cut(texts: Iterable[str], words: int) -> Iterator[tuple[str, int]]:
    """Yields texts and their numbers of words, up to the first that would go beyond `words`."""
    total = 0
    for text in texts:
        total += (count := len(text.split()))
        if total > words:
            return
        yield text, count


def files(sources: pathlib.Path, folder: str, pattern: str) -> list[pathlib.Path]:
    """Returns the files of a folder whose names match, in the order of their names.

    Raises:
      FileNotFoundError: if there are none.
    """
    found = sorted((sources / folder).glob(pattern))
    if not found:
        raise FileNotFoundError(
            f"--sources: {sources / folder} has no file {pattern}; the first lines of "
            f"{pathlib.Path(__file__).name} say where the texts come from"
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Writes both files, and prints the numbers of their chapters and words."""
    parser = argparse.ArgumentParser(description="Ten million English words.")
    parser.add_argument("--sources", type=pathlib.Path, required=True, help="the folder of both")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="where to write")
    parser.add_argument("--words", type=int, default=10_000_000, help="of train.txt at most")
    options = parser.parse_args(argv)
    try:
        of_training = [
            *files(options.sources, "openstax", "*.txt*"),
            *files(options.sources, "eltec_eng", "train-*.txt*"),
        ]
        (heldout,) = files(options.sources, "eltec_eng", "valid.txt*")
    except FileNotFoundError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    options.output.mkdir(parents=True, exist_ok=True)
    texts = (text for path in of_training for text in chapters(path))
    seen: set[str] = set()
    for name, taken in [
        ("train.txt", cut(texts, options.words)),
        ("heldout.txt", cut((it for it in chapters(heldout) if it not in seen), options.words)),
    ]:
        counts = []
        with open(options.output / name, "w", encoding="utf-8") as file:
            for text, count in taken:
                file.write(text + "\n\n")
                counts.append(count)
                seen.add(text)
        print(f"{options.output / name}: {len(counts):,} chapters, {sum(counts):,} words")
    return 0


if __name__ == "__main__":
    sys.exit(main())
