"""Initializers, dense layers and dropout, from which all modules are made.

Normalization and activations are in `norms` and `activations`.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped, UInt32

from bertjax.models import placement, reductions

# The features of a batch by name. Models ignore features that they do not read, such as labels.
Inputs = Mapping[str, Array]
MaskSeeds = tuple[UInt32[Array, "*planes"], UInt32[Array, "*planes"]]


@functools.cache  # one for all layers, so that it is traced once
def truncated_normal(stddev: float) -> nnx.Initializer:
    """Returns an initializer with `stddev` before truncation at two sigmas.

    Source: google-research/bert modeling.py, create_initializer. (`jax.nn.initializers` rescales
    to have `stddev` after truncation; the released code does not.)
    """

    def init(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        return stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)

    return init


@functools.cache
def normal(stddev: float) -> nnx.Initializer:
    """Returns an initializer with a normal distribution, not truncated.

    Source: fairseq, modules/transformer_sentence_encoder.py, init_bert_params.
    """

    def init(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        return stddev * jax.random.normal(key, shape, dtype)

    return init


@functools.cache
def xavier_uniform(stddev: float) -> nnx.Initializer:
    """Returns an initializer of kernels by their sizes; only embeddings use `stddev`.

    Sources: Glorot and Bengio 2010, equation 16; facebookresearch/mae, models_mae.py,
    initialize_weights.
    """
    del stddev
    return nnx.initializers.glorot_uniform()


# Name -> the initializer of kernels, and of embeddings, for a standard deviation.
INITIALIZERS: dict[str, Callable[[float], nnx.Initializer]] = {
    "truncated_normal": truncated_normal,
    "normal": normal,
    "xavier_uniform": xavier_uniform,
}
EMBEDDING_INITIALIZERS = INITIALIZERS | {"xavier_uniform": normal}


def with_zero_row(init: nnx.Initializer, row: int) -> nnx.Initializer:
    """Returns an initializer of tables with one row of zeros."""

    def zeroed(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        return init(key, shape, dtype).at[row].set(0.0)

    return zeroed


class Dense(nnx.Linear):
    """x W + b in `dtype`, with float32 parameters; the bias and its gradient are added in float32.

    The kernel's gradient is a product in `gradient_dtype` (None: `dtype`). If devices share the
    rows, it is summed over them in that type.

    The gradient of the bias is a product with ones. As the sum over rows that autodiff makes, it is
    very expensive on TPU: 118 to 219 k estimated cycles of v5e for 8192 rows of 1024 in bfloat16,
    and 6 k as a product. Only if the compiler makes the sum part of the product before it, as for
    the first feed-forward product, it is cheaper still (`SummedBiasDense`).
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        dtype: jnp.dtype,
        gradient_dtype: jnp.dtype | None = None,
        **options: Any,
    ):
        super().__init__(in_size, out_size, dtype=dtype, **options)
        self.gradient_dtype = gradient_dtype or dtype

    def __call__(self, x: Float[Array, "*rows in"]) -> Float[Array, "*rows out"]:
        y = self.product(x)
        return y if self.bias is None else add_bias(y, jnp.asarray(self.bias[...]))

    def product(self, x: Float[Array, "*rows in"]) -> Float[Array, "*rows out"]:
        """Returns x W."""
        kernel, x = jnp.asarray(self.kernel[...]), x.astype(self.dtype)
        rows = string.ascii_lowercase[: x.ndim - 1]
        return einsum(
            *(f"{rows}D,DF->{rows}F", x, kernel), dtype=x.dtype, gradient_dtype=self.gradient_dtype
        )


class SummedBiasDense(Dense):
    """`Dense` with the bias added in `dtype`; the bias's gradient is autodiff's, a sum over rows.

    It is summed over devices in `gradient_dtype`.
    """

    def __call__(self, x: Float[Array, "*rows in"]) -> Float[Array, "*rows out"]:
        y = self.product(x)
        if self.bias is None:
            return y
        bias = over_rows(self.bias[...].astype(self.gradient_dtype), x)
        if self.gradient_dtype != self.dtype:
            # Rounded after the broadcast, whose gradient is the sum over rows.
            bias = jnp.broadcast_to(bias, y.shape).astype(self.dtype)
        return y + bias


def einsum(
    formula: str,
    x: Array,
    kernel: Array,
    *,
    dtype: jnp.dtype,
    gradient_dtype: jnp.dtype,
    is_gathered: bool = True,
) -> Array:
    """Returns the einsum of `x` and `kernel` in `dtype`; both factors have the type of `x`.

    The gradient of `kernel` is a product in `gradient_dtype`. Autodiff would round it to the type
    of `x`, and compilers would sum it over devices in that type. `formula` sums over no axis that
    only one factor has. If each device has a slice of `kernel`, it is gathered in the type of `x`,
    once for both passes; not with `is_gathered` False.
    """
    factor = kernel.astype(x.dtype)
    factor = placement.gathered(factor) if is_gathered else factor
    if gradient_dtype == x.dtype != jnp.float32:
        return jnp.einsum(formula, x, factor, preferred_element_type=dtype)
    # The product is outside of the custom gradient, where policies of jax.checkpoint see it.
    y = jnp.einsum(formula, x, jax.lax.stop_gradient(factor), preferred_element_type=dtype)
    return _with_kernel_gradient(formula, gradient_dtype, y, x, kernel.astype(gradient_dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _with_kernel_gradient(
    formula: str, gradient_dtype: jnp.dtype, y: Array, x: Array, kernel: Array
) -> Array:
    """Returns `y`, the einsum of `x` and `kernel`, with a gradient for `kernel`."""
    del formula, gradient_dtype, x, kernel
    return y


def _with_kernel_gradient_backward(
    formula: str, gradient_dtype: jnp.dtype, x: Array, grad: Array
) -> tuple[Array, None, Array]:
    factors, of_y = formula.split("->")
    of_x, of_kernel = factors.split(",")
    product = functools.partial(jnp.einsum, preferred_element_type=gradient_dtype)
    if x.dtype != jnp.float32 or x.size <= grad.size:
        return grad, None, product(f"{of_x},{of_y}->{of_kernel}", x, grad)
    # XLA on CPU copies the first factor transposed, and recomputes it while copying: autodiff,
    # where `grad` is always the first, took 1.3 times as long for a step of gated layers.
    return grad, None, product(f"{of_y},{of_x}->{of_kernel[::-1]}", grad, x).transpose()


_with_kernel_gradient.defvjp(
    lambda formula, dtype, y, x, kernel: (_with_kernel_gradient(formula, dtype, y, x, kernel), x),
    _with_kernel_gradient_backward,
)


@jax.custom_vjp
def add_bias(
    x: Float[Array, "*rows columns"], bias: Float[Array, " columns"]
) -> Float[Array, "*rows columns"]:
    """Returns x + bias, added in float32; the gradient of the bias is a product with ones."""
    return (x.astype(jnp.float32) + over_rows(bias, x)).astype(x.dtype)


add_bias.defvjp(
    lambda x, bias: (add_bias(x, bias), None),
    lambda _, grad: (grad, reductions.column_sums(grad)),
)


def over_rows(vector: Array, x: Array) -> Array:
    """Returns the vector reshaped to broadcast over the rows of `x`."""
    return vector.reshape(*(1,) * (x.ndim - 1), -1)


def taken(
    x: Shaped[Array, "batch length *others"], places: Int[Array, "batch places"]
) -> Shaped[Array, "batch places *others"]:
    """Returns the entries at the `places` of each row."""
    return jnp.take_along_axis(x, places.reshape(*places.shape, *[1] * (x.ndim - 2)), axis=1)


def folded(key: PRNGKeyArray | None, index: int) -> PRNGKeyArray | None:
    """Returns the key of a part by its number; None (no dropout) stays None.

    It uses fold_in rather than split: a jax.vmap over rbg keys would repeat the first key's bits.
    """
    return None if key is None else jax.random.fold_in(key, index)


def split(key: PRNGKeyArray | None, count: int) -> list[PRNGKeyArray | None]:
    """Returns the keys of the first `count` parts."""
    return [folded(key, index) for index in range(count)]


def dropout(
    x: Float[Array, "*shape"], rate: float, key: PRNGKeyArray | None
) -> Float[Array, "*shape"]:
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate).

    The backward pass computes the mask again instead of keeping it.
    """
    if key is None or rate == 0.0:
        return x
    with jax.named_scope("dropout"):
        return _dropped(x, rate, mask_seeds(key, x.shape[:-2]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _dropped(x: Array, rate: float, seeds: MaskSeeds) -> Array:
    # In float32: in bfloat16 the factor itself would be off by up to 0.2%.
    scaled = x.astype(jnp.float32) * (1 / (1 - rate))
    return jnp.where(keep_mask(seeds, x.shape, rate), scaled, 0.0).astype(x.dtype)


def _dropped_backward(rate: float, seeds: MaskSeeds, grad: Array) -> tuple[Array, None]:
    # The barrier keeps the compiler from recognizing the mask of the forward pass, and saving it.
    # Around `grad` as well it would cost another pass.
    return _dropped(grad, rate, jax.lax.optimization_barrier(seeds)), None


_dropped.defvjp(lambda x, rate, seeds: (_dropped(x, rate, seeds), seeds), _dropped_backward)


def mask_seeds(key: PRNGKeyArray, planes: tuple[int, ...]) -> MaskSeeds:
    """Returns two random words for each of `planes` (all axes of a mask but the last two)."""
    first, second = jax.random.bits(key, (2, *planes), jnp.uint32)
    return first, second


def keep_mask(seeds: MaskSeeds, shape: tuple[int, ...], rate: float) -> Bool[Array, "*shape"]:
    """Returns a mask of `shape`, planes x rows x columns, each True with probability 1 - `rate`.

    An element's bits are a hash of its place in its plane and of the plane's two random words. So
    the compiler computes them where they are used, instead of writing a generator's bits to memory,
    and they are the same on every backend and mesh. Source of the hash, where the second word is
    added in the middle: "lowbias32", C. Wellons, nullprogram.com/blog/2018/07/31.
    """
    # The last shift of lowbias32 does not change the high bits, which decide.
    return below(hashed_places(seeds, shape), round((1.0 - rate) * 2**32))


def below(bits: UInt32[Array, "*shape"], limit: int) -> Bool[Array, "*shape"]:
    """Returns whether the bits, as a number, are below min(limit, 2^32 - 1).

    They are compared as signed numbers, in one instruction of a TPU.
    """
    signed = jnp.int32(min(limit, 2**32 - 1) - 2**31)
    return jax.lax.bitcast_convert_type(bits, jnp.int32) < signed


def gumbel_noise(seeds: MaskSeeds, shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Returns noise with the standard Gumbel distribution, planes x rows x columns.

    Its bits are hashes as in `keep_mask`: the compiler need not write the noise of a whole
    vocabulary to memory.
    """
    bits = hashed_places(seeds, shape)
    bits = bits ^ (bits >> 16)
    # float32 has all bits of the numbers near 0, which make the highest noise.
    uniform = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
    return -jnp.log(-jnp.log1p(-uniform))


def hashed_places(seeds: MaskSeeds, shape: tuple[int, ...]) -> UInt32[Array, "*shape"]:
    """Returns 32 bits for each place of planes; only the high bits are well mixed."""
    row, column = (
        jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        for axis in (len(shape) - 2, len(shape) - 1)
    )
    first, second = (jnp.expand_dims(word, (-2, -1)) if word.ndim else word for word in seeds)
    return hashed((first, second), row * jnp.uint32(shape[-1]) + column)


def hashed(seeds: tuple[Array, Array], places: Array) -> Array:
    """Returns 32 bits for each place, broadcast with the seeds; the high bits are well mixed."""
    first, second = seeds
    bits = places + first
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D) ^ second
    return (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)


def mixed(words: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Returns the words hashed one by one, by lowbias32 (`keep_mask`)."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x7FEB352D)
    words = (words ^ (words >> 15)) * jnp.uint32(0x846CA68B)
    return words ^ (words >> 16)
