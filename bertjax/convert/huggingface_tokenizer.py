"""The files of a tokenizer in a directory of weights: tokenizer.json and its companions.

Ours are written in the terms of the Rust library `tokenizers`, with the rules of
`spelled_rules`. The family defines the files and their fields.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers
from absl import logging
from etils import epath
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertjax.convert.families import base
from bertjax.files import json_text, opening
from bertjax.tokenization import (
    added_tokens,
    library_tokenizer,
    normalization,
    sentence_piece,
    spelled_rules,
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

    Also None for files of a class whose rules are not known here, which the log says.
    """
    directory = epath.Path(directory)
    path = directory / sentence_piece.PIECES_FILE
    if files.pieces and path.exists():
        return _of_pieces(path, files.pieces)
    names = (*files.vocabularies, TOKENIZER_FILE)
    present = [name for name in names if (directory / name).exists()]
    if present and files.unread and _class_of(directory) in ("", files.unread):
        logging.warning(
            "%s has the files of %s, %s, whose rules for words are not known here: the weights are "
            "read without a vocabulary, and take the ids that transformers' class gives",
            directory, files.unread, ", ".join(present),
        )  # fmt: skip
        return None
    if present:
        return tokenizer.load(directory)
    if path.exists():
        return _of_pieces(path, sentence_piece.PIECES["xlm-roberta"])
    return None


def _class_of(directory: epath.Path) -> str:
    """Returns the class that tokenizer_config.json names, "" without one."""
    path = directory / wordpiece.CONFIG_FILE
    return library_tokenizer.class_of(json_text.read_object(path)) if path.exists() else ""


def _of_pieces(path: epath.Path, pieces: sentence_piece.Pieces) -> tokenizer.Tokenizer:
    try:
        model = sentence_piece.renumbered(opening.read_tokenizer(path), pieces)
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
    """Writes the vocabulary, tokenizer.json, tokenizer_config.json and special_tokens_map.json."""
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
    is_library = isinstance(vocabulary, tokenizer.LibraryTokenizer)
    special: dict[str, Any] = {
        f"{role}_token": vocabulary.token(token_id)
        for role, token_id in zip(library_tokenizer.ROLES, vocabulary.special_ids, strict=False)
    }
    if is_library:
        special = dict(vocabulary.special_names())
    if more := [token.content for token in vocabulary.added_tokens if token.special]:
        special["additional_special_tokens"] = more
    path = directory / wordpiece.CONFIG_FILE
    config = json.loads(path.read_text())
    fields = dict(files.fields)
    if is_library:
        fields["tokenizer_class"] = config["tokenizer_class"]
    elif config["tokenizer_class"] != fields["tokenizer_class"]:
        fields["tokenizer_class"] = token_ids.LIBRARY_CLASS  # other classes have rules of theirs
    config |= {"model_max_length": max_length, **fields}
    for place, values in ((path, config), (directory / SPECIAL_TOKENS_FILE, special)):
        place.write_text(json.dumps(values, indent=2) + "\n")
    if is_library:
        return  # its tokenizer.json is written as it was read
    fast = WRITERS[vocabulary.kind](vocabulary, files)
    (directory / TOKENIZER_FILE).write_text(fast.to_str(pretty=False))


def fast_tokenizer(
    vocabulary: tokenizer.Tokenizer, files: base.TokenizerFiles
) -> tokenizers.Tokenizer:
    """Returns the tokenizer of the Rust library that gives the same ids, with [CLS] and [SEP].

    It takes the names of special tokens in a text for the tokens themselves; ours does so with
    [MASK] alone, and only in `encode_with_masks`.
    """
    ids = {entry: token_id for token_id, entry in enumerate(vocabulary.base.vocabulary)}
    fast: Any = tokenizers.Tokenizer(
        models.WordPiece(
            ids,
            unk_token=wordpiece.UNK,
            max_input_chars_per_word=wordpiece.MAX_INPUT_CHARS_PER_WORD,
            continuing_subword_prefix=wordpiece.CONTINUATION,
        )
    )
    fast.normalizer = spelled_rules.normalizer(
        vocabulary, is_spaced=any(token.normalized for token in vocabulary.added_tokens)
    )
    fast.pre_tokenizer = spelled_rules.wordpiece_cutter(
        cuts_long_words=vocabulary.base.cuts_long_words
    )
    fast.post_processor = _templates(vocabulary, files)
    fast.decoder = decoders.WordPiece(prefix=wordpiece.CONTINUATION, cleanup=False)
    fast.add_special_tokens([vocabulary.token(token_id) for token_id in vocabulary.special_ids])
    _add(vocabulary.added_tokens, fast)
    return fast


def byte_level_tokenizer(
    vocabulary: tokenizer.Tokenizer, files: base.TokenizerFiles
) -> tokenizers.Tokenizer:
    """Returns the tokenizer of the Rust library that gives the same ids, as `fast_tokenizer`."""
    fast = vocabulary.base.library()
    fast.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=True), _templates(vocabulary, files)]
    )
    _add(vocabulary.added_tokens, fast)
    return fast


def unigram_tokenizer(
    vocabulary: tokenizer.Tokenizer, files: base.TokenizerFiles
) -> tokenizers.Tokenizer:
    """Returns the tokenizer of the Rust library for a unigram model, as `fast_tokenizer`.

    The library adds scores in 64 bits, where sentencepiece has 32: among segmentations with equal
    sums it may take another one, unless scores are `sentence_piece.rounded`, as here they are. The
    model's replacements of single characters are spelled out and the rest is left to NFKC, since
    the library's own form of the model's table looks at clusters of characters. There a text
    behind a mask gets the mark of a word's start even without a space between; ours does not.
    """
    model = vocabulary.base
    pieces = zip(model.vocabulary, model.scores(), strict=True)
    has_bytes = model.trainer_spec.byte_fallback
    fast: Any = tokenizers.Tokenizer(
        models.Unigram(list(pieces), model.unk_id, byte_fallback=has_bytes)
    )
    fast.normalizer = normalizers.Sequence(
        [
            *_of_text(model),
            normalizers.Replace(tokenizers.Regex(" {2,}"), " "),
            # The library's Strip also takes other white space, such as U+0085.
            normalizers.Replace(tokenizers.Regex(r"\A +| +\z"), ""),
        ]
    )
    mark: dict[str, Any] = {"replacement": sentence_piece.WORD_START, "prepend_scheme": "always"}
    fast.pre_tokenizer = pre_tokenizers.Metaspace(split=False, **mark)
    fast.decoder = decoders.Metaspace(**mark)
    if has_bytes:
        fast.decoder = decoders.Sequence([decoders.ByteFallback(), fast.decoder])
        # The names of bytes in a text are text, and would be found as the pieces that they are.
        name = tokenizers.Regex("(?<=<)(?=0x[0-9A-F]{2}>)")
        fast.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
            [fast.pre_tokenizer, pre_tokenizers.Split(name, "isolated")]
        )
    fast.post_processor = _templates(vocabulary, files)
    fast.add_special_tokens([vocabulary.token(token_id) for token_id in vocabulary.special_ids])
    _add(vocabulary.added_tokens, fast)
    return fast


def _of_text(model: tokenizer.SentencePieceTokenizer) -> list[normalizers.Normalizer]:
    """Returns the normalizers of a text, outside of the model and in it."""
    if model.normalization != normalization.RELEASED:
        mark = normalizers.Replace(sentence_piece.WORD_START, " ")
        return [*spelled_rules.cleaned_in_form(model.normalization), mark]
    quotes = [normalizers.Replace(quote, '"') for quote in sentence_piece.ALBERT_QUOTES]
    accents = spelled_rules.without_accents("NFKD", unicodedata.combining)
    return [
        *(quotes if model.lowercase or model.strip_accents else []),
        *(spelled_rules.lowered(model.language) if model.language else []),
        *(accents if model.strip_accents else []),
        *(spelled_rules.lowered() if model.lowercase else []),
        *_folded(model),
    ]


def _folded(vocabulary: tokenizer.SentencePieceTokenizer) -> list[normalizers.Normalizer]:
    """Returns the normalizers that do what the model does to characters, and NFKC.

    NFKC goes first if the text is composed before the model gets it. Characters are asked for
    between full stops, with which none of them combines.
    """
    rules: dict[str, list[str]] = {}
    nfkc = normalizers.NFKC()
    characters = spelled_rules.characters()
    if vocabulary.composes:
        characters = [it for it in characters if unicodedata.is_normalized("NFKC", it)]
    normalized = vocabulary.model_normalized([f".{it}." for it in characters])
    for character, text in zip(characters, normalized, strict=True):
        became = text.removeprefix(sentence_piece.WORD_START)[1:-1]
        became = became.replace(sentence_piece.WORD_START, " ")
        # The library's tables are older than Python's.
        if became != (character if vocabulary.composes else nfkc.normalize_str(character)):
            rules.setdefault(became, []).append(character)
    replaced = [
        normalizers.Replace(spelled_rules.regex(frozenset(held).__contains__), became)
        for became, held in rules.items()
    ]
    if vocabulary.composes:
        return [*spelled_rules.in_form("NFKC"), *replaced]
    return [*replaced, nfkc]


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


# Kind of ours -> their tokenizer. A kind without an exact counterpart is not written.
WRITERS: dict[str, Callable[..., tokenizers.Tokenizer]] = {
    "wordpiece": fast_tokenizer,
    "byte_bpe": byte_level_tokenizer,
    "sentencepiece": unigram_tokenizer,
}
