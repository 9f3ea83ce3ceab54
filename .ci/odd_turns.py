"""Counts turns of phrase that no reader expects, in docstrings, comments and docs.

`python .ci/odd_turns.py` prints each of them with its place, and fails where a count is not the one
in MOST: more of them are to be rewritten, fewer are to be written into MOST, so that a count only
falls. The names of the turns say, in brackets, what to write instead.
"""

from __future__ import annotations

import ast
import collections
import io
import pathlib
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]

# Name -> the turn, as a regular expression. A sentence begins a text or follows a full stop.
SENTENCE = r"(?:\A|(?<=[.!?:]\s))"
TURNS = {
    "a sentence that begins with Of": SENTENCE + r"Of (?!course)",
    "a sentence that begins with That are, is or has": SENTENCE
    + r"That (?:are|is|has|have|were)\b",
    "a sentence that begins with What": SENTENCE + r"What [^?]*?[.:]",
    "told (logged, reported)": r"\b(?:un)?told\b",
    "whoever, whomever (a user)": r"\bwho(?:m)?ever\b",
    "beside (with, next to, compared with)": r"\bbeside\b",
    "has the say (sets, decides)": r"\b(?:has|have|had) the say\b",
    "to no end (without reaching zero)": r"\bto no end\b",
    "none is, none are (no x is)": r"\bnone (?:is|are|was|were)\b",
    "so many, so much (that number)": r"\bso (?:many|much)\b",
    "how many (the number of)": r"\bhow many\b",
    "in little (a summary)": r"\bin little\b",
    "nobody (no caller, no one)": r"\bnobody\b",
    "those of, that of (the noun again)": r"\b(?:[Tt]hose|[Tt]hat) of\b",
    "what is (a noun)": r"\b[Ww]hat is\b",
    "too at the end (also, as well)": r", too\b",
    "begins, of a run or a model (starts)": r"\bbegins\b",
    "strangers, heeds, readings, outline, settle (the field's words)": r"\b(?:strangers?|heeds?|"
    + r"readings|outlines?|settled?|settles)\b",
    "no + noun as predicate (is not a)": r"(?<!there )\b(?:is|are) no "
    + r"(?!longer|more|less|such|better|worse)\w+\b",
}
MOST = {
    "a sentence that begins with Of": 5,
    "a sentence that begins with What": 25,
    "told (logged, reported)": 13,
    "whoever, whomever (a user)": 1,
    "beside (with, next to, compared with)": 9,
    "none is, none are (no x is)": 3,
    "so many, so much (that number)": 1,
    "how many (the number of)": 3,
    "nobody (no caller, no one)": 3,
    "no + noun as predicate (is not a)": 1,
    "those of, that of (the noun again)": 159,
    "what is (a noun)": 144,
    "too at the end (also, as well)": 25,
    "begins, of a run or a model (starts)": 55,
    "strangers, heeds, readings, outline, settle (the field's words)": 2,
}


def main() -> int:
    """Prints the turns and the counts that differ from MOST; returns the exit code."""
    counts: collections.Counter[str] = collections.Counter()
    for path in tracked_files():
        for line, text in passages(path):
            for name, turn in TURNS.items():
                for match in re.finditer(turn, text):
                    counts[name] += 1
                    at = line + text.count("\n", 0, match.start())
                    print(f"{path.relative_to(ROOT)}:{at}: {name}")
    wrong = [name for name in TURNS if counts[name] != MOST.get(name, 0)]
    for name in wrong:
        step = "rewrite them" if counts[name] > MOST.get(name, 0) else "write the number into MOST"
        print(f"{name}: {counts[name]}, {MOST.get(name, 0)} in {__file__}: {step}", file=sys.stderr)
    return 1 if wrong else 0


def tracked_files() -> list[pathlib.Path]:
    """Returns the Python files and the pages, without the data of tests."""
    command = ["git", "-C", str(ROOT), "ls-files", "*.py", "README.md", "docs/*.md"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).exists() and "odd_turns" not in name]


def passages(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Yields each docstring, block of comments or paragraph with the number of its first line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from docstrings(text)
        yield from comments(text)
        return
    for match in re.finditer(r"(?:[^\n]+\n?)+", text):
        yield text.count("\n", 0, match.start()) + 1, match.group()


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yields the docstrings of a module, its classes and functions."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.body[0].lineno, docstring


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yields the comments; those on lines that follow each other are one text."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        words = token.string.lstrip("# ")
        if block and token.start[0] == last + 1:
            block.append(words)
        else:
            if block:
                yield first, "\n".join(block)
            block, first = [words], token.start[0]
        last = token.start[0]
    if block:
        yield first, "\n".join(block)


if __name__ == "__main__":
    sys.exit(main())
