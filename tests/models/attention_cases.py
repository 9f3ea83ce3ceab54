"""Rows of sequences, and what the definition of attention makes of them, for its tests."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.models import attention, layers, reference_attention, rotary, visibility, weight_masks

KEY = jax.random.key(1)
RATE = 0.3


@dataclasses.dataclass(frozen=True)
class Rows:
    """Sequence numbers, 0 at padding, and places in the sequences: int32 [batch, length]."""

    numbers: np.ndarray
    places: np.ndarray
    is_packed: bool = True
    gives_positions: bool = False
    window: int | None = None
    left_to_right: bool = False
    order: np.ndarray | None = None  # numbers that left_to_right compares instead of places

    @property
    def is_by_key(self):
        """Whether padding sees the sequence, too, as in the released code."""
        return not self.is_packed and self.window is None and not self.left_to_right

    @property
    def visible(self):
        inputs = {"sequence_ids" if self.is_packed else "input_mask": jnp.asarray(self.numbers)}
        if self.gives_positions:
            inputs["positions"] = jnp.asarray(self.places)
        if self.order is not None:
            inputs["order"] = jnp.asarray(self.order)
        visible = visibility.of(inputs)
        return visible.narrowed(window=self.window, left_to_right=self.left_to_right)

    @property
    def seen(self):
        if self.is_by_key:
            return jnp.asarray(self.numbers != 0)[:, None, :]
        compared = self.places if self.order is None else self.order
        arrays = jnp.asarray(self.numbers), jnp.asarray(compared)
        options = {"window": self.window, "left_to_right": self.left_to_right}
        return reference_attention.seen(*arrays, **options)


def packed(batch, length, seed=0, **options):
    """Rows of sequences of random lengths, some with padding between them; the last is padding."""
    rng = np.random.default_rng(seed)
    numbers, places = np.zeros((2, batch, length), np.int32)
    for row in range(batch - 1):
        start, number = 0, 1
        while start < length:
            end = min(start + int(rng.integers(1, length // 2)), length)
            if rng.random() < 0.75:
                numbers[row, start:end], number = number, number + 1
            places[row, start:end] = np.arange(end - start)
            start = end
    return Rows(numbers, places, **options)


def padded(batch, length, **options):
    """Rows of one sequence each, from a whole row down to an empty one."""
    lengths = np.linspace(length, 0, batch, dtype=int)[:, None]
    places = np.broadcast_to(np.arange(length, dtype=np.int32), (batch, length))
    return Rows((places < lengths).astype(np.int32), places, is_packed=False, **options)


def with_prefix(batch, length):
    """Rows of several sequences; in each a prefix sees itself, the rest the prefix and its left."""
    rows = packed(batch, length, seed=5, left_to_right=True)
    ends = np.random.default_rng(1).integers(1, length // 3, rows.places.shape[:1])[:, None]
    return dataclasses.replace(rows, order=np.where(rows.places < ends, 0, rows.places))


def context_and_gradients(attend, rows, heads, size):
    """The context and the gradients of query, keys and values; empty rows count for nothing."""
    rng = np.random.default_rng(0)
    shape = (*rows.numbers.shape, heads, size)
    *tensors, grad = (jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(4))
    has_token = jnp.asarray(rows.numbers.any(axis=1))[:, None, None, None]
    context, backward = jax.vjp(lambda *x: attend(*x) * has_token, *tensors)
    return context, *backward(grad)


def ours(rows, *, heads, size, rate=0.0, rotary_base=None, implementation="xla"):
    def attend(query, keys, values):
        options = {"implementation": implementation, "rotary_base": rotary_base}
        return attention.attend(
            *(query, keys, values, rows.visible), dropout_rate=rate, key=KEY, **options
        )

    return context_and_gradients(attend, rows, heads, size)


def by_definition(rows, *, heads, size, rate=0.0, rotary_base=None):
    batch, length = rows.numbers.shape
    seeds = layers.mask_seeds(KEY, (batch, heads))
    kept = weight_masks.kept(seeds, (batch, heads, length, length), rate) / jnp.float32(1 - rate)

    def attend(query, keys, values):
        query, keys = rotary.both_turned(query, keys, rows.visible.positions, rotary_base)
        return reference_attention.attend(query, keys, values, rows.seen, kept)

    return context_and_gradients(attend, rows, heads, size)


def assert_close(arrays, expected):
    for x, y in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(y).max()))


def assert_is_definition(rows, *, jit=True, implementation="xla", **options):
    run = lambda: ours(rows, implementation=implementation, **options)  # noqa: E731
    context, of_query, of_keys, of_values = jax.jit(run)() if jit else run()
    assert_close((context, of_query, of_keys, of_values), by_definition(rows, **options))
    is_padding = rows.numbers == 0
    # Exactly nothing: padding is not seen, and sees nothing unless a row is one sequence.
    exact = (of_keys, of_values) if rows.is_by_key else (context, of_query, of_keys, of_values)
    for x in exact:
        assert np.all(np.asarray(x)[is_padding] == 0)
