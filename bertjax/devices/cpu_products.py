"""Products of bfloat16 factors on CPU, by the CPU's instructions for them.

XLA on CPU has such a product with a float32 result (AVX512-BF16, AMX). For a bfloat16 result it
converts the factors to float32 and multiplies them, which is several times slower.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import primitives
from jax.interpreters import mlir


@functools.cache
def round_behind() -> None:
    """Makes programs compiled for CPU from now on round such products after a float32 result.

    Sums and rounding do not change; gradients are products as well. Other products do not change.
    JAX's rules have no public getter; the table is the same from 0.10 to 0.12.
    """
    usual = mlir._platform_specific_lowerings["cpu"][primitives.dot_general_p].rule
    rounded = mlir.lower_fun(_rounded, multiple_results=False)

    def rule(context: Any, *factors: Any, **options: Any) -> Any:
        types = {aval.dtype for aval in (*context.avals_in, *context.avals_out)}
        chosen = rounded if types == {jnp.dtype(jnp.bfloat16)} else usual
        return chosen(context, *factors, **options)

    mlir.register_lowering(primitives.dot_general_p, rule, platform="cpu")


def _rounded(left: jax.Array, right: jax.Array, **options: Any) -> jax.Array:
    options["preferred_element_type"] = jnp.dtype(jnp.float32)
    return primitives.dot_general_p.bind(left, right, **options).astype(jnp.bfloat16)
