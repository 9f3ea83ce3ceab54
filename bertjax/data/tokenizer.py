"""WordPiece behind one small protocol, so that another kind of tokenizer is one more class.

The tokenization is that of the released BERT (google-research/bert, tokenization.py): clean text,
space CJK characters, split on punctuation, greedy longest match; a word of more than 200
characters is [UNK] (transformers says 100). The work is done by the Rust `tokenizers` library,
which drops private-use characters (the released code keeps them, as part of an unknown word) and
knows other Unicode tables than Python's: a few hundred rare characters are judged differently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import tokenizers
from etils import epath

VOCABULARY_FILE = "vocab.txt"
CONFIG_FILE = "tokenizer_config.json"

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"

# Source: google-research/bert, tokenization.py, WordpieceTokenizer.
MAX_INPUT_CHARS_PER_WORD = 200


@runtime_checkable  # Shape-checked tests ask isinstance.
class Tokenizer(Protocol):
    """What building, masking and inference need to know of a tokenizer.

    Encoding adds neither [CLS] nor [SEP]. `special_ids` are pad, unk, cls, sep and mask.
    """

    kind: str
    vocab_size: int
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`; a literal "[MASK]" in it is ordinary text."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns `encode` of every text, computed by all cores."""
        ...

    def encode_with_masks(self, text: str) -> list[int]:
        """Returns the ids of `text` with each literal "[MASK]" as `mask_id`."""
        ...

    def token(self, token_id: int) -> str:
        """Returns the vocabulary entry of an id."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Returns readable text: pieces joined into words, words joined by spaces."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns kind, sha256, vocab_size, lowercase and strip_accents, as manifests keep them."""
        ...

    def save(self, directory: epath.PathLike) -> None:
        """Writes files into `directory` from which `load` makes the same tokenizer."""
        ...


class WordPieceTokenizer:
    """The tokenizer of the released BERT.

    `strip_accents=None` follows `lowercase`, as released: accents go where case goes.
    """

    kind = "wordpiece"

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
    ):
        ids = _vocabulary_ids(vocabulary)
        self.lowercase = lowercase
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        self.vocabulary = tuple(vocabulary)
        self.vocab_size = len(self.vocabulary)
        self.special_ids = tuple(ids[name] for name in (PAD, UNK, CLS, SEP, MASK))
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self._pieces = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(
                ids, unk_token=UNK, max_input_chars_per_word=MAX_INPUT_CHARS_PER_WORD
            )
        )
        self._pieces.normalizer = tokenizers.normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )
        self._pieces.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`."""
        return self._pieces.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns `encode` of every text, computed by all cores."""
        # The fast variant skips the character offsets, which nobody here asks for.
        encodings = self._pieces.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_masks(self, text: str) -> list[int]:
        """Returns the ids of `text` with each literal "[MASK]" as `mask_id`."""
        first, *others = self.encode_batch(text.split(MASK))
        for part in others:
            first += [self.mask_id, *part]
        return first

    def token(self, token_id: int) -> str:
        """Returns the vocabulary entry of an id."""
        return self.vocabulary[token_id]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the entries joined by spaces, "##" pieces to the one before."""
        return " ".join(self.vocabulary[token_id] for token_id in ids).replace(" ##", "")

    def describe(self) -> dict[str, Any]:
        """Returns what manifests keep; the hash covers entries, order and casing."""
        content = json.dumps([self.vocabulary, self.lowercase, self.strip_accents])
        return {
            "kind": self.kind,
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "vocab_size": self.vocab_size,
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
        }

    def save(self, directory: epath.PathLike) -> None:
        """Writes vocab.txt and a tokenizer_config.json with the field names of transformers."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        entries = "".join(f"{entry}\n" for entry in self.vocabulary)
        (directory / VOCABULARY_FILE).write_bytes(entries.encode())
        follows_case = self.strip_accents == self.lowercase
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": None if follows_case else self.strip_accents,
            "tokenize_chinese_chars": True,
            "pad_token": PAD,
            "unk_token": UNK,
            "cls_token": CLS,
            "sep_token": SEP,
            "mask_token": MASK,
        }
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")


def load(path: epath.PathLike, *, lowercase: bool | None = None) -> Tokenizer:
    """Returns the tokenizer in `path`: a directory with vocab.txt, or a bare vocab.txt.

    A directory's tokenizer_config.json tells the casing unless `lowercase` is given; without
    either the vocabulary is taken as lowercase.

    Raises:
      FileNotFoundError: if there is no vocabulary.
      ValueError: if it is empty, not UTF-8, lacks special tokens or repeats entries, or the
        config asks for a tokenization that is not the released BERT's.
    """
    path = epath.Path(path)
    config: dict[str, Any] = {}
    if path.is_dir():
        config = _read_config(path / CONFIG_FILE)
        path = path / VOCABULARY_FILE
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; give a vocab.txt or a directory that holds one, or make one "
            "with `python -m data_pipelines.train_vocabulary`"
        )
    if lowercase is None:
        lowercase = bool(config.get("do_lower_case", True))
    try:
        # Only "\n" ends an entry: str.splitlines would also break on U+2028 and its kind.
        text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
        vocabulary = text.removesuffix("\n").split("\n") if text.strip() else []
        return WordPieceTokenizer(
            vocabulary, lowercase=lowercase, strip_accents=config.get("strip_accents")
        )
    except ValueError as error:
        raise ValueError(f"{path} is not a WordPiece vocabulary: {error}") from error


def _read_config(path: epath.Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    config = json.loads(path.read_text())
    if not config.get("tokenize_chinese_chars", True):
        raise ValueError(
            f"{path} has tokenize_chinese_chars false; only the released BERT tokenization (true) "
            "is supported: set it to true or train another vocabulary"
        )
    return config


def _vocabulary_ids(vocabulary: Sequence[str]) -> dict[str, int]:
    if not vocabulary:
        raise ValueError("it is empty; it must hold one entry per line")
    ids: dict[str, int] = {}
    for token_id, entry in enumerate(vocabulary):
        if entry in ids:
            raise ValueError(
                f"entry {entry!r} stands at id {ids[entry]} and again at {token_id}; entries must "
                "be unique: use the vocabulary file as it was released"
            )
        ids[entry] = token_id
    missing = [name for name in (PAD, UNK, CLS, SEP, MASK) if name not in ids]
    if missing:
        raise ValueError(
            f"it lacks {', '.join(missing)}; BERT needs {PAD} {UNK} {CLS} {SEP} {MASK}: rename "
            "unused entries or train another vocabulary"
        )
    return ids
