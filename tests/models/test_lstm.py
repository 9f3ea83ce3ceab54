"""The BiLSTM beside NumPy, in both directions, over padding."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bertjax.models import lstm
from tests import small_modules

BATCH, LENGTH, IN, SIZE = 3, 7, 4, 5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(cell_of, inputs):
    """One row through the equations, in float64."""
    kernel, bias = (
        np.asarray(part[...], np.float64) for part in (cell_of.input.kernel, cell_of.input.bias)
    )
    recurrent = np.asarray(cell_of.recurrent.kernel[...], np.float64)
    hidden = cell = np.zeros(SIZE)
    outputs = []
    for now in np.asarray(inputs, np.float64):
        write, forget, candidate, read = np.split(now @ kernel + bias + hidden @ recurrent, 4)
        cell = sigmoid(forget + 1) * cell + sigmoid(write) * np.tanh(candidate)
        hidden = sigmoid(read) * np.tanh(cell)
        outputs.append(hidden)
    return np.array(outputs)


def test_both_directions_are_the_equations_on_the_real_part_of_each_row():
    layer = small_modules.made(lstm.BidirectionalLstm, IN, SIZE)
    layer.backward.input.bias = nnx.Param(jnp.linspace(-1, 1, 4 * SIZE))
    inputs = jax.random.normal(jax.random.key(0), (BATCH, LENGTH, IN))
    lengths = np.array([7, 4, 1])
    outputs = jax.jit(layer)(inputs, jnp.asarray(np.arange(LENGTH) < lengths[:, None]))
    for row, length in enumerate(lengths):
        forward = reference(layer.forward, inputs[row, :length])
        backward = reference(layer.backward, inputs[row, :length][::-1])[::-1]
        wanted = np.zeros((LENGTH, 2 * SIZE))
        wanted[:length] = np.concatenate([forward, backward], axis=-1)
        np.testing.assert_allclose(outputs[row], wanted, atol=1e-6)
