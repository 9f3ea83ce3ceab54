"""The optimizers of the BERT papers, as optax transformations.

The transformations here return the update direction without the learning rate: the step multiplies
it by the schedule at the global step, so that a skipped update does not shift the schedule, and by
the parameter's own share of the rate (`rate_multipliers`).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertjax.models import parameters, reductions

# Weight decay is left off LayerNorm and biases (Devlin et al. 2019, appendix A.2; the released code
# matches the names LayerNorm, layer_norm and bias). LAMB's trust ratio is left off the same ones.
DECAY_RULES = [(r".*(bias|scale)", False), (r".*(kernel|embedding)", True)]


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """`name` is a key of OPTIMIZERS; `clip_norm` 0 clips nothing.

    `decay_biases` is weight decay of LayerNorm and biases, too. Source: fairseq, optim/adam.py,
    whose one group of parameters is decayed whole.

    `frozen` are regular expressions of whole parameter paths; `head_multiplier` and `layer_decay`
    are as in `rate_multipliers`.
    """

    name: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    decay_biases: bool = False
    clip_norm: float = 1.0
    bias_correction: bool = True
    head_multiplier: float = 1.0
    layer_decay: float = 1.0
    frozen: tuple[str, ...] = ()


def clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Scales all gradients by limit / norm where their norm is above the limit.

    Source: Pascanu et al. 2013, algorithm 1. optax's own has a sum of its own.
    """

    def update(grads: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, Any]:
        del params
        scale = limit / jnp.maximum(reductions.global_norm(grads), limit)
        return jax.tree.map(lambda grad: grad * scale, grads), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class UncorrectedAdamState(NamedTuple):
    """First and second moments, shaped as the parameters."""

    mu: Any
    nu: Any


def scale_by_uncorrected_adam(
    beta1: float, beta2: float, eps: float
) -> optax.GradientTransformation:
    """Adam's direction m / (sqrt(v) + eps) without bias correction.

    Source: google-research/bert optimization.py, AdamWeightDecayOptimizer. optax's own Adam always
    corrects.
    """

    def init(params: Any) -> UncorrectedAdamState:
        return UncorrectedAdamState(
            jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
        )

    def update(grads: Any, state: UncorrectedAdamState, params: Any = None) -> tuple[Any, Any]:
        del params
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g**2, state.nu, grads)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return direction, UncorrectedAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def _adamw(options: OptimizerOptions, is_decayed: Any) -> list[optax.GradientTransformation]:
    adam = optax.scale_by_adam if options.bias_correction else scale_by_uncorrected_adam
    return [
        adam(options.beta1, options.beta2, options.eps),
        optax.add_decayed_weights(
            options.weight_decay, mask=None if options.decay_biases else is_decayed
        ),
    ]


def _lamb(options: OptimizerOptions, is_decayed: Any) -> list[optax.GradientTransformation]:
    # Source: You et al. 2020, algorithm 2, and the released lamb_optimizer.py: LayerNorm and biases
    # take the plain Adam direction (optax.lamb would adapt them too).
    trust_ratio = optax.masked(optax.scale_by_trust_ratio(), is_decayed)
    return [*_adamw(options, is_decayed), trust_ratio]


OPTIMIZERS: dict[str, Callable[..., list[optax.GradientTransformation]]] = {
    "adamw": _adamw,
    "lamb": _lamb,
}


def make_optimizer(
    options: OptimizerOptions, params: Any, is_frozen: Any = None
) -> optax.GradientTransformation:
    """Returns clipping, moments and decay for parameters shaped like `params`.

    Of parameters that are frozen (a tree of bools, `frozen_parameters`) nothing is kept, and their
    updates mean nothing.
    """
    is_decayed = parameters.assign(DECAY_RULES, params, table="weight decay rules")
    clip = [clip_by_global_norm(options.clip_norm)] if options.clip_norm else []
    whole = optax.chain(*clip, *OPTIMIZERS[options.name](options, is_decayed))
    if is_frozen is None or not any(jax.tree.leaves(is_frozen)):
        return whole
    return optax.masked(whole, jax.tree.map(lambda frozen: not frozen, is_frozen))


def frozen_parameters(patterns: Sequence[str], params: Any) -> Any:
    """Returns a tree of bools, True where one of the regular expressions is the whole path.

    Raises:
      ValueError: if a pattern matches no parameter, or nothing is left to train.
    """
    # A pattern given twice, by the config and by the task, is one.
    named = [(pattern, True) for pattern in dict.fromkeys(patterns)]
    return parameters.assign(
        [*named, (r".*", False)],
        params,
        table="config.optimizer.frozen (with what the task freezes; .* is what is left to train)",
    )


def rate_multipliers(
    options: OptimizerOptions, params: Any, uses: Mapping[str, parameters.Uses] | None = None
) -> Any:
    """Returns every parameter's multiple of the learning rate, as a tree of floats.

    Of an encoder's L layers, counted from 0, layer i has layer_decay ** (L - i) and the embeddings
    layer_decay ** (L + 1); the pooler has 1 and everything that stands on the encoder, which starts
    from nothing, head_multiplier. LoRA's factors count as the kernels that they change. `uses` are
    those of encoders that share layers (`parameters.layer_uses`): such a layer has the mean of what
    the depths have that it is used at. Source: Howard and Ruder 2018, section 3.2 (discriminative
    finetuning); Clark et al. 2020, appendix B. Neither has shared layers.
    """
    names = [parameters.path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    bodies = parameters.bodies(params)
    own = {
        path: tuple((number,) for number in range(len(_node(params, path)["layers"])))
        for path in parameters.encoder_paths(params)
    }

    def multiplier(name: str) -> float:
        name = name.removeprefix("lora.")
        for path, layers in (own | dict(uses or {})).items():
            if layer := re.match(re.escape(f"{path}.layers.") + r"(\d+)\.", name):
                depths = [depth for depth, used in enumerate(layers) if int(layer[1]) in used]
                return sum(options.layer_decay ** (len(layers) - i) for i in depths) / len(depths)
            if parameters.is_within(name, [f"{path}.embeddings"]):
                return options.layer_decay ** (len(layers) + 1)
        return 1.0 if parameters.is_within(name, bodies) else options.head_multiplier

    return jax.tree.unflatten(jax.tree.structure(params), map(multiplier, names))


def _node(params: Any, path: str) -> Any:
    return functools.reduce(lambda node, name: node[name], path.split("."), params)
