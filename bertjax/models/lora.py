"""LoRA: low-rank changes of chosen kernels, W + (alpha / rank) A B, are trained while W is frozen.

The factors lie under `lora` and the path of the layer that they change. For example,
`lora.encoder.layers.0.attention.query.a.kernel` belongs to
`encoder.layers.0.attention.query.kernel`. All other parameters keep their names, so weights are
exchanged as without LoRA, and rules over parameter paths treat the factors as kernels.

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
from bertjax.options import faults

ATTENTION_QUERY_VALUE = r"encoder\.layers\.\d+\.attention\.(query|value)\.kernel"

Params = Mapping[Any, Any]


@dataclasses.dataclass(frozen=True)
class LoraOptions:
    """`targets` are regular expressions that match whole paths of an encoder's kernels.

    A path may begin at `encoder`, wherever in the model the encoder is.

    Raises:
      ValueError: listing every field that does not fit.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = (ATTENTION_QUERY_VALUE,)

    def __post_init__(self):
        rules = [
            ("rank", self.rank >= 1, "at least 1"),
            ("alpha", self.alpha > 0, "above 0"),
            ("targets", len(self.targets) > 0, "at least one regular expression"),
        ]
        faults.check(
            "LoRA's options do not fit",
            (faults.wrong(name, getattr(self, name), must) for name, it, must in rules if not it),
        )


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

    `params` is a nested dict of NumPy or JAX arrays.

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
    """Returns `module` with its kernels changed; encoders get gradients for their factors only."""
    graphdef, params = parameters.split_by_number(module)
    encoders = parameters.encoder_paths(params)

    def stopped(path: Sequence[Any], leaf: Any) -> Any:
        is_frozen = parameters.is_within(parameters.path_name(path), encoders)
        return jax.lax.stop_gradient(leaf) if is_frozen else leaf

    changed = merge(jax.tree_util.tree_map_with_path(stopped, params), alpha=alpha)
    return nnx.merge(graphdef, {**changed, "lora": params["lora"]})


def frozen(module: Any) -> tuple[str, ...]:
    """Returns rules that freeze the encoders; heads are trained."""
    return tuple(rf"{re.escape(path)}\..*" for path in parameters.encoder_paths(module))


def _names(path: str, encoders: Sequence[str]) -> set[str]:
    """Returns a kernel's path, and its path in a model with one encoder."""
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
