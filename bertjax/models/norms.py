"""Normalization over the last axis: LayerNorm, with a bias or without, and RMSNorm.

flax's saves more for the backward pass and goes over the activations more often, which costs more
on TPU than the arithmetic. A kind is a module, made from a size; the table is NORMS.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from bertjax.models import layers


class LayerNorm(nnx.Module):
    """LayerNorm with float32 statistics and the parameters `scale` and, by `use_bias`, `bias`."""

    is_centered = True

    def __init__(self, size: int, *, epsilon: float, dtype: jnp.dtype, use_bias: bool = True):
        self.scale = nnx.Param(jnp.ones(size))
        if use_bias:
            self.bias = nnx.Param(jnp.zeros(size))
        self.use_bias = use_bias
        self.epsilon = epsilon
        self.dtype = dtype

    def __call__(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        with jax.named_scope("norm"):
            scale = jnp.asarray(self.scale[...])
            bias = jnp.asarray(self.bias[...]) if self.use_bias else None
            return normalize(x, scale, bias, self.epsilon, self.dtype, self.is_centered)


class RmsNorm(LayerNorm):
    """x / sqrt(mean(x**2) + epsilon) * scale: no mean is subtracted, no bias added.

    Source: Zhang and Sennrich 2019, equation 4.
    """

    is_centered = False

    def __init__(self, size: int, *, epsilon: float, dtype: jnp.dtype):
        super().__init__(size, epsilon=epsilon, dtype=dtype, use_bias=False)


# Name -> the function from a size to the module. `scale_only` is LayerNorm without its bias, as in
# ModernBERT (Warner et al. 2024, section 2.1.1).
NORMS: dict[str, Callable[..., LayerNorm]] = {
    "layer_norm": LayerNorm,
    "scale_only": functools.partial(LayerNorm, use_bias=False),
    "rms_norm": RmsNorm,
}


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def normalize(
    x: Float[Array, "*shape"],
    scale: Float[Array, " size"],
    bias: Float[Array, " size"] | None,
    epsilon: float,
    dtype: jnp.dtype,
    is_centered: bool = True,
) -> Float[Array, "*shape"]:
    """Returns (x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis, in `dtype`.

    The variance is mean(x**2) - mean(x)**2 in float32, so that one pass over `x` gives both: its
    relative error is about 1e-7 * (1 + mean**2 / variance). The backward pass goes over `x` twice.
    Unless `is_centered`, the mean is taken as 0 (RMSNorm).
    Source: Ba et al. 2016, equations 3 and 4.
    """
    return _normalize(x, scale, bias, epsilon, dtype, is_centered)[0]


def _normalize(
    x: Array, scale: Array, bias: Array | None, epsilon: float, dtype: jnp.dtype, is_centered: bool
):
    wide = x.astype(jnp.float32)
    mean = wide.mean(axis=-1, keepdims=True) if is_centered else None
    variance = (wide * wide).mean(axis=-1, keepdims=True)
    if mean is not None:
        variance = jnp.maximum(variance - mean * mean, 0)
    rstd = jax.lax.rsqrt(variance + epsilon)
    y = _centered(wide, mean) * rstd * layers.over_rows(scale, x)
    if bias is not None:
        y = y + layers.over_rows(bias, x)
    return y.astype(dtype), (x, scale, mean, rstd, bias is not None)


def _centered(x: Array, mean: Array | None) -> Array:
    return x if mean is None else x - mean


def _normalize_backward(
    epsilon: float, dtype: jnp.dtype, is_centered: bool, saved: Any, grad: Array
):
    del epsilon, dtype
    x, scale, mean, rstd, has_bias = saved
    rows = tuple(range(x.ndim - 1))
    grad = grad.astype(jnp.float32)
    normalized = _centered(x.astype(jnp.float32), mean) * rstd
    scaled = grad * layers.over_rows(scale, x)
    slope = (scaled * normalized).mean(axis=-1, keepdims=True)
    shift = scaled.mean(axis=-1, keepdims=True) if is_centered else None
    grad_x = (rstd * (_centered(scaled, shift) - normalized * slope)).astype(x.dtype)
    grad_bias = grad.sum(axis=rows) if has_bias else None
    return grad_x, (grad * normalized).sum(axis=rows), grad_bias


normalize.defvjp(_normalize, _normalize_backward)
