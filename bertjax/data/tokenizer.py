"""The small protocol behind which kinds of tokenizers stand, and how one is found on disk.

Each kind has a module (`wordpiece`, the released BERT's, `sentence_piece`, `byte_bpe`, RoBERTa's,
and `integers`, for data that are ids already) and a row of TOKENIZERS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from etils import epath
from jaxtyping import Bool, Int

from bertjax.data import (
    added_tokens,
    byte_bpe,
    integers,
    json_text,
    sentence_piece,
    wordpiece,
)

WordPieceTokenizer = wordpiece.WordPieceTokenizer
SentencePieceTokenizer = sentence_piece.SentencePieceTokenizer
ByteBpeTokenizer = byte_bpe.ByteBpeTokenizer
IntegerTokenizer = integers.IntegerTokenizer


@runtime_checkable  # Shape-checked tests ask isinstance.
class Tokenizer(Protocol):
    """The interface of a tokenizer for building, masking and inference.

    Encoding adds neither [CLS] nor [SEP]. `special_ids` are pad, unk (unless nothing is unknown,
    where `unk_id` is -1), cls, sep and mask.
    `continues_word` is true for the entries that belong to the word of the entry before them.
    `keeps_blanks` is true if white space is part of the tokens: a single word then has the ids
    that it has inside a text only with a space before it. `pair_separators` is the number of
    separators between the two texts of a pair.
    """

    kind: str
    vocab_size: int
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    continues_word: Bool[np.ndarray, " vocabulary"]
    keeps_blanks: bool

    @property
    def pair_separators(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`; a literal "[MASK]" in it is ordinary text."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns `encode` of every text."""
        ...

    def encode_flat(
        self, texts: Sequence[str]
    ) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " texts"]]:
        """Returns the ids of all texts, concatenated, and the number of ids of each text.

        This is the fast way, in int32 and in one thread.
        """
        ...

    def encode_with_offsets(
        self, text: str
    ) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " tokens"], Int[np.ndarray, " tokens"]]:
        """Returns the ids of `text`, and where in it each token starts and ends.

        `text[start:end]` are the characters as they were given, before case and accents went,
        without white space around; there may be none. Tokens of one character share its place.
        """
        ...

    def encode_with_masks(self, text: str) -> list[int]:
        """Returns the ids of `text` with each literal "[MASK]" as `mask_id`.

        The mask's own name in the vocabulary is read as well.
        """
        ...

    def split_at_masks(self, text: str) -> list[str]:
        """Returns what stands between the masks that `encode_with_masks` reads."""
        ...

    def token(self, token_id: int) -> str:
        """Returns the vocabulary entry of an id."""
        ...

    def surface(self, token_id: int) -> str:
        """Returns what a token reads as in a text, in place of a mask."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Returns readable text: pieces joined into words, words joined by spaces."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns kind, sha256, vocab_size, lowercase and strip_accents, as manifests keep them.

        A kind may have more: `merges_sha256` tells vocabularies of the same entries apart.
        """
        ...

    def save(self, directory: epath.PathLike) -> None:
        """Writes files into `directory` from which `load` makes the same tokenizer."""
        ...


class TokenizerKind(NamedTuple):
    """`file` is its name in a directory, `suffix` that of a bare file, "" for any other.

    `read` makes the tokenizer from the file and the casing; messages call the file `title`.
    `export_fault` returns why a tokenizer cannot be written for transformers, "" if it can.
    `takes_added_tokens` if other files of the directory may add tokens. `companions` are files
    written with it; a tokenizer.json of `model_type` replaces all of them, "" if none does.
    """

    file: str
    suffix: str
    read: Callable[..., Tokenizer]
    title: str
    export_fault: Callable[..., str] = lambda known: ""
    companions: tuple[str, ...] = ()
    model_type: str = ""
    takes_added_tokens: bool = True


def _from_bytes(make: Callable[..., Tokenizer]) -> Callable[..., Tokenizer]:
    return lambda path, **casing: make(path.read_bytes(), **casing)


# Name, as manifests have it -> kind of tokenizer.
TOKENIZERS: dict[str, TokenizerKind] = {
    WordPieceTokenizer.kind: TokenizerKind(
        wordpiece.VOCABULARY_FILE,
        "",
        _from_bytes(WordPieceTokenizer.from_bytes),
        "WordPiece vocabulary",
    ),
    SentencePieceTokenizer.kind: TokenizerKind(
        sentence_piece.MODEL_FILE,
        ".model",
        _from_bytes(SentencePieceTokenizer),
        "sentencepiece model with BERT's special tokens",
        sentence_piece.export_fault,
    ),
    ByteBpeTokenizer.kind: TokenizerKind(
        byte_bpe.ENTRIES_FILE,
        ".json",
        byte_bpe.read_tokenizer,
        "vocabulary of a byte-level BPE",
        companions=(byte_bpe.MERGES_FILE, byte_bpe.TOKENIZER_FILE),
        model_type="BPE",
    ),
    IntegerTokenizer.kind: TokenizerKind(
        integers.FILE,
        integers.FILE,  # by its whole name alone: other files end with .json, too
        integers.read_tokenizer,
        "vocabulary of integers",
        integers.export_fault,
        takes_added_tokens=False,
    ),
}


def export_fault(vocabulary: Tokenizer) -> str:
    """Returns why a tokenizer cannot be written for transformers, "" if it can."""
    is_with = isinstance(vocabulary, added_tokens.WithAddedTokens)
    return TOKENIZERS[vocabulary.kind].export_fault(vocabulary.base if is_with else vocabulary)


def load(path: epath.PathLike, *, lowercase: bool | None = None) -> Tokenizer:
    """Returns the tokenizer in `path`: a directory that holds a file of TOKENIZERS, or the file.

    Tokens that files of the directory add to the vocabulary (`added_tokens`) are part of it. A bare
    file is of the kind that has its suffix, else a WordPiece vocabulary. A directory's
    tokenizer_config.json tells the casing unless `lowercase` is given; without either, a WordPiece
    vocabulary is taken as lowercase, and a sentencepiece model gets the text as it is.

    Raises:
      FileNotFoundError: if there is no vocabulary.
      ValueError: if there are two, or it lacks special tokens, repeats entries or is damaged, or
        the config asks for a tokenization that is not the released BERT's.
    """
    path = epath.Path(path)
    config: dict[str, Any] = {}
    directory = path if path.is_dir() else None
    if directory is not None:
        config = _read_config(directory / wordpiece.CONFIG_FILE)
        path = _vocabulary_file(directory)
    if not path.exists():
        files = ", a ".join(kind.file for kind in TOKENIZERS.values())
        raise FileNotFoundError(
            f"{path} does not exist; give a {files} or a directory that holds "
            "one, or make one with `python -m data_pipelines.train_vocabulary`"
        )
    if lowercase is None:
        lowercase = config.get("do_lower_case")
    casing: dict[str, Any] = {} if lowercase is None else {"lowercase": bool(lowercase)}
    casing["strip_accents"] = _strip_accents(config)
    kind = _kind_of(path)
    try:
        loaded = kind.read(path, **casing)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a {kind.title}: {error!r}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not a {kind.title}: {error}") from error
    is_whole = directory is None or not kind.takes_added_tokens
    return loaded if is_whole else with_added_tokens(loaded, directory)


def with_added_tokens(base: Tokenizer, directory: epath.PathLike) -> Tokenizer:
    """Returns the tokenizer with the tokens that other files of its directory add.

    Raises:
      ValueError: if they do not say which ids those have, or these do not follow the vocabulary's.
    """
    try:
        return added_tokens.attach(base, added_tokens.read_added_tokens(directory, base))  # pyright: ignore[reportArgumentType]
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
    """Raises a ValueError if a model whose positions begin behind padding's takes another for it.

    The row before the first position, and the word of that number, are zero: padding's.
    """
    if vocabulary is not None and position_offset not in (0, vocabulary.pad_id + 1):
        raise ValueError(
            f"config.model.position_offset is {position_offset}, so the id of padding must be "
            f"{position_offset - 1}; in the vocabulary of {source} it is {vocabulary.pad_id}. "
            "RoBERTa counts positions from there: take a vocabulary of its kind "
            "(`python -m data_pipelines.train_vocabulary --kind=byte_bpe`), or "
            f"--config.model.position_offset={vocabulary.pad_id + 1}, or 0 as in BERT"
        )


def _kind_of(path: epath.Path) -> TokenizerKind:
    by_suffix = {kind.suffix: kind for kind in TOKENIZERS.values()}
    by_file = {kind.file: kind for kind in TOKENIZERS.values()}
    return by_file.get(path.name) or by_suffix.get(path.suffix, by_suffix[""])


def _vocabulary_file(directory: epath.Path) -> epath.Path:
    names = [kind.file for kind in TOKENIZERS.values()]
    files = [directory / name for name in names if (directory / name).exists()]
    if len(files) > 1:
        several = " and ".join(path.name for path in files)
        raise ValueError(f"{directory} holds both {several}; give the one that is meant")
    if not files and (whole := directory / byte_bpe.TOKENIZER_FILE).exists():
        model = json_text.read_object(whole).get("model")
        model_type = model.get("type") if isinstance(model, dict) else None
        files = [whole] if model_type in {kind.model_type for kind in TOKENIZERS.values()} else []
    return files[0] if files else directory / wordpiece.VOCABULARY_FILE


def _read_config(path: epath.Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    config = json_text.read_object(path)
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
    if config.get("never_split"):
        raise ValueError(
            f"{path} has never_split {config['never_split']!r}, which is not supported: make these "
            "added tokens (tokenizer.add_tokens of transformers), or remove the field"
        )
    return config


def _strip_accents(config: dict[str, Any]) -> bool | None:
    if config.get("strip_accents") is None and "keep_accents" in config:  # ALBERT's name for it
        return not config["keep_accents"]
    return config.get("strip_accents")
