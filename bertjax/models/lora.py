"""LoRA: a low-rank change of chosen kernels is learnt, W + (alpha / rank) A B, and W stays.

The factors lie under `lora` and the path of the layer that they change:
`lora.encoder.layers.0.attention.query.a.kernel` belongs to
`encoder.layers.0.attention.query.kernel`. All else keeps its name, so weights come and go as
without LoRA, and rules over parameter paths treat the factors as the kernels that they are.

Source: Hu et al. 2022, section 4.1.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.models import containers, parameters

ATTENTION_QUERY_VALUE = r"encoder\.layers\.\d+\.attention\.(query|value)\.kernel"

Params = Mapping[Any, Any]


@dataclasses.dataclass(frozen=True)
class LoraOptions:
    """`targets` are regular expressions, each for whole paths of kernels of an encoder.

    A kernel may be named as if its encoder were at `encoder`, wherever in the model that is.

    Raises:
      ValueError: listing every field that does not fit.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = (ATTENTION_QUERY_VALUE,)

    def __post_init__(self):
        faults = []
        if self.rank < 1:
            faults.append(f"rank is {self.rank}; it must be at least 1")
        if self.alpha <= 0:
            faults.append(f"alpha is {self.alpha}; it must be above 0")
        if not self.targets:
            faults.append("targets is empty; give at least one regular expression")
        if faults:
            raise ValueError("; ".join(faults))


def attach(module: Any, options: LoraOptions, *, rngs: nnx.Rngs) -> None:
    """Gives `module` its factors: A drawn from a normal of variance 1 / inputs, B zero.

    The paper says normal and no variance; B = 0 makes the start the pretrained model.

    Raises:
      ValueError: naming each target that matches no kernel of an encoder.
    """
    _, params = parameters.split_by_number(module)
    encoders = parameters.encoder_paths(params)
    kernels = {
        name: leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if path[-1].key == "kernel"
        and parameters.is_within(name := parameters.path_name(path), encoders)
    }
    matching = {
        target: [
            path
            for path in kernels
            if any(re.fullmatch(target, name) for name in _names(path, encoders))
        ]
        for target in options.targets
    }
    if idle := [repr(target) for target, paths in matching.items() if not paths]:
        raise ValueError(
            f"LoRA targets {', '.join(idle)} match no kernel; kernels are named like "
            f"{next(iter(kernels))}"
        )
    chosen = {path for paths in matching.values() for path in paths}
    factors = {
        path: _factors(kernels[path], options.rank, rngs) for path in kernels if path in chosen
    }
    module.lora = _nested(factors, params)


def merge(params: Params, *, alpha: float) -> dict[Any, Any]:
    """Returns the parameters of the plain model: kernels with their change added, no factors.

    `params` is a nested dict of NumPy or JAX arrays; the rank is the factors' own.

    Raises:
      ValueError: if there are no factors.
    """
    if "lora" not in params:
        raise ValueError(
            f"the parameters have no LoRA factors to merge; they are {', '.join(map(str, params))}"
        )
    plain = {name: value for name, value in params.items() if name != "lora"}
    return _merged(plain, params["lora"], alpha)


def merged(module: Any, *, alpha: float) -> Any:
    """Returns `module` with its kernels changed; of encoders only the factors get a gradient."""
    graphdef, params = parameters.split_by_number(module)
    encoders = parameters.encoder_paths(params)

    def stopped(path: Sequence[Any], leaf: Any) -> Any:
        is_frozen = parameters.is_within(parameters.path_name(path), encoders)
        return jax.lax.stop_gradient(leaf) if is_frozen else leaf

    changed = merge(jax.tree_util.tree_map_with_path(stopped, params), alpha=alpha)
    return nnx.merge(graphdef, {**changed, "lora": params["lora"]})


def frozen(module: Any) -> tuple[str, ...]:
    """Returns the rules of what stays as it is, its encoders; what stands on them is trained."""
    return tuple(rf"{re.escape(path)}\..*" for path in parameters.encoder_paths(module))


def _names(path: str, encoders: Sequence[str]) -> set[str]:
    """Returns a kernel's own path and the one that it has in a model of one encoder."""
    return {path} | {
        f"encoder.{path.removeprefix(f'{encoder}.')}"
        for encoder in encoders
        if parameters.is_within(path, [encoder])
    }


def _factors(shape: Sequence[int], rank: int, rngs: nnx.Rngs) -> nnx.Module:
    in_size, out_size = shape
    a = in_size**-0.5 * jax.random.normal(rngs.params(), (in_size, rank))
    b = jnp.zeros((rank, out_size))
    factors = {"a": nnx.Param(a), "b": nnx.Param(b)}
    return containers.Dict({name: containers.Dict(kernel=it) for name, it in factors.items()})


def _nested(factors: Mapping[str, nnx.Module], like: Params, prefix: str = "") -> Any:
    """Returns the factors in the places of their layers, with the containers of the model."""
    children = {}
    for name, node in like.items():
        path = f"{prefix}{name}"
        if f"{path}.kernel" in factors:
            children[name] = factors[f"{path}.kernel"]
        elif any(target.startswith(f"{path}.") for target in factors):
            children[name] = _nested(factors, node, f"{path}.")
    if not any(isinstance(name, int) for name in like):
        return containers.Dict(children)
    # A list, as in the model: a Dict does not take numbers as names.
    return containers.List([children.get(name, containers.Dict()) for name in sorted(like)])


def _merged(params: Params, factors: Params, alpha: float) -> dict[Any, Any]:
    if set(factors) == {"a", "b"}:
        a, b = factors["a"]["kernel"], factors["b"]["kernel"]
        return {**params, "kernel": params["kernel"] + alpha / a.shape[1] * (a @ b)}
    return {
        name: _merged(value, factors[name], alpha) if name in factors else value
        for name, value in params.items()
    }
