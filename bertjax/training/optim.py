"""The optimizers of the papers, as optax transformations.

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
import optax.contrib
from jaxtyping import Array, BFloat16, Float, PRNGKeyArray

from bertjax.models import layers, parameters, reductions
from bertjax.options import faults

# Weight decay is left off LayerNorm and biases (Devlin et al. 2019, appendix A.2; the released code
# matches the names LayerNorm, layer_norm and bias). LAMB's trust ratio is left off the same ones.
DECAY_RULES = [(r".*(bias|scale)", False), (r".*(kernel|embedding)", True)]

# Muon moves the matrices of an encoder's layers, but not the factors of LoRA, which have the same
# names. Source: K. Jordan, "Muon: an optimizer for hidden layers", 2024: embeddings, heads and
# vectors have Adam.
MUON_KERNELS = r"(?!lora\.).*\blayers\.\d+\..*\.kernel"


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """`name` is a key of OPTIMIZERS; `clip_norm` 0 clips nothing.

    Each step subtracts rate x `weight_decay` x p from a parameter p, as in PyTorch's AdamW and in
    optax. With `fully_decoupled_decay` it subtracts (rate / peak rate) x weight_decay x p, as in
    Loshchilov and Hutter 2019, algorithm 2, and in Composer's and optimi's "decoupled" optimizers.
    A weight decay w of the second kind is w / peak rate of the first: MosaicBERT's 1e-5 at 5e-4 is
    0.02, ModernBERT's 1e-5 at 8e-4 is 0.0125, the 3e-4 of Ettin's small models at 3e-3 is 0.1. A
    multiple of the learning rate (`rate_multipliers`) also multiplies the decay.

    `decay_biases` extends weight decay to LayerNorm and biases. Source: fairseq, optim/adam.py,
    whose one group of parameters is decayed whole.

    `muon_momentum` and `muon_update_rms` are for the kernels that "muon" moves. The updates have
    this root mean square, as AdamW's have about 0.2, so one learning rate and one decay serve all
    parameters (Liu et al. 2025, "Muon is scalable for LLM training", section 2.2); 0 leaves them at
    sqrt(max(1, outputs / inputs)) in the spectral norm (Jordan 2024), which needs another rate.

    `moment_dtype` is the type of Adam's moments of matrices: "float32", or "bfloat16" with
    stochastic rounding (`in_bfloat16`).

    `ema_decay` belongs to the exponential moving average of the parameters, which is part of the
    state; 0 keeps none.

    `frozen` are regular expressions of whole parameter paths; `head_multiplier` and `layer_decay`
    are as in `rate_multipliers`.
    """

    name: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    fully_decoupled_decay: bool = False
    decay_biases: bool = False
    clip_norm: float = 1.0
    clip_apart: str = ""
    bias_correction: bool = True
    moment_dtype: str = "float32"
    ema_decay: float = 0.0
    muon_momentum: float = 0.95
    muon_update_rms: float = 0.2
    head_multiplier: float = 1.0
    layer_decay: float = 1.0
    frozen: tuple[str, ...] = ()


def clip_by_global_norm(limit: float, apart: str = "") -> optax.GradientTransformation:
    """Scales all gradients by limit / norm where their norm is above the limit.

    The gradients of the part of the model that is named `apart` have a norm of their own.
    Source: Pascanu et al. 2013, algorithm 1. optax.clip_by_global_norm does not use
    reductions.global_norm.
    """

    def clipped(grads: Any) -> Any:
        scale = limit / jnp.maximum(reductions.global_norm(grads), limit)
        return jax.tree.map(lambda grad: grad * scale, grads)

    def update(grads: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, Any]:
        del params
        if not apart:
            return clipped(grads), state
        others = {name: part for name, part in grads.items() if name != apart}
        return {**clipped(others), **clipped({apart: grads[apart]})}, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class UncorrectedAdamState(NamedTuple):
    """First and second moments, shaped as the parameters."""

    mu: Any
    nu: Any


def scale_by_uncorrected_adam(
    beta1: float, beta2: float, eps: float
) -> optax.GradientTransformation:
    """Adam's direction m / (sqrt(v) + eps) without bias correction.

    Source: google-research/bert optimization.py, AdamWeightDecayOptimizer. optax's Adam always
    corrects the bias.
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


def fully_decoupled_decay(weight_decay: float) -> optax.GradientTransformationExtraArgs:
    """Adds the decay term weight_decay / peak rate x p; the step multiplies it by the rate.

    The update takes the `peak_learning_rate`, which may be an array.
    """

    def update(
        updates: Any, state: optax.EmptyState, params: Any = None, *, peak_learning_rate: Any, **_
    ) -> tuple[Any, optax.EmptyState]:
        share = weight_decay / peak_learning_rate
        return jax.tree.map(lambda move, value: move + share * value, updates, params), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def stabilized(
    adam: optax.GradientTransformation,
    decay: optax.GradientTransformation,
    options: OptimizerOptions,
) -> optax.GradientTransformationExtraArgs:
    """Divides Adam's direction with the decay of each tensor by max(1, RMS(g / sqrt(v))).

    v is the mean of squares that Adam divides by, at least eps^2: where a tensor's gradients are
    suddenly larger than their past, it moves, and decays, by less. Source: Wortsman et al. 2023,
    "Stable and low-precision training", algorithm 2; that the decay is divided too is the released
    optimi's StableAdamW, with which ModernBERT was trained. Its betas are debiased: the moments are
    then those that bias correction gives.
    """
    inner = optax.chain(adam, decay)

    def update(grads: Any, state: Any, params: Any = None, **others: Any) -> tuple[Any, Any]:
        direction, state = inner.update(grads, state, params, **others)
        adam_state = state[0]
        is_corrected = options.bias_correction
        correction = 1 - options.beta2**adam_state.count if is_corrected else 1.0

        def divided(move: jax.Array, grad: jax.Array, square: jax.Array) -> jax.Array:
            surprise = jnp.square(grad) / jnp.maximum(square / correction, options.eps**2)
            return move / jnp.maximum(jnp.sqrt(surprise.mean()), 1.0)

        return jax.tree.map(divided, direction, grads, adam_state.nu), state

    return optax.GradientTransformationExtraArgs(inner.init, update)


def in_bfloat16(adam: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Returns `adam`, which has moments `mu` and `nu`, with the moments of matrices in bfloat16.

    A second moment moves by a thousandth of itself in a step (beta2 0.999), which is less than half
    a unit of bfloat16: rounded to the nearest number it would stand still. Rounded up or down at
    random, in proportion to the distances, its expectation is the float32 value. An update takes a
    `key`, new in every step. Vectors such as biases keep float32: they are few.
    """

    def init(params: Any) -> Any:
        return _moments_as(
            adam.init(params), lambda x: x.astype(jnp.bfloat16) if _is_kept(x) else x
        )

    def update(
        grads: Any, state: Any, params: Any = None, *, key: PRNGKeyArray, **_: Any
    ) -> tuple[Any, Any]:
        state = _moments_as(state, lambda x: x.astype(jnp.float32))
        direction, state = adam.update(grads, state, params)
        leaves, structure = jax.tree.flatten((state.mu, state.nu))
        words = jax.random.bits(key, (len(leaves), 2), jnp.uint32)
        rounded = [
            stochastically_rounded(leaf, (first, second)) if _is_kept(leaf) else leaf
            for leaf, (first, second) in zip(leaves, words, strict=True)
        ]
        mu, nu = jax.tree.unflatten(structure, rounded)
        return direction, state._replace(mu=mu, nu=nu)

    return optax.GradientTransformationExtraArgs(init, update)


def stochastically_rounded(
    x: Float[Array, "*planes rows columns"], seeds: layers.MaskSeeds
) -> BFloat16[Array, "*planes rows columns"]:
    """Returns x rounded up or down to bfloat16 at random, so that the expectation is x.

    Numbers that are not finite stay as they are. The random bits are a hash of an element's place
    and of the two words, as in `layers.keep_mask`. Source: Gupta et al. 2015, "Deep learning with
    limited numerical precision", section 2.2.
    """
    # bfloat16 is the upper half of float32: a carry from the lower half rounds the magnitude up.
    chance = layers.hashed_places(seeds, x.shape) >> 16
    raised = jax.lax.bitcast_convert_type(x, jnp.uint32) + chance
    rounded = jax.lax.bitcast_convert_type(raised & jnp.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(jnp.bfloat16)


def _is_kept(moment: Array) -> bool:
    return moment.ndim > 1


def _moments_as(state: Any, change: Any) -> Any:
    return state._replace(mu=jax.tree.map(change, state.mu), nu=jax.tree.map(change, state.nu))


# Type of Adam's moments of matrices -> what makes an Adam keep them in it.
MOMENT_DTYPES: dict[str, Callable[..., optax.GradientTransformation]] = {
    "float32": lambda adam: adam,
    "bfloat16": in_bfloat16,
}


def _adam(options: OptimizerOptions) -> optax.GradientTransformation:
    kind = optax.scale_by_adam if options.bias_correction else scale_by_uncorrected_adam
    adam = kind(options.beta1, options.beta2, options.eps)
    return MOMENT_DTYPES[options.moment_dtype](adam)


def _decay(options: OptimizerOptions, is_decayed: Any) -> optax.GradientTransformation:
    kind = fully_decoupled_decay if options.fully_decoupled_decay else optax.add_decayed_weights
    decay = kind(options.weight_decay)
    return decay if options.decay_biases else optax.masked(decay, is_decayed)


def _adamw(options: OptimizerOptions, is_decayed: Any) -> list[optax.GradientTransformation]:
    return [_adam(options), _decay(options, is_decayed)]


def _stable_adamw(options: OptimizerOptions, is_decayed: Any) -> list[optax.GradientTransformation]:
    adam, decay = _adamw(options, is_decayed)
    return [stabilized(adam, decay, options)]


def _lamb(options: OptimizerOptions, is_decayed: Any) -> list[optax.GradientTransformation]:
    # Source: You et al. 2020, algorithm 2, and the released lamb_optimizer.py: LayerNorm and biases
    # take the plain Adam direction (optax.lamb would adapt them too).
    trust_ratio = optax.masked(optax.scale_by_trust_ratio(), is_decayed)
    return [*_adamw(options, is_decayed), trust_ratio]


def _muon(options: OptimizerOptions, is_decayed: Any) -> list[optax.GradientTransformation]:
    def labels(params: Any) -> Any:
        def label(path: Sequence[Any], leaf: Any) -> str:
            is_kernel = re.fullmatch(MUON_KERNELS, parameters.path_name(path))
            return "muon" if is_kernel and leaf.ndim == 2 else "adam"

        return jax.tree_util.tree_map_with_path(label, params)

    def as_matrices(params: Any) -> Any:
        return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(), params)

    def sized(update: jax.Array) -> jax.Array:
        inputs, outputs = update.shape
        if options.muon_update_rms:
            return options.muon_update_rms * max(inputs, outputs) ** 0.5 * update
        return max(1.0, outputs / inputs) ** 0.5 * update

    muon = optax.contrib.scale_by_muon(
        beta=options.muon_momentum, weight_dimension_numbers=as_matrices
    )
    of_kernels = optax.chain(muon, optax.stateless(lambda grads, _: jax.tree.map(sized, grads)))
    moves = optax.partition({"muon": of_kernels, "adam": _adam(options)}, labels)
    return [moves, _decay(options, is_decayed)]


OPTIMIZERS: dict[str, Callable[..., list[optax.GradientTransformation]]] = {
    "adamw": _adamw,
    "lamb": _lamb,
    "stable_adamw": _stable_adamw,
    "muon": _muon,
}


def make_optimizer(
    options: OptimizerOptions, params: Any, is_frozen: Any = None
) -> optax.GradientTransformationExtraArgs:
    """Returns clipping, moments and decay for parameters shaped like `params`.

    An update takes the schedule's `peak_learning_rate`, which `options.fully_decoupled_decay`
    reads, and a `key`, new in every step, which rounds moments in bfloat16. Frozen parameters (a
    tree of bools, `frozen_parameters`) have no moments, and their updates mean nothing.
    """
    is_decayed = parameters.assign(DECAY_RULES, params, table="weight decay rules")
    apart = options.clip_apart
    if apart and apart not in params:
        raise faults.wrong("config.optimizer.clip_apart", apart, f"'' or one of {sorted(params)}")
    clip = [clip_by_global_norm(options.clip_norm, apart)] if options.clip_norm else []
    whole = optax.chain(*clip, *OPTIMIZERS[options.name](options, is_decayed))
    if is_frozen is None or not any(jax.tree.leaves(is_frozen)):
        return optax.with_extra_args_support(whole)
    return optax.masked(whole, jax.tree.map(lambda frozen: not frozen, is_frozen))


def frozen_parameters(patterns: Sequence[str], params: Any) -> Any:
    """Returns a tree of bools, True where one of the regular expressions is the whole path."""
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

    In an encoder of L layers, counted from 0, layer i has layer_decay ** (L - i) and the embeddings
    and the table of distances have layer_decay ** (L + 1); the pooler and a norm behind the last
    layer have 1. Heads, which
    start from nothing, have head_multiplier. LoRA's factors count as the kernels that they change.
    `uses` describes encoders that share layers (`parameters.layer_uses`): a shared layer has the
    mean over the depths at which it is used.
    Source: Howard and Ruder 2018, section 3.2 (discriminative
    finetuning); Clark et al. 2020, appendix B. Neither has shared layers.
    """
    names = [parameters.path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    bodies = parameters.bodies(params)
    unshared = {
        path: tuple((number,) for number in range(len(_node(params, path)["layers"])))
        for path in parameters.encoder_paths(params)
    }

    def multiplier(name: str) -> float:
        name = name.removeprefix("lora.")
        for path, used_at in (unshared | dict(uses or {})).items():
            if layer := re.match(re.escape(f"{path}.layers.") + r"(\d+)\.", name):
                depths = [depth for depth, used in enumerate(used_at) if int(layer[1]) in used]
                return sum(options.layer_decay ** (len(used_at) - i) for i in depths) / len(depths)
            if parameters.is_within(name, [f"{path}.embeddings", f"{path}.relative"]):
                return options.layer_decay ** (len(used_at) + 1)
        return 1.0 if parameters.is_within(name, bodies) else options.head_multiplier

    return jax.tree.unflatten(jax.tree.structure(params), map(multiplier, names))


def _node(params: Any, path: str) -> Any:
    return functools.reduce(lambda node, name: node[name], path.split("."), params)
