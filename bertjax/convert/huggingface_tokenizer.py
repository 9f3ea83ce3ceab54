"""tokenizer.json and its companions: our tokenizer in the terms of the Rust library `tokenizers`.

Its own BertNormalizer and BertPreTokenizer judge a few hundred rare characters by other Unicode
tables, lowercase a final sigma differently and give up on words of more than 100 characters. Here
the rules of `wordpiece` are spelled out as regular expressions over Python's tables instead, so
the ids are ours. The family defines the files and their fields.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertjax.convert.families import base
from bertjax.data import (
    added_tokens,
    byte_bpe,
    json_text,
    normalization,
    sentence_piece,
    token_ids,
    tokenizer,
    wordpiece,
)

TOKENIZER_FILE = added_tokens.TOKENIZER_FILE
SPECIAL_TOKENS_FILE = added_tokens.SPECIAL_TOKENS_FILE
ADDED_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_tokenizer(
    directory: epath.PathLike, files: base.TokenizerFiles
) -> tokenizer.Tokenizer | None:
    """Returns the tokenizer of the family's own vocabulary, else of tokenizer.json, else None.

    Raises:
      ValueError: if it is damaged or does not do what the released BERT's does.
    """
    directory = epath.Path(directory)
    if files.pieces and (path := directory / files.pieces.file).exists():
        return _of_pieces(path, files.pieces)
    if any((directory / name).exists() for name in files.vocabularies):
        return tokenizer.load(directory)
    path = directory / TOKENIZER_FILE
    if not path.exists():
        return None
    try:
        fields = json_text.read_object(path)
        kind = fields["model"].get("type", "WordPiece")
        if kind not in READERS:
            raise ValueError(f"model.type is {kind!r}; known are {', '.join(READERS)}")
        return tokenizer.with_added_tokens(READERS[kind](fields), directory)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a tokenizer of `tokenizers`: {error!r}") from error
    except ValueError as error:
        raise ValueError(
            f"{path} is not a tokenizer that is known here: {error}; to read "
            "the weights alone, move it elsewhere"
        ) from error


def _of_pieces(path: epath.Path, pieces: base.Pieces) -> tokenizer.Tokenizer:
    try:
        model = sentence_piece.renumbered(
            path.read_bytes(), before=pieces.before, first=pieces.first, after=pieces.after
        )
        vocabulary = tokenizer.SentencePieceTokenizer(model)
    except ValueError as error:
        raise ValueError(f"{path} is not a sentencepiece model of its family: {error}") from error
    return tokenizer.with_added_tokens(vocabulary, path.parent)


def write_tokenizer(
    vocabulary: tokenizer.Tokenizer,
    directory: epath.Path,
    files: base.TokenizerFiles,
    *,
    max_length: int,
) -> None:
    """Writes the vocabulary, tokenizer.json, tokenizer_config.json and special_tokens_map.json.

    Raises:
      ValueError: for a vocabulary that has no counterpart there.
    """
    why = tokenizer.export_fault(vocabulary)
    is_model = vocabulary.kind == sentence_piece.SentencePieceTokenizer.kind
    if is_model and sentence_piece.MODEL_FILE not in files.vocabularies:
        why = f"its family reads {', '.join(files.vocabularies)} and no {sentence_piece.MODEL_FILE}"
    if why:
        raise ValueError(
            f"the vocabulary is of the kind {vocabulary.kind}, which transformers cannot have: "
            f"{why}. --format=bertjax keeps everything"
        )
    vocabulary.save(directory)
    roles = ("pad", "unk", "cls", "sep", "mask")
    special: dict[str, Any] = {
        f"{role}_token": vocabulary.token(token_id)
        for role, token_id in zip(roles, vocabulary.special_ids, strict=True)
    }
    if more := [token.content for token in _added(vocabulary) if token.special]:
        special["additional_special_tokens"] = more
    path = directory / wordpiece.CONFIG_FILE
    config = json.loads(path.read_text())
    fields = dict(files.fields)
    if config["tokenizer_class"] == token_ids.LIBRARY_CLASS:  # other classes have rules of theirs
        fields["tokenizer_class"] = token_ids.LIBRARY_CLASS
    config |= {"model_max_length": max_length, **fields}
    for place, values in ((path, config), (directory / SPECIAL_TOKENS_FILE, special)):
        place.write_text(json.dumps(values, indent=2) + "\n")
    fast = WRITERS[vocabulary.kind](vocabulary, files)
    (directory / TOKENIZER_FILE).write_text(fast.to_str(pretty=False))


def fast_tokenizer(
    vocabulary: tokenizer.WordPieceTokenizer | added_tokens.WithAddedTokens,
    files: base.TokenizerFiles,
) -> tokenizers.Tokenizer:
    """Returns the tokenizer of the Rust library that gives the same ids, with [CLS] and [SEP].

    It takes the names of special tokens in a text for the tokens themselves; ours does so with
    [MASK] alone, and only in `encode_with_masks`.
    """
    entries = vocabulary.vocabulary
    if isinstance(vocabulary, added_tokens.WithAddedTokens):
        entries = vocabulary.base.vocabulary
    ids = {entry: token_id for token_id, entry in enumerate(entries)}
    fast = tokenizers.Tokenizer(
        models.WordPiece(
            ids,
            unk_token=wordpiece.UNK,
            max_input_chars_per_word=wordpiece.MAX_INPUT_CHARS_PER_WORD,
            continuing_subword_prefix=wordpiece.CONTINUATION,
        )
    )
    fast.normalizer = _normalizer(
        vocabulary, is_spaced=any(token.normalized for token in _added(vocabulary))
    )  # pyright: ignore[reportAttributeAccessIssue]
    fast.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(_regex(str.isspace), behavior="removed"),
            pre_tokenizers.Split(_regex(wordpiece.is_set_apart), behavior="isolated"),
        ]
    )
    fast.post_processor = _templates(vocabulary, files)  # pyright: ignore[reportAttributeAccessIssue]
    fast.decoder = decoders.WordPiece(prefix=wordpiece.CONTINUATION)  # pyright: ignore[reportAttributeAccessIssue]
    fast.add_special_tokens([vocabulary.token(token_id) for token_id in vocabulary.special_ids])
    _add(_added(vocabulary), fast)
    return fast


def byte_level_tokenizer(
    vocabulary: tokenizer.ByteBpeTokenizer | added_tokens.WithAddedTokens,
    files: base.TokenizerFiles,
) -> tokenizers.Tokenizer:
    """Returns the tokenizer of the Rust library that gives the same ids, as `fast_tokenizer`."""
    is_with = isinstance(vocabulary, added_tokens.WithAddedTokens)
    fast = (vocabulary.base if is_with else vocabulary).library()
    fast.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=True), _templates(vocabulary, files)]
    )
    _add(_added(vocabulary), fast)
    return fast


def unigram_tokenizer(
    vocabulary: tokenizer.SentencePieceTokenizer | added_tokens.WithAddedTokens,
    files: base.TokenizerFiles,
) -> tokenizers.Tokenizer:
    """Returns the tokenizer of the Rust library for a unigram model, as `fast_tokenizer`.

    The library adds scores in 64 bits, where sentencepiece has 32: among segmentations with equal
    sums it may take another one. The model's replacements of single characters are spelled out and
    the rest is left to NFKC, since the library's own form of the model's table looks at clusters of
    characters.
    """
    model = vocabulary.base if isinstance(vocabulary, added_tokens.WithAddedTokens) else vocabulary
    pieces = zip(model.vocabulary, model.scores(), strict=True)
    fast = tokenizers.Tokenizer(models.Unigram(list(pieces), model.unk_id, byte_fallback=False))
    fast.normalizer = normalizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            *_of_text(model),
            normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
            normalizers.Strip(),
        ]
    )
    mark: dict[str, Any] = {"replacement": sentence_piece.WORD_START, "prepend_scheme": "always"}
    fast.pre_tokenizer = pre_tokenizers.Metaspace(split=False, **mark)  # pyright: ignore[reportAttributeAccessIssue]
    fast.decoder = decoders.Metaspace(**mark)  # pyright: ignore[reportAttributeAccessIssue]
    fast.post_processor = _templates(vocabulary, files)  # pyright: ignore[reportAttributeAccessIssue]
    fast.add_special_tokens([vocabulary.token(token_id) for token_id in vocabulary.special_ids])
    _add(_added(vocabulary), fast)
    return fast


def _of_text(model: tokenizer.SentencePieceTokenizer) -> list[normalizers.Normalizer]:
    """Returns what is done to a text outside of the model and by it."""
    if model.normalization != normalization.RELEASED:
        mark = normalizers.Replace(sentence_piece.WORD_START, " ")
        return [*_cleaned_in_form(model.normalization), mark]
    return [
        *(_lowered(model.language) if model.language else []),
        *(_without_accents("NFKD", unicodedata.combining) if model.strip_accents else []),
        *(_lowered() if model.lowercase else []),
        *_folded(model),
    ]


def _cleaned_in_form(name: str) -> list[normalizers.Normalizer]:
    """Returns what `normalization.applied` does."""
    form = normalization.FORMS[name]
    return [
        normalizers.Replace(_regex(normalization.is_dropped), ""),
        normalizers.Replace(_regex(normalization.is_space), " "),
        *([getattr(normalizers, form)()] if form else []),
    ]


def _folded(vocabulary: tokenizer.SentencePieceTokenizer) -> list[normalizers.Normalizer]:
    """Returns what the model's own normalization does to characters: its rules, then NFKC.

    Characters are asked for between full stops, with which none of them combines.
    """
    rules: dict[str, list[str]] = {}
    characters = _characters()
    normalized = vocabulary.model_normalized([f".{it}." for it in characters])
    for character, text in zip(characters, normalized, strict=True):
        became = text.removeprefix(sentence_piece.WORD_START)[1:-1]
        became = became.replace(sentence_piece.WORD_START, " ")
        if became != unicodedata.normalize("NFKC", character):
            rules.setdefault(became, []).append(character)
    regexes = {became: _regex(frozenset(held).__contains__) for became, held in rules.items()}
    replaced = [normalizers.Replace(regex, became) for became, regex in regexes.items()]
    return [*replaced, normalizers.NFKC()]


def _templates(
    vocabulary: tokenizer.Tokenizer, files: base.TokenizerFiles
) -> processors.TemplateProcessing:
    cls, sep = (vocabulary.token(i) for i in (vocabulary.cls_id, vocabulary.sep_id))
    between = " ".join([f"{sep}:0"] * vocabulary.pair_separators)
    return processors.TemplateProcessing(
        single=files.single.format(cls=cls, sep=sep),
        pair=files.pair.format(cls=cls, sep=sep, between=between),
        special_tokens=[(cls, vocabulary.cls_id), (sep, vocabulary.sep_id)],
    )


def _add(tokens: Sequence[added_tokens.AddedToken], fast: tokenizers.Tokenizer) -> None:
    for token in tokens:  # one by one: their ids follow from their order
        flags = {name: getattr(token, name) for name in ADDED_FLAGS}
        add = fast.add_special_tokens if token.special else fast.add_tokens
        add([tokenizers.AddedToken(token.content, **flags)])


def _added(vocabulary: tokenizer.Tokenizer) -> Sequence[added_tokens.AddedToken]:
    is_with = isinstance(vocabulary, added_tokens.WithAddedTokens)
    return vocabulary.tokens if is_with else ()


def rules_of(normalizer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the rules that the normalizer of a tokenizer.json has; None if they are not ours.

    transformers saves tokenizer.json alone, so a model that it has trained on comes back by this.
    The classes of characters may be those of another Python's Unicode tables.
    """
    steps = [step["type"] for step in normalizer.get("normalizers", ())]
    spaced = [step for step in steps if step != "BertNormalizer"]
    for name, form in normalization.FORMS.items():
        if spaced == ["Replace", "Replace", *([form] if form else [])]:
            return {"normalization": name}
    for lowercase, strip_accents in itertools.product((True, False), repeat=2):
        for language in ("", normalization.DOTTED_I_LANGUAGES[0]):
            few = len(normalization.LOWERED_I) if language else 0
            expected = ["Replace"] + [*["Replace"] * few, "Replace", "Lowercase"] * lowercase
            expected += ["NFD", "Replace"] * strip_accents
            if spaced == expected:
                casing = {"lowercase": lowercase, "strip_accents": strip_accents}
                return casing | ({"language": language} if language else {})
    return None


def _wordpiece(fields: Mapping[str, Any]) -> tokenizer.Tokenizer:
    model, normalizer = fields["model"], fields.get("normalizer") or {}
    # Ours spells the rules out; else it is transformers' own.
    ours = rules_of(normalizer)
    if ours is not None:
        normalizer = {"type": "BertNormalizer"}
    prefix = model.get("continuing_subword_prefix", wordpiece.CONTINUATION)
    expected = [
        ("model.continuing_subword_prefix", prefix, wordpiece.CONTINUATION),
        ("normalizer.type", normalizer.get("type"), "BertNormalizer"),
        ("normalizer.clean_text", normalizer.get("clean_text", True), True),
        ("normalizer.handle_chinese_chars", normalizer.get("handle_chinese_chars", True), True),
    ]
    if faults := [f"{n} is {got!r}, not {value!r}" for n, got, value in expected if got != value]:
        raise ValueError("; ".join(faults))
    ids = {entry: int(number) for entry, number in model["vocab"].items()}
    # Special tokens need not be among the entries. Any others are added to the vocabulary.
    special = (wordpiece.PAD, wordpiece.UNK, wordpiece.CLS, wordpiece.SEP, wordpiece.MASK)
    for token in fields.get("added_tokens") or ():
        if token["content"] in special:
            ids[token["content"]] = int(token["id"])
    entries = sorted(ids, key=ids.__getitem__)
    if [ids[entry] for entry in entries] != list(range(len(entries))):
        raise ValueError("the ids of its entries are not 0, 1, 2, ..., each once")
    rules = ours or {
        "lowercase": bool(normalizer.get("lowercase", True)),
        "strip_accents": normalizer.get("strip_accents"),
    }
    return tokenizer.WordPieceTokenizer(entries, **rules)


def _normalizer(vocabulary: tokenizer.Tokenizer, *, is_spaced: bool) -> normalizers.Normalizer:
    """Returns the rules of `wordpiece.split_words` in their order, but for what sets apart.

    Nothing folds a CJK character into one of another kind, so that they can be set apart later.
    They are at once if added tokens are looked for in what is normalized: `is_spaced`.
    """
    off = dict.fromkeys(("clean_text", "strip_accents", "lowercase"), False)
    spaced = [normalizers.BertNormalizer(handle_chinese_chars=True, **off)] if is_spaced else []
    if vocabulary.normalization != normalization.RELEASED:
        return normalizers.Sequence([*_cleaned_in_form(vocabulary.normalization), *spaced])
    steps: list[normalizers.Normalizer] = [normalizers.Replace(_regex(wordpiece.is_dropped), "")]
    steps += spaced
    steps += _lowered(vocabulary.language) if vocabulary.lowercase else []
    steps += _without_accents("NFD", _is_accent) if vocabulary.strip_accents else []
    return normalizers.Sequence(steps)


def _lowered(language: str = "") -> list[normalizers.Normalizer]:
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


def _without_accents(form: str, is_accent: Callable[[str], Any]) -> list[normalizers.Normalizer]:
    return [getattr(normalizers, form)(), normalizers.Replace(_regex(is_accent), "")]


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
    points = [ord(character) for character in _characters() if holds(character)]
    starts = [after for before, after in itertools.pairwise([-2, *points]) if after != before + 1]
    ends = [before for before, after in itertools.pairwise([*points, -2]) if after != before + 1]
    pairs = zip(starts, ends, strict=True)
    return "".join(_escaped(a) if a == b else f"{_escaped(a)}-{_escaped(b)}" for a, b in pairs)


def _regex(holds: Callable[[str], Any]) -> tokenizers.Regex:
    return tokenizers.Regex(f"[{_ranges(holds)}]")


@functools.cache
def _characters() -> tuple[str, ...]:
    """Returns every character that a rule may hold for.

    Those are the assigned ones, and the gaps in the ranges of CJK; no UTF-8 text holds a surrogate.
    """
    gaps = {code for first, last in wordpiece.CJK_RANGES for code in range(first, last + 1)}
    return tuple(
        chr(code)
        for code in range(sys.maxunicode + 1)
        if code in gaps or unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")
    )


def _escaped(code_point: int) -> str:
    return re.sub(r"([\\\[\]^&-])", r"\\\1", chr(code_point))


# model.type of tokenizer.json -> our tokenizer of its fields; and the kind of ours -> theirs. A
# kind without an exact counterpart is not written.
READERS: dict[str, Callable[[Mapping[str, Any]], tokenizer.Tokenizer]] = {
    "WordPiece": _wordpiece,
    "BPE": byte_bpe.of_fields,
}
WRITERS: dict[str, Callable[..., tokenizers.Tokenizer]] = {
    "wordpiece": fast_tokenizer,
    "byte_bpe": byte_level_tokenizer,
    "sentencepiece": unigram_tokenizer,
}
