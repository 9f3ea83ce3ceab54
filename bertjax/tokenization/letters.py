"""Alphabets of sequences: an entry is a letter (a residue, a base) or several letters (a k-mer).

The tokenizer is the one of the library `tokenizers` that `library_tokenizer.of_letters` makes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence

CLASS = "EsmTokenizer"
# Role -> its token, as ESM-2 and the Nucleotide Transformer name them.
SPECIALS = {"cls": "<cls>", "pad": "<pad>", "sep": "<eos>", "unk": "<unk>", "mask": "<mask>"}
_FIRST = ("<cls>", "<pad>", "<eos>", "<unk>")

TEXT = "text"  # the letters that the text has
ALPHABETS: dict[str, tuple[str, ...]] = {
    # Source: facebookresearch/esm, esm/constants.py and esm/data.py; the vocab.txt of ESM-2.
    "esm2": (*_FIRST, *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"),
    "dna": (*_FIRST, *"ACGTN", "<mask>"),
    # Source: instadeepai/nucleotide-transformer, nucleotide_transformer/tokenizers.py: 6-mers one
    # after the other; letters by themselves where fewer are left, or where one of six is an N.
    "dna_6mers": (
        *("<unk>", "<pad>", "<mask>", "<cls>", "<eos>", "<bos>"),
        *map("".join, itertools.product("ATCG", repeat=6)),
        *"ATCGN",
    ),
}


def entries(alphabet: str, letters: Collection[str]) -> tuple[str, ...]:
    """Returns the entries of a name of ALPHABETS, or of `letters` in their order for TEXT."""
    if alphabet == TEXT:
        return (*_FIRST, *sorted(letters), SPECIALS["mask"])
    return ALPHABETS[alphabet]


def pattern(vocabulary: Sequence[str]) -> str:
    """Returns the regex that matches the text of one entry: the longest k-mer, else a letter.

    Entries between < and > are special, and stand for nothing in a sequence.
    """
    plain = [entry for entry in vocabulary if not (entry.startswith("<") and entry.endswith(">"))]
    sizes = sorted({len(entry) for entry in plain} - {0, 1}, reverse=True)
    choices = []
    for size in sizes:
        letters = sorted({letter for entry in plain if len(entry) == size for letter in entry})
        choices.append(f"[{''.join(map(re.escape, letters))}]{{{size}}}")
    return "|".join([*choices, "."])
