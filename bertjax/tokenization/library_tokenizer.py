"""Tokenizers of others, by the library `tokenizers`, which defines their tokenizer.json.

The file is kept as it is, but for a template that ends no text. The class, special tokens and
`do_lower_case` of tokenizer_config.json count as in transformers 5; so `add_bos_token` and
`add_eos_token` do not.
Source: transformers 5.24, tokenization_utils_tokenizers.py and models/auto/tokenization_auto.py.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from absl import logging
from etils import epath
from jaxtyping import Bool
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertjax.files import json_text
from bertjax.tokenization import (
    added_tokens,
    byte_bpe,
    japanese,
    letters,
    sentence_piece,
    token_ids,
    wordpiece,
)

TOKENIZER_FILE = byte_bpe.TOKENIZER_FILE
ROLES = ("pad", "unk", "cls", "sep", "mask")
# transformers' other names for what stands around a text.
_AROUND = {"cls": "bos", "sep": "eos"}
_BERT_AROUND = {"cls": wordpiece.CLS, "sep": wordpiece.SEP}
CLASS_FIELD = "tokenizer_class"

# Classes that take a tokenizer.json as it is.
LIBRARY_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
# Classes that make BERT's rules anew from tokenizer_config.json, whatever tokenizer.json says.
BERT_CLASSES = (
    *("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"),
    *("ConvBertTokenizer", "SqueezeBertTokenizer", "LayoutLMTokenizer", "RetriBertTokenizer"),
)
# As these, with the separators of RoBERTa's pairs.
MPNET_CLASS = "MPNetTokenizer"
# Class -> the separators between two texts.
REMADE_CLASSES = {**dict.fromkeys(BERT_CLASSES, 1), MPNET_CLASS: 2}
# Class -> the names of its special tokens where a config has none; [UNK] is among BERT's entries.
NAMES = {
    MPNET_CLASS: {
        **{"pad_token": "<pad>", "unk_token": wordpiece.UNK, "mask_token": "<mask>"},
        **{"cls_token": "<s>", "sep_token": "</s>"},
    }
}
HERBERT_CLASS = "HerbertTokenizer"
# transformers 5 keeps only the entries of its tokenizer.json; here the rules count as well.
DEBERTA_CLASS = "DebertaV2Tokenizer"
# Classes that make the rules anew which their tokenizer.json has.
OTHER_CLASSES = (
    *("RobertaTokenizer", "LongformerTokenizer", "BartTokenizer", "GPT2Tokenizer"),
    *("XLMRobertaTokenizer", "CamembertTokenizer", "AlbertTokenizer", HERBERT_CLASS),
)
READ_CLASSES = (
    *(*LIBRARY_CLASSES, *REMADE_CLASSES, *OTHER_CLASSES),
    *(DEBERTA_CLASS, japanese.CLASS, letters.CLASS),
)
ENTRIES_ALONE = (japanese.CLASS, letters.CLASS)  # classes that read vocab.txt and no other file
BERT_FLAGS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
WORD_END = "</w>"  # at the end of HerBERT's entries that end a word

# The words of a file's special tokens in texts are text: they get a name that no text has.
_HIDDEN = "\uffff"
# A vocabulary may have this many more ids than twice its entries: a damaged or hostile file must
# not exhaust memory.
MOST_GAPS = 1_000_000
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


@contextlib.contextmanager
def _faults_of_library() -> Iterator[None]:
    """Turns the library's errors into a ValueError: plain Exceptions, and panics of Rust.

    A panic, for a fault that its code did not expect, is not an Exception.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"the library `tokenizers` does not read it: {error}") from error


class LibraryTokenizer(byte_bpe.OfLibrary):
    """The tokenizer of a tokenizer.json, given as its bytes and the fields of the config.

    The names of special tokens in a text are text, as for every kind here. `marks` says how entries
    show their places in words, as a key of vocabulary_exchange.MARKS.
    """

    kind = "tokenizers"

    @_faults_of_library()
    def __init__(self, content: bytes, config: Mapping[str, Any]):
        read = json_text.loads(content)
        fields = _effective(read, config)
        whole = _with_added(_library(fields), config)
        if ended := _with_end(whole, fields, config):
            content = json.dumps(read | {"post_processor": ended}, ensure_ascii=False).encode()
            fields["post_processor"] = ended
            whole = _with_added(_library(fields), config)
        self._content, self._config = bytes(content), dict(config)
        ids = whole.get_vocab(with_added_tokens=True)
        self.vocabulary = _entries(ids)
        self.vocab_size = len(self.vocabulary)
        roles = _roles(fields, config, ids)
        if class_of(config) in REMADE_CLASSES and {*_AROUND} <= {*roles}:
            before, after = roles["cls"], roles["sep"]
            self._separators = REMADE_CLASSES[class_of(config)]
        else:
            before, after, self._separators = _around(whole, roles)
        roles |= {"cls": before, "sep": after}
        self.special_ids = tuple(roles[role] for role in ROLES if role in roles)
        self.pad_id, self.cls_id, self.sep_id, self.mask_id = (
            roles[role] for role in ROLES if role != "unk"
        )
        self.unk_id = roles.get("unk", -1)
        hidden = {named(config, role) for role in (*ROLES, *_AROUND.values())} & {*ids}
        hidden |= {self.vocabulary[token_id] for token_id in self.special_ids}
        self._library = _with_added(_library(_hiding(fields, hidden)), config, hidden)
        if class_of(config) == japanese.CLASS:  # what cuts stands in no file
            japanese.check(config)
            self._library.pre_tokenizer = japanese.cutter(config)
        cut = {"Regex": letters.pattern(self.vocabulary)}
        steps = list(_steps(fields.get("pre_tokenizer"), "pretokenizers"))
        is_esm = class_of(config) == letters.CLASS
        if is_esm or any(step.get("pattern") == cut for step in steps):
            self.letters = letters.known(self.vocabulary)
        if is_esm:
            self._library.normalizer = letters.normalizer(self.letters)
        is_remade = class_of(config) in (*REMADE_CLASSES, japanese.CLASS)
        counted = (*BERT_FLAGS, *japanese.FIELDS) if is_remade else ()
        self._counted = [
            {name: config[name] for name in counted if name in config},
            [self.special_ids, self._separators, self.vocab_size],
            config.get(added_tokens.DECODER) or {},
        ]
        self._normalizer: Any = self._library.normalizer
        steps = list(_steps(fields.get("normalizer")))
        bert = next((step for step in steps if step.get("type") == "BertNormalizer"), {})
        self.lowercase = bool(bert.get("lowercase")) or any(
            step.get("type") == "Lowercase" for step in steps
        )
        strips = bert.get("strip_accents")
        strips = self.lowercase if bert and strips is None else bool(strips)
        self.strip_accents = strips or any(step.get("type") == "StripAccents" for step in steps)
        self._is_bytes = "ByteLevel" in json.dumps(
            [fields.get("decoder"), fields.get("pre_tokenizer")]
        )
        self.continues_word = self._continuing(fields["model"], whole)
        self.marks = self._marks(fields["model"])
        words = ("a", "the", "1", "\u306e", "\u044f")
        self.keeps_blanks = any(self.encode(f" {word}") != self.encode(word) for word in words)

    def __reduce__(self):
        return type(self), (self._content, self._config)

    @property
    def pair_separators(self) -> int:
        """The number of separators between the two texts of a pair."""
        return self._separators or super().pair_separators

    def encode_with_masks(self, text: str) -> list[int]:
        """Returns the ids of `text` with each literal "[MASK]", or the mask's name, as `mask_id`.

        The mask takes the white space around it that the file says.
        """
        name = self.token(self.mask_id)
        parts = re.split("|".join(map(re.escape, dict.fromkeys((token_ids.MASK, name)))), text)
        return self._encoding(f"{_HIDDEN}{name}".join(parts)).ids

    def normalized(self, text: str) -> str:
        """Returns the text as the file's normalizer makes it."""
        text = token_ids.without_surrogates(text)
        return self._normalizer.normalize_str(text) if self._normalizer else text

    def kept(self, text: str) -> str:
        """Returns what the entries can spell of a text."""
        return self.normalized(text).replace(sentence_piece.WORD_START, " ")

    def surface(self, token_id: int) -> str:
        """Returns what a token reads as in a text, with the space that is part of it."""
        if self._is_bytes:
            return self.decode([token_id])
        return self.token(token_id).replace(sentence_piece.WORD_START, " ")

    def decode(self, ids: Sequence[int]) -> str:
        """Returns readable text, special tokens by name."""
        text = self._library.decode([int(i) for i in ids], skip_special_tokens=False)
        return text.replace(_HIDDEN, "")

    def describe(self) -> dict[str, Any]:
        """Returns what manifests keep; the hash covers the file and what else counts."""
        content = self._content + json.dumps(self._counted, sort_keys=True).encode()
        return self.described(content) | ({letters.FIELD: True} if self.letters else {})

    def save(self, directory: epath.PathLike) -> None:
        """Writes tokenizer.json as it was read, and tokenizer_config.json."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / TOKENIZER_FILE).write_bytes(self._content)
        text = json.dumps(self._config, indent=2, ensure_ascii=False)
        (directory / wordpiece.CONFIG_FILE).write_bytes(f"{text}\n".encode())
        if class_of(self._config) in ENTRIES_ALONE:
            entries = "".join(f"{entry}\n" for entry in self.vocabulary)
            (directory / wordpiece.VOCABULARY_FILE).write_bytes(entries.encode())

    def special_names(self) -> dict[str, str]:
        """Returns the names of the special tokens, as special_tokens_map.json has them."""
        ids = {role: getattr(self, f"{role}_id") for role in ROLES}
        return {
            f"{role}_token": named(self._config, role) or self.token(token_id)
            for role, token_id in ids.items()
            if token_id >= 0
        }

    def _marks(self, model: Mapping[str, Any]) -> str:
        if model.get("end_of_word_suffix"):
            return "ended"
        if model.get("continuing_subword_prefix"):
            return "continued"
        return "bytes" if self._is_bytes else "started"

    def _continuing(
        self, model: Mapping[str, Any], whole: tokenizers.Tokenizer
    ) -> Bool[np.ndarray, " vocabulary"]:
        """Returns whether each entry belongs to the word of the entry before it."""
        added = {token_id for token_id in whole.get_added_tokens_decoder()} | {*self.special_ids}
        prefix = model.get("continuing_subword_prefix")
        if model.get("end_of_word_suffix"):
            logging.warning(
                "The entries of this vocabulary show where words end, not where they begin: masks "
                "of whole words take each token for a word"
            )

        def continues(token_id: int, entry: str) -> bool:
            if token_id in added or model.get("end_of_word_suffix"):
                return False
            if model.get("type") == "WordLevel":  # each entry is a word
                return False
            if prefix:
                return entry.startswith(prefix)
            if self._is_bytes:
                return byte_bpe.continues_word(byte_bpe.as_bytes(entry))
            if model.get("byte_fallback") and _BYTE.fullmatch(entry):
                return True
            is_marked = entry.startswith((sentence_piece.WORD_START, " "))
            return bool(entry) and not is_marked and not wordpiece.is_set_apart(entry[0])

        return np.array([continues(*each) for each in enumerate(self.vocabulary)], bool)


@_faults_of_library()
def of_vocabulary(entries: Sequence[str], config: Mapping[str, Any]) -> LibraryTokenizer:
    """Returns the tokenizer that transformers makes of a vocab.txt with these settings."""
    ids = {entry: token_id for token_id, entry in enumerate(entries)}
    unknown = named(config, "unk") or wordpiece.UNK
    library = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    name = MPNET_CLASS if class_of(config) == MPNET_CLASS else "BertTokenizer"
    return _made(library, config, name, bert_parts(config))


@_faults_of_library()
def of_japanese(entries: Sequence[str], config: Mapping[str, Any]) -> LibraryTokenizer:
    """Returns BertJapaneseTokenizer with the entries of a vocab.txt."""
    japanese.check(config)
    ids = {entry: token_id for token_id, entry in enumerate(entries)}
    unknown = named(config, "unk") or wordpiece.UNK
    library: Any = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    if (normalizer := japanese.normalizer(config)) is not None:
        library.normalizer = normalizer
    library.decoder = decoders.WordPiece()
    cls, sep = (named(config, role) or name for role, name in _BERT_AROUND.items())
    library.post_processor = _between(ids, cls, sep, second=1)
    return _made(library, config, japanese.CLASS, {})


@_faults_of_library()
def of_word_ends(
    ids: Mapping[str, int], merges: Sequence[byte_bpe.Merge], config: Mapping[str, Any]
) -> LibraryTokenizer:
    """Returns HerBERT's tokenizer, whose entries show where words end.

    Source: transformers, models/herbert/tokenization_herbert.py.
    """
    names = {"cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>", "sep": "</s>"}
    given = {f"{role}_token": name for role, name in names.items()}
    given |= {name: value for name, value in config.items() if value is not None}
    model = models.BPE(
        dict(ids), list(merges), unk_token=named(given, "unk"), end_of_word_suffix=WORD_END
    )
    library: Any = tokenizers.Tokenizer(model)
    library.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.BPEDecoder(suffix=WORD_END)
    library.post_processor = processors.BertProcessing(
        (named(given, "sep"), 2), (named(given, "cls"), 0)
    )
    return _made(library, given, HERBERT_CLASS, {})


@_faults_of_library()
def of_letters(
    entries: Sequence[str],
    config: Mapping[str, Any],
    *,
    tokenizer_class: str = letters.CLASS,
) -> LibraryTokenizer:
    """Returns EsmTokenizer with the entries of a vocab.txt, k-mers of letters among them or not.

    The module `letters` has the rules for a text; a small letter is unknown to transformers'.
    Source: transformers, models/esm/tokenization_esm.py.
    """
    given: dict[str, Any] = {f"{role}_token": name for role, name in letters.SPECIALS.items()}
    given |= {name: value for name, value in config.items() if value is not None}
    given["sep_token"] = named(config, "eos") or named(given, "sep")
    ids = {entry: token_id for token_id, entry in enumerate(entries)}
    # transformers lists special tokens there that are entries.
    listed: Any = (given.pop(added_tokens.DECODER, None) or {}).items()
    if more := {key: token for key, token in listed if ids.get(_content(token)) != int(key)}:
        given[added_tokens.DECODER] = more
    library: Any = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=named(given, "unk")))
    if tokenizer_class != letters.CLASS:  # whose files have no rules for a text
        library.normalizer = letters.normalizer(letters.known(entries))
    cut = pre_tokenizers.Split(tokenizers.Regex(letters.pattern(entries)), "isolated")
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), cut])
    library.decoder = decoders.Fuse()
    library.post_processor = _between(ids, named(given, "cls"), named(given, "sep"), second=0)
    return _made(library, given, tokenizer_class, {})


def _between(
    ids: Mapping[str, int], cls: str, sep: str, *, second: int
) -> processors.TemplateProcessing:
    """Returns what puts `cls` and `sep` around a text, and around a second one of this segment."""
    if not {cls, sep} <= ids.keys():
        raise ValueError(f"it lacks {cls} or {sep}, the tokens around a text")
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:{second} {sep}:{second}",
        special_tokens=[(cls, ids[cls]), (sep, ids[sep])],
    )


def _made(
    library: tokenizers.Tokenizer,
    config: Mapping[str, Any],
    tokenizer_class: str,
    parts: Mapping[str, Any],
) -> LibraryTokenizer:
    names = [named(config, role) for role in ROLES]
    library.add_special_tokens([name for name in names if name and library.token_to_id(name)])
    fields = json.loads(library.to_str()) | dict(parts)
    content = json.dumps(fields, ensure_ascii=False).encode()
    return LibraryTokenizer(content, {**config, CLASS_FIELD: tokenizer_class})


def bert_parts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a tokenizer.json that BertTokenizer of transformers makes."""
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": bool(config.get("tokenize_chinese_chars", True)),
            "strip_accents": config.get("strip_accents"),
            "lowercase": bool(config.get("do_lower_case", True)),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }


def class_of(config: Mapping[str, Any]) -> str:
    """Returns the class that a config names, by transformers 5's names; "" if none."""
    return str(config.get(CLASS_FIELD) or "").removesuffix("Fast")


def named(config: Mapping[str, Any], role: str) -> str:
    """Returns the name that a config has for a special token; "" for none."""
    return _content(config.get(f"{role}_token"))


def _effective(fields: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the tokenizer that transformers makes of a tokenizer.json."""
    if not isinstance(fields, dict) or not isinstance(fields.get("model"), dict):
        raise ValueError("it has no model")
    fields = {**fields, "truncation": None, "padding": None}
    model = fields["model"]
    if class_of(config) in REMADE_CLASSES:
        kind = model.get("type", "WordPiece")
        if not isinstance(model.get("vocab"), dict) or kind != "WordPiece":
            raise ValueError(
                f"{CLASS_FIELD} is {class_of(config)}, a WordPiece, and its model is "
                f"{kind}: name the class that the file was saved by"
            )
        limits = {"max_input_chars_per_word": 100, "continuing_subword_prefix": "##"}
        unknown = named(config, "unk") or wordpiece.UNK
        fields |= bert_parts(config)
        fields["model"] = {**model, "type": "WordPiece", "unk_token": unknown, **limits}
    return fields


def _library(fields: Mapping[str, Any]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(fields, ensure_ascii=False))


def _with_added(
    library: tokenizers.Tokenizer, config: Mapping[str, Any], hidden: Collection[str] = ()
) -> tokenizers.Tokenizer:
    """Returns the tokenizer with the tokens that the config adds."""
    listed = config.get(added_tokens.DECODER) or {}
    if not isinstance(listed, Mapping):
        raise ValueError(f"added_tokens_decoder is {listed!r:.60}; it must map ids to tokens")
    tokens = {int(key): token for key, token in listed.items()}
    shown = {
        token_id: f"{_HIDDEN}{token['content']}" if token["content"] in hidden else token["content"]
        for token_id, token in sorted(tokens.items())
    }
    flags = ("single_word", "lstrip", "rstrip", "special")
    library.add_tokens(
        [
            tokenizers.AddedToken(
                name,
                normalized=bool(tokens[i].get("normalized", not tokens[i].get("special"))),
                **{flag: bool(tokens[i].get(flag)) for flag in flags},
            )
            for i, name in shown.items()
        ]
    )
    for token_id, name in shown.items():
        if library.token_to_id(name) != token_id:
            raise ValueError(
                f"the added token {tokens[token_id]['content']!r:.80} has the id {token_id} in "
                f"{wordpiece.CONFIG_FILE}; by {TOKENIZER_FILE} it is {library.token_to_id(name)}"
            )
    more = [config.get(field) or () for field in added_tokens.SPECIAL_NAMES]
    for several in more:
        values = several.values() if isinstance(several, Mapping) else several
        names = [_content(value) for value in values]
        fresh = [n for n in names if n not in hidden and library.token_to_id(n) is None]
        library.add_special_tokens(fresh)
    return library


def _hiding(fields: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Returns the fields with names of special tokens that no text has, and nothing around it."""
    model, replaced = dict(fields["model"]), {name: f"{_HIDDEN}{name}" for name in names}
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, Mapping):
        model["vocab"] = {replaced.get(name, name): i for name, i in vocabulary.items()}
    else:
        model["vocab"] = [[replaced.get(name, name), score] for name, score in vocabulary]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = replaced.get(model["unk_token"], model["unk_token"])
    added = [
        {**token, "content": replaced.get(token["content"], token["content"])}
        for token in fields.get("added_tokens") or ()
    ]
    return {**fields, "model": model, "added_tokens": added, "post_processor": None}


def _entries(ids: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the entries by id; an id without one has a name that shows it."""
    entries = {token_id: entry for entry, token_id in ids.items()}
    if not entries:
        raise ValueError("it has no entries")
    if (largest := max(entries)) > (most := 2 * len(entries) + MOST_GAPS):
        raise ValueError(
            f"the entry {entries[largest]!r:.80} has the id {largest:,}; with {len(entries):,} "
            f"entries it may be at most {most:,}: fetch the file again"
        )
    return tuple(entries.get(i, f"<no entry {i}>") for i in range(largest + 1))


def _roles(
    fields: Mapping[str, Any], config: Mapping[str, Any], ids: Mapping[str, int]
) -> dict[str, int]:
    """Returns the ids of the special tokens that have a role."""
    model, roles, faults = fields["model"], {}, []
    if model.get("type") in ("WordPiece", "WordLevel") and model["unk_token"] not in model["vocab"]:
        faults.append(f"its model.unk_token {model['unk_token']!r:.80} is not among the entries")
    for role in ROLES:
        name = named(config, role) or (named(config, _AROUND[role]) if role in _AROUND else "")
        if name and name not in ids:
            faults.append(f"its {role}_token {name!r:.80} is not among the entries")
            continue
        several = (name,) if name else sentence_piece.SPECIAL_NAMES[role]
        if class_of(config) in OTHER_CLASSES:  # by RoBERTa's names, else by BERT's
            several = several[::-1]
        if role == "unk" and not name and model.get("unk_token"):
            several = (model["unk_token"], *several)
        token_id = next((ids[name] for name in several if name in ids), None)
        if token_id is None and role == "unk" and model.get("unk_id") is not None:
            token_id = int(model["unk_id"])
        if token_id is not None:
            roles[role] = token_id
        elif role in ("pad", "mask"):
            faults.append(f"it has no {role}_token: name one in {wordpiece.CONFIG_FILE}")
    if faults:
        raise ValueError("; ".join(faults))
    return roles


def _with_end(
    whole: tokenizers.Tokenizer, fields: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Returns the post_processor with eos behind texts, None unless bos alone is around them.

    Rows here end in a token; Llama 3's files have the beginning alone.
    """
    bos, eos = (named(config, role) for role in _AROUND.values())
    inside = whole.encode("a", add_special_tokens=False).tokens
    found = {name: whole.token_to_id(name) for name in (bos, eos)}
    ids = {name: token_id for name, token_id in found.items() if token_id is not None}
    if len(ids) < 2 or whole.encode("a").tokens != [bos, *inside]:
        return None
    logging.warning(
        "The tokenizer puts %r before a text and nothing after it; here %r ends it, also in the "
        "files that are written. With the files that were read, transformers' inputs lack this "
        "token, and its outputs differ",
        *(bos, eos),
    )
    made = tokenizers.Tokenizer(models.WordLevel({"": 0}, unk_token=""))
    made.post_processor = _between(ids, bos, eos, second=0)  # pyright: ignore[reportAttributeAccessIssue]
    others = _steps(fields["post_processor"], "processors")
    kept = [step for step in others if step["type"] != "TemplateProcessing"]
    template = json.loads(made.to_str())["post_processor"]
    return {"type": "Sequence", "processors": [*kept, template]}


def _around(whole: tokenizers.Tokenizer, roles: Mapping[str, int]) -> tuple[int, int, int]:
    """Returns the ids before and after a text, and the separators in a pair, 0 if unsaid."""
    text = "a"
    one = whole.encode(text)
    inside = len(whole.encode(text, add_special_tokens=False).ids)
    outside = len(one.ids) - inside
    if not outside:
        if missing := [f"{role}_token" for role in _AROUND if role not in roles]:
            raise ValueError(f"it puts nothing around a text, and has no {', '.join(missing)}")
        logging.warning(
            "The tokenizer puts nothing around a text; here %r and %r stand there, as in BERT",
            whole.id_to_token(roles["cls"]),
            whole.id_to_token(roles["sep"]),
        )
        return roles["cls"], roles["sep"], 0
    inner = whole.encode(text, add_special_tokens=False).ids
    if outside != 2 or one.ids[1:-1] != inner:
        shown = " ".join(one.tokens)[:200]
        raise ValueError(
            f"it makes {shown} of the text {text!r}; only one token before and one after a text "
            "are supported"
        )
    before, after = one.ids[0], one.ids[-1]
    pair = whole.encode(text, text).ids
    between = pair[1 + inside : len(pair) - 1 - inside]
    if pair[0] != before or pair[-1] != after or set(between) != {after}:
        logging.warning(
            "The tokenizer makes %s of a pair of texts; here %r stands between them",
            " ".join(whole.encode(text, text).tokens),
            whole.id_to_token(after),
        )
        return before, after, 1
    return before, after, len(between)


def _steps(part: Any, name: str = "normalizers") -> Iterator[Mapping[str, Any]]:
    """Yields the steps of a part, also inside sequences, which list them by `name`."""
    if not isinstance(part, Mapping):
        return
    if part.get("type") != "Sequence":
        yield part
    for step in part.get(name) or ():
        yield from _steps(step, name)


def _content(token: Any) -> str:
    """Returns the name of a special token: a string, or an object with it; "" for none."""
    return str(token.get("content") or "") if isinstance(token, Mapping) else str(token or "")
