"""Activations of feed-forwards, heads and poolers by name, and gelu at the cost of a tanh.

The exact gelu has an erf, which costs a TPU more than all other operations between two products. In
bfloat16 a function with an error below the rounding is as good; float32 keeps erf.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Half the log-odds of the normal distribution function are nearly x p(x**2), with p of these
# coefficients, the constant first. Found by linear programming: of all such p the one whose largest
# relative error of the distribution function over [-5, 5] is the smallest, 1.12e-3 (half a unit of
# bfloat16 is at least 1.95e-3 of a number). x p(x**2) rises everywhere: nothing is clipped.
_HALF_LOG_ODDS = (0.7961371, 0.0379624225, -4.9712768e-04, 4.6012547e-06)


def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns x times the normal distribution function of x: the exact form, with erf.

    In bfloat16 the errors of value and derivative are below its rounding, except for x of -4 and
    less, where an error of about 1e-6 is left.
    Source: Hendrycks and Gimpel 2016, section 2.
    """
    return _rounded_gelu(x) if x.dtype == jnp.bfloat16 else jax.nn.gelu(x, approximate=False)


@jax.custom_vjp
def _rounded_gelu(x: Array) -> Array:
    wide = x.astype(jnp.float32)
    return (wide * _distribution(wide)).astype(x.dtype)


def _rounded_gelu_forward(x: Array) -> tuple[Array, Array]:
    return _rounded_gelu(x), x


def _rounded_gelu_backward(x: Array, grad: Array) -> tuple[Array]:
    wide = x.astype(jnp.float32)
    density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    slope = _distribution(wide) + wide * density
    return ((grad.astype(jnp.float32) * slope).astype(grad.dtype),)


_rounded_gelu.defvjp(_rounded_gelu_forward, _rounded_gelu_backward)


def _distribution(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Approximates the normal distribution function by a logistic function of its log-odds."""
    square = x * x
    factor = functools.reduce(lambda sum_, each: sum_ * square + each, reversed(_HALF_LOG_ODDS))
    return 0.5 + 0.5 * jnp.tanh(x * factor)


# BERT's released code calls the tanh form "gelu" since February 2019; before that, and in
# transformers, "gelu" is the exact one (erf). Here each name means one thing.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,  # of SwiGLU
}

# The pooler's activation: BERT has tanh, DistilBERT relu, ELECTRA's classifiers gelu.
POOLER_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, **ACTIVATIONS}

# The activations of dense layers after a pooling: each is a class of torch without arguments.
PROJECTION_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": gelu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
}
