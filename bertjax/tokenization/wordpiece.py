"""The tokenizer of the released BERT, to the id, for every text there is.

Source: google-research/bert, tokenization.py. Control characters dropped, white space unified, CJK
characters set apart, case and accents folded, punctuation set apart; then, word by word, the
longest entry first. A word of more than 200 characters is [UNK] (transformers says 100); in a
vocabulary trained here it is cut, since a clause of Thai or Khmer may be as long as that.

The rules are written out here, over Python's Unicode tables; the Rust library `tokenizers` differs
for a few hundred rare characters, gives no place to a combining mark that it drops, and takes twice
the time in a build. The rules are fast since text repeats its white-space-separated chunks, and the
ids of a chunk are computed once.
"""

from __future__ import annotations

import array
import collections
import functools
import itertools
import json
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath
from jaxtyping import Bool, Int

from bertjax.tokenization import normalization as normalization_lib
from bertjax.tokenization import offsets, token_ids

VOCABULARY_FILE = "vocab.txt"
CONFIG_FILE = "tokenizer_config.json"

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", token_ids.MASK
SPECIALS = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION = "##"

# Source: google-research/bert, tokenization.py, WordpieceTokenizer.
MAX_INPUT_CHARS_PER_WORD = 200

# Source: google-research/bert, tokenization.py, _is_chinese_char.
CJK_RANGES = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)

# Where str.split splits, but the released code drops the character as a control character before.
CONTROLS_THAT_SPLIT = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
_DROP_CONTROLS = dict.fromkeys(map(ord, CONTROLS_THAT_SPLIT))

# Bounds of memory: chunks and ids that are remembered (about 150 MB when full), chunks of which the
# offsets are (about 50 MB), and characters that are tokenized at once.
MAX_REMEMBERED = 2**21
MAX_REMEMBERED_OFFSETS = 2**17
WINDOW_CHARACTERS = 2**18


class WordPieceTokenizer(token_ids.Tokenizer):
    """WordPiece with the entries of a vocabulary.

    `lowercase=None` is true by the released rules. `strip_accents=None` follows `lowercase`, as
    released: accents go where case goes. With `cuts_long_words` a word of more than
    `MAX_INPUT_CHARS_PER_WORD` characters is cut there, and each part is looked up as a
    word; otherwise it is [UNK], as released.
    """

    kind = "wordpiece"

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        lowercase: bool | None = None,
        strip_accents: bool | None = None,
        normalization: str = normalization_lib.RELEASED,
        language: str = "",
        cuts_long_words: bool = False,
    ):
        self._ids = _vocabulary_ids(vocabulary)
        self.cuts_long_words = cuts_long_words
        self.set_rules(lowercase, strip_accents, normalization, language, by_default=True)
        self._is_released = normalization == normalization_lib.RELEASED
        self.vocabulary = tuple(vocabulary)
        self.vocab_size = len(self.vocabulary)
        self.special_ids = tuple(self._ids[name] for name in SPECIALS)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        self.continues_word: Bool[np.ndarray, " vocabulary"] = np.array(
            [entry.startswith(CONTINUATION) for entry in self.vocabulary]
        )
        self._longest_entry = max(map(len, self.vocabulary))
        self._chunks, self._words = _Chunks(self._is_released), _Computed(self.pieces)
        self._chunk_offsets = _Computed(self._offsets_of_chunk)
        self._lock = threading.Lock()  # Input pipelines call from several threads.

    @classmethod
    def from_bytes(cls, data: bytes, **rules: Any) -> WordPieceTokenizer:
        """Returns the tokenizer of a vocab.txt, as the class; see `lines`."""
        return cls(lines(data), **rules)

    def __reduce__(self):
        """Pickles the arguments alone; each process fills its own caches."""
        return functools.partial(type(self), **self._word_rules), (self.vocabulary,)

    def encode(self, text: str) -> list[int]:
        return self.encode_flat([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        ids, lengths = self.encode_flat(texts)
        return token_ids.by_text(ids, lengths)

    def encode_flat(self, texts: Sequence[str]) -> token_ids.Flat:
        ids, lengths, _ = self.encode_with_words(texts)
        return ids, lengths

    def encode_with_words(self, texts: Sequence[str]) -> token_ids.FlatWords:
        with self._lock:
            parts = [self._encode_window(window) for window in _windows(texts)]
        if not parts:
            return np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, bool)
        ids, lengths, begins = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(lengths), np.concatenate(begins)

    def encode_with_offsets(self, text: str) -> token_ids.Placed:
        """Returns the ids of `text`, and where in it each token starts and ends.

        An accent that was stripped belongs to its letter, a dropped control character only to a
        token around it.
        """
        if len(self._chunk_offsets) >= MAX_REMEMBERED_OFFSETS:
            self._chunk_offsets = _Computed(self._offsets_of_chunk)
        places = np.arange(len(text), dtype=np.int32)
        if self._is_released and any(control in text for control in CONTROLS_THAT_SPLIT):
            places = places[[character not in CONTROLS_THAT_SPLIT for character in text]]
            text = text.translate(_DROP_CONTROLS)
        matches = list(_CHUNK.finditer(text))
        # Whole lines without white space, as Japanese has, do not come again.
        parts = [
            self._chunk_offsets[chunk]
            if len(chunk) <= MAX_INPUT_CHARS_PER_WORD
            else self._offsets_of_chunk(chunk)
            for chunk in (match.group() for match in matches)
        ]
        ids, starts, ends = np.concatenate([_NO_TOKENS, *parts], axis=1)
        shifts = np.repeat([match.start() for match in matches], [part.shape[1] for part in parts])
        shifts = shifts.astype(np.int32)
        return ids, places[starts + shifts], places[ends + shifts - 1] + np.int32(1)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the entries joined by spaces, "##" pieces to the one before."""
        return " ".join(self.vocabulary[token_id] for token_id in ids).replace(" ##", "")

    def describe(self) -> dict[str, Any]:
        """Returns what manifests keep; the hash covers entries, order and rules."""
        cuts = [token_ids.CUTS_FIELD] if self.cuts_long_words else []
        content = json.dumps([self.vocabulary, *self.rules_for_hash(), *cuts])
        return self.described(content.encode())

    def save(self, directory: epath.PathLike) -> None:
        """Writes vocab.txt and a tokenizer_config.json with the field names of transformers."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        entries = "".join(f"{entry}\n" for entry in self.vocabulary)
        (directory / VOCABULARY_FILE).write_bytes(entries.encode())
        config = {
            "tokenizer_class": token_ids.LIBRARY_CLASS if self.own_rules() else "BertTokenizer",
            **self.rules_for_file(),
            "tokenize_chinese_chars": True,
            "pad_token": PAD,
            "unk_token": UNK,
            "cls_token": CLS,
            "sep_token": SEP,
            "mask_token": MASK,
        }
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")

    def own_rules(self) -> dict[str, Any]:
        """Returns the rules that are not the released ones, by name."""
        return super().own_rules() | ({token_ids.CUTS_FIELD: True} if self.cuts_long_words else {})

    @property
    def _word_rules(self) -> dict[str, Any]:
        return {**self.rules, "cuts_long_words": self.cuts_long_words}

    def normalized(self, text: str) -> str:
        """Returns the text cleaned and folded, before punctuation is set apart."""
        return fold(text, **self.rules)

    def normalized_places(self, text: str) -> list[tuple[int, int]]:
        return [(start, end) for _, start, end in self._placed(text)]

    def _placed(self, whole: str) -> offsets.Placed:
        """Returns the characters of `normalized`, without spaces around CJK, with their places."""
        if not self._is_released:
            return normalization_lib.placed(self.normalization, whole)
        text = offsets.replaced(offsets.placed(whole), lambda one: _CLEANED[ord(one)])
        if self.language:
            text = offsets.joined(text, "I\u0307")
        lower = functools.partial(normalization_lib.lowered, language=self.language)
        text = offsets.lowered(text, lower) if self.lowercase else text
        if not self.strip_accents:
            return text
        return offsets.without_accents(text, "NFD", lambda one: not _WITHOUT_ACCENTS[ord(one)])

    def encode_inside(self, text: str) -> list[int]:
        """Returns the ids of a text whose first characters go on with a word."""
        first, *others = split_words(text, **self._word_rules) or [""]
        prefix = "" if is_set_apart(first[:1] or " ") else CONTINUATION
        words = [self.pieces(first, prefix), *map(self.pieces, others)]
        return list(itertools.chain.from_iterable(words))

    def pieces(self, word: str, prefix: str = "") -> list[int]:
        """Returns the ids of one word of `split_words`: greedily the longest entry, or [UNK].

        With CONTINUATION as `prefix` it is the rest of a word.
        """
        if len(word) > MAX_INPUT_CHARS_PER_WORD:
            return [self.unk_id]
        ids: list[int] = []
        start = 0
        while start < len(word):
            furthest = min(len(word), start + self._longest_entry)
            for end in range(furthest, start, -1):
                entry = self._ids.get(prefix + word[start:end])
                if entry is not None:
                    break
            else:
                return [self.unk_id]
            ids.append(entry)
            start, prefix = end, CONTINUATION
        return ids

    def _offsets_of_chunk(self, chunk: str) -> Int[np.ndarray, "3 tokens"]:
        """Returns the ids of one of `chunks`, and where in it each token starts and ends."""
        characters = offsets.placed(chunk)
        if not (chunk.isascii() and chunk.isprintable()):
            # A space here only sets apart what has its own place anyway.
            characters = [one for one in self._placed(chunk) if one[0] != " "]
        spans = iter(characters)
        tokens: list[tuple[int, int, int]] = []
        for word in split_words(chunk, **self._word_rules):
            ids = self.pieces(word)
            for place, token_id in enumerate(ids):
                length = len(self.vocabulary[token_id]) - (len(CONTINUATION) if place else 0)
                # No text makes the entry [UNK]: where it stands, it stands for the whole word.
                length = len(word) if token_id == self.unk_id else length
                _, starts, ends = zip(*itertools.islice(spans, length), strict=True)
                tokens.append((token_id, min(starts), max(ends)))
        return np.array(tokens, np.int32).reshape(-1, 3).T

    def _encode_window(self, texts: Sequence[str]) -> token_ids.FlatWords:
        if self._chunks.is_full():
            self._chunks, self._words = _Chunks(self._is_released), _Computed(self.pieces)
        places, num_chunks = self._chunks.places(texts)
        rules = self._word_rules
        for chunk in self._chunks.unencoded():
            pieces = map(self._words.__getitem__, split_words(chunk, **rules))
            self._chunks.append(list(itertools.chain.from_iterable(pieces)))
        return self._chunks.gather(places, num_chunks)


def lines(data: bytes) -> list[str]:
    """Returns the entries of a vocab.txt: one a line, in UTF-8; the last lines may be empty.

    Any other empty line has an id, which no text gets.
    """
    # Only "\n" ends an entry: str.splitlines would also break on U+2028 and its kind.
    text = data.decode("utf-8").replace("\r\n", "\n").rstrip("\n")
    return text.split("\n") if text.strip() else []


class _Chunks:
    """White-space-separated chunks in the order in which they were met, and the ids of each."""

    def __init__(self, drops_controls: bool):
        self._drops_controls = drops_controls
        count = itertools.count()
        self._numbers: collections.defaultdict[str, int] = collections.defaultdict(count.__next__)
        self._ids = array.array("i")
        self._starts = array.array("q")
        self._lengths = array.array("i")

    def is_full(self) -> bool:
        return len(self._ids) + len(self._numbers) > MAX_REMEMBERED

    def places(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the indices of the chunks of all texts, and the number of chunks of each text."""
        joined = "".join(texts) if self._drops_controls else ""
        if any(control in joined for control in CONTROLS_THAT_SPLIT):
            texts = [text.translate(_DROP_CONTROLS) for text in texts]
        chunks = [text.split() for text in texts]
        counts = np.fromiter(map(len, chunks), np.int64, len(chunks))
        numbers = map(self._numbers.__getitem__, itertools.chain.from_iterable(chunks))
        return np.fromiter(numbers, np.int64, counts.sum()), counts

    def unencoded(self) -> list[str]:
        """Returns the chunks that `append` has not had yet."""
        missing = len(self._numbers) - len(self._lengths)
        return list(itertools.islice(reversed(self._numbers), missing))[::-1]

    def append(self, ids: list[int]) -> None:
        """Takes the ids of the first of `unencoded`."""
        self._starts.append(len(self._ids))
        self._ids.extend(ids)
        self._lengths.append(len(ids))

    def gather(self, places: np.ndarray, num_chunks: np.ndarray) -> token_ids.FlatWords:
        """Returns the ids of the chunks at `places`, and the number of ids of each text.

        The third array is true for the first id of each chunk.
        """
        lengths = np.asarray(self._lengths)[places]
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        shifts = np.asarray(self._starts)[places] - ends[:-1]
        ids = np.asarray(self._ids)[np.arange(ends[-1]) + np.repeat(shifts, lengths)]
        begins = np.zeros(len(ids), bool)
        begins[ends[:-1][lengths > 0]] = True
        text_ends = ends[np.concatenate([[0], np.cumsum(num_chunks)])]
        return ids, np.diff(text_ends).astype(np.int32), begins


class _Computed(dict):
    """A dict that computes what it lacks, for str.translate and for words."""

    def __init__(self, compute: Callable[[Any], Any]):
        self._compute = compute

    def __missing__(self, key: Any) -> Any:
        value = self[key] = self._compute(key)
        return value


def chunks(text: str, normalization: str = normalization_lib.RELEASED) -> list[str]:
    """Returns the parts of `text` between white space, which are tokenized independently."""
    is_released = normalization == normalization_lib.RELEASED
    if is_released and any(control in text for control in CONTROLS_THAT_SPLIT):
        text = text.translate(_DROP_CONTROLS)
    return text.split()


def split_words(
    text: str,
    *,
    lowercase: bool = False,
    strip_accents: bool = False,
    normalization: str = normalization_lib.RELEASED,
    language: str = "",
    cuts_long_words: bool = False,
) -> list[str]:
    """Returns the words and punctuation marks of `text` by the rules of a tokenizer."""
    if normalization != normalization_lib.RELEASED:
        words = normalization_lib.applied(normalization, text).translate(_SET_APART).split()
    else:
        words = _released_words(text, lowercase, strip_accents, language)
    return _cut(words) if cuts_long_words else words


def _released_words(text: str, lowercase: bool, strip_accents: bool, language: str) -> list[str]:
    words: list[str] = []
    for word in text.translate(_CLEANED).split():
        folded = normalization_lib.lowered(word, language) if lowercase else word
        if strip_accents:
            folded = unicodedata.normalize("NFD", folded).translate(_WITHOUT_ACCENTS)
        words += folded.translate(_PUNCTUATION_APART).split()
    return words


def _cut(words: list[str]) -> list[str]:
    longest = MAX_INPUT_CHARS_PER_WORD
    if all(len(word) <= longest for word in words):
        return words
    return [
        word[start : start + longest] for word in words for start in range(0, len(word), longest)
    ]


def fold(
    text: str,
    *,
    lowercase: bool = False,
    strip_accents: bool = False,
    normalization: str = normalization_lib.RELEASED,
    language: str = "",
) -> str:
    """Returns `text` cleaned and folded, before punctuation is set apart."""
    if normalization != normalization_lib.RELEASED:
        return normalization_lib.applied(normalization, text)
    folded = text.translate(_CLEANED)
    folded = normalization_lib.lowered(folded, language) if lowercase else folded
    if strip_accents:
        folded = unicodedata.normalize("NFD", folded).translate(_WITHOUT_ACCENTS)
    return folded


def is_dropped(character: str) -> bool:
    """Returns whether nothing of a character is left before text is split at white space."""
    if character == "\ufffd":
        return True
    return unicodedata.category(character) in ("Cc", "Cf") and character not in "\t\n\r"


def is_set_apart(character: str) -> bool:
    """Returns whether a character is a word by itself wherever it stands: punctuation and CJK."""
    return _is_mark(character) or _is_cjk(ord(character))


def _cleaned(code_point: int) -> str:
    """Returns what takes the character's place before text is split at white space."""
    character = chr(code_point)
    if is_dropped(character):
        return ""
    if character in "\t\n\r" or unicodedata.category(character) == "Zs":
        return " "
    return f" {character} " if _is_cjk(code_point) else character


def _is_cjk(code_point: int) -> bool:
    return any(first <= code_point <= last for first, last in CJK_RANGES)


def _without_accent(code_point: int) -> str:
    return "" if unicodedata.category(chr(code_point)) == "Mn" else chr(code_point)


def _punctuation_apart(code_point: int) -> str:
    character = chr(code_point)
    return f" {character} " if _is_mark(character) else character


def _set_apart(code_point: int) -> str:
    character = chr(code_point)
    return f" {character} " if is_set_apart(character) else character


def _is_mark(character: str) -> bool:
    # "$", "+" and their like are symbols to Unicode, but punctuation to BERT.
    is_ascii_mark = "!" <= character <= "~" and not character.isalnum()
    return is_ascii_mark or unicodedata.category(character).startswith("P")


# Between white space, as str.split judges it.
_CHUNK = re.compile(r"\S+")
_NO_TOKENS = np.zeros((3, 0), np.int32)

# Filled as characters are met: all 1,114,112 would take a second.
_CLEANED = _Computed(_cleaned)
_WITHOUT_ACCENTS = _Computed(_without_accent)
_PUNCTUATION_APART = _Computed(_punctuation_apart)
_SET_APART = _Computed(_set_apart)


def _windows(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yields the texts in consecutive groups of about `WINDOW_CHARACTERS`."""
    first, characters = 0, 0
    for place, text in enumerate(texts, start=1):
        characters += len(text)
        if characters >= WINDOW_CHARACTERS or place == len(texts):
            yield texts[first:place]
            first, characters = place, 0


def _vocabulary_ids(vocabulary: Sequence[str]) -> dict[str, int]:
    if not vocabulary:
        raise ValueError("it is empty; it must hold one entry per line")
    # Source: google-research/bert, tokenization.py, load_vocab: of equal entries the last counts.
    ids = {entry: token_id for token_id, entry in enumerate(vocabulary)}
    if len(ids) < len(vocabulary) or "" in ids:
        counts = collections.Counter(vocabulary)
        repeated = [entry for entry, count in counts.items() if entry and count > 1]
        logging.warning(
            "The vocabulary has %d empty lines and %d entries more than once, such as %s; the last "
            "id of each counts, as in the released code",
            counts[""], len(repeated), ", ".join(map(repr, repeated[:3])) or "none",
        )  # fmt: skip
    missing = [name for name in SPECIALS if name not in ids]
    if missing:
        raise ValueError(
            f"it lacks {', '.join(missing)}; BERT needs {PAD} {UNK} {CLS} {SEP} {MASK}: rename "
            "unused entries or train another vocabulary"
        )
    return ids
