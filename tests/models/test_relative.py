"""Claims about terms of attention by distance, compared with their definition in float64."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import models
from bertjax.models import (
    attention,
    plain_attention,
    relative,
    relative_tables,
    visibility,
)

BATCH, HEADS, SIZE = 2, 3, 4


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def terms_of(length):
    distances = 2 * length - 1
    tables = (drawn(distances, HEADS, SIZE, seed=it) for it in (3, 4))
    return relative.Terms(*map(jnp.asarray, tables), jnp.asarray(drawn(HEADS, distances, seed=5)))


def defined(query, keys, values, seen, terms):
    """The context by the definition, a sum for each pair."""
    query, keys, values = (np.asarray(it, np.float64) for it in (query, keys, values))
    length = query.shape[1]
    distance = np.arange(length)[:, None] - np.arange(length)
    row = length - 1 - distance
    of_key, of_query, bias = (np.asarray(it, np.float64) for it in terms)
    scores = np.einsum("blhk,bshk->bhls", query, keys)
    scores += np.einsum("blhk,lshk->bhls", query, of_key[row])
    scores += np.einsum("bshk,lshk->bhls", keys, of_query[row]) + bias[:, row]
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhls,bshk->blhk", weights / weights.sum(axis=-1, keepdims=True), values)


def seen_pairs(visible, length):
    pairs = np.asarray(visibility.pairs(visible))
    return np.broadcast_to(pairs, (len(pairs), 1, length, length))


# Rows that are computed at once, in blocks of queries, and by windows; packed, from left to right.
CASES = {
    "at once": (11, {}),
    "to the left": (11, {"left_to_right": True}),
    "packed": (12, {"packed": True}),
    "blocks": (23, {"most": 8, "block": 8}),
    "packed blocks": (24, {"most": 8, "block": 8, "packed": True}),
    "window": (300, {"window": 5}),
    "rows in blocks": (11, {"rows": 4}),
    # As a TPU computes them.
    "tiles": (11, {"tile": 4}),
    "packed tiles": (16, {"tile": 4, "packed": True}),
    "tiles of blocks": (23, {"most": 8, "block": 8, "tile": 4}),
    "tiles of windows": (300, {"window": 5, "tile": 16}),
}

LARGE = {"window", "packed tiles", "tiles of windows"}


@pytest.mark.parametrize(
    "name", [pytest.param(it, marks=pytest.mark.slow if it in LARGE else ()) for it in CASES]
)
def test_the_context_and_its_gradients_are_the_definitions(name, monkeypatch):
    length, options = CASES[name]
    if "most" in options:
        monkeypatch.setattr(plain_attention, "MOST_AT_ONCE", options["most"])
        monkeypatch.setattr(plain_attention, "QUERY_BLOCK", options["block"])
    monkeypatch.setattr(relative, "ROW_BLOCK", options.get("rows", relative.ROW_BLOCK))
    if "tile" in options:
        monkeypatch.setattr(relative, "TILE", options["tile"])
        monkeypatch.setattr(relative, "_of_tables", relative._tiled)
    query, keys, values, weights = (
        jnp.asarray(drawn(BATCH, length, HEADS, SIZE, seed=it)) for it in range(10, 14)
    )
    mask = np.ones((BATCH, length), np.int32)
    inputs = {"input_mask": mask}
    if "packed" in options:
        half = length // 2
        inputs["sequence_ids"] = np.repeat([[1, 2]], half, axis=1).repeat(BATCH, axis=0)
    visible = visibility.of(jax.tree.map(jnp.asarray, inputs))
    visible = visible.narrowed(
        window=options.get("window"), left_to_right=options.get("left_to_right", False)
    )
    terms = terms_of(length)

    def ours(query, keys, values, terms):
        context = attention.attend(
            query, keys, values, visible, dropout_rate=0.0, key=None, terms=terms
        )
        return (context * weights).sum(), context

    arguments = (query, keys, values, terms)
    (_, context), gradients = jax.value_and_grad(ours, (0, 1, 2, 3), has_aux=True)(*arguments)
    wanted = defined(query, keys, values, seen_pairs(visible, length), terms)
    np.testing.assert_allclose(context, wanted, atol=2e-5)

    # A derivative in a random direction, by differences of the definition.
    ways = jax.tree.map(lambda it: drawn(*it.shape, seed=it.size), arguments)
    for number, (gradient, way) in enumerate(zip(gradients, ways, strict=True)):

        def value(step, number=number, way=way):
            at = [*arguments]
            at[number] = jax.tree.map(lambda it, by: np.float64(it) + step * by, at[number], way)
            context = defined(*at[:3], seen_pairs(visible, length), at[3])
            return (context * np.asarray(weights)).sum()

        products = jax.tree.map(lambda it, by: (np.asarray(it) * by).sum(), gradient, way)
        difference = (value(1e-5) - value(-1e-5)) / 2e-5
        np.testing.assert_allclose(sum(jax.tree.leaves(products)), difference, rtol=2e-3, atol=2e-3)


def test_log_buckets_are_those_of_the_released_code_at_every_distance():
    """The formula in plain Python; the values of the note in shared/research/families.md."""
    for buckets, span in ((256, 512), (8, 16), (32, 128)):
        middle = buckets // 2
        for distance in range(-2 * span, 2 * span + 1):
            row = distance
            if abs(distance) > middle:
                steps = math.log(abs(distance) / middle) / math.log((span - 1) / middle)
                row = int(math.copysign(middle + math.ceil(steps * (middle - 1)), distance))
            wanted = min(max(row + buckets, 0), 2 * buckets - 1)
            (found,) = relative_tables.log_buckets(np.array([distance]), buckets, span)
            assert found == wanted, (buckets, span, distance)
    known = {127: 383, 128: 384, 129: 385, 255: 448, 511: 511, -127: 129, -255: 64, -511: 1}
    assert [*relative_tables.log_buckets(np.array([*known]), 256, 512)] == [*known.values()]


def test_t5_buckets_are_mpnets():
    # By key - query, as transformers has it.
    known = {0: 0, -1: 1, -7: 7, -8: 8, -12: 9, -16: 10, -64: 14, -113: 15, 1: 17, 8: 24, 113: 31}
    assert [*relative_tables.t5_buckets(-np.array([*known]))] == [*known.values()]


def made(kind):
    config = models.EncoderConfig(
        **{"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3},
        **{"intermediate_size": 16, "max_position_embeddings": 16, "initializer_range": 0.5},
        **{"relative": kind, "relative_buckets": 8, "relative_span": 16, "type_vocab_size": 0},
        **{"position_embedding": "none", "hidden_dropout_prob": 0.0},
        attention_probs_dropout_prob=0.0,
    )
    return config, models.make_encoder(config, rngs=nnx.Rngs(0))


def float64_weights(encoder, hidden, kind):
    """The attention weights of the first layer: He et al. 2021, section 3.1; T5, section 2.1."""
    length = hidden.shape[1]
    distances = np.arange(length)[:, None] - np.arange(length)
    attention_ = encoder.layers[0].attention
    table = np.asarray(encoder.relative.table.embedding[...], np.float64)

    def projected(x, name):
        dense = getattr(attention_, name)
        kernel, bias = (np.asarray(it[...], np.float64) for it in (dense.kernel, dense.bias))
        return (x @ kernel + bias).reshape(*x.shape[:-1], HEADS, SIZE)

    query, keys = projected(hidden, "query"), projected(hidden, "key")
    scores = np.einsum("blhk,bshk->bhls", query, keys)
    if kind == "disentangled":
        table = table - table.mean(axis=-1, keepdims=True)
        table = table / np.sqrt((table**2).mean(axis=-1, keepdims=True) + 1e-12)
        norm = encoder.relative.norm
        table = table * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])
        row = relative_tables.log_buckets(distances.ravel(), 8, 16).reshape(distances.shape)
        scores += np.einsum("blhk,lshk->bhls", query, projected(table, "key")[row])
        scores += np.einsum("bshk,lshk->bhls", keys, projected(table, "query")[row])
        scores /= np.sqrt(3 * SIZE)
    else:
        row = relative_tables.t5_buckets(distances.ravel()).reshape(distances.shape)
        scores = scores / np.sqrt(SIZE) + np.moveaxis(table[row], -1, 0)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("kind", ["disentangled", "t5_bias"])
def test_the_weights_of_a_layer_are_the_papers(kind):
    config, encoder = made(kind)
    state = nnx.state(encoder)
    # Biases and norms as after training: they are zeros and ones at first.
    state = jax.tree.map(lambda it: it + 0.3 * drawn(*it.shape, seed=it.size), state)
    nnx.update(encoder, state)
    ids = jnp.asarray(np.random.default_rng(1).integers(1, 30, (2, 12)))
    inputs = {"input_ids": ids, "input_mask": jnp.ones_like(ids)}
    hidden = np.asarray(encoder.hidden_states(inputs)[0], np.float64)
    found = encoder.attention_weights(inputs)[0]
    np.testing.assert_allclose(found, float64_weights(encoder, hidden, kind), atol=1e-5)


@pytest.mark.parametrize("kind", ["disentangled", "t5_bias"])
def test_all_layers_share_the_table_and_packed_rows_are_rows_of_their_own(kind):
    config, encoder = made(kind)
    ids = jnp.asarray(np.random.default_rng(1).integers(1, 30, (2, 7)))
    apart = encoder({"input_ids": ids, "input_mask": jnp.ones_like(ids)})
    together = encoder(
        {
            "input_ids": ids.reshape(1, 14),
            "input_mask": jnp.ones((1, 14), jnp.int32),
            "sequence_ids": jnp.repeat(jnp.array([[1, 2]]), 7, axis=1),
        }
    )
    np.testing.assert_allclose(together.reshape(2, 7, -1), apart, atol=1e-5)
    tables = [path for path, _ in nnx.to_flat_state(nnx.state(encoder)) if "relative" in path]
    assert tables and {path[0] for path in tables} == {"relative"}
    none = dataclasses.replace(config, relative="none", position_embedding="learnt")
    assert models.make_encoder(none, rngs=nnx.Rngs(0)).terms_of() is None
