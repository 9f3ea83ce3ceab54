"""Weights that a run starts from or learns from: reading them, and whether they read the same ids.

`config.init_from` and `config.distillation.teacher` name them; `convert` has their formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from absl import logging

from bertjax.tokenization import token_ids, tokenizer

SHOWN_ENTRIES = 3  # of those that differ between two vocabularies

Weights = TypeVar("Weights")


def read(option: str, path: str, reader: Callable[[str], Weights]) -> Weights:
    """Returns what `reader`, a function of `convert.formats`, finds at the path of an option."""
    try:
        return reader(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{option} is {path}: {error}; give a workdir, a Hugging Face directory or a TF1 "
            f"checkpoint, --{option}=PATH"
        ) from error


def vocabulary_faults(
    theirs: tokenizer.Tokenizer | None,
    ours: tokenizer.Tokenizer | None,
    source: str,
    *,
    may_be_longer: bool = False,
    hints: tuple[str, str] = ("", ""),
) -> Iterator[str]:
    """Yields why ids of the data, of the vocabulary `ours`, mean something else to the weights.

    `source` names the weights. `hints` follow the sentences about other and about more entries.
    """
    if theirs is None or ours is None:
        logging.warning(
            "%s no vocabulary: that ids mean the same in it and in the data is not checked, only "
            "that the sizes agree",
            "The data has" if ours is None else f"{source} has",
        )
        return
    was, now = theirs.describe(), ours.describe()
    if was["sha256"] == now["sha256"]:
        return
    build = "build the records with the source's vocabulary"
    for name in token_ids.RULES:
        if was.get(name) != now.get(name):
            yield (
                f"the vocabulary of the data has {name} {now.get(name)!r}, the source's has "
                f"{was.get(name)!r}: {build} and casing"
            )
    if was.get("merges_sha256") != now.get("merges_sha256"):
        yield (
            "the vocabulary of the data merges bytes otherwise than the source's (merges.txt, or "
            f"add_prefix_space), so the same text has other ids: {build}; tokens may be added to "
            "it as added tokens"
        )
    shared = range(min(theirs.vocab_size, ours.vocab_size))
    differing = [index for index in shared if theirs.token(index) != ours.token(index)]
    sizes = f"the vocabulary of the data has {ours.vocab_size} entries, the source's"
    if differing:
        examples = "; ".join(
            f"entry {index} is {ours.token(index)!r}, the source's is {theirs.token(index)!r}"
            for index in differing[:SHOWN_ENTRIES]
        )
        yield (
            f"the vocabulary of the data is not the source's; {len(differing)} of {len(shared)} "
            f"entries differ: {examples}. {build.capitalize()}{hints[0]}"
        )
    elif ours.vocab_size < theirs.vocab_size:
        yield f"{sizes} goes on to {theirs.vocab_size}: {build}"
    elif ours.vocab_size > theirs.vocab_size and not may_be_longer:
        yield f"{sizes} {theirs.vocab_size}, the first of them: {hints[1] or build}"
