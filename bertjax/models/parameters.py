"""Parameters as a nested dict of arrays, whose paths are their names, and rules over those names.

Flax stays behind `split` and `merge`. A parameter's path is its place in the dict, joined by dots:
`encoder.layers.7.attention.query.kernel`. Rules are ordered (regex, value): the first whose regex
matches the whole path wins; one idea for sharding, weight decay, freezing and rates.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx

from bertjax.options import faults

Params = dict[str, Any]
Value = TypeVar("Value")
Uses = Sequence[Sequence[int]]  # of an encoder's stored layers, by depth


# flax before 0.12.5 splits any module as a graph, which a tree is as well.
_AS_TREE = {"graph": False} if "graph" in inspect.signature(nnx.split).parameters else {}


def split(module: nnx.Module) -> tuple[nnx.GraphDef, Params]:
    """Returns the static part of a module and its parameters as a nested dict with string keys."""
    graphdef, variables = split_by_number(module)
    return graphdef, _string_keys(variables)


def split_by_number(module: nnx.Module) -> tuple[nnx.GraphDef, dict[Any, Any]]:
    """Returns the same as `split`, but with the items of lists under numbers, as Flax has them."""
    graphdef, variables = nnx.split(module, **_AS_TREE)
    return graphdef, nnx.to_pure_dict(variables)


def merge(graphdef: nnx.GraphDef, params: Params) -> Any:
    """Returns the module again; the inverse of `split`."""
    return nnx.merge(graphdef, _number_keys(params))


def _string_keys(tree: Any) -> Any:
    # Layer numbers are ints in nnx; checkpoints and JAX's sorting of dict keys want one key type.
    if not isinstance(tree, dict):
        return tree
    return {str(key): _string_keys(value) for key, value in tree.items()}


def _number_keys(tree: Any) -> Any:
    """Returns the tree with nnx's numbers as keys; no attribute is called by a number."""
    if not isinstance(tree, dict):
        return tree
    return {
        int(key) if key.isdecimal() else key: _number_keys(value) for key, value in tree.items()
    }


def nested(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested dict of dotted paths, as `parameters.merge` takes it."""
    tree: dict[str, Any] = {}
    for path, value in params.items():
        *outer, last = path.split(".")
        node = tree
        for part in outer:
            node = node.setdefault(part, {})
        node[last] = value
    return tree


def flat(tree: Mapping[str, Any], prefix: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the leaves of a nested dict by dotted path; the inverse of `nested`."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, (*prefix, name))
        else:
            leaves[".".join((*prefix, name))] = value
    return leaves


def sha256(leaves: Mapping[str, Any]) -> str:
    """Returns the hash of arrays by their dotted paths, names and shapes included."""
    digest = hashlib.sha256()
    for name in sorted(leaves):
        digest.update(f"{name} {leaves[name].shape}".encode())
        digest.update(np.ascontiguousarray(leaves[name]).data)
    return digest.hexdigest()


def encoder_paths(module: nnx.Module | Mapping[Any, Any]) -> tuple[str, ...]:
    """Returns the paths of a module's encoders, usually ("encoder",); it may be abstract.

    An encoder has `embeddings` and `layers`, or is called `encoder` and has layers: an encoder that
    shares all embeddings has no embedding parameters. `module` may be its nested parameters. The
    places of LoRA's factors do not count.
    """
    params = split(module)[1] if isinstance(module, nnx.Module) else module

    def found(node: Mapping[Any, Any], path: tuple[str, ...]) -> list[str]:
        if "layers" in node and ("embeddings" in node or path[-1:] == ("encoder",)):
            return [".".join(path)]
        return [
            place
            for name, child in node.items()
            if isinstance(child, Mapping) and (path or name != "lora")
            for place in found(child, (*path, str(name)))
        ]

    return tuple(found(params, ()))


def layer_uses(graphdef: nnx.GraphDef, params: Params) -> dict[str, Uses]:
    """Returns the `uses` of every encoder by its path: the stored layers that it applies."""
    module = merge(graphdef, params)
    encoders = {
        path: functools.reduce(getattr, path.split("."), module) for path in encoder_paths(params)
    }
    return {path: encoder.uses for path, encoder in encoders.items()}


def bodies(module: nnx.Module | Mapping[Any, Any]) -> tuple[str, ...]:
    """Returns the path prefixes of encoders, poolers and projections: all that is below heads."""
    names = ("pooler", "projections")
    return tuple(
        body
        for path in encoder_paths(module)
        for body in (path, *(beside(path, name) for name in names))
    )


def is_within(name: str, paths: Iterable[str]) -> bool:
    """Returns whether a parameter lies in one of the modules at `paths`."""
    return any(name.startswith(f"{path}.") for path in paths)


def beside(path: str, name: str) -> str:
    """Returns the path of a sibling of an encoder: `pooler` for `encoder`."""
    outer, dot, _ = path.rpartition(".")
    return f"{outer}{dot}{name}"


def path_name(path: Sequence[Any]) -> str:
    """Returns the dotted name of a `jax.tree_util` key path."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator=".")


def assign(rules: Sequence[tuple[str, Value]], tree: Any, *, table: str) -> Any:
    """Returns `tree` with each leaf replaced by the value of the first rule that matches its path.

    Raises:
      ValueError: naming every leaf that no rule matches and every rule that no leaf uses. `table`
        is the name of the rules in the message.
    """
    used, unmatched = set(), []

    def first_match(path: Sequence[Any], _: Any) -> Value | None:
        name = path_name(path)
        for index, (pattern, value) in enumerate(rules):
            if re.fullmatch(pattern, name):
                used.add(index)
                return value
        unmatched.append(name)
        return None

    assigned = jax.tree_util.tree_map_with_path(first_match, tree)
    misfits = [f"no rule matches parameter {name}" for name in unmatched]
    misfits += [
        f"rule {pattern!r} matches no parameter that an earlier rule leaves"
        for index, (pattern, _) in enumerate(rules)
        if index not in used
    ]
    faults.check(f"{table} does not fit the model", misfits)
    return assigned
