"""tokenizer.json and its companions: our tokenizer in the terms of the Rust library `tokenizers`.

Its own BertNormalizer and BertPreTokenizer judge a few hundred rare characters by other Unicode
tables, lowercase a final sigma differently and give up on words of more than 100 characters. Here
the rules of `wordpiece` are spelled out as regular expressions over Python's tables instead, so
the ids are ours. transformers reads such a file as it stands if the class it is told is
PreTrainedTokenizerFast; for BertTokenizer it would build the rules anew.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import tokenizers
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertjax.data import tokenizer, wordpiece

TOKENIZER_FILE = "tokenizer.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
TOKENIZER_CLASS = "PreTrainedTokenizerFast"


def write(vocabulary: tokenizer.Tokenizer, directory: epath.Path, *, max_length: int) -> None:
    """Writes vocab.txt, tokenizer.json, tokenizer_config.json and special_tokens_map.json.

    Raises:
      ValueError: for a kind of vocabulary that has no exact counterpart there.
    """
    if not isinstance(vocabulary, tokenizer.WordPieceTokenizer):
        raise ValueError(
            f"the vocabulary is a {vocabulary.kind} model, and transformers would find other ids "
            "in some texts (see docs/conversion.md); only WordPiece vocabularies can be written "
            "for it: --format=bertjax keeps everything"
        )
    vocabulary.save(directory)
    roles = ("pad", "unk", "cls", "sep", "mask")
    special = {
        f"{role}_token": vocabulary.token(token_id)
        for role, token_id in zip(roles, vocabulary.special_ids, strict=True)
    }
    path = directory / wordpiece.CONFIG_FILE
    config = json.loads(path.read_text()) | {
        "tokenizer_class": TOKENIZER_CLASS,
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    path.write_text(_json(config))
    (directory / SPECIAL_TOKENS_FILE).write_text(_json(special))
    (directory / TOKENIZER_FILE).write_text(fast_tokenizer(vocabulary).to_str(pretty=False))


def fast_tokenizer(vocabulary: tokenizer.WordPieceTokenizer) -> tokenizers.Tokenizer:
    """Returns the tokenizer of the Rust library that gives the same ids, with [CLS] and [SEP].

    It takes the names of special tokens in a text for the tokens themselves; ours does so with
    [MASK] alone, and only in `encode_with_masks`.
    """
    ids = {entry: token_id for token_id, entry in enumerate(vocabulary.vocabulary)}
    made = tokenizers.Tokenizer(
        models.WordPiece(
            ids,
            unk_token=wordpiece.UNK,
            max_input_chars_per_word=wordpiece.MAX_INPUT_CHARS_PER_WORD,
            continuing_subword_prefix=wordpiece.CONTINUATION,
        )
    )
    made.normalizer = _normalizer(
        lowercase=vocabulary.lowercase, strip_accents=vocabulary.strip_accents
    )  # pyright: ignore[reportAttributeAccessIssue]
    made.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(_regex(str.isspace), behavior="removed"),
            pre_tokenizers.Split(_regex(_is_apart), behavior="isolated"),
        ]
    )
    cls, sep = wordpiece.CLS, wordpiece.SEP
    made.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, ids[cls]), (sep, ids[sep])],
    )
    made.decoder = decoders.WordPiece(prefix=wordpiece.CONTINUATION)  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens([vocabulary.token(token_id) for token_id in vocabulary.special_ids])
    return made


def casing(normalizer: Mapping[str, Any]) -> dict[str, bool] | None:
    """Returns the casing that the normalizer of a tokenizer.json has; None if it is not ours.

    transformers saves tokenizer.json alone, so a model that it has trained on comes back by this.
    The classes of characters may be those of another Python's Unicode tables.
    """
    steps = [step["type"] for step in normalizer.get("normalizers", ())]
    for lowercase, strip_accents in itertools.product((True, False), repeat=2):
        wanted = ["Replace", *["Replace", "Lowercase"] * lowercase]
        if steps == wanted + ["NFD", "Replace"] * strip_accents:
            return {"lowercase": lowercase, "strip_accents": strip_accents}
    return None


def _normalizer(*, lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    """Returns the rules of `wordpiece.split_words` in their order, but for what sets apart.

    Nothing folds a CJK character into one of another kind, so that they can be set apart later.
    """
    steps: list[normalizers.Normalizer] = [normalizers.Replace(_regex(_is_dropped), "")]
    if lowercase:
        # Rust's lowercasing looks at one character at a time, so the sigma that Python writes at a
        # word's end goes first.
        cased, ignorable = _ranges(_is_cased), _ranges(_is_case_ignorable)
        final = f"(?<=[{cased}][{ignorable}]*)Σ(?![{ignorable}]*[{cased}])"
        steps += [normalizers.Replace(tokenizers.Regex(final), "ς"), normalizers.Lowercase()]
    if strip_accents:
        steps += [normalizers.NFD(), normalizers.Replace(_regex(_is_accent), "")]
    return normalizers.Sequence(steps)


def _is_dropped(character: str) -> bool:
    return character not in "\t\n\r" and wordpiece.split_words(
        f"a{character}a", lowercase=False, strip_accents=False
    ) == ["aa"]


def _is_apart(character: str) -> bool:
    # Punctuation and CJK, asked of `wordpiece` itself.
    words = wordpiece.split_words(f"a{character}a", lowercase=False, strip_accents=False)
    return len(words) == 3


def _is_accent(character: str) -> bool:
    return unicodedata.category(character) == "Mn"


def _is_cased(character: str) -> bool:
    # What str.lower takes for a letter before a final sigma, asked of str.lower itself.
    return f"{character}Σ".lower().endswith("ς") and f"aΣ{character}".lower()[1] == "σ"


def _is_case_ignorable(character: str) -> bool:
    return f"a{character}Σ".lower().endswith("ς") and not _is_cased(character)


@functools.cache
def _ranges(holds: Callable[[str], bool]) -> str:
    """Returns the characters for which `holds`, as the inside of a regex's class."""
    points = [ord(character) for character in _characters() if holds(character)]
    starts = [after for before, after in itertools.pairwise([-2, *points]) if after != before + 1]
    ends = [before for before, after in itertools.pairwise([*points, -2]) if after != before + 1]
    pairs = zip(starts, ends, strict=True)
    return "".join(_escaped(a) if a == b else f"{_escaped(a)}-{_escaped(b)}" for a, b in pairs)


def _regex(holds: Callable[[str], bool]) -> tokenizers.Regex:
    return tokenizers.Regex(f"[{_ranges(holds)}]")


@functools.cache
def _characters() -> tuple[str, ...]:
    """Returns every character that a rule may hold for.

    Those are the assigned ones, and the gaps in the ranges of CJK; no UTF-8 text holds a surrogate.
    """
    gaps = {code for first, last in wordpiece.CJK_RANGES for code in range(first, last + 1)}
    every = ((code, chr(code)) for code in range(sys.maxunicode + 1))
    return tuple(
        character
        for code, character in every
        if code in gaps or unicodedata.category(character) not in ("Cn", "Co", "Cs")
    )


def _escaped(code_point: int) -> str:
    return re.sub(r"([\\\[\]^&-])", r"\\\1", chr(code_point))


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2) + "\n"
