"""Inputs of ESM-2: what masks and padding are to the layers, and angles rounded to float16."""

import jax.numpy as jnp
import numpy as np

from bertjax import models
from bertjax.models import embeddings, encoder, rotary
from tests import small_modules

MASK = 9
SIZES = {
    **{"vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"intermediate_size": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    **{"embeddings": "token_dropout", "mask_id": MASK, "type_vocab_size": 0},
    **{"position_embedding": "rotary", "layer": "full_pre_norm", "max_position_embeddings": 2048},
}
SEQUENCES = [[0, 4, MASK, 5, MASK, 6, 2], [0, 7, 8, 2], [0, MASK, 2]]


def defined(table, sequence):
    """Source: esm/model/esm2.py, forward, in float64."""
    ids = np.array(sequence)
    observed = (ids == MASK).mean()
    rows = np.where((ids == MASK)[:, None], 0, table.astype(np.float64)[ids])
    return rows * (1 - 0.15 * 0.8) / (1 - observed)


def padded(length):
    ids, mask = np.zeros((2, 3, length), np.int32)
    for row, sequence in enumerate(SEQUENCES):
        ids[row, : len(sequence)], mask[row, : len(sequence)] = sequence, 1
    return {"input_ids": jnp.asarray(ids), "input_mask": jnp.asarray(mask)}


def packed(length):
    ids, numbers = np.zeros((2, 1, length), np.int32)
    whole = np.concatenate(SEQUENCES)
    ids[0, : len(whole)] = whole
    numbers[0, : len(whole)] = np.repeat([1, 2, 3], list(map(len, SEQUENCES)))
    return {"input_ids": jnp.asarray(ids), "sequence_ids": jnp.asarray(numbers)}


def test_embeddings_are_their_definition_in_padded_and_in_packed_rows():
    config = models.EncoderConfig(**SIZES)
    module = small_modules.made(embeddings.TokenDropoutEmbeddings, config)
    table = np.asarray(module.word.embedding[...])
    apart = [defined(table, sequence) for sequence in SEQUENCES]
    rows, row = np.asarray(module(padded(10))), np.asarray(module(packed(16)))[0]
    for place, expected in enumerate(apart):
        np.testing.assert_allclose(rows[place, : len(expected)], expected, rtol=1e-6)
        assert (rows[place, len(expected) :] == 0).all()
    whole = np.concatenate(apart)
    np.testing.assert_allclose(row[: len(whole)], whole, rtol=1e-6)
    assert (row[len(whole) :] == 0).all()


def test_a_packed_row_has_the_states_of_its_sequences_apart():
    made = small_modules.made(encoder.make_encoder, models.EncoderConfig(**SIZES))
    rows, row = np.asarray(made(padded(10))), np.asarray(made(packed(16)))[0]
    begin = 0
    for place, sequence in enumerate(SEQUENCES):
        end = begin + len(sequence)
        np.testing.assert_allclose(row[begin:end], rows[place, : len(sequence)], atol=2e-6)
        begin = end


def test_a_sequence_of_masks_alone_is_zero_and_no_nan():
    config = models.EncoderConfig(**SIZES)
    module = small_modules.made(embeddings.TokenDropoutEmbeddings, config)
    ids = jnp.full((1, 4), MASK)
    assert (module({"input_ids": ids, "input_mask": jnp.ones_like(ids)}) == 0).all()


def test_rounded_angles_turn_by_those_of_float16():
    base, size, position = 10_000.0, 24, 1022
    exact = base ** (-np.arange(size // 2) / (size // 2))
    rounded = exact.astype(np.float16).astype(np.float64)
    assert np.abs(position * (rounded - exact)).max() > 0.04
    x = jnp.ones((1, 1, 1, size))
    for positions in (jnp.full((1, 1), position), None):
        place = position if positions is not None else 0
        turned = rotary.turned(x, positions, rotary.RoundedBase(base))[0, 0, 0, : size // 2]
        expected = np.cos(place * rounded) - np.sin(place * rounded)
        np.testing.assert_allclose(turned, expected, atol=2e-4)
    config = models.EncoderConfig(**SIZES, rotary_angles="float16")
    assert config.rotary_base_of(0) == rotary.RoundedBase(base)
