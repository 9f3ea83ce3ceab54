"""Claims about RoBERTa's inputs: positions behind the row of padding, one segment, the start."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import models

SIZES = models.EncoderConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=8, position_offset=2, type_vocab_size=1, initializer="normal",
    layer_norm_eps=1e-5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
IDS = jnp.array([[0, 7, 8, 9, 2, 1, 1, 1], [0, 7, 8, 9, 10, 11, 12, 2]])
MASK = (IDS != 1).astype(jnp.int32)
INPUTS = {"input_ids": IDS, "input_mask": MASK}


@pytest.fixture(scope="module")
def encoder():
    return models.make_encoder(SIZES, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def run(encoder):
    """The encoder's outputs, compiled."""
    graphdef, params = models.parameters.split(encoder)
    compiled = jax.jit(lambda params, inputs: models.parameters.merge(graphdef, params)(inputs))
    return lambda inputs: np.asarray(compiled(params, inputs))


def test_the_first_position_has_the_row_behind_that_of_padding(encoder):
    table = np.asarray(encoder.embeddings.position.embedding[...])
    assert table.shape == (10, 16)
    words = np.asarray(encoder.embeddings.word.embedding[...])[np.asarray(IDS)]
    found = np.asarray(encoder.embeddings._placed_words(INPUTS, encoder.embeddings.word)) - words
    np.testing.assert_allclose(found[1], table[2:], atol=1e-7)
    np.testing.assert_allclose(found[0], [*table[2:7], *np.zeros((3, 16))], atol=1e-7)


def test_positions_are_counted_over_real_tokens_where_a_row_says_which(run):
    left = jnp.roll(IDS, 3, axis=1)
    outputs = run(INPUTS)
    for told in ({"sequence_ids": (left != 1).astype(jnp.int32)},
                 {"positions": jnp.roll(jnp.arange(8), 3)[None].repeat(2, axis=0)}):  # fmt: skip
        inputs = {"input_ids": left[:1], "input_mask": jnp.roll(MASK, 3, axis=1)[:1]}
        inputs |= {name: array[:1] for name, array in told.items()}
        np.testing.assert_allclose(run(inputs)[0, 3:], outputs[0, :5], atol=1e-5)


def test_a_row_of_several_sequences_has_the_positions_of_each(run):
    ids = jnp.array([[0, 7, 2, 0, 8, 9, 2, 1]])
    packed = run({"input_ids": ids, "sequence_ids": jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]])})
    for row in ([0, 7, 2], [0, 8, 9, 2]):
        alone = run({"input_ids": jnp.array([row]), "input_mask": jnp.ones((1, len(row)), int)})
        start = 0 if len(row) == 3 else 3
        np.testing.assert_allclose(packed[0, start : start + len(row)], alone[0], atol=1e-5)


def test_padding_rows_are_zero_and_get_no_gradient(encoder):
    graphdef, params = models.parameters.split(encoder)
    for table in ("word", "position"):
        values = np.asarray(params["embeddings"][table]["embedding"])
        assert (values[1] == 0).all() and (np.abs(values).sum(axis=1) > 0).sum() == len(values) - 1

    def loss(params):
        hidden = models.parameters.merge(graphdef, params)(INPUTS)
        weights = jax.random.normal(jax.random.key(0), hidden.shape)
        return (hidden * weights).sum()  # of padding, too, as the loss of answers has it

    grads = jax.jit(jax.grad(loss))(params)["embeddings"]
    for table in ("word", "position"):
        assert (np.asarray(grads[table]["embedding"])[1] == 0).all()
    assert (np.asarray(grads["position"]["embedding"])[0] == 0).all()
    assert (np.abs(np.asarray(grads["position"]["embedding"])[2:]).sum(axis=1) > 0).all()


def test_the_one_segment_is_that_of_all_tokens(encoder, run):
    with_ids = run({**INPUTS, "segment_ids": jnp.array([[0, 0, 0, 1, 1, 0, 0, 0]] * 2)})
    np.testing.assert_array_equal(with_ids, run(INPUTS))
    graphdef, params = models.parameters.split(encoder)
    params["embeddings"]["segment"]["embedding"] += jnp.arange(16.0)[None]
    changed = models.parameters.merge(graphdef, params).embed(INPUTS)
    assert (np.abs(changed - encoder.embed(INPUTS)).max(axis=-1) > 0.1).all()


def test_a_row_longer_than_the_positions_is_refused(encoder):
    long = {name: jnp.concatenate([array, array], axis=1) for name, array in INPUTS.items()}
    with pytest.raises(ValueError, match="16 positions; .* max_position_embeddings = 8"):
        encoder(long)


def test_weights_begin_as_the_config_says():
    wide = dataclasses.replace(SIZES, hidden_size=256, intermediate_size=512)
    for kind, is_truncated in (("normal", False), ("truncated_normal", True)):
        made = models.make_encoder(dataclasses.replace(wide, initializer=kind), rngs=nnx.Rngs(1))
        for leaf in (made.layers[0].intermediate.kernel, made.layers[0].attention.query.kernel):
            values = np.asarray(leaf[...])
            assert (np.abs(values).max() <= 0.04) == is_truncated
            # Of a normal distribution cut at two sigmas the deviation is 0.88 of its own.
            assert values.std() == pytest.approx(0.02 * (0.88 if is_truncated else 1), rel=0.02)
    by_size = dataclasses.replace(wide, initializer="xavier_uniform")
    made = models.make_encoder(by_size, rngs=nnx.Rngs(1))
    kernels = (made.layers[0].intermediate.kernel, made.layers[0].attention.query.kernel)
    for leaf in kernels:  # uniform within the root of 6 over both sizes
        values = np.asarray(leaf[...])
        bound = np.sqrt(6 / sum(values.shape))
        assert 0.98 * bound < np.abs(values).max() <= bound
        assert values.std() == pytest.approx(bound / np.sqrt(3), rel=0.02)
    assert np.asarray(made.embeddings.word.embedding[...]).std() == pytest.approx(0.02, rel=0.05)
