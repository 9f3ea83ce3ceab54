"""The files by which sentence-transformers knows how a model of transformers makes vectors.

    modules.json                        which modules follow each other, and where their files are
    0_Transformer/                      older ones: the files of transformers, else in the directory
    1_Pooling/config.json               how the tokens' states become one vector
    2_Normalize/                        vectors have length 1
    config_sentence_transformers.json   prompts, and how vectors are compared
    sentence_bert_config.json           the longest input

The dialect that is written is that of version 2 to 5, which version 6, text-embeddings-inference
and vLLM read as well; both are read. Version 6 keeps the longest input in tokenizer_config.json, as
`model_max_length`, so it is written there too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from bertjax.data import foreign_files, json_text
from bertjax.models import sentence_vectors

MODULES_FILE = "modules.json"
CONFIG_FILE = "config_sentence_transformers.json"
CONFIG_FIELDS = {
    *("model_type", "__version__", "prompts", "default_prompt_name", "similarity_fn_name"),
    "truncate_dim",
}
LENGTH_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
POOLING_DIRECTORY, NORMALIZE_DIRECTORY = "1_Pooling", "2_Normalize"

# Where transformers knows no longest input, it writes a number like 1e30.
NO_LENGTH = 10**9

# Ours -> the key that is true in a pooling's config, and its name in version 6.
MODES = {
    "cls": ("pooling_mode_cls_token", "cls"),
    "mean": ("pooling_mode_mean_tokens", "mean"),
    "max": ("pooling_mode_max_tokens", "max"),
    "weighted": ("pooling_mode_weightedmean_tokens", "weightedmean"),
    "last": ("pooling_mode_lasttoken", "lasttoken"),
}
# Theirs without a counterpart here; the file has a key for it all the same.
ROOT_OF_LENGTH = "pooling_mode_mean_sqrt_len_tokens"

# The fields that version 6 writes for an ordinary text model.
USUAL_LENGTH_FIELDS = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}


def is_there(directory: epath.PathLike, architectures: Sequence[str] = ()) -> bool:
    """Returns whether the directory is a model for vectors of sentence-transformers.

    A Transformer alone with a class for sequences among `architectures` is a CrossEncoder.

    Raises:
      ValueError: if modules.json is not a list of modules, where that decides it.
    """
    path = epath.Path(directory) / MODULES_FILE
    if not path.exists():
        return False
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        return True
    return [kind for kind, _ in _listed(path)] != ["Transformer"]


def activation(directory: epath.PathLike) -> str | None:
    """Returns the activation_fn that a CrossEncoder's directory names, None if it names none."""
    return _optional(epath.Path(directory) / CONFIG_FILE).get("activation_fn")


def of_transformer(directory: epath.PathLike) -> epath.Path:
    """Returns where a directory has its weights: in older ones a directory of its own.

    Raises:
      ValueError: if modules.json is not a list of modules.
    """
    directory = epath.Path(directory)
    if not is_there(directory):
        return directory
    places = dict(_listed(directory / MODULES_FILE))
    return directory / places["Transformer"] if places.get("Transformer") else directory


def read(directory: epath.PathLike, *, is_lowercase: bool) -> sentence_vectors.SentenceVectors:
    """Returns how the model of a directory makes its vectors.

    `is_lowercase` says whether its tokenizer makes all letters small.

    Raises:
      FileNotFoundError: if the file of a module is missing.
      ValueError: naming the file, for modules or choices that are not supported.
    """
    directory = epath.Path(directory)
    modules = _modules(directory / MODULES_FILE)
    pooling = "cls"
    for kind, place in modules.items():
        if kind == "Pooling":
            pooling = _pooling(directory / place / "config.json")
        if kind == "Normalize":  # the vector of the sentence, which alone is supported
            path, usual = directory / place / "config.json", "sentence_embedding"
            config = _optional(path)
            for name in ("module_input_name", "module_output_name"):
                if (config.get(name) or usual) != usual:
                    raise ValueError(f"{path} has {name} {config[name]!r}; supported is {usual!r}")
    max_seq_length = _max_seq_length(of_transformer(directory), is_lowercase=is_lowercase)
    config = _optional(directory / CONFIG_FILE)
    if unknown := ", ".join(sorted(set(config) - CONFIG_FIELDS)):
        logging.warning(
            "%s has fields that are not known here: %s", directory / CONFIG_FILE, unknown
        )
    try:
        prompts, default_prompt, truncate_dim = _choices(config)
        return sentence_vectors.SentenceVectors(
            pooling=pooling,
            normalize="Normalize" in modules,
            prompts=prompts,
            default_prompt=default_prompt,
            max_seq_length=max_seq_length,
            similarity=config.get("similarity_fn_name") or "cosine",
            truncate_dim=truncate_dim,
        )
    except ValueError as error:
        raise ValueError(f"{directory / CONFIG_FILE}: {error}") from error


def _choices(config: Mapping[str, Any]) -> tuple[Mapping[str, str], str, int]:
    """Returns the prompts of a config, the name of the default one, and `truncate_dim`."""
    truncate_dim, prompts, default_prompt = (
        usual if (value := config.get(name)) is None else value
        for name, usual in (("truncate_dim", 0), ("prompts", {}), ("default_prompt_name", ""))
    )
    if type(truncate_dim) is not int or truncate_dim < 0:  # true is an int for isinstance
        raise ValueError(f"truncate_dim is {truncate_dim!r:.60}; it must be a whole number")
    if not isinstance(prompts, Mapping):
        raise ValueError(f"prompts is {prompts!r:.60}; it must map names to texts")
    for name, prompt in prompts.items():
        if not isinstance(prompt, str):
            raise ValueError(f"the prompt {name!r} is not a string")
    if not isinstance(default_prompt, str):
        raise ValueError(f"default_prompt_name is {default_prompt!r:.60}; it must be a string")
    return prompts, default_prompt, truncate_dim


def write(
    vectors: sentence_vectors.SentenceVectors,
    directory: epath.PathLike,
    *,
    size: int,
    longest: int,
    lacks_pooler: bool = False,
) -> None:
    """Writes the files in addition to those of transformers.

    `size` is that of the vectors, `longest` what the model reads at most. `lacks_pooler` says that
    the class would make a pooler, which nothing here reads, and warn that it has no weights.
    """
    directory = epath.Path(directory)
    length = min(vectors.max_seq_length or longest, longest)
    places = {"Transformer": "", "Pooling": POOLING_DIRECTORY}
    if vectors.normalize:
        places["Normalize"] = NORMALIZE_DIRECTORY
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(places.items())
    ]
    pooling = {"word_embedding_dimension": size, "include_prompt": True, ROOT_OF_LENGTH: False}
    pooling |= {key: name == vectors.pooling for name, (key, _) in MODES.items()}
    config = {
        "model_type": "SentenceTransformer",
        # The oldest that has all of these fields; a newer one than the reader's is warned of.
        "__version__": {"sentence_transformers": "3.0.0"},
        # Version 6 has an empty prompt for each role that is not there, whatever other names are.
        "prompts": {
            **vectors.prompts,
            **{role: vectors.prompt(role) for role in sentence_vectors.PROMPT_NAMES},
        }
        if vectors.prompts
        else {},
        "default_prompt_name": vectors.default_prompt or None,
        "similarity_fn_name": vectors.similarity,
    }
    if vectors.truncate_dim:
        config["truncate_dim"] = vectors.truncate_dim
    of_transformer: dict[str, Any] = {"max_seq_length": length, "do_lower_case": False}
    if lacks_pooler:
        of_transformer["model_args"] = {"add_pooling_layer": False}
    files: dict[str, Any] = {
        MODULES_FILE: modules,
        f"{POOLING_DIRECTORY}/config.json": pooling,
        CONFIG_FILE: config,
        LENGTH_FILES[0]: of_transformer,
    }
    if vectors.normalize:
        files[f"{NORMALIZE_DIRECTORY}/config.json"] = {}
    tokenizer_config = directory / TOKENIZER_CONFIG_FILE
    if tokenizer_config.exists():
        fields = json_text.read_object(tokenizer_config)
        files[TOKENIZER_CONFIG_FILE] = fields | {"model_max_length": length}
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _listed(path: epath.Path) -> list[tuple[str, str]]:
    """Returns the kind and the directory of each module, in their order."""
    try:
        listed = json_text.loads(foreign_files.read(path))
        listed = sorted(listed, key=lambda module: module["idx"])
        modules = [(module["type"].rpartition(".")[2], module["path"]) for module in listed]
        is_plain = all(".." not in it and not it.startswith("/") for _, it in modules)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a list of modules ({error!r}); fetch it again, or remove it to read "
            "the weights alone"
        ) from error
    if not is_plain:
        raise ValueError(f"{path} names directories outside of its own; fetch it again")
    return modules


def _modules(path: epath.Path) -> dict[str, str]:
    """Returns the kinds of modules in their order, and the directory of each."""
    listed = _listed(path)
    modules = dict(listed)
    supported = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
    if [*modules] not in supported or len(modules) != len(listed):
        kinds = ", ".join(kind for kind, _ in listed)
        raise ValueError(
            f"{path} has the modules {kinds}; supported is a Transformer with a Pooling and "
            "perhaps a Normalize: vectors of other modules, such as Dense, would not be the model's"
        )
    return modules


def _pooling(path: epath.Path) -> str:
    """Returns our name of a pooling."""
    config = json_text.read_object(path)
    by_theirs = {theirs: ours for ours, (_, theirs) in MODES.items()}
    by_key = {key: theirs for key, theirs in MODES.values()} | {ROOT_OF_LENGTH: ROOT_OF_LENGTH}
    modes_read = config.get("pooling_mode")
    if modes_read is None:
        modes = [key for key in config if key.startswith("pooling_mode_") and config[key] is True]
        modes_read = [by_key.get(key, key) for key in modes] or ["mean"]
    modes_read = modes_read if isinstance(modes_read, list) else [modes_read]
    if len(modes_read) != 1 or modes_read[0] not in [*by_theirs]:  # perhaps not hashable
        raise ValueError(
            f"{path} has the pooling {' with '.join(map(str, modes_read))}; supported is one of "
            f"{', '.join(by_theirs)}"
        )
    if config.get("include_prompt", True) is False:
        raise ValueError(
            f"{path} has include_prompt false: tokens of the prompt are left out of the pooling, "
            "which is not supported"
        )
    return by_theirs[modes_read[0]]


def _max_seq_length(directory: epath.Path, *, is_lowercase: bool) -> int:
    """Returns the longest input in tokens, 0 where no file tells it."""
    for name in LENGTH_FILES:
        path = directory / name
        if not path.exists():
            continue
        config = json_text.read_object(path)
        if config.get("do_lower_case") and not is_lowercase:
            raise ValueError(
                f"{path} has do_lower_case true, and the tokenizer is cased; make the texts "
                "lowercase yourself and set it to false"
            )
        for field, usual in USUAL_LENGTH_FIELDS.items():
            if config.get(field, usual) != usual:
                raise ValueError(f"{path} has {field} {config[field]!r}; supported is {usual!r}")
        if length := _length(config, "max_seq_length", path):
            return length
    path = directory / TOKENIZER_CONFIG_FILE
    length = _length(_optional(path), "model_max_length", path)
    return length if length < NO_LENGTH else 0


def _length(config: Mapping[str, Any], name: str, path: epath.Path) -> int:
    value = config.get(name) or 0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise ValueError(f"{path}: {name} is {value!r:.60}; it must be a number of tokens")
    return int(value)


def _optional(path: epath.Path) -> Mapping[str, Any]:
    return json_text.read_object(path) if path.exists() else {}


def described(vectors: sentence_vectors.SentenceVectors, size: int) -> list[tuple[str, str]]:
    """Returns what a model card tells of the vectors: name and value."""
    rows = [
        ("size of a vector", str(size)),
        ("pooling", vectors.pooling),
        ("normalized", "yes" if vectors.normalize else "no"),
        ("compared by", vectors.similarity),
    ]
    if vectors.matryoshka_dims:
        dims = ", ".join(str(each) for each in vectors.matryoshka_dims)
        rows.append(("trained to be cut to", f"{dims} numbers"))
    rows += [(f"prompt `{name}`", f"`{text}`") for name, text in vectors.prompts.items() if text]
    return rows
