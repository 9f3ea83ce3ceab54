"""Claims about texts in sorted blocks: the vectors are those of each text alone, in the order."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import encode, inference
from bertjax.data import padding
from bertjax.inference import encoding
from tests import small_modules, small_sentences


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("sentences") / "model"
    small_sentences.write(path)
    return path


@pytest.fixture(scope="module")
def model(directory):
    return inference.load(directory)


@pytest.fixture(scope="module")
def texts():
    return [*small_sentences.texts(21), "w1 " * 40]


@pytest.fixture(scope="module")
def alone(model, texts):
    """The mean of the encoder's states over the tokens of each text, with length one."""
    most = small_sentences.MAX_LENGTH
    ids = [[2, *model.vocabulary.encode(text)[: most - 2], 3] for text in texts]
    lengths = np.array([len(row) for row in ids])[:, None]
    rows = np.array([[*row, *[0] * (most - len(row))] for row in ids])
    mask = (np.arange(most) < lengths).astype(np.int32)
    batch = {"input_ids": jnp.asarray(rows), "input_mask": jnp.asarray(mask)}
    states = small_modules.run(lambda it, batch: it.encoder(batch), model.module(), batch)
    means = (np.asarray(states) * mask[:, :, None]).sum(axis=1) / lengths
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_blocks_and_batches_change_no_vector(model, texts, alone, monkeypatch):
    expected = [min(len(text.split()) + 2, small_sentences.MAX_LENGTH) for text in texts]
    for block_size in (3, 8, 100):
        monkeypatch.setattr(encoding, "BLOCK_SIZE", block_size)
        encoded = encode.encode(model, texts, truncate=True, batch_size=8)
        np.testing.assert_allclose(encoded["features"], alone, atol=1e-6)
        assert encoded["lengths"].tolist() == expected
    differences = np.abs(alone[:, None] - alone[None]).max(axis=-1)
    assert (differences + np.eye(len(texts)) > 1e-4).sum() > 400  # a wrong order would be seen


def test_one_device_gives_what_eight_give(directory, texts, alone, monkeypatch):
    devices = jax.local_devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    single = inference.load(directory)
    assert single.mesh.size == 1
    vectors = encode.encode(single, texts, truncate=True)["features"]
    np.testing.assert_allclose(vectors, alone, atol=1e-6)


def test_the_defaults_are_what_the_model_was_trained_with(model, directory, tmp_path):
    options = encoding.options_for(model)
    assert (options.pooling, options.normalize, options.prompt) == ("mean", True, "")
    assert options.max_length == small_sentences.MAX_LENGTH
    given = encoding.options_for(model, pooling="max", normalize=False, prompt="w3 ")
    assert (given.pooling, given.normalize, given.prompt) == ("max", False, "w3 ")
    small_sentences.write(tmp_path / "plain", None)
    plain = encoding.options_for(inference.load(tmp_path / "plain"))
    assert (plain.pooling, plain.normalize, plain.prompt) == ("mean", False, "")
    assert plain.max_length == 32


def test_a_prompt_stands_before_each_text(model):
    found = encode.encode(model, ["w1 w2 w3"])["features"]
    with_prompt = encode.encode(model, ["w2 w3"], prompt="w1 ")["features"]
    np.testing.assert_array_equal(with_prompt, found)
    with pytest.raises(ValueError, match="there are no texts"):
        encode.encode(model, [])


def test_dims_are_the_first_numbers_with_length_one(model, texts):
    whole = encode.encode(model, texts[:5], normalize=False)["features"]
    short = encode.encode(model, texts[:5], dims=6)["features"]
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    first = whole[:, :6]
    expected = first / np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-6)
    with pytest.raises(ValueError, match="--dims=17 is more than the 16 numbers"):
        encode.encode(model, texts[:5], dims=17)


def test_a_text_that_is_cut_is_its_beginning(model):
    options = encoding.options_for(model, truncate=True)
    words = " ".join(f"w{number}" for number in range(30))
    tokens = encoding.tokenize(model, ["w1", words, "w2 w3"], options)
    assert tokens.num_cut == 1
    assert tokens.lengths.tolist() == [1, 18, 2]
    expected = [*model.vocabulary.encode("w1"), *model.vocabulary.encode(words)[:18]]
    assert tokens.ids.tolist() == [*expected, *model.vocabulary.encode("w2 w3")]
    whole = dataclasses.replace(options, truncate=False)
    with pytest.raises(ValueError, match="text 12 has 32 tokens .* at most 20: .*--truncate"):
        encoding.tokenize(model, ["w1", words], whole, first=11)


def test_padded_lengths_are_few_and_little_longer():
    lengths = [padding.padded_length(length, 512) for length in range(1, 513)]
    assert len(set(lengths)) == 20
    for length, padded in enumerate(lengths, start=1):
        assert length <= padded <= max(length * 1.25, length + 7)
    assert padding.padded_length(511, 510) == 510
    assert [padding.padded_length(n, 80, unit=32) for n in (1, 32, 33, 70)] == [32, 32, 64, 80]
