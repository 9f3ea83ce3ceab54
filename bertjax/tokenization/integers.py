"""A "tokenizer" for data that are integers already: proteins, DNA, codes of health records, tables.

Its file has the number of ids and the special ones. Text, in and out, is ids with white space
between them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Bool

from bertjax.files import atomic, json_text
from bertjax.options import faults
from bertjax.tokenization import token_ids

FILE = "integers.json"

_ROLES = ("pad", "unk", "cls", "sep", "mask")
_OPTIONAL = "unk"
_MOST_IDS = 1 << 24
# In place of an unknown token's id where a vocabulary has none: the id of nothing.
_NO_ID = -1


class IntegerTokenizer(token_ids.Tokenizer):
    """Reads "5 17 3" as these ids.

    `fields` are the content of integers.json: `vocab_size`, and `pad_id`, `cls_id`, `sep_id`,
    `mask_id` and, where there is one, `unk_id`, which are among the ids. Special ids in the data
    are never masked; padding in it is left out. Every id is a word.
    """

    kind = "integers"
    vocabulary = ()  # ids have no names

    def __init__(self, fields: Mapping[str, Any]):
        names = {f"{role}_id" for role in _ROLES}
        missing = {"vocab_size", *names} - {f"{_OPTIONAL}_id"} - fields.keys()
        unknown = fields.keys() - {"vocab_size", *names}
        if missing or unknown:
            wrong = [f"lacks {name}" for name in sorted(missing)]
            wrong += [f"has {name}, which means nothing" for name in sorted(unknown)]
            raise ValueError("it " + " and ".join(wrong))
        size = fields["vocab_size"]
        for name, value in fields.items():
            least, most = (len(fields), _MOST_IDS) if name == "vocab_size" else (0, size - 1)
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            if not is_whole or not least <= value <= most:
                raise faults.wrong(name, value, f"a whole number from {least} to {most:,}")
        self.special_ids = tuple(fields[f"{r}_id"] for r in _ROLES if f"{r}_id" in fields)
        if len(set(self.special_ids)) < len(self.special_ids):
            raise ValueError(f"two roles share one of the ids {list(self.special_ids)}")
        self.vocab_size: int = size
        self.pad_id, self.cls_id = int(fields["pad_id"]), int(fields["cls_id"])
        self.sep_id, self.mask_id = int(fields["sep_id"]), int(fields["mask_id"])
        self.unk_id = int(fields.get("unk_id", _NO_ID))
        self.continues_word: Bool[np.ndarray, " vocabulary"] = np.zeros(size, bool)
        self._fields = {name: fields[name] for name in sorted(fields)}
        self._names = {
            fields[f"{role}_id"]: f"[{role.upper()}]" for role in _ROLES if f"{role}_id" in fields
        }

    def encode(self, text: str) -> list[int]:
        """Returns the ids in `text`, without padding."""
        try:
            ids = list(map(int, text.split()))
        except ValueError:
            word = next(word for word in text.split() if not re.fullmatch(r"[+-]?\d+", word))
            raise ValueError(
                f"{word!r} is not an id: the vocabulary is of integers, and takes whole numbers "
                "with white space between them"
            ) from None
        if ids and (min(ids) < 0 or max(ids) >= self.vocab_size):
            wrong = next(each for each in ids if not 0 <= each < self.vocab_size)
            raise ValueError(
                f"the id {wrong} is not among the {self.vocab_size} of the vocabulary: raise "
                f"vocab_size in {FILE}, or look at the data"
            )
        return [each for each in ids if each != self.pad_id]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_with_offsets(self, text: str) -> token_ids.Placed:
        """Returns the ids of `text`, and where in it each starts and ends."""
        placed = [
            (*self.encode(match.group()), *match.span())
            for match in re.finditer(r"\S+", text)
            if self.encode(match.group())
        ]
        ids, starts, ends = np.array(placed, np.int32).reshape(-1, 3).T
        return ids, starts, ends

    def token(self, token_id: int) -> str:
        """Returns the digits of an id, or the role of a special one: "[MASK]"."""
        return self._names.get(token_id, str(token_id))

    def surface(self, token_id: int) -> str:
        """Returns the digits of any id, as a text has them."""
        return str(token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the ids as `encode` reads them."""
        return " ".join(map(str, ids))

    def describe(self) -> dict[str, Any]:
        """Returns what manifests keep; the hash covers the fields."""
        return self.described(self._content())

    def save(self, directory: epath.PathLike) -> None:
        """Writes integers.json into `directory`."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        atomic.write(directory / FILE, self._content().decode())

    def _content(self) -> bytes:
        return (json.dumps(self._fields, indent=2) + "\n").encode()


def read_tokenizer(path: epath.Path, **casing: Any) -> IntegerTokenizer:
    """Returns the tokenizer of an integers.json; there is no casing."""
    del casing
    return IntegerTokenizer(json_text.read_object(path))


def export_fault(vocabulary: Any) -> str:
    """Returns why transformers has no tokenizer like it."""
    del vocabulary
    return "it has no tokenizer of integers"
