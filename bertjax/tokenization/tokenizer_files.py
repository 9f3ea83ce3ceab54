"""Which tokenizer the files of a directory are, where several say it: as transformers 5 decides.

A tokenizer.json is read by the library that defines it, unless one of our kinds, which are faster
and know their rules, has all of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from absl import logging
from etils import epath

from bertjax.files import json_text, opening
from bertjax.tokenization import (
    added_tokens,
    byte_bpe,
    japanese,
    letters,
    library_tokenizer,
    sentence_piece,
    spelled_rules,
    token_ids,
    wordpiece,
)

MODEL_CONFIG_FILE = "config.json"
# Source: transformers 5.24, MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS.
CLASS_DOES_NOT_COUNT = ("modernbert",)
# The class of a model's tokenizer where no file names one, as transformers' AutoTokenizer has it.
CLASSES = {
    "esm": letters.CLASS,
    "deberta-v2": library_tokenizer.DEBERTA_CLASS,
    "mpnet": library_tokenizer.MPNET_CLASS,
}


def settings(directory: epath.Path) -> dict[str, Any]:
    """Returns what tokenizer_config.json, special_tokens_map.json and config.json say."""
    config = _object(directory / wordpiece.CONFIG_FILE)
    if added_tokens.DECODER not in config:
        config |= _object(directory / added_tokens.SPECIAL_TOKENS_FILE)
    model = _object(directory / MODEL_CONFIG_FILE)
    if model.get("model_type") in CLASS_DOES_NOT_COUNT:
        return config | {library_tokenizer.CLASS_FIELD: token_ids.LIBRARY_CLASS}
    field = library_tokenizer.CLASS_FIELD
    named = config.get(field) or model.get(field) or CLASSES.get(str(model.get("model_type")))
    name = library_tokenizer.class_of({field: named})
    if name and name not in library_tokenizer.READ_CLASSES:
        raise ValueError(
            f"{directory} has a tokenizer of the class {name}, whose rules are not known here; "
            f"known are {', '.join(library_tokenizer.READ_CLASSES)}. If its vocabulary is one of "
            f"theirs after all, name that class in {wordpiece.CONFIG_FILE}"
        )
    if "auto_map" in config:
        logging.warning(
            "%s names code of its own (auto_map), which is never run",
            directory / wordpiece.CONFIG_FILE,
        )
    given = {key: value for key, value in config.items() if value is not None}
    config = {**config, **library_tokenizer.NAMES.get(name, {}), **given}
    return config | {field: named} if named else config


def of_tokenizer_json(
    path: epath.Path,
    config: Mapping[str, Any],
    *,
    entries_file: epath.Path | None,
    lowercase: bool | None = None,
) -> token_ids.Tokenizer | None:
    """Returns the tokenizer of a tokenizer.json; None if `entries_file` has the same."""
    content = opening.read_tokenizer(path)
    fields = json_text.loads(content)
    if not isinstance(fields, dict) or not isinstance(fields.get("model"), dict):
        if entries_file is not None:
            return None
        raise ValueError("it has no model")
    kind = _model_type(fields["model"])
    if (
        entries_file is not None
        and entries_file.name in _FILES.get(kind, ())
        and _IS_SAME[kind](entries_file, fields, config)
    ):
        return None
    ours = _OWN[kind](path, fields, config) if kind in _OWN else None
    if ours is not None and lowercase in (None, ours.lowercase):
        return ours
    return library_tokenizer.LibraryTokenizer(content, _resolved(path, fields, config, lowercase))


def of_entries(
    path: epath.Path, config: Mapping[str, Any], *, lowercase: bool | None = None
) -> token_ids.Tokenizer | None:
    """Returns the tokenizer of a vocab.txt or vocab.json of another kind than ours, else None."""
    if path.name == wordpiece.VOCABULARY_FILE:
        entries = wordpiece.lines(opening.read_tokenizer(path))
        if library_tokenizer.class_of(config) == japanese.CLASS:
            return library_tokenizer.of_japanese(entries, config)
        if library_tokenizer.class_of(config) == letters.CLASS:
            return library_tokenizer.of_letters(entries, config)
        is_ours = _has_berts_names(config) and config.get("tokenize_chinese_chars", True)
        if is_ours or library_tokenizer.class_of(config) in library_tokenizer.OTHER_CLASSES:
            return None
        casing = {} if lowercase is None else {"do_lower_case": lowercase}
        return library_tokenizer.of_vocabulary(entries, {**config, **casing})
    merges_file = path.parent / byte_bpe.MERGES_FILE
    if path.name != byte_bpe.ENTRIES_FILE or not merges_file.exists():
        return None
    merges = byte_bpe.merges_of(byte_bpe.lines(opening.read_tokenizer(merges_file)))
    ends = any(second.endswith(library_tokenizer.WORD_END) for _, second in merges)
    if not ends and library_tokenizer.class_of(config) != library_tokenizer.HERBERT_CLASS:
        return None
    ids = json_text.read_object(path)
    return library_tokenizer.of_word_ends(ids, merges, config)


def _wordpiece(
    path: epath.Path, fields: Mapping[str, Any], config: Mapping[str, Any]
) -> token_ids.Tokenizer | None:
    """Returns our tokenizer of a WordPiece with the rules that we write, else None."""
    rules = spelled_rules.wordpiece_rules(fields) if _has_berts_names(config) else None
    if rules is None:
        return None
    ids, added = dict(fields["model"]["vocab"]), _ids_of_added(fields)
    ids |= {name: added[name] for name in wordpiece.SPECIALS if name in added}
    ours = wordpiece.WordPieceTokenizer(byte_bpe.entries(ids), **rules)
    return _with_added(ours, path.parent)


def _is_same_wordpiece(
    entries_file: epath.Path, fields: Mapping[str, Any], config: Mapping[str, Any]
) -> bool:
    """Returns whether a vocab.txt and its settings make the tokenizer of a tokenizer.json."""
    ids = {**fields["model"]["vocab"], **_ids_of_added(fields)}
    if library_tokenizer.class_of(config) == japanese.CLASS:
        return False
    if not _has_berts_names(config) or not _are_entries(
        wordpiece.lines(opening.read_tokenizer(entries_file)), ids
    ):
        return False
    if library_tokenizer.class_of(config) in library_tokenizer.BERT_CLASSES:
        _warn_of_other_parts(entries_file.parent / library_tokenizer.TOKENIZER_FILE, fields, config)
        return True
    if spelled_rules.wordpiece_rules(fields) is not None:
        return True
    of_config = _flags(library_tokenizer.bert_parts(config)["normalizer"])
    is_named = library_tokenizer.class_of(config) != ""
    has_flags = not is_named or _flags(fields.get("normalizer")) == of_config
    return has_flags and not other_parts(fields, config)


def _byte_bpe(
    path: epath.Path, fields: Mapping[str, Any], config: Mapping[str, Any]
) -> token_ids.Tokenizer | None:
    """Returns our tokenizer of a byte-level BPE with RoBERTa's rules, else None."""
    try:
        ours = byte_bpe.of_fields(fields)
        around = _around_names(fields.get("post_processor"))
        if around not in (None, (ours.token(ours.cls_id), ours.token(ours.sep_id))):
            return None
        named = (library_tokenizer.named(config, role) for role in library_tokenizer.ROLES)
        pairs = zip(named, ours.special_ids, strict=True)
        if any(name not in ("", ours.token(token_id)) for name, token_id in pairs):
            return None
        return _with_added(ours, path.parent)
    except ValueError:  # ids with gaps, other rules: the library reads them
        return None


def _is_same_unigram(
    entries_file: epath.Path, fields: Mapping[str, Any], config: Mapping[str, Any]
) -> bool:
    """Returns that a sentencepiece model counts, which the pretraining has seen."""
    if library_tokenizer.class_of(config) == library_tokenizer.DEBERTA_CLASS:
        logging.warning(
            "%s counts, which the pretraining has seen, and not %s, by which transformers 5 reads "
            "ligatures and some spaces otherwise. If the model was finetuned by transformers, "
            "remove %s",
            entries_file, library_tokenizer.TOKENIZER_FILE, entries_file.name,
        )  # fmt: skip
    return True


# model.type of a tokenizer.json -> our tokenizer of it, the files of the same vocabulary, if any,
# and whether one holds it.
_OWN = {"WordPiece": _wordpiece, "BPE": _byte_bpe}
_FILES = {
    "WordPiece": (wordpiece.VOCABULARY_FILE,),
    "BPE": (byte_bpe.ENTRIES_FILE,),
    "Unigram": (sentence_piece.MODEL_FILE, sentence_piece.MASKLESS_FILE),
}
_IS_SAME = {
    "WordPiece": _is_same_wordpiece,
    "BPE": lambda entries_file, fields, config: _byte_bpe(entries_file, fields, config) is not None,
    "Unigram": _is_same_unigram,
}


def other_parts(fields: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Returns the parts of a tokenizer.json that are not BERT's; letter case and accents may be."""
    normalizer, model = fields.get("normalizer") or {}, fields["model"]
    around = _around_names(fields.get("post_processor"))
    unk, cls, sep = (
        library_tokenizer.named(config, role) or name
        for role, name in zip(("unk", "cls", "sep"), wordpiece.SPECIALS[1:4], strict=True)
    )
    wanted = [
        ("normalizer.type", normalizer.get("type"), ("BertNormalizer",)),
        ("normalizer.clean_text", normalizer.get("clean_text", True), (True,)),
        ("normalizer.handle_chinese_chars", normalizer.get("handle_chinese_chars", True), (True,)),
        ("pre_tokenizer", fields.get("pre_tokenizer"), ({"type": "BertPreTokenizer"},)),
        ("post_processor", around, (None, (cls, sep))),
        ("model.unk_token", model.get("unk_token", unk), (unk,)),
        ("model.continuing_subword_prefix", model.get("continuing_subword_prefix"), ("##", None)),
        ("model.max_input_chars_per_word", model.get("max_input_chars_per_word"), (100, 200, None)),
    ]
    return [f"{name} {got!r:.80}" for name, got, values in wanted if got not in values]


def _warn_of_other_parts(
    path: epath.Path, fields: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    if parts := other_parts(fields, config):
        logging.warning(
            "%s has %s; the class %s, which %s names, makes BERT's own rules all the same, here as "
            "in transformers 5. If the model was trained with the file's rules, name %s there",
            path, "; ".join(parts), library_tokenizer.class_of(config), wordpiece.CONFIG_FILE,
            token_ids.LIBRARY_CLASS,
        )  # fmt: skip


def _resolved(
    path: epath.Path,
    fields: Mapping[str, Any],
    config: Mapping[str, Any],
    lowercase: bool | None,
) -> dict[str, Any]:
    """Returns the config with the class that decides, and the tokens of added_tokens.json."""
    given = dict(config)
    name, normalizer = library_tokenizer.class_of(config), fields.get("normalizer") or {}
    of_file = _flags(normalizer)
    if lowercase is not None and of_file is None:
        raise ValueError(
            "its normalizer is not BERT's, so that its letter case stands in it: leave out "
            "--do_lower_case"
        )
    if lowercase is not None and of_file is not None and lowercase != of_file[0]:
        given["do_lower_case"] = lowercase
        name = name if name in library_tokenizer.BERT_CLASSES else ""
    if not name:
        of_normalizer = {"do_lower_case": normalizer.get("lowercase", True)}
        of_config = {flag: given[flag] for flag in library_tokenizer.BERT_FLAGS if flag in given}
        flags = _flags(library_tokenizer.bert_parts(of_normalizer | of_config)["normalizer"])
        is_as_is = not of_config or other_parts(fields, config) or flags == of_file
        name = token_ids.LIBRARY_CLASS if is_as_is else library_tokenizer.BERT_CLASSES[0]
        given[library_tokenizer.CLASS_FIELD] = name
        if _model_type(fields["model"]) == "WordPiece" and (parts := other_parts(fields, config)):
            logging.warning(
                "%s is read as it stands, with %s. No file names a tokenizer_class: of weights of "
                "BERT transformers 5 makes BERT's own rules then; name %s in %s to be sure",
                path, "; ".join(parts), token_ids.LIBRARY_CLASS, wordpiece.CONFIG_FILE,
            )  # fmt: skip
    if name in library_tokenizer.BERT_CLASSES:
        _warn_of_other_parts(path, fields, given)
    legacy = _object(path.parent / added_tokens.LEGACY_FILE)
    present = _ids_of_added(fields)
    if added_tokens.DECODER not in given and not legacy.items() <= present.items():
        names = {library_tokenizer.named(given, role) for role in library_tokenizer.ROLES}
        given[added_tokens.DECODER] = {
            str(token_id): {"content": it, "normalized": it not in names, "special": it in names}
            for it, token_id in legacy.items()
        }
    return given


def _with_added(ours: token_ids.Tokenizer, directory: epath.Path) -> token_ids.Tokenizer:
    return added_tokens.attach(ours, added_tokens.read_added_tokens(directory, ours))


def _object(path: epath.Path) -> dict[str, Any]:
    return json_text.read_object(path) if path.exists() else {}


def _model_type(model: Mapping[str, Any]) -> str:
    """Returns the type of a tokenizer.json's model, which old files do not name."""
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return model.get("type") or ("BPE" if "merges" in model else "WordPiece")


def _ids_of_added(fields: Mapping[str, Any]) -> dict[str, int]:
    return {token["content"]: int(token["id"]) for token in fields.get("added_tokens") or ()}


def _are_entries(lines: list[str], ids: Mapping[str, int]) -> bool:
    """Returns whether a vocab.txt holds the entries of a tokenizer.json, added tokens aside."""
    of_lines = {entry: token_id for token_id, entry in enumerate(lines)}
    rest = {entry: token_id for entry, token_id in ids.items() if entry not in of_lines}
    same = all(ids.get(entry) == token_id for entry, token_id in of_lines.items())
    return same and all(token_id >= len(lines) for token_id in rest.values())


def _has_berts_names(config: Mapping[str, Any]) -> bool:
    names = dict(zip(library_tokenizer.ROLES, wordpiece.SPECIALS, strict=True))
    return all(library_tokenizer.named(config, role) in ("", name) for role, name in names.items())


def _flags(normalizer: Any) -> tuple[bool, bool] | None:
    """Returns what a BertNormalizer does to case and accents; None for any other."""
    if not isinstance(normalizer, Mapping) or normalizer.get("type") != "BertNormalizer":
        return None
    lowercase, strips = bool(normalizer.get("lowercase", True)), normalizer.get("strip_accents")
    return lowercase, lowercase if strips is None else bool(strips)


def _around_names(processor: Any) -> tuple[str, str] | None:
    """Returns the names of the tokens around a text; None without a processor that says it."""
    if not isinstance(processor, Mapping):
        return None
    if steps := processor.get("processors"):
        return next((names for step in steps if (names := _around_names(step))), None)
    if "cls" in processor and "sep" in processor:
        return processor["cls"][0], processor["sep"][0]
    if "single" not in processor:
        return None
    names = [next(iter(item.values()))["id"] for item in processor["single"]]
    is_usual = len(names) == 3 and "Sequence" in processor["single"][1]
    return (names[0], names[2]) if is_usual else ("", " ".join(names))
