"""SentencePiece models (unigram and BPE) with the five special tokens of BERT.

The model holds its own normalization and pieces. Outside of it only case and accents are folded,
as the released ALBERT does. A new model is trained on text after `fold`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece
from etils import epath
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from jaxtyping import Bool
from sentencepiece import sentencepiece_pb2

from bertjax.tokenization import normalization as normalization_lib
from bertjax.tokenization import offsets, token_ids, wordpiece

MODEL_FILE = "spiece.model"
# The name of a model that lacks [MASK], as DeBERTa's does.
MASKLESS_FILE = "spm.model"
WORD_START = "\u2581"
_SPACED = (f".{WORD_START}", f"{WORD_START}.{WORD_START}")  # a full stop and a space, normalized

_PIECES = sentencepiece_pb2.SentencePieceText  # pyright: ignore  made when it is imported

# Names of normalizations that are, but for single characters, Unicode's NFKC.
FOLDED_LATER = ("nmt_nfkc", "nfkc")
# The normalization of a model that leaves all of it to us.
IDENTITY = "identity"
# TrainerSpec.model_type of sentencepiece_model.proto.
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_UNIGRAM = 1  # the default
_UNKNOWN, _CONTROL = 2, 3  # types of pieces
# Sums of its multiples are exact in float32 up to 65,536, the score of some 30,000 characters.
SCORE_STEP = 2.0**-8
UNKNOWN_NAME = "<unk>"

ALBERT_QUOTES = ("``", "''")

# Under which names models have the special tokens: as BERT and ALBERT do, and as RoBERTa does.
SPECIAL_NAMES = {
    "pad": (wordpiece.PAD, "<pad>"),
    "unk": (wordpiece.UNK, "<unk>"),
    "cls": (wordpiece.CLS, "<s>"),
    "sep": (wordpiece.SEP, "</s>"),
    "mask": (wordpiece.MASK, "<mask>"),
}

# A model's messages with the fields that are used here: name -> (number, type, default). Other
# fields are kept. Names are bytes, since a damaged model may have some that are not UTF-8.
# Source: google/sentencepiece, sentencepiece_model.proto.
_MESSAGES: dict[str, dict[str, tuple[int, str, str]]] = {
    "Piece": {"piece": (1, "BYTES", ""), "score": (2, "FLOAT", ""), "type": (3, "INT32", "1")},
    "TrainerSpec": {
        "model_type": (3, "INT32", str(_UNIGRAM)),
        "treat_whitespace_as_suffix": (24, "BOOL", ""),
        "byte_fallback": (35, "BOOL", ""),
    },
    "NormalizerSpec": {
        "name": (1, "BYTES", ""),
        "precompiled_charsmap": (2, "BYTES", ""),
        "add_dummy_prefix": (3, "BOOL", "true"),
        "remove_extra_whitespaces": (4, "BOOL", "true"),
        "escape_whitespaces": (5, "BOOL", "true"),
    },
    "Model": {"trainer_spec": (2, "BYTES", ""), "normalizer_spec": (3, "BYTES", "")},
}


def _message_classes() -> dict[str, Any]:
    """Returns the classes of `_MESSAGES`, a model's with its pieces.

    The library's own sentencepiece_model_pb2 needs a newer protobuf than TensorFlow allows.
    """
    file = descriptor_pb2.FileDescriptorProto(name="sentence_piece.proto")
    for message_name, fields in _MESSAGES.items():
        described = file.message_type.add(name=message_name)
        for name, (number, kind, default) in fields.items():
            field = described.field.add(name=name, number=number, label="LABEL_OPTIONAL")
            field.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind}")
            if default:
                field.default_value = default
    pieces = {"type": "TYPE_MESSAGE", "type_name": ".Piece", "label": "LABEL_REPEATED"}
    file.message_type[-1].field.add(name="pieces", number=1, **pieces)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClassesForFiles([file.name], pool)


_CLASSES = _message_classes()


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The ids that fairseq gave to the pieces of a model that was trained without its names.

    First come the names `before`, then the model's pieces from number `first` on, then the names
    `after`. The names are not text; <unk> is the unknown piece.
    """

    before: tuple[str, ...]
    first: int
    after: tuple[str, ...] = ("<mask>",)

    @property
    def more(self) -> int:
        """The number of entries that the vocabulary has more than the model."""
        return len(self.before) - self.first + len(self.after)

    def are_of(self, vocabulary: token_ids.Tokenizer | None) -> bool:
        """Returns whether a vocabulary of any kind has pieces with these names and ids."""
        entries = vocabulary.vocabulary if vocabulary is not None else ()
        # RoBERTa's bytes have the first names of XLM-R, and no mark of a word's start.
        return entries[: len(self.before)] == self.before and WORD_START in entries


# The file of the model as it was trained, and model_type in transformers -> its ids there.
# Source: transformers 4.57, tokenization_xlm_roberta.py and tokenization_camembert.py: the model's
# <unk>, <s> and </s> go, or <unk> alone.
PIECES_FILE = "sentencepiece.bpe.model"
PIECES = {
    "xlm-roberta": Pieces(("<s>", "<pad>", "</s>", "<unk>"), first=3),
    "camembert": Pieces(("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"), first=1),
}


class SentencePieceTokenizer(token_ids.Tokenizer):
    """The tokenizer of a sentencepiece model, given as its bytes.

    A model that lacks [MASK] alone gets it behind its pieces, as by DeBERTa's tokenizers.
    `strip_accents=None` follows `lowercase`, which is false unless given. With `composes` the text
    is in NFKC before the model normalizes it, whose own form of NFKC leaves some marks apart, such
    as the line below and the accent of one letter.
    """

    kind = "sentencepiece"

    def __init__(
        self,
        model: bytes,
        *,
        lowercase: bool | None = None,
        strip_accents: bool | None = None,
        normalization: str = normalization_lib.RELEASED,
        language: str = "",
        composes: bool = False,
    ):
        self.composes = composes
        self.set_rules(lowercase, strip_accents, normalization, language, by_default=False)
        self._bytes, model = model, with_mask(model)
        self._model = _processor(model)
        self.vocabulary = tuple(map(self._model.id_to_piece, range(len(self._model))))
        self.vocab_size = len(self.vocabulary)
        self.special_ids = _special_ids(self._model)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = self.special_ids
        parsed = _parsed("Model", model)
        self.trainer_spec = _parsed("TrainerSpec", parsed.trainer_spec)
        self.normalizer_spec = _parsed("NormalizerSpec", parsed.normalizer_spec)
        self.continues_word: Bool[np.ndarray, " vocabulary"] = np.array(
            [_continues_word(self._model, token_id) for token_id in range(self.vocab_size)]
        )

    def __reduce__(self):
        make = functools.partial(type(self), **self.rules, composes=self.composes)
        return make, (self._bytes,)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        folded = list(map(self.normalized, texts))
        # One thread: callers parallelize by process.
        return self._model.encode(folded, out_type=int, num_threads=1)

    def encode_with_offsets(self, text: str) -> token_ids.Placed:
        """Returns the ids of `text`, and where in it each token starts and ends.

        White space around a token does not count, so a lone mark of a word's start is empty. Pieces
        of one character have all of its place.
        """
        folded = self.normalized(text)
        # The one form that all versions of the library have; its offsets are bytes.
        serialized = self._model.encode(folded, out_type="serialized_proto")
        pieces = _PIECES.FromString(serialized).pieces
        spans = np.array(_spans(folded, pieces), np.int32).reshape(-1, 2)
        starts, ends = spans.T
        if folded != text:
            starts, ends = offsets.original(self.normalized_places(text), len(text), starts, ends)
        return np.array([piece.id for piece in pieces], np.int32), starts, ends

    def normalized(self, text: str) -> str:
        """Returns the text folded, before the model normalizes it, as UTF-8 can hold it."""
        folded = fold(token_ids.without_surrogates(text), **self.rules)
        return unicodedata.normalize("NFKC", folded) if self.composes else folded

    def own_rules(self) -> dict[str, Any]:
        """Returns the rules that are not the released ones, by name."""
        return super().own_rules() | ({token_ids.COMPOSES_FIELD: True} if self.composes else {})

    def kept(self, text: str) -> str:
        """Returns what the pieces can spell of a text, after the model's own normalization."""
        return self._model.normalize(self.normalized(text)).replace(WORD_START, " ")

    def normalized_places(self, text: str) -> list[tuple[int, int]]:
        text = token_ids.without_surrogates(text)
        if self.normalization != normalization_lib.RELEASED:
            placed = normalization_lib.placed(self.normalization, text)
            return [(start, end) for _, start, end in placed]
        folded = offsets.placed(text)
        for quote in ALBERT_QUOTES if self.lowercase or self.strip_accents else ():
            folded = offsets.joined(folded, quote)
        folded = [('"' if it in ALBERT_QUOTES else it, start, end) for it, start, end in folded]
        if self.strip_accents and not text.isascii():
            folded = offsets.without_accents(
                folded, "NFKD", lambda character: unicodedata.combining(character) > 0
            )
        lower = functools.partial(normalization_lib.lowered, language=self.language)
        folded = offsets.lowered(folded, lower) if self.lowercase else folded
        folded = offsets.composed(folded, "NFKC") if self.composes else folded
        return [(start, end) for _, start, end in folded]

    def encode_after_mask(self, text: str) -> list[int]:
        """Returns the ids of a text behind a mask: a word goes on unless white space is between."""
        folded = self.normalized(text)
        spaced = self._model.normalize(f".{folded}").startswith(_SPACED)
        if spaced or self.trainer_spec.treat_whitespace_as_suffix:
            return self.encode(text)
        return self._inside_words.encode(folded, out_type=int, num_threads=1)

    @functools.cached_property
    def _inside_words(self) -> sentencepiece.SentencePieceProcessor:
        """The model without the mark of a word's start that it puts before each text."""
        model = _parsed("Model", with_mask(self._bytes))
        rules = _parsed("NormalizerSpec", model.normalizer_spec)
        rules.add_dummy_prefix = False
        model.normalizer_spec = rules.SerializeToString()
        return _processor(model.SerializeToString())

    def scores(self) -> list[float]:
        """Returns the log-probability of every piece of a unigram model."""
        return [self._model.get_score(token_id) for token_id in range(self.vocab_size)]

    def model_normalized(self, texts: Sequence[str]) -> list[str]:
        """Returns what the model makes of each text before it looks for pieces."""
        return self._model.normalize(list(texts))

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the pieces, special tokens by name and between spaces."""
        parts: list[str] = []
        for is_special, group in itertools.groupby(ids, key=self.special_ids.__contains__):
            run = [int(token_id) for token_id in group]
            parts += map(self.token, run) if is_special else [self._model.decode(run)]
        return " ".join(parts)

    def describe(self) -> dict[str, Any]:
        """Returns what manifests keep; the hash covers the model and the casing."""
        composes = [token_ids.COMPOSES_FIELD] if self.composes else []
        rules = [*self.rules_for_hash(), *composes]
        return self.described(self._bytes + json.dumps(rules).encode())

    def save(self, directory: epath.PathLike) -> None:
        """Writes the model and a tokenizer_config.json with the field names of transformers."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        is_whole = with_mask(self._bytes) == self._bytes
        (directory / (MODEL_FILE if is_whole else MASKLESS_FILE)).write_bytes(self._bytes)
        config = {
            "tokenizer_class": token_ids.LIBRARY_CLASS if self.own_rules() else "AlbertTokenizer",
            **self.rules_for_file(),
            "keep_accents": not self.strip_accents,  # The name that transformers has for ALBERT.
        }
        config |= {
            f"{role}_token": self.vocabulary[token_id]
            for role, token_id in zip(SPECIAL_NAMES, self.special_ids, strict=True)
        }
        (directory / wordpiece.CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")


def type_export_fault(model_type: str) -> str:
    """Returns why models of a type are not written for transformers, "" if they are."""
    if model_type == MODEL_TYPES[_UNIGRAM]:
        return ""
    return (
        f"it is a model of type {model_type}, and only unigram models are written for "
        "transformers: train one with --kind=sentencepiece --model_type=unigram"
    )


def export_fault(vocabulary: SentencePieceTokenizer) -> str:
    """Returns why the library of transformers finds other ids than the model, "" if it does not."""
    trainer, normalizer = vocabulary.trainer_spec, vocabulary.normalizer_spec
    if why := type_export_fault(MODEL_TYPES[trainer.model_type]):
        return why
    name = normalizer.name.decode()
    is_ours = name == IDENTITY and vocabulary.normalization != normalization_lib.RELEASED
    if name not in FOLDED_LATER and not is_ours:
        known_names = ", ".join(map(repr, FOLDED_LATER))
        return f"it normalizes by {name!r}; for transformers only {known_names} can be spelled out"
    is_usual = (
        not trainer.treat_whitespace_as_suffix
        and normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
    )
    if not is_usual:
        return "it treats white space in ways that cannot be spelled out there"
    return ""


def with_mask(model: bytes) -> bytes:
    """Returns the model with [MASK] behind its pieces if it has BERT's tokens but for the mask.

    Source: transformers 4, tokenization_deberta_v2.py, whose mask has the number of pieces as id.
    """
    parsed = _parsed("Model", model)
    pieces = {piece.piece for piece in parsed.pieces}
    others = {name.encode() for name in (wordpiece.PAD, wordpiece.CLS, wordpiece.SEP)}
    masks = {name.encode() for name in SPECIAL_NAMES["mask"]}
    if not others <= pieces or masks & pieces:
        return model
    parsed.pieces.append(_special_piece(wordpiece.MASK))
    return parsed.SerializeToString()


def renumbered(model: bytes, ids: Pieces) -> bytes:
    """Returns the model with these ids."""
    parsed = _parsed("Model", model)
    kept = parsed.pieces[ids.first :]
    names = {name.encode() for name in (*ids.before, *ids.after)}
    if repeated := sorted(names & {piece.piece for piece in kept}):
        shown = ", ".join(name.decode() for name in repeated)
        raise ValueError(
            f"its pieces from {ids.first} on hold {shown}, which have ids of their own: it is "
            "not the model of the weights"
        )
    del parsed.pieces[:]
    parsed.pieces.extend([*map(_special_piece, ids.before), *kept])
    parsed.pieces.extend(map(_special_piece, ids.after))
    return parsed.SerializeToString()


def rounded(model: bytes) -> bytes:
    """Returns the model with scores that are multiples of `SCORE_STEP`.

    The same pieces in another order ("a aa", "aa a") have the same score. Where sums are exact, the
    first segmentation is taken by sentencepiece, which adds in 32 bits, as by the library of
    transformers, which adds in 64.
    """
    parsed = _parsed("Model", model)
    for piece in parsed.pieces:
        piece.score = round(piece.score / SCORE_STEP) * SCORE_STEP
        piece.type = piece.type  # written out, also where it is the default
    return parsed.SerializeToString()


def _special_piece(name: str) -> Any:
    kind = _UNKNOWN if name == UNKNOWN_NAME else _CONTROL
    return _CLASSES["Piece"](piece=name.encode(), score=0.0, type=kind)


def fold(
    text: str,
    lowercase: bool = False,
    strip_accents: bool = False,
    normalization: str = normalization_lib.RELEASED,
    language: str = "",
) -> str:
    """Returns `text` by the rules of a tokenizer.

    Where letter case or accents go, it is ALBERT's text, in which the quotes `` and '' of old
    corpora become ".
    Source: google-research/albert, tokenization.py, preprocess_text.
    """
    if normalization != normalization_lib.RELEASED:
        return normalization_lib.applied(normalization, text).replace(WORD_START, " ")
    for quote in ALBERT_QUOTES if lowercase or strip_accents else ():
        text = text.replace(quote, '"')
    if language:  # before the dot of İ goes with the accents
        text = normalization_lib.lowered(text, language)
    if strip_accents and not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(itertools.filterfalse(unicodedata.combining, decomposed))
    return text.lower() if lowercase else text


def _spans(text: str, pieces: Sequence[Any]) -> list[tuple[int, int]]:
    """Returns the characters [start, end) of each piece's bytes, without white space around."""
    is_first_byte = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
    character_at = [*(np.cumsum(is_first_byte) - 1).tolist(), len(text)]
    spans: list[tuple[int, int]] = []
    for piece in reversed(pieces):
        start, end = character_at[piece.begin], character_at[piece.end]
        surface = text[start:end]
        start = end - len(surface.lstrip())
        end = start + len(surface.strip())
        # If one character has several pieces, the library places only the last.
        if start == end and piece.piece.strip(WORD_START) and spans and spans[-1][0] == start:
            end = spans[-1][1]
        spans.append((start, end))
    return spans[::-1]


def _processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ValueError(f"its {len(model)} bytes are not a sentencepiece model") from error
    return processor


def _parsed(name: str, content: bytes) -> Any:
    """Returns a message of `_MESSAGES`."""
    try:
        return _CLASSES[name].FromString(content)
    except message.DecodeError as error:
        raise ValueError(f"its {len(content)} bytes are not a sentencepiece model") from error


def _special_ids(model: sentencepiece.SentencePieceProcessor) -> tuple[int, ...]:
    special_ids: dict[str, int | None] = {role: _piece_id(model, role) for role in SPECIAL_NAMES}
    missing = [
        " or ".join(SPECIAL_NAMES[role])
        for role, token_id in special_ids.items()
        if token_id is None
    ]
    if missing:
        raise ValueError(
            f"it lacks {', '.join(missing)}; train it with them as control symbols, as "
            "`python -m data_pipelines.train_vocabulary --kind=sentencepiece` does"
        )
    ids = tuple(token_id for token_id in special_ids.values() if token_id is not None)
    for role, token_id in zip(SPECIAL_NAMES, ids, strict=True):
        # Text could hold a piece of any other type, and would become a special token.
        if not (model.is_control(token_id) or model.is_unknown(token_id)):
            raise ValueError(
                f"{model.id_to_piece(token_id)!r}, its {role} token, is not a control symbol, so "
                "that text could produce it; train the model with --control_symbols"
            )
    return ids


def _piece_id(model: sentencepiece.SentencePieceProcessor, role: str) -> int | None:
    if role == "unk":  # Every model has one, whatever its name.
        return model.unk_id()
    for name in SPECIAL_NAMES[role]:
        token_id = model.piece_to_id(name)
        if model.id_to_piece(token_id) == name:
            return token_id
    return None


def _continues_word(model: sentencepiece.SentencePieceProcessor, token_id: int) -> bool:
    """Returns whether a piece belongs to the word of the piece before it.

    It does if it lacks the mark of a word's start, unless BERT's own rules set its first character
    apart: punctuation and CJK.
    Source: google-research/albert, create_pretraining_data.py, _is_start_piece_sp, which counts
    every piece with a letter beyond a-z as a word of its own.
    """
    if model.is_control(token_id) or model.is_unknown(token_id):
        return False
    if model.is_byte(token_id):
        return True
    piece = model.id_to_piece(token_id)
    after_a_letter = wordpiece.split_words(f"a{piece[0]}")
    return piece[0] != WORD_START and len(after_a_letter) == 1
