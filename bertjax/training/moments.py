"""Adam's moments in bfloat16, rounded at random, so that small changes are not lost on the way.

A second moment moves by a thousandth of itself in a step (beta2 0.999), which is less than half a
unit of bfloat16: rounded to the nearest number it would stand still. Rounded up or down by chance,
in proportion to the distances, its expectation is that of float32.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, BFloat16, Float, PRNGKeyArray

from bertjax.models import layers


def in_bfloat16(adam: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Returns `adam`, which has moments `mu` and `nu`, with those of matrices in bfloat16.

    An update takes a `key`, new in every step. Vectors such as biases keep float32: they are few.
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
