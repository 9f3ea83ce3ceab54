"""The files in which sentence-transformers describes how a model makes vectors.

    modules.json                        which modules follow each other, and where their files are
    0_Transformer/                      older ones: the files of transformers, else in the directory
    1_Pooling/config.json               how the tokens' states become one vector
    2_Dense/                            a dense layer: config.json and weights; there may be several
    3_Normalize/                        vectors have length 1
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

from bertjax.convert import heads
from bertjax.files import json_text, opening
from bertjax.models import sentence_vectors
from bertjax.options import faults, schema

MODULES_FILE = "modules.json"
CONFIG_FILE = "config_sentence_transformers.json"
CONFIG_FIELDS = {
    *("model_type", "__version__", "prompts", "default_prompt_name", "similarity_fn_name"),
    "truncate_dim",
}
CHOICES = {"truncate_dim": schema.Whole(0), "prompts": {"*": str}, "default_prompt_name": str}
LENGTH_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
POOLING_DIRECTORY = "1_Pooling"

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
# Ours -> the class of torch, which is made without arguments.
ACTIVATIONS = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "silu": "torch.nn.modules.activation.SiLU",
}
VECTOR = "sentence_embedding"  # the only input and output of a module that is supported
# Field of a dense layer's config -> what it is where it is not there.
DENSE_FIELDS = {
    "in_features": None,
    "out_features": None,
    "bias": True,
    "activation_function": ACTIVATIONS["tanh"],
    "module_input_name": VECTOR,
    "module_output_name": VECTOR,
    "use_residual": False,
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
    """Returns whether the directory is a SentenceTransformer, a model for vectors.

    A Transformer alone with a class for sequences among `architectures` is a CrossEncoder.
    """
    path = epath.Path(directory) / MODULES_FILE
    if not path.exists():
        return False
    if not any(
        name.endswith(heads.HEADS["sequence_classification"].class_name) for name in architectures
    ):
        return True
    return [kind for kind, _ in _listed(path)] != ["Transformer"]


def activation(directory: epath.PathLike) -> str | None:
    """Returns the activation_fn that a CrossEncoder's directory names, None if it names none."""
    return _optional(epath.Path(directory) / CONFIG_FILE).get("activation_fn")


def of_transformer(directory: epath.PathLike) -> epath.Path:
    """Returns the directory of the weights, a subdirectory in older models."""
    directory = epath.Path(directory)
    if not is_there(directory):
        return directory
    places = dict(_listed(directory / MODULES_FILE))
    return directory / places["Transformer"] if places.get("Transformer") else directory


def read(
    directory: epath.PathLike, *, hidden_size: int, is_lowercase: bool
) -> sentence_vectors.SentenceVectors:
    """Returns the sentence vectors of the model in a directory.

    `hidden_size` is its encoder's; `is_lowercase`: its tokenizer makes all letters small.
    """
    directory = epath.Path(directory)
    modules = _modules(directory / MODULES_FILE)
    pooling, size, projections = "cls", hidden_size, []
    for kind, place in modules:
        path = directory / place / "config.json"
        if kind == "Pooling":
            pooling = _pooling(path)
        elif kind == "Dense":
            projections.append(_projection(path, size))
            size = projections[-1].size
        elif kind == "Normalize":
            faults.check(f"{path} is not supported", _name_faults(_optional(path)))
    max_seq_length = _max_seq_length(of_transformer(directory), is_lowercase=is_lowercase)
    config = _optional(directory / CONFIG_FILE)
    if unknown := ", ".join(sorted(set(config) - CONFIG_FIELDS)):
        logging.warning("%s has unknown fields: %s", directory / CONFIG_FILE, unknown)
    try:
        prompts, default_prompt, truncate_dim = _choices(config)
        return sentence_vectors.SentenceVectors(
            pooling=pooling,
            normalize=modules[-1][0] == "Normalize",
            prompts=prompts,
            default_prompt=default_prompt,
            max_seq_length=max_seq_length,
            similarity=config.get("similarity_fn_name") or "cosine",
            truncate_dim=truncate_dim,
            projections=tuple(projections),
        )
    except ValueError as error:
        raise ValueError(f"{directory / CONFIG_FILE}: {error}") from error


def dense_directories(directory: epath.PathLike) -> list[epath.Path]:
    """Returns the directories of the dense layers' weights, in their order."""
    directory = epath.Path(directory)
    modules = _modules(directory / MODULES_FILE)
    return [directory / place for kind, place in modules if kind == "Dense"]


def _choices(config: Mapping[str, Any]) -> tuple[Mapping[str, str], str, int]:
    """Returns the prompts of a config, the name of the default one, and `truncate_dim`."""
    given = {name: value for name, value in config.items() if value is not None}
    for misfit in schema.faults(given, CHOICES, ""):
        raise misfit
    return (
        given.get("prompts", {}),
        given.get("default_prompt_name", ""),
        given.get("truncate_dim", 0),
    )


def write(
    vectors: sentence_vectors.SentenceVectors,
    directory: epath.PathLike,
    *,
    size: int,
    longest: int,
    lacks_pooler: bool = False,
) -> None:
    """Writes the files in addition to those of transformers.

    `size` is the size of the encoder's states, `longest` the most tokens that the model reads. With
    `lacks_pooler` the class makes no pooler, for which there are no weights. The weights
    of dense layers belong into `dense_directories`.
    """
    directory = epath.Path(directory)
    length = min(vectors.max_seq_length or longest, longest)
    kinds = ["Transformer", "Pooling", *["Dense"] * len(vectors.projections)]
    kinds += ["Normalize"] * vectors.normalize
    places = ["", *(f"{n}_{kind}" for n, kind in enumerate(kinds) if n)]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, places, strict=True))
    ]
    pooling = {"word_embedding_dimension": size, "include_prompt": True, ROOT_OF_LENGTH: False}
    pooling |= {key: name == vectors.pooling for name, (key, _) in MODES.items()}
    of_transformer: dict[str, Any] = {"max_seq_length": length, "do_lower_case": False}
    if lacks_pooler:
        of_transformer["model_args"] = {"add_pooling_layer": False}
    files: dict[str, Any] = {
        MODULES_FILE: modules,
        f"{POOLING_DIRECTORY}/config.json": pooling,
        CONFIG_FILE: _config(vectors),
        LENGTH_FILES[0]: of_transformer,
    }
    for place, projection in zip(places[2:], vectors.projections, strict=False):
        files[f"{place}/config.json"] = _dense_config(projection, size)
        size = projection.size
    if vectors.normalize:
        files[f"{places[-1]}/config.json"] = {}
    tokenizer_config = directory / TOKENIZER_CONFIG_FILE
    if tokenizer_config.exists():
        fields = json_text.read_object(tokenizer_config)
        files[TOKENIZER_CONFIG_FILE] = fields | {"model_max_length": length}
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _config(vectors: sentence_vectors.SentenceVectors) -> dict[str, Any]:
    """Returns the fields of the whole model's file: prompts, similarity, `truncate_dim`."""
    # Version 6 has an empty prompt for each role that is not there, whatever other names are.
    of_roles = {role: vectors.prompt(role) for role in sentence_vectors.PROMPT_NAMES}
    config = {
        "model_type": "SentenceTransformer",
        # The oldest that has all of these fields; a newer one than the reader's is warned of.
        "__version__": {"sentence_transformers": "3.0.0"},
        "prompts": {**vectors.prompts, **of_roles} if vectors.prompts else {},
        "default_prompt_name": vectors.default_prompt or None,
        "similarity_fn_name": vectors.similarity,
    }
    return config | ({"truncate_dim": vectors.truncate_dim} if vectors.truncate_dim else {})


def _listed(path: epath.Path) -> list[tuple[str, str]]:
    """Returns the kind and the directory of each listed module."""
    try:
        listed = json_text.loads(opening.read(path))
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


def _modules(path: epath.Path) -> list[tuple[str, str]]:
    """Returns the kind and the directory of each module, if their order is supported."""
    modules = _listed(path)
    kinds = [kind for kind, _ in modules]
    order = ["Transformer", "Pooling", *["Dense"] * kinds.count("Dense")]
    if kinds not in (order, [*order, "Normalize"]):
        raise ValueError(
            f"{path} has the modules {', '.join(kinds)}; supported are a Transformer, a Pooling, "
            "any Dense and perhaps a Normalize, in this order: vectors without the others would "
            "not be the model's"
        )
    return modules


def _projection(path: epath.Path, in_size: int) -> sentence_vectors.Projection:
    """Returns the dense layer of a config with inputs of `in_size` numbers."""
    config = {**DENSE_FIELDS, **json_text.read_object(path)}
    if unknown := ", ".join(sorted(set(config) - set(DENSE_FIELDS))):
        logging.warning("%s has unknown fields: %s", path, unknown)
    size, most = config["out_features"], sentence_vectors.LARGEST_SIZE
    # torch.nn.Tanh is torch.nn.modules.activation.Tanh.
    by_name = {name.rpartition(".")[2]: ours for ours, name in ACTIVATIONS.items()}
    package, _, name = str(config["activation_function"]).rpartition(".")
    is_known = f"{package}.".startswith("torch.nn.") and name in by_name
    rules = {
        "in_features": (config["in_features"] == in_size, f"{in_size}, the size of what it reads"),
        "out_features": (type(size) is int and 1 <= size <= most, f"from 1 to {most:,}"),
        "bias": (type(config["bias"]) is bool, "true or false"),
        "use_residual": (config["use_residual"] is False, "false"),
        "activation_function": (is_known, f"torch.nn.{', torch.nn.'.join(by_name)}"),
    }
    misfits = [
        faults.wrong(field, config[field], rule)
        for field, (is_kept, rule) in rules.items()
        if not is_kept
    ]
    faults.check(f"{path} is not supported", [*misfits, *_name_faults(config)])
    return sentence_vectors.Projection(size, by_name[name], config["bias"])


def _dense_config(projection: sentence_vectors.Projection, in_size: int) -> Mapping[str, Any]:
    """Returns a config without the fields of version 5, which earlier ones do not take."""
    return {
        "in_features": in_size,
        "out_features": projection.size,
        "bias": projection.use_bias,
        "activation_function": ACTIVATIONS[projection.activation],
    }


def _name_faults(config: Mapping[str, Any]) -> list[ValueError]:
    """Returns the faults of a module that reads or makes something else than vectors."""
    names = ("module_input_name", "module_output_name")
    return [
        faults.wrong(name, config[name], repr(VECTOR))
        for name in names
        if (config.get(name) or VECTOR) != VECTOR
    ]


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
    """Returns the longest input in tokens, 0 if no file has it."""
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
        raise faults.wrong(f"{path}: {name}", value, "a number of tokens")
    return int(value)


def _optional(path: epath.Path) -> Mapping[str, Any]:
    return json_text.read_object(path) if path.exists() else {}


def described(vectors: sentence_vectors.SentenceVectors, size: int) -> list[tuple[str, str]]:
    """Returns the properties of the vectors for a model card; `size` is of the encoder's states."""
    rows = [
        ("size of a vector", str(sentence_vectors.size_of(vectors.projections, size))),
        ("pooling", vectors.pooling),
        *(("dense layer", f"{it.size} numbers, {it.activation}") for it in vectors.projections),
        ("normalized", "yes" if vectors.normalize else "no"),
        ("compared by", vectors.similarity),
    ]
    if vectors.matryoshka_dims:
        dims = ", ".join(str(each) for each in vectors.matryoshka_dims)
        rows.append(("trained to be cut to", f"{dims} numbers"))
    rows += [(f"prompt `{name}`", f"`{text}`") for name, text in vectors.prompts.items() if text]
    return rows
