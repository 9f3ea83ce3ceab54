"""The rules for a text spelled out for the Rust library `tokenizers`.

Its own BertNormalizer and BertPreTokenizer judge a few hundred rare characters by other Unicode
tables, lowercase a final sigma differently and give up on words of more than 100 characters. Here
the rules of `wordpiece` are regular expressions over Python's tables instead, so the ids are ours.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bertjax.tokenization import normalization, token_ids, wordpiece

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

# Characters of a regex that are compared: classes may come from the tables of another Python.
_COMPARED = 12


def wordpiece_rules(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the rules of a tokenizer.json if all of its parts are those written here, else None.

    transformers saves tokenizer.json alone, so a model that it has trained on comes back by this.
    """
    model, rules = fields["model"], rules_of(fields.get("normalizer") or {})
    expected = {
        "type": "WordPiece",
        "unk_token": wordpiece.UNK,
        "continuing_subword_prefix": wordpiece.CONTINUATION,
        "max_input_chars_per_word": wordpiece.MAX_INPUT_CHARS_PER_WORD,
    }
    if rules is None or {**model, **expected} != dict(model):
        return None
    made: Any = tokenizers.Tokenizer(models.WordPiece({wordpiece.UNK: 0}, unk_token=wordpiece.UNK))
    vocabulary = wordpiece.WordPieceTokenizer(wordpiece.SPECIALS, **rules)
    for is_spaced, cuts_long_words in itertools.product((False, True), repeat=2):
        made.normalizer = normalizer(vocabulary, is_spaced=is_spaced)
        made.pre_tokenizer = wordpiece_cutter(cuts_long_words=cuts_long_words)
        written = json.loads(made.to_str())
        parts = ("normalizer", "pre_tokenizer")
        if all(_comparable(written[part]) == _comparable(fields.get(part)) for part in parts):
            return rules | ({token_ids.CUTS_FIELD: True} if cuts_long_words else {})
    return None


def _comparable(part: Any) -> Any:
    """Returns a part of a tokenizer.json with the first characters of its regexes alone."""
    if isinstance(part, Mapping):
        return {
            key: value[:_COMPARED] if key == "Regex" else _comparable(value)
            for key, value in part.items()
        }
    return [_comparable(step) for step in part] if isinstance(part, list) else part


def wordpiece_cutter(*, cuts_long_words: bool) -> pre_tokenizers.PreTokenizer:
    """Returns the cutter at white space, punctuation and CJK characters, and of long words."""
    part = tokenizers.Regex(f".{{{wordpiece.MAX_INPUT_CHARS_PER_WORD}}}")
    return pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(regex(str.isspace), behavior="removed"),
            pre_tokenizers.Split(regex(wordpiece.is_set_apart), behavior="isolated"),
            *[pre_tokenizers.Split(part, behavior="isolated")] * cuts_long_words,
        ]
    )


def rules_of(written: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the rules that the normalizer of a tokenizer.json has; None if they are not ours.

    The classes of characters may come from the Unicode tables of another Python.
    """
    types = [step["type"] for step in written.get("normalizers", ())]
    steps = " ".join(step for step in types if step != "BertNormalizer")
    for name, form in normalization.FORMS.items():
        of_form = f" {form}( Replace)*" if form else ""
        if re.fullmatch(f"Replace Replace{of_form}", steps):
            return {"normalization": name}
    for lowercase, strip_accents in itertools.product((True, False), repeat=2):
        for language in ("", normalization.DOTTED_I_LANGUAGES[0]):
            few = len(normalization.LOWERED_I) if language else 0
            expected = "Replace" + f"( Replace){{{few}}} Replace Lowercase" * lowercase
            if re.fullmatch(expected + " NFD( Replace)+" * strip_accents, steps):
                casing = {"lowercase": lowercase, "strip_accents": strip_accents}
                return casing | ({"language": language} if language else {})
    return None


def normalizer(vocabulary: token_ids.Tokenizer, *, is_spaced: bool) -> normalizers.Normalizer:
    """Returns the rules of `wordpiece.split_words` in their order, but for what sets apart.

    Nothing folds a CJK character into one of another kind, so that they can be set apart later.
    `is_spaced` sets them apart at once, for added tokens that are found in normalized text.
    """
    off = dict.fromkeys(("clean_text", "strip_accents", "lowercase"), False)
    spaced = [normalizers.BertNormalizer(handle_chinese_chars=True, **off)] if is_spaced else []
    if vocabulary.normalization != normalization.RELEASED:
        return normalizers.Sequence([*cleaned_in_form(vocabulary.normalization), *spaced])
    steps: list[normalizers.Normalizer] = [normalizers.Replace(regex(wordpiece.is_dropped), "")]
    steps += spaced
    steps += lowered(vocabulary.language) if vocabulary.lowercase else []
    steps += without_accents("NFD", _is_accent) if vocabulary.strip_accents else []
    return normalizers.Sequence(steps)


def cleaned_in_form(name: str) -> list[normalizers.Normalizer]:
    """Returns the normalizers that do the same as `normalization.applied`."""
    form = normalization.FORMS[name]
    return [
        normalizers.Replace(regex(normalization.is_dropped), ""),
        normalizers.Replace(regex(normalization.is_space), " "),
        *(in_form(cast(Form, form)) if form else []),
    ]


@functools.cache
def in_form(form: Form) -> tuple[normalizers.Normalizer, ...]:
    """Returns the normalizers to a Unicode normal form by Python's tables.

    The library has the tables of Unicode 12: where they differ, the form is replaced.
    """
    library = getattr(normalizers, form)()
    other: dict[str, str] = {}
    for character in characters():
        if unicodedata.is_normalized("NFKD", character):
            continue
        for text in (unicodedata.normalize("NFD", character), character):
            left, became = library.normalize_str(text), unicodedata.normalize(form, text)
            if left != became:
                other[left] = became
    longest_first = sorted(other.items(), key=lambda pair: -len(pair[0]))
    return (library, *(normalizers.Replace(left, became) for left, became in longest_first))


def lowered(language: str = "") -> list[normalizers.Normalizer]:
    """Returns the normalizers that do the same as `normalization.lowered`."""
    # Rust's lowercasing looks at one character at a time, so the sigma that Python writes at a
    # word's end goes first.
    cased, ignorable = _ranges(_is_cased), _ranges(_is_case_ignorable)
    final = f"(?<=[{cased}][{ignorable}]*)Σ(?![{ignorable}]*[{cased}])"
    of_language = normalization.LOWERED_I.items() if language else ()
    return [
        *(normalizers.Replace(capital, small) for capital, small in of_language),
        normalizers.Replace(tokenizers.Regex(final), "ς"),
        normalizers.Lowercase(),
    ]


def without_accents(form: Form, is_accent: Callable[[str], Any]) -> list[normalizers.Normalizer]:
    """Returns the normalizers that decompose a text and drop its accents."""
    return [*in_form(form), normalizers.Replace(regex(is_accent), "")]


def _is_accent(character: str) -> bool:
    return unicodedata.category(character) == "Mn"


def _is_cased(character: str) -> bool:
    # The characters that str.lower takes for a letter before a final sigma.
    return f"{character}Σ".lower().endswith("ς") and f"aΣ{character}".lower()[1] == "σ"


def _is_case_ignorable(character: str) -> bool:
    return f"a{character}Σ".lower().endswith("ς") and not _is_cased(character)


@functools.cache
def _ranges(holds: Callable[[str], Any]) -> str:
    """Returns the characters for which `holds`, as the inside of a regex's class."""
    points = [ord(character) for character in characters() if holds(character)]
    starts = [after for before, after in itertools.pairwise([-2, *points]) if after != before + 1]
    ends = [before for before, after in itertools.pairwise([*points, -2]) if after != before + 1]
    pairs = zip(starts, ends, strict=True)
    return "".join(_escaped(a) if a == b else f"{_escaped(a)}-{_escaped(b)}" for a, b in pairs)


def regex(holds: Callable[[str], Any]) -> tokenizers.Regex:
    """Returns the class of all characters for which `holds`."""
    return tokenizers.Regex(f"[{_ranges(holds)}]")


@functools.cache
def characters() -> tuple[str, ...]:
    """Returns every character that a rule may hold for.

    These are the assigned ones, and the gaps in the ranges of CJK; no UTF-8 text holds a surrogate.
    """
    gaps = {code for first, last in wordpiece.CJK_RANGES for code in range(first, last + 1)}
    return tuple(
        chr(code)
        for code in range(sys.maxunicode + 1)
        if code in gaps or unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")
    )


def _escaped(code_point: int) -> str:
    return re.sub(r"([\\\[\]^&-])", r"\\\1", chr(code_point))
