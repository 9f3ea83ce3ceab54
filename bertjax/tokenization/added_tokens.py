"""Tokens that were added to a finished vocabulary, as transformers adds them: "[E1]", "<url>".

They are found before a text is tokenized, and are one token each; the longest wins. A `normalized`
token is looked for in the text without case and accents, as the vocabulary folds them, the others
in the text as it was given. The library `tokenizers` finds the same tokens, but takes four times as
long (0.9 s for 7.7 MB of novels), has no offsets of our rules, and judges the ends of words by
newer Unicode tables than Python's.
Source: huggingface/tokenizers, added_vocabulary.rs (extract_and_normalize, find_matches).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from bertjax.files import json_text
from bertjax.tokenization import offsets, token_ids, wordpiece

# The files in which transformers keeps them: of its slow tokenizers, and of all.
LEGACY_FILE = "added_tokens.json"
TOKENIZER_FILE = "tokenizer.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
DECODER = "added_tokens_decoder"  # field of the config: id -> token
SPECIAL_NAMES = ("additional_special_tokens", "extra_special_tokens")  # fields with more of them


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """A token with the fields that transformers has for it.

    With `single_word` it does not match inside a word. `lstrip` and `rstrip` take the white space
    around it; if white space is never a token here, they are only kept for other programs, which
    also leave `special` tokens out when they decode.
    """

    content: str
    id: int
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class WithAddedTokens(token_ids.Tokenizer):
    """A tokenizer and the tokens that were added to it."""

    def __init__(self, base: token_ids.Tokenizer, tokens: Sequence[AddedToken]):
        self._base = base
        self.added_tokens = checked(tokens, base)
        self.kind = base.kind
        self.set_rules(**base.rules, by_default=False)
        self.special_ids = base.special_ids
        self.keeps_blanks = base.keeps_blanks
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = base.special_ids
        new = [token.content for token in self.added_tokens if token.id >= base.vocab_size]
        self.vocabulary = (*base.vocabulary, *new)
        self.vocab_size = len(self.vocabulary)
        self.continues_word = np.append(base.continues_word, np.zeros(len(new), bool))
        self._raw = _Finder([(t.content, t) for t in self.added_tokens if not t.normalized])
        self._normalized = _Finder(
            [(base.normalized(t.content), t) for t in self.added_tokens if t.normalized]
        )

    @property
    def base(self) -> Any:
        return self._base

    def __reduce__(self):
        return type(self), (self.base, self.added_tokens)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        ids, lengths = self.encode_flat(texts)
        return token_ids.by_text(ids, lengths)

    def encode_flat(self, texts: Sequence[str]) -> token_ids.Flat:
        plans = [list(self._parts(text)) for text in texts]
        if all(len(plan) == 1 and isinstance(plan[0], str) for plan in plans):
            return self.base.encode_flat(texts)
        words = [part for plan in plans for part in plan if isinstance(part, str)]
        encoded = iter(self.base.encode_batch(words))
        parts = (
            [next(encoded) if isinstance(part, str) else [part.id] for part in plan]
            for plan in plans
        )
        return token_ids.flat([list(itertools.chain.from_iterable(part)) for part in parts])

    def encode_after_mask(self, text: str) -> list[int]:
        """Returns the ids of a text behind a mask."""
        first, *others = self._parts(text)
        ids = self.base.encode_after_mask(first) if isinstance(first, str) else [first.id]
        for part in others:
            ids += self.base.encode(part) if isinstance(part, str) else [part.id]
        return ids

    def encode_with_offsets(self, text: str) -> token_ids.Placed:
        """Returns the ids of `text`, and where in it each token starts and ends."""
        parts = [self._placed(text, *part) for part in self._raw.split(text)]
        if not parts:
            return self.base.encode_with_offsets(text)
        ids, starts, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
        return ids, starts, ends

    def kept(self, text: str) -> str:
        """Returns what the entries can spell of a text."""
        return self.base.kept(text)

    def surface(self, token_id: int) -> str:
        """Returns what a token reads as in a text."""
        is_new = token_id >= self.base.vocab_size
        return self.token(token_id) if is_new else self.base.surface(token_id)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns readable text, added tokens between spaces unless texts keep theirs."""
        parts: list[str] = []
        for is_new, group in itertools.groupby(ids, key=lambda each: each >= self.base.vocab_size):
            run = [int(token_id) for token_id in group]
            parts += map(self.token, run) if is_new else [self.base.decode(run)]
        return ("" if self.keeps_blanks else " ").join(parts)

    def describe(self) -> dict[str, Any]:
        """Returns what manifests keep; the hash also covers the added tokens."""
        described = self.base.describe()
        content = json.dumps([described["sha256"], *map(dataclasses.astuple, self.added_tokens)])
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        return described | {"sha256": sha256, "vocab_size": self.vocab_size}

    def save(self, directory: epath.PathLike) -> None:
        """Writes the base's files, and the tokens as old and new versions of transformers do."""
        directory = epath.Path(directory)
        self.base.save(directory)
        path = directory / wordpiece.CONFIG_FILE
        config = json.loads(path.read_text()) | {DECODER: decoder(self.added_tokens)}
        path.write_text(json.dumps(config, indent=2) + "\n")
        new = {
            token.content: token.id
            for token in self.added_tokens
            if token.id >= self.base.vocab_size
        }
        (directory / LEGACY_FILE).write_text(json.dumps(new, indent=2) + "\n")

    def _parts(self, text: str) -> Iterator[str | AddedToken]:
        """Yields the added tokens of a text and the parts between them, in order; at least one."""
        for start, end, token in self._raw.split(text):
            if token is not None:
                yield token
            elif not self._normalized:
                yield text[start:end]
            else:
                yield from self._normalized_parts(text[start:end])
        if not text:
            yield text

    def _normalized_parts(self, text: str) -> Iterator[str | AddedToken]:
        folded = self.base.normalized(text)
        parts = list(self._normalized.split(folded))
        if all(token is None for _, _, token in parts):
            yield text
            return
        # Tokenizing does not change text that is folded already.
        for start, end, token in parts:
            yield folded[start:end] if token is None else token

    def _placed(
        self, text: str, start: int, end: int, token: AddedToken | None
    ) -> token_ids.Placed:
        """Returns the tokens of text[start:end], placed in `text`."""
        if token is not None:
            return _of_one(token, text[start:end], start)
        part = text[start:end]
        folded = self.base.normalized(part) if self._normalized else part
        pieces = list(self._normalized.split(folded))
        if all(token is None for _, _, token in pieces):
            ids, starts, ends = self.base.encode_with_offsets(part)
            return ids, starts + np.int32(start), ends + np.int32(start)
        placed = [
            _of_one(added, folded[a:b], a)
            if added
            else tuple(
                column + np.int32(shift)
                for column, shift in zip(
                    self.base.encode_with_offsets(folded[a:b]), (0, a, a), strict=True
                )
            )
            for a, b, added in pieces
        ]
        ids, starts, ends = (np.concatenate(column) for column in zip(*placed, strict=True))
        places = self.base.normalized_places(part)
        starts, ends = offsets.original(places, len(part), starts, ends)
        return ids, starts + np.int32(start), ends + np.int32(start)


def attach(base: token_ids.Tokenizer, tokens: Sequence[AddedToken]) -> token_ids.Tokenizer:
    """Returns the tokenizer with the tokens that are not its own special ones, if there are any."""
    ids = {base.vocabulary[token_id]: token_id for token_id in base.special_ids}
    for token in tokens:
        if ids.get(token.content, token.id) != token.id:
            raise ValueError(
                f"the added token {token.content!r} has the id {token.id}; in the vocabulary it "
                f"is {ids[token.content]}"
            )
    new = [token for token in tokens if token.content not in ids]
    return WithAddedTokens(base, new) if new else base


def checked(tokens: Sequence[AddedToken], base: token_ids.Tokenizer) -> tuple[AddedToken, ...]:
    """Returns the tokens in the order of their ids."""
    ordered = sorted(tokens, key=lambda token: token.id)
    ids = {entry: token_id for token_id, entry in enumerate(base.vocabulary)}
    for token in ordered:
        if not token.content.strip():
            raise ValueError(f"the added token with the id {token.id} is {token.content!r}: empty")
        if ids.get(token.content, base.vocab_size) != min(token.id, base.vocab_size):
            where = ids.get(token.content, "not there")
            raise ValueError(
                f"the added token {token.content!r} has the id {token.id}; in the vocabulary of "
                f"{base.vocab_size} entries it is {where}"
            )
    new = [token.id for token in ordered if token.id >= base.vocab_size]
    if new != list(range(base.vocab_size, base.vocab_size + len(new))):
        raise ValueError(
            f"the added tokens have the ids {new[:8]}; they must go on where the vocabulary ends, "
            f"at {base.vocab_size}, without a gap"
        )
    if len({token.content for token in ordered}) != len(ordered):
        raise ValueError("an added token is there twice")
    return tuple(ordered)


def decoder(tokens: Sequence[AddedToken]) -> dict[str, dict[str, Any]]:
    """Returns the tokens as the field `added_tokens_decoder` has them."""
    fields = {str(token.id): dataclasses.asdict(token) for token in tokens}
    return {key: {k: v for k, v in of.items() if k != "id"} for key, of in fields.items()}


def read_added_tokens(directory: epath.PathLike, base: token_ids.Tokenizer) -> list[AddedToken]:
    """Returns the tokens that the files of a directory add to the vocabulary.

    They stand in tokenizer_config.json, else in added_tokens.json, and in tokenizer.json. Special
    ones that have no id there are entries of the vocabulary, or follow at its end.
    """
    directory = epath.Path(directory)
    config, special, legacy, whole = (
        json_text.read_object(directory / name) if (directory / name).exists() else {}
        for name in (wordpiece.CONFIG_FILE, SPECIAL_TOKENS_FILE, LEGACY_FILE, TOKENIZER_FILE)
    )
    names = _special_names(config) | _special_names(special)
    listed: list[tuple[str, Any]] = [(TOKENIZER_FILE, it) for it in whole.get("added_tokens") or ()]
    if DECODER in config:
        of_config = config[DECODER]
        if not isinstance(of_config, Mapping):
            fault = f"{DECODER} is {of_config!r:.60}; it must map ids to tokens"
            raise ValueError(f"{wordpiece.CONFIG_FILE}: {fault}")
        listed += [
            (wordpiece.CONFIG_FILE, {**it, "id": key} if isinstance(it, Mapping) else it)
            for key, it in of_config.items()
        ]
    else:
        listed += [
            (
                LEGACY_FILE,
                {"content": it, "id": key, "normalized": it not in names, "special": it in names},
            )
            for it, key in legacy.items()
        ]
    by_content: dict[str, AddedToken] = {}
    for source, fields in listed:
        token = _token(fields, str(directory / source))
        if token.content in by_content and by_content[token.content].id != token.id:
            raise ValueError(
                f"{directory / source}: the added token {token.content!r} has the id {token.id}, "
                f"and {by_content[token.content].id} elsewhere"
            )
        by_content[token.content] = token
    ids = {entry: token_id for token_id, entry in enumerate(base.vocabulary)}
    following = max([base.vocab_size - 1, *(token.id for token in by_content.values())]) + 1
    for name in names:
        if name not in by_content:
            token_id = ids.get(name, following)
            following += token_id == following
            by_content[name] = AddedToken(name, token_id, normalized=False, special=True)
    return list(by_content.values())


class _Finder:
    """Finds tokens in a text; among overlapping ones the first counts."""

    def __init__(self, tokens: Sequence[tuple[str, AddedToken]]):
        # Among tokens with equal normalized text the first is found; "" never is.
        self._tokens = {text: token for text, token in reversed(tokens) if text.strip()}
        # The first character decides most places; among tokens with the same one the longest goes
        # first.
        firsts: dict[str, list[str]] = {}
        for text in sorted(self._tokens, key=len, reverse=True):
            firsts.setdefault(text[0], []).append(re.escape(text[1:]))
        groups = (f"{re.escape(first)}(?:{'|'.join(it)})" for first, it in firsts.items())
        self._pattern = re.compile("|".join(groups))

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def split(self, text: str) -> Iterator[tuple[int, int, AddedToken | None]]:
        """Yields [start, end) and the token, None between tokens."""
        done = 0
        for match in self._pattern.finditer(text) if self._tokens else ():
            token, (start, end) = self._tokens[match.group()], match.span()
            around = text[start - 1 : start], text[end : end + 1]
            if token.single_word and any(map(_is_of_word, around)):
                continue
            if token.lstrip:
                start = done + len(text[done:start].rstrip())
            if token.rstrip:
                end = len(text) - len(text[end:].lstrip())
            if start > done:
                yield done, start, None
            yield start, end, token
            done = end
        if done < len(text):
            yield done, len(text), None


def _is_of_word(character: str) -> bool:
    r"""Returns whether Rust's \w takes the character; false for ""."""
    if not character:
        return False
    return (
        character.isalpha()
        or unicodedata.category(character) in ("Mn", "Mc", "Me", "Nd", "Nl", "Pc")
        or character in "\u200c\u200d"
        or "\u24b6" <= character <= "\u24e9"  # letters in circles, and in squares
        or "\U0001f130" <= character <= "\U0001f189"
    )


def _of_one(token: AddedToken, text: str, start: int) -> token_ids.Placed:
    """Returns one token, placed without the white space around it."""
    first = start + len(text) - len(text.lstrip())
    last = start + len(text.rstrip())
    ids, starts, ends = np.array([[token.id], [first], [last]], np.int32)
    return ids, starts, ends


def _special_names(fields: Mapping[str, Any]) -> dict[str, None]:
    """Returns the names of special tokens that have no role, in their order."""
    names: dict[str, None] = {}
    for field in SPECIAL_NAMES:
        values = fields.get(field) or ()
        for value in values.values() if isinstance(values, Mapping) else values:
            name = value.get("content") if isinstance(value, Mapping) else value
            names[str(name)] = None
    return names


def _token(fields: Any, source: str) -> AddedToken:
    names = {field.name: field for field in dataclasses.fields(AddedToken)}
    is_mapping = isinstance(fields, Mapping) and isinstance(fields.get("content"), str)
    if not is_mapping or not str(fields.get("id")).isdecimal():
        raise ValueError(f"{source}: {fields!r:.80} is not an added token with a content and an id")
    flags = {name: bool(fields[name]) for name in names if name in fields}
    return AddedToken(**{**flags, "content": fields["content"], "id": int(str(fields["id"]))})
