"""Byte-level BPE, RoBERTa's tokenizer: every text is bytes, so nothing is unknown or lost.

A text is cut into letters, digits, other characters and white space, a blank going with what
follows it; then bytes are merged, pair by pair, in the order of the merges. The library
`tokenizers` does both, and gives the offsets. Here are the files, whose bytes the library would
write otherwise, the special tokens, and the rest of a tokenizer's methods.

Sources: Radford et al. 2019 (GPT-2), section 2.2 and encoder.py; RoBERTa (Liu et al. 2019), section
4.4; transformers, models/roberta.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from absl import logging
from etils import epath
from jaxtyping import Bool
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertjax.files import json_text, opening
from bertjax.tokenization import normalization as normalization_lib
from bertjax.tokenization import offsets, sentence_piece, token_ids, wordpiece

ENTRIES_FILE, MERGES_FILE = "vocab.json", "merges.txt"
TOKENIZER_FILE = "tokenizer.json"

# In RoBERTa's order, which makes their ids in a vocabulary trained here.
BOS, PAD, EOS, UNK, MASK = SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

Merge = tuple[str, str]

# Fields of the tokenizer.json's model that would tokenize otherwise, and what they are here.
_MODEL_FIELDS: dict[str, tuple[Any, ...]] = {
    "dropout": (None, 0, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False),
}
# GPT-2's rule, but a word is a letter and what follows of letters, marks and joiners between them.
# Their rule cuts a word of Hindi, Tamil or Thai before each vowel sign.
WHOLE_WORDS = (
    r"'s|'t|'re|'ve|'m|'ll|'d"
    r"| ?\p{L}(?:[\p{L}\p{M}]|[\x{200C}\x{200D}](?=[\p{L}\p{M}]))*"
    r"| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
KEEPS_MARKS_FIELD = "keeps_marks"

# Our normalization -> the normalizer of a tokenizer.json.
_NORMALIZERS = {n: {"type": form} for n, form in normalization_lib.FORMS.items() if form}


def _byte_characters() -> dict[str, int]:
    """Returns the character that stands for each byte in entries, and that byte.

    Printable ones stand for themselves, the others for characters from U+0100 on; a blank is "Ġ".
    Source: GPT-2, encoder.py, bytes_to_unicode.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = (byte for byte in range(256) if byte not in printable)
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(0x100 + number): byte for number, byte in enumerate(others)}


BYTES = _byte_characters()
_CHARACTERS = {byte: character for character, byte in BYTES.items()}


class OfLibrary(token_ids.Tokenizer):
    """The part of a tokenizer that the library `tokenizers` encodes with `_library`."""

    _library: tokenizers.Tokenizer

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        # One by one: encode_batch() of the library uses every core; callers parallelize by process.
        return [self._encoding(text).ids for text in texts]

    def encode_with_offsets(self, text: str) -> token_ids.Placed:
        """Returns the ids of `text`, and where in it each token starts and ends.

        White space around a token does not count, so a token of white space alone is empty. Tokens
        of one character share its place.
        """
        encoding = self._encoding(text)
        spans = np.array([token_ids.trimmed(text, *span) for span in encoding.offsets], np.int32)
        starts, ends = spans.reshape(-1, 2).T
        return np.array(encoding.ids, np.int32), starts, ends

    def merged(self, text: bytes) -> list[int]:
        """Returns the ids of bytes, which need not be whole characters, merged as one word.

        Only for a byte-level model.
        """
        characters = "".join(map(_CHARACTERS.__getitem__, text))
        return [token.id for token in self._library.model.tokenize(characters)]

    def _encoding(self, text: str) -> tokenizers.Encoding:
        return self._library.encode(token_ids.without_surrogates(text), add_special_tokens=False)


class ByteBpeTokenizer(OfLibrary):
    """Byte-level BPE with the entries of a vocabulary and its merges, the first one first.

    With `add_prefix_space` a text that does not begin with a blank gets one, so that its first word
    is the token that it is elsewhere. `normalization` is a Unicode form, or none as released. With
    `keeps_marks` text is cut by `WHOLE_WORDS`.
    """

    kind = "byte_bpe"
    keeps_blanks = True

    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Sequence[Merge],
        *,
        add_prefix_space: bool = False,
        normalization: str = normalization_lib.RELEASED,
        keeps_marks: bool = False,
    ):
        if keeps_marks and add_prefix_space:
            raise ValueError("add_prefix_space and keeps_marks are both true: choose one of them")
        self.keeps_marks = keeps_marks
        if normalization == "none":  # which is the released rule
            normalization = normalization_lib.RELEASED
        self.set_rules(False, False, normalization, "", by_default=False)
        self.vocabulary = tuple(vocabulary)
        self.merges = tuple((first, second) for first, second in merges)
        self.add_prefix_space = add_prefix_space
        self.vocab_size = len(self.vocabulary)
        self.special_ids = _special_ids(self.vocabulary)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self._surfaces = [as_bytes(entry) for entry in self.vocabulary]
        for token_id in self.special_ids:
            self._surfaces[token_id] = self.vocabulary[token_id].encode()
        self.continues_word: Bool[np.ndarray, " vocabulary"] = np.array(
            [
                token_id not in self.special_ids and continues_word(surface)
                for token_id, surface in enumerate(self._surfaces)
            ]
        )
        self._library = self._made()
        if lacking := BYTES.keys() - set(self.vocabulary):
            logging.warning(
                "The vocabulary has no entries for %d of the 256 bytes: characters with them are "
                "dropped from texts, as transformers drops them",
                len(lacking),
            )

    def __reduce__(self):
        make = functools.partial(
            type(self),
            add_prefix_space=self.add_prefix_space,
            normalization=self.normalization,
            keeps_marks=self.keeps_marks,
        )
        return make, (self.vocabulary, self.merges)

    def normalized(self, text: str) -> str:
        """Returns the text in its Unicode form."""
        return normalization_lib.in_form(self.normalization, text)

    def normalized_places(self, text: str) -> list[tuple[int, int]]:
        placed = normalization_lib.composed(self.normalization, offsets.placed(text))
        return [(start, end) for _, start, end in placed]

    def own_rules(self) -> dict[str, Any]:
        """Returns the rules that are not RoBERTa's, by name."""
        return super().own_rules() | ({KEEPS_MARKS_FIELD: True} if self.keeps_marks else {})

    def surface(self, token_id: int) -> str:
        """Returns what a token reads as, with its blank: " the"."""
        return self.decode([token_id])

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the bytes, special tokens by name."""
        return b"".join(self._surfaces[token_id] for token_id in ids).decode(errors="replace")

    def describe(self) -> dict[str, Any]:
        """Returns what manifests keep; the hash covers entries, merges and the prefix.

        `merges_sha256` is of merges and prefix alone: equal entries may be merged otherwise.
        """
        rules = [self.merges, self.add_prefix_space, *self.own_rules().values()]
        merges_sha256 = hashlib.sha256(json.dumps(rules).encode()).hexdigest()
        content = json.dumps([self.vocabulary, *rules]).encode()
        return self.described(content) | {"merges_sha256": merges_sha256}

    def save(self, directory: epath.PathLike) -> None:
        """Writes vocab.json, merges.txt, tokenizer.json and tokenizer_config.json."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        ids = {entry: token_id for token_id, entry in enumerate(self.vocabulary)}
        (directory / ENTRIES_FILE).write_bytes(json.dumps(ids, ensure_ascii=False).encode())
        merges = "".join(f"{first} {second}\n" for first, second in self.merges)
        (directory / MERGES_FILE).write_bytes(f"#version: 0.2\n{merges}".encode())
        whole = self.library().to_str(pretty=False)
        (directory / TOKENIZER_FILE).write_bytes(whole.encode())
        names = {role: self.vocabulary[self.special_ids[place]] for role, place in _ROLES.items()}
        config = {
            "tokenizer_class": token_ids.LIBRARY_CLASS if self.own_rules() else "RobertaTokenizer",
            "add_prefix_space": self.add_prefix_space,
            **self.own_rules(),
            **{f"{role}_token": name for role, name in names.items()},
        }
        (directory / wordpiece.CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")

    def library(self) -> tokenizers.Tokenizer:
        """Returns the tokenizer of the Rust library that gives the same ids.

        It puts special tokens around texts and pairs, and takes their names in a text for the
        tokens themselves; ours does so with <mask> alone, and only in `encode_with_masks`.
        """
        fast: Any = self._made()
        cls, sep = ((self.token(i), i) for i in (self.cls_id, self.sep_id))
        fast.post_processor = processors.RobertaProcessing(
            sep, cls, trim_offsets=True, add_prefix_space=self.add_prefix_space
        )
        for token_id in sorted(self.special_ids):
            token = tokenizers.AddedToken(
                self.token(token_id), lstrip=token_id == self.mask_id, normalized=False
            )
            fast.add_special_tokens([token])
        return fast

    def _made(self) -> tokenizers.Tokenizer:
        """Returns the tokenizer of the Rust library, to which special tokens are ordinary text."""
        ids = {entry: token_id for token_id, entry in enumerate(self.vocabulary)}
        try:
            model = models.BPE(ids, list(self.merges), fuse_unk=False)
        except Exception as error:  # The library has no other.
            raise ValueError(f"its merges do not fit its entries: {error}") from error
        fast: Any = tokenizers.Tokenizer(model)
        if form := normalization_lib.FORMS.get(self.normalization):
            fast.normalizer = getattr(normalizers, form)()
        fast.pre_tokenizer = cutter(
            keeps_marks=self.keeps_marks, add_prefix_space=self.add_prefix_space
        )
        fast.decoder = decoders.ByteLevel()
        return fast


def read_tokenizer(
    path: epath.PathLike,
    *,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    normalization: str = normalization_lib.RELEASED,
    language: str = "",
) -> ByteBpeTokenizer:
    """Returns the tokenizer of a vocab.json and its merges.txt.

    `add_prefix_space` stands in tokenizer_config.json; false without one.
    """
    del strip_accents, language  # None of its files has an option for accents.
    path = epath.Path(path)
    if lowercase:
        raise ValueError("byte-level BPE keeps the case of texts; lower-case the texts themselves")
    merges = path.parent / MERGES_FILE
    if not merges.exists():
        raise ValueError(f"there is no {MERGES_FILE} in its directory: put the merges there")
    config = path.parent / wordpiece.CONFIG_FILE
    fields = json_text.read_object(config) if config.exists() else {}
    return ByteBpeTokenizer(
        entries(json_text.read_object(path)),
        merges_of(lines(opening.read_tokenizer(merges))),
        add_prefix_space=bool(fields.get("add_prefix_space", False)),
        normalization=normalization,
        keeps_marks=bool(fields.get(KEEPS_MARKS_FIELD, False)),
    )


def cutter(*, keeps_marks: bool, add_prefix_space: bool = False) -> pre_tokenizers.PreTokenizer:
    """Returns what cuts a text before its bytes are merged."""
    if not keeps_marks:
        return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    words = pre_tokenizers.Split(tokenizers.Regex(WHOLE_WORDS), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([words, as_bytes])  # pyright: ignore[reportAttributeAccessIssue]


def of_fields(fields: Mapping[str, Any]) -> ByteBpeTokenizer:
    """Returns the tokenizer of a tokenizer.json."""
    model = fields["model"]
    before: dict[str, Any] = fields.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers") or [{}]
    is_whole = steps[0].get("pattern") == {"Regex": WHOLE_WORDS} and len(steps) == 2
    if is_whole:
        before = steps[1] | {"use_regex": True}  # which the first step has done
    if before.get("type") == "Sequence" and len(before["pretokenizers"]) == 1:
        before = before["pretokenizers"][0]
    expected = [
        *((f"model.{name}", model.get(name), values) for name, values in _MODEL_FIELDS.items()),
        ("normalizer", fields.get("normalizer"), (None, *_NORMALIZERS.values())),
        ("pre_tokenizer.type", before.get("type"), ("ByteLevel",)),
        ("pre_tokenizer.use_regex", before.get("use_regex", True), (True,)),
    ]
    if faults := [f"{n} is {got!r:.80}, not {ok[0]!r}" for n, got, ok in expected if got not in ok]:
        raise ValueError("; ".join(faults))
    # Special tokens need not be among the entries. Any others are added to the vocabulary.
    names = {name for several in sentence_piece.SPECIAL_NAMES.values() for name in several}
    added = {
        token["content"]: token["id"]
        for token in fields.get("added_tokens") or ()
        if token["content"] in names
    }
    return ByteBpeTokenizer(
        entries({**model["vocab"], **added}),
        merges_of(model["merges"]),
        add_prefix_space=bool(before.get("add_prefix_space", True)),
        normalization=next(
            (n for n, normalizer in _NORMALIZERS.items() if normalizer == fields.get("normalizer")),
            normalization_lib.RELEASED,
        ),
        keeps_marks=is_whole,
    )


def entries(ids: Mapping[str, Any]) -> list[str]:
    """Returns the entries in the order of their ids."""
    if not all(isinstance(number, int) for number in ids.values()):
        raise ValueError("it must map entries to whole numbers")
    ordered = sorted(ids, key=ids.__getitem__)
    if not ordered or [ids[entry] for entry in ordered] != list(range(len(ordered))):
        raise ValueError("the ids of its entries are not 0, 1, 2, ..., each once")
    return ordered


def lines(data: bytes) -> list[str]:
    """Returns the lines of a merges.txt."""
    return data.decode("utf-8").replace("\r\n", "\n").split("\n")


def merges_of(lines: Sequence[Any]) -> list[Merge]:
    """Returns the merges of the lines of merges.txt, or of a tokenizer.json's list, old or new."""
    merges: list[Merge] = []
    for number, line in enumerate(lines, start=1):
        pair = line.split(" ") if isinstance(line, str) else line
        if isinstance(line, str) and (not line or line.startswith("#version")):
            continue
        if len(pair) != 2 or not all(pair):
            raise ValueError(f"merge {number} is {line!r:.80}; it must be two entries")
        merges.append((pair[0], pair[1]))
    return merges


def as_bytes(entry: str) -> bytes:
    """Returns the text of an entry; an entry that does not consist of bytes is its own text."""
    if all(character in BYTES for character in entry):
        return bytes(BYTES[character] for character in entry)
    return entry.encode()


def _special_ids(vocabulary: Sequence[str]) -> tuple[int, ...]:
    ids = {entry: token_id for token_id, entry in enumerate(vocabulary)}
    if len(ids) != len(vocabulary):
        raise ValueError("an entry stands there twice; entries must be unique")
    # By RoBERTa's names, else by BERT's.
    names = {role: several[::-1] for role, several in sentence_piece.SPECIAL_NAMES.items()}
    special_ids = {r: next((ids[n] for n in of if n in ids), None) for r, of in names.items()}
    if missing := [
        " or ".join(names[role]) for role, token_id in special_ids.items() if token_id is None
    ]:
        raise ValueError(
            f"it lacks {', '.join(missing)}; train it with them, as "
            "`python -m data_pipelines.train_vocabulary --kind=byte_bpe` does"
        )
    return tuple(token_id for token_id in special_ids.values() if token_id is not None)


def continues_word(surface: bytes) -> bool:
    """Returns whether a token belongs to the word of the token before it.

    It does unless it starts with white space, punctuation or a CJK character, which BERT's rules
    set apart. A part of a character belongs to the word before it.
    """
    first = surface.decode(errors="ignore")[:1]
    if not first or not surface.startswith(first.encode()):
        return True
    return not first.isspace() and not wordpiece.is_set_apart(first)


# Name that transformers has for a special token -> its place among `special_ids`.
_ROLES = {"bos": 2, "eos": 3, "unk": 1, "sep": 3, "pad": 0, "cls": 2, "mask": 4}
