"""Modules with random parameters that nothing compiles: most tests ask what a module computes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bertjax.models import parameters


def made(build, *arguments, seed=0, **options):
    """The module of `build(*arguments, rngs=..., **options)`, with numbers of our own.

    They are around 1 in the scales of LayerNorm and around 0 elsewhere, biases too. How parameters
    start is not asked of such a module: its initializers are traced, not run.
    """
    graphdef, shapes = _outline(build, arguments, tuple(options.items()))
    rng = np.random.default_rng(seed)

    def drawn(path, shape):
        center = 1.0 if parameters.path_name(path).endswith("scale") else 0.0
        return jnp.asarray(rng.normal(center, 0.1, shape.shape), shape.dtype)

    return parameters.merge(graphdef, jax.tree_util.tree_map_with_path(drawn, shapes))


@functools.lru_cache(maxsize=32)
def _outline(build, arguments, options):
    module = nnx.eval_shape(lambda: build(*arguments, rngs=nnx.Rngs(0), **dict(options)))
    return parameters.split(module)


def compiled(function, model):
    """`function(model, batch)` as a program of a batch."""
    graphdef, params = nnx.split(model)
    program = jax.jit(lambda params, batch: function(nnx.merge(graphdef, params), batch))
    return functools.partial(program, params)


def run(function, model, batch):
    """`function(model, batch)`, compiled as one program."""
    return compiled(function, model)(batch)
