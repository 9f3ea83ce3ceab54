"""Alphabets of sequences: an entry is a letter (a residue, a base) or several letters (a k-mer).

The tokenizer is the one of the library `tokenizers` that `library_tokenizer.of_letters` makes. A
sequence is read by the same rules everywhere, of proteins and of DNA: white space, the digits with
which GenBank numbers its lines and a "*" at the end, for the stop of a translation, are left out;
small letters, as soft masks have them, are read as capitals. A vocabulary that has digits or small
letters itself keeps them (SaProt's are structures).
"""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import tokenizers
from absl import logging
from tokenizers import normalizers

from bertjax.tokenization import token_ids

CLASS = "EsmTokenizer"
FIELD = "letters"  # of what manifests keep of a tokenizer
# Role -> its token, as ESM-2 and the Nucleotide Transformer name them.
SPECIALS = {"cls": "<cls>", "pad": "<pad>", "sep": "<eos>", "unk": "<unk>", "mask": "<mask>"}
_FIRST = ("<cls>", "<pad>", "<eos>", "<unk>")

_SPACE, _SPACE_AND_DIGITS = r"\s+", r"[\s0-9]+"
# A "*" behind another one is not looked at again: a line of them takes no time.
_STOP = r"(?<!\*)\*+\Z"
_MASKS = re.compile(rf"({re.escape(token_ids.MASK)}|{SPECIALS['mask']})")

_SHOWN = 10  # letters of a table

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


def _left_out(alphabet: frozenset[str]) -> tuple[str, str]:
    return _SPACE if alphabet & {*string.digits} else _SPACE_AND_DIGITS, _STOP


def _small(alphabet: frozenset[str]) -> str:
    """Returns the letters that are read as capitals."""
    return "" if alphabet & {*string.ascii_lowercase} else string.ascii_lowercase


def cleaned(text: str, alphabet: frozenset[str] = frozenset()) -> str:
    """Returns the letters of a sequence, and the masks in it, by the rules for an alphabet."""
    for rule in _left_out(alphabet):
        text = re.sub(rule, "", text)
    if not _small(alphabet):
        return text
    parts = _MASKS.split(text)
    return "".join(part if place % 2 else part.upper() for place, part in enumerate(parts))


def normalizer(alphabet: frozenset[str]) -> normalizers.Sequence:
    """Returns the rules for an alphabet in the library, which keeps the places of letters."""
    left_out = [normalizers.Replace(tokenizers.Regex(it), "") for it in _left_out(alphabet)]
    capitals = [normalizers.Replace(it, it.upper()) for it in _small(alphabet)]
    return normalizers.Sequence([*left_out, *capitals])


def unknown(text: str, vocabulary: token_ids.Tokenizer) -> Counter[str]:
    """Returns how often each letter that no entry has stands in a sequence; none in other texts."""
    known = vocabulary.letters
    if not known or not {*text} - known:
        return Counter()
    counts = Counter(cleaned(text, known))
    return Counter({letter: count for letter, count in counts.items() if letter not in known})


def table(counts: Mapping[str, int]) -> str:
    """Returns the commonest letters with their numbers, in words."""
    shown = sorted(counts.items(), key=lambda it: (-it[1], it[0]))[:_SHOWN]
    others = f" and {len(counts) - _SHOWN} others" if len(counts) > _SHOWN else ""
    return ", ".join(f"{letter!r} {count:,}" for letter, count in shown) + others


def warn(counts: Mapping[str, int]) -> None:
    """Warns of letters that were read as unknown, if there are any."""
    if counts:
        logging.warning("Letters read as unknown: %s", table(counts))


def known(vocabulary: Iterable[str]) -> frozenset[str]:
    """Returns the letters that entries have."""
    return frozenset("".join(entry for entry in vocabulary if not _is_special(entry)))


def _is_special(entry: str) -> bool:
    """Returns whether an entry stands for nothing in a sequence."""
    return entry.startswith("<") and entry.endswith(">")


def pattern(vocabulary: Sequence[str]) -> str:
    """Returns the regex that matches the text of one entry: the longest k-mer, else a letter."""
    plain = [entry for entry in vocabulary if not _is_special(entry)]
    sizes = sorted({len(entry) for entry in plain} - {0, 1}, reverse=True)
    choices = []
    for size in sizes:
        letters = sorted({letter for entry in plain if len(entry) == size for letter in entry})
        choices.append(f"[{''.join(map(re.escape, letters))}]{{{size}}}")
    return "|".join([*choices, "."])
