"""A bidirectional long short-term memory; `classification` and `feature_based` use it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float


class BidirectionalLstm(nnx.Module):
    """Two LSTMs, one from the first to the last real position, one back; outputs concatenated."""

    def __init__(self, in_size: int, lstm_size: int, *, rngs: nnx.Rngs):
        self.forward = Lstm(in_size, lstm_size, rngs=rngs)
        self.backward = Lstm(in_size, lstm_size, rngs=rngs)

    def __call__(
        self, inputs: Float[Array, "batch length in"], is_real: Bool[Array, "batch length"]
    ) -> Float[Array, "batch length out"]:
        both = (self.forward(inputs, is_real), self.backward(inputs, is_real, reverse=True))
        return jnp.concatenate(both, axis=-1)


def forward_flops(in_size: int, lstm_size: int) -> float:
    """Returns the matrix-multiplication FLOPs of both directions for one position."""
    return 2.0 * 2 * 4 * lstm_size * (in_size + lstm_size)


class Lstm(nnx.Module):
    """A long short-term memory without peepholes; gates in the order input, forget, cell, output.

    Source: Gers et al. 2000. One is added to the forget gate (Jozefowicz et al. 2015, section 2.2),
    so that a new network remembers.
    """

    def __init__(self, in_size: int, lstm_size: int, *, rngs: nnx.Rngs):
        gates = 4 * lstm_size
        self.input = nnx.Linear(
            in_size, gates, kernel_init=nnx.initializers.glorot_uniform(), rngs=rngs
        )
        self.recurrent = nnx.Linear(
            lstm_size, gates, use_bias=False, kernel_init=nnx.initializers.orthogonal(), rngs=rngs
        )
        self.lstm_size = lstm_size

    def __call__(
        self,
        inputs: Float[Array, "batch length in"],
        is_real: Bool[Array, "batch length"],
        *,
        reverse: bool = False,
    ) -> Float[Array, "batch length out"]:
        """Returns the outputs, 0 at padding.

        The state passes over padding unchanged, so `reverse` begins at each row's last real
        position whatever its length.
        """
        projected = self.input(inputs)
        start = jnp.zeros((inputs.shape[0], self.lstm_size), projected.dtype)

        def step(carry: tuple[Array, Array], now: tuple[Array, Array]):
            hidden, cell = carry
            gates, here = now
            new_hidden, new_cell = _gated(gates + self.recurrent(hidden), cell)
            carry = jnp.where(here, new_hidden, hidden), jnp.where(here, new_cell, cell)
            return carry, jnp.where(here, new_hidden, 0.0)

        by_time = jnp.swapaxes(projected, 0, 1), jnp.swapaxes(is_real, 0, 1)[:, :, None]
        _, outputs = jax.lax.scan(step, (start, start), by_time, reverse=reverse)
        return jnp.swapaxes(outputs, 0, 1)


def _gated(
    gates: Float[Array, "batch gates"], cell: Float[Array, "batch out"]
) -> tuple[Float[Array, "batch out"], Float[Array, "batch out"]]:
    """Returns the next output and cell."""
    write, forget, candidate, read = jnp.split(gates, 4, axis=-1)
    remembered = jax.nn.sigmoid(forget + 1.0) * cell
    cell = remembered + jax.nn.sigmoid(write) * jnp.tanh(candidate)
    return jax.nn.sigmoid(read) * jnp.tanh(cell), cell
