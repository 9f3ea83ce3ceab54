"""The kinds of tokenizers, and how one is found on disk.

Each kind has a module (`wordpiece`, the released BERT's, `sentence_piece`, `byte_bpe`, RoBERTa's,
`library_tokenizer`, for tokenizers of others, and `integers`, for data that are ids already) and a
row of TOKENIZERS.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from absl import logging
from etils import epath

from bertjax.files import opening
from bertjax.tokenization import (
    added_tokens,
    byte_bpe,
    integers,
    library_tokenizer,
    sentence_piece,
    token_ids,
    tokenizer_files,
    wordpiece,
)

Tokenizer = token_ids.Tokenizer
WordPieceTokenizer = wordpiece.WordPieceTokenizer
SentencePieceTokenizer = sentence_piece.SentencePieceTokenizer
ByteBpeTokenizer = byte_bpe.ByteBpeTokenizer
LibraryTokenizer = library_tokenizer.LibraryTokenizer
IntegerTokenizer = integers.IntegerTokenizer


class TokenizerKind(NamedTuple):
    """`file` is its name in a directory, `suffix` that of a bare file, "" for any other.

    `other_file` is another name of the file, "" if there is none.

    `read` makes the tokenizer from the file and the casing; messages call the file `title`.
    `export_fault` returns why a tokenizer cannot be written for transformers, "" if it can.
    `takes_added_tokens` if other files of the directory may add tokens. `companions` are files
    written with it. `own_rule` is a rule that only this kind has: an argument of its class, true or
    false in tokenizer_config.json.
    """

    file: str
    suffix: str
    read: Callable[..., Tokenizer]
    title: str
    export_fault: Callable[..., str] = lambda known: ""
    companions: tuple[str, ...] = ()
    takes_added_tokens: bool = True
    own_rule: str = ""
    other_file: str = ""


def _from_bytes(make: Callable[..., Tokenizer]) -> Callable[..., Tokenizer]:
    return lambda path, **casing: make(opening.read_tokenizer(path), **casing)


def _of_library(path: epath.Path, **settings: Any) -> Tokenizer:
    return LibraryTokenizer(opening.read_tokenizer(path), settings)


# Name, as manifests have it -> kind of tokenizer.
TOKENIZERS: dict[str, TokenizerKind] = {
    WordPieceTokenizer.kind: TokenizerKind(
        wordpiece.VOCABULARY_FILE,
        "",
        _from_bytes(WordPieceTokenizer.from_bytes),
        "WordPiece vocabulary",
        own_rule=token_ids.CUTS_FIELD,
    ),
    SentencePieceTokenizer.kind: TokenizerKind(
        sentence_piece.MODEL_FILE,
        ".model",
        _from_bytes(SentencePieceTokenizer),
        "sentencepiece model with BERT's special tokens",
        sentence_piece.export_fault,
        own_rule=token_ids.COMPOSES_FIELD,
        other_file=sentence_piece.MASKLESS_FILE,
    ),
    ByteBpeTokenizer.kind: TokenizerKind(
        byte_bpe.ENTRIES_FILE,
        ".json",
        byte_bpe.read_tokenizer,
        "vocabulary of a byte-level BPE",
        companions=(byte_bpe.MERGES_FILE, byte_bpe.TOKENIZER_FILE),
    ),
    LibraryTokenizer.kind: TokenizerKind(
        library_tokenizer.TOKENIZER_FILE,
        library_tokenizer.TOKENIZER_FILE,  # by its whole name alone
        _of_library,
        "tokenizer of the library `tokenizers`",
        takes_added_tokens=False,  # it has them already
    ),
    IntegerTokenizer.kind: TokenizerKind(
        integers.FILE,
        integers.FILE,  # by its whole name alone: other files also end with .json
        integers.read_tokenizer,
        "vocabulary of integers",
        integers.export_fault,
        takes_added_tokens=False,
    ),
}


def export_fault(vocabulary: Tokenizer) -> str:
    """Returns why a tokenizer cannot be written for transformers, "" if it can."""
    return TOKENIZERS[vocabulary.kind].export_fault(vocabulary.base)


def load(path: epath.PathLike, *, lowercase: bool | None = None) -> Tokenizer:
    """Returns the tokenizer in `path`: a directory that holds a file of TOKENIZERS, or the file.

    Tokens that files of the directory add to the vocabulary (`added_tokens`) are part of it. A bare
    file is of the kind that has its suffix, else a WordPiece vocabulary. A directory's
    tokenizer_config.json has the rules for a text unless `lowercase` is given; without either, a
    WordPiece vocabulary has the released uncased rule, as in transformers, which the log says, and
    a sentencepiece model gets the text as it is.

    Raises:
      FileNotFoundError: if there is no vocabulary.
      ValueError: if there are two, or it lacks special tokens, repeats entries or is damaged, or
        the config asks for a tokenization that is not the released BERT's.
    """
    path = epath.Path(path)
    directory = path if path.is_dir() else None
    config = tokenizer_files.settings(directory) if directory is not None else {}
    if directory is not None:
        path = _vocabulary_file(directory)
    if not path.exists():
        files = ", a ".join(kind.file for kind in TOKENIZERS.values())
        raise FileNotFoundError(
            f"{path} does not exist; give a {files} or a directory that holds "
            "one, or make one with `python -m data_pipelines.train_vocabulary`"
        )
    whole = path if directory is None else directory / library_tokenizer.TOKENIZER_FILE
    is_whole = whole.name == library_tokenizer.TOKENIZER_FILE and whole.exists()
    if is_whole and path.name != integers.FILE:
        with _naming(whole, "tokenizer of the library `tokenizers`"):
            entries_file = path if path != whole else None
            loaded = tokenizer_files.of_tokenizer_json(
                whole, config, entries_file=entries_file, lowercase=lowercase
            )
        if loaded is not None:
            return loaded
    kind = _kind_of(path)
    with _naming(path, kind.title):
        others = tokenizer_files.of_entries(path, config, lowercase=lowercase)
        if others is not None:
            return others
        loaded = kind.read(path, **_rules_of(path, kind, config, lowercase))
    is_alone = directory is None or not kind.takes_added_tokens
    return loaded if is_alone else with_added_tokens(loaded, directory)


@contextlib.contextmanager
def _naming(path: epath.Path, title: str) -> Iterator[None]:
    """Makes a ValueError that names the file of every fault in it."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path} is not a {title}: {error!r}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not a {title}: {error}") from error


def _rules_of(
    path: epath.Path, kind: TokenizerKind, config: dict[str, Any], lowercase: bool | None
) -> dict[str, Any]:
    """Returns the arguments of a kind's class, as `_rules`; the log says where one is taken."""
    _check_config(config, path.parent / wordpiece.CONFIG_FILE)
    rules = _rules(config, lowercase)
    is_wordpiece = kind is TOKENIZERS[WordPieceTokenizer.kind]
    if kind.own_rule in config:
        rules[kind.own_rule] = bool(config[kind.own_rule])
    if is_wordpiece and "lowercase" not in rules and "normalization" not in rules:
        logging.info(
            "%s has no settings: text is lower-cased and loses its accents, as in BERT's "
            "uncased models and as transformers reads it. For a cased vocabulary put a %s with "
            '{"do_lower_case": false} there',
            path, wordpiece.CONFIG_FILE,
        )  # fmt: skip
    return rules


def _rules(config: dict[str, Any], lowercase: bool | None) -> dict[str, Any]:
    """Returns what a tokenizer_config.json says of texts, as arguments of a tokenizer."""
    if lowercase is None:
        lowercase = config.get("do_lower_case")
    rules: dict[str, Any] = {} if lowercase is None else {"lowercase": bool(lowercase)}
    rules["strip_accents"] = config.get("strip_accents")
    if rules["strip_accents"] is None and "keep_accents" in config:  # ALBERT's name for it
        rules["strip_accents"] = not config["keep_accents"]
    if library_tokenizer.class_of(config) == library_tokenizer.DEBERTA_CLASS:
        rules["strip_accents"] = False  # it has no such rule
    for field, argument in (
        (token_ids.NORMALIZATION_FIELD, "normalization"),
        (token_ids.LANGUAGE_FIELD, "language"),
    ):
        if field in config:
            rules[argument] = config[field]
    return rules


def with_added_tokens(base: Tokenizer, directory: epath.PathLike) -> Tokenizer:
    """Returns the tokenizer with the tokens that other files of its directory add.

    Raises:
      ValueError: if they do not say which ids those have, or these do not follow the vocabulary's.
    """
    try:
        return added_tokens.attach(base, added_tokens.read_added_tokens(directory, base))
    except ValueError as error:
        raise ValueError(f"the added tokens in {directory} cannot be used: {error}") from error


def check_table(vocabulary: Tokenizer | None, rows: int, source: str) -> None:
    """Raises a ValueError if an entry has no row in an embedding table of `rows`; None has none.

    An id beyond the table is read as NaN, and nothing else would notice it.
    """
    if vocabulary is not None and vocabulary.vocab_size > rows:
        raise ValueError(
            f"the vocabulary of {source} has {vocabulary.vocab_size} entries, but its embedding "
            f"table (vocab_size) has {rows} rows: {vocabulary.token(rows)!r} and what follows have "
            "no embedding. They belong to different models: put the vocabulary there that the "
            "weights were trained with"
        )


def check_padding(vocabulary: Tokenizer | None, position_offset: int, source: str) -> None:
    """Raises a ValueError if the id of padding is not the one that the positions start behind.

    The row before the first position, and the word with this number, are zero: padding.
    """
    if vocabulary is not None and position_offset not in (0, vocabulary.pad_id + 1):
        raise ValueError(
            f"config.model.position_offset is {position_offset}, so the id of padding must be "
            f"{position_offset - 1}; in the vocabulary of {source} it is {vocabulary.pad_id}. "
            "RoBERTa counts positions from there: take a vocabulary of its kind "
            "(`python -m data_pipelines.train_vocabulary --kind=byte_bpe`, or --kind=sentencepiece "
            "--special_tokens=xlm-roberta), or "
            f"--config.model.position_offset={vocabulary.pad_id + 1}, or 0 as in BERT"
        )


def _kind_of(path: epath.Path) -> TokenizerKind:
    by_suffix = {kind.suffix: kind for kind in TOKENIZERS.values()}
    by_file = {kind.file: kind for kind in TOKENIZERS.values()}
    return by_file.get(path.name) or by_suffix.get(path.suffix, by_suffix[""])


def _vocabulary_file(directory: epath.Path) -> epath.Path:
    whole = TOKENIZERS[LibraryTokenizer.kind].file
    names = [name for kind in TOKENIZERS.values() for name in (kind.file, kind.other_file)]
    names = [name for name in names if name not in ("", whole)]
    files = [directory / name for name in names if (directory / name).exists()]
    if len(files) > 1:
        several = " and ".join(path.name for path in files)
        raise ValueError(f"{directory} holds both {several}; give the one that is meant")
    if not files and (directory / whole).exists():
        return directory / whole
    return files[0] if files else directory / wordpiece.VOCABULARY_FILE


def _check_config(config: dict[str, Any], path: epath.Path) -> None:
    if not config.get("tokenize_chinese_chars", True):
        raise ValueError(
            f"{path} has tokenize_chinese_chars false; only the released BERT tokenization (true) "
            "is supported: set it to true or train another vocabulary"
        )
    if not config.get("do_basic_tokenize", True):
        raise ValueError(
            f"{path} has do_basic_tokenize false: its words are looked up as they are, without "
            "setting punctuation apart. Only the released BERT tokenization (true) is supported"
        )
    if config.get("split_by_punct"):
        raise ValueError(
            f"{path} has split_by_punct true: punctuation is set apart before the model sees it, "
            "which is not supported, and which no released DeBERTa-v3 does: set it to false"
        )
    if config.get("never_split"):
        raise ValueError(
            f"{path} has never_split {config['never_split']!r}, which is not supported: make these "
            "added tokens (tokenizer.add_tokens of transformers), or remove the field"
        )
