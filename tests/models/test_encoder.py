"""The encoder and its heads against a plain float64 numpy model written from the paper."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import nnx

from bertjax import models
from bertjax.models import parameters, visibility
from bertjax.tasks import pretraining
from tests import small_modules


def numpy_layer_norm(x, p, epsilon=1e-12):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * p["scale"] + p["bias"]


def numpy_dense(x, p):
    return x @ p["kernel"] + p["bias"]


def numpy_gelu(x):
    return x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2)))


def numpy_attention(x, mask, p, num_heads):
    batch, length, hidden = x.shape
    size = hidden // num_heads
    context = np.zeros_like(x)
    for row in range(batch):
        for head in range(num_heads):
            columns = slice(head * size, (head + 1) * size)
            q, k, v = (numpy_dense(x[row], p[n])[:, columns] for n in ("query", "key", "value"))
            scores = q @ k.T / np.sqrt(size)
            scores[:, mask[row] == 0] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            context[row, :, columns] = weights / weights.sum(-1, keepdims=True) @ v
    return numpy_dense(context, p["output"])


def numpy_hidden_states(batch, p, config):
    ids, mask, segments = (np.asarray(batch[n]) for n in ("input_ids", "input_mask", "segment_ids"))
    tables = p["embeddings"]
    x = tables["word"]["embedding"][ids] + tables["segment"]["embedding"][segments]
    x = x + tables["position"]["embedding"][: ids.shape[1]]
    states = [numpy_layer_norm(x, tables["norm"])]
    for index in range(config.num_hidden_layers):
        layer = p["layers"][str(index)]
        x = states[-1]
        attended = numpy_attention(x, mask, layer["attention"], config.num_attention_heads)
        x = numpy_layer_norm(x + attended, layer["attention_norm"])
        fed = numpy_dense(numpy_gelu(numpy_dense(x, layer["intermediate"])), layer["output"])
        states.append(numpy_layer_norm(x + fed, layer["output_norm"]))
    return states


@pytest.fixture
def model_and_params(tiny):
    task = pretraining.Pretraining(tiny)
    model = small_modules.made(task.init)
    return model, jax.tree.map(np.float64, parameters.split(model)[1])


def encode(model, batch, key=None):
    return model.encoder.hidden_states(batch, key=key)


def test_every_layer_equals_the_numpy_model(model_and_params, batch, tiny):
    model, params = model_and_params
    expected = numpy_hidden_states(batch, params["encoder"], tiny)
    for ours, reference in zip(encode(model, batch), expected, strict=True):
        np.testing.assert_allclose(ours, reference, atol=1e-5)


def test_heads_equal_the_numpy_model(model_and_params, batch, tiny):
    model, p = model_and_params
    hidden = numpy_hidden_states(batch, p["encoder"], tiny)[-1]
    rows = np.arange(len(hidden))[:, None]
    head = p["mlm_head"]
    masked = numpy_gelu(
        numpy_dense(hidden[rows, np.asarray(batch["masked_lm_positions"])], head["dense"])
    )
    table = p["encoder"]["embeddings"]["word"]["embedding"]
    mlm = numpy_layer_norm(masked, head["norm"]) @ table.T + head["bias"]
    nsp = numpy_dense(
        np.tanh(numpy_dense(hidden[:, 0], p["pooler"]["dense"])), p["nsp_head"]["dense"]
    )
    ours = encode(model, batch)[-1]
    np.testing.assert_allclose(model.mlm_logits(ours, batch["masked_lm_positions"]), mlm, atol=1e-5)
    np.testing.assert_allclose(model.pair_logits(ours), nsp, atol=1e-5)


def test_padding_does_not_change_real_tokens(model_and_params, batch):
    model, _ = model_and_params
    is_real = np.asarray(batch["input_mask"]) != 0
    changed = batch | {"input_ids": jnp.where(is_real, batch["input_ids"], 7)}
    longer = {name: jnp.pad(batch[name], ((0, 0), (0, 5))) for name in
              ("input_ids", "input_mask", "segment_ids")}  # fmt: skip
    before = np.asarray(encode(model, batch)[-1])
    np.testing.assert_array_equal(before[is_real], np.asarray(encode(model, changed)[-1])[is_real])
    after = np.asarray(encode(model, longer)[-1])[:, :16]
    np.testing.assert_allclose(before[is_real], after[is_real], atol=1e-6)


def test_gradient_of_real_tokens_is_zero_at_padding(tiny, batch):
    """The attention gives padding a weight of exactly zero, not of e to the minus something."""
    layer = models.SelfAttention(
        tiny.hidden_size, 4, dropout_rate=0.0, stddev=0.02, dtype=jnp.dtype("float32"),
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    hidden = jax.random.normal(jax.random.key(0), (16, 16, tiny.hidden_size))
    visible = visibility.of(batch)
    is_real = visible.is_real

    def sum_of_real(hidden):
        return jnp.where(is_real[:, :, None], layer(hidden, visible), 0.0).sum()

    gradient = np.asarray(jax.jit(jax.grad(sum_of_real))(hidden))
    assert np.all(gradient[~is_real] == 0)
    assert np.all(np.abs(gradient[is_real]).max(axis=-1) > 0)


@pytest.mark.parametrize("remat", ["full", pytest.param("dots", marks=pytest.mark.slow)])
def test_remat_changes_no_loss_and_no_gradient(tiny, batch, remat):
    key = jax.random.key(3)

    def loss_and_gradient(config):
        task = pretraining.Pretraining(dataclasses.replace(config, hidden_dropout_prob=0.1))
        graphdef, params = parameters.split(small_modules.made(task.init))

        def loss(params):
            means = task.loss(parameters.merge(graphdef, params), batch, key=key)
            return means["mlm_loss"].total + means["nsp_loss"].total

        return jax.jit(jax.value_and_grad(loss))(params)

    tiny = dataclasses.replace(tiny, num_hidden_layers=1)
    plain = loss_and_gradient(tiny)
    rematerialized = loss_and_gradient(dataclasses.replace(tiny, remat=remat))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), plain, rematerialized
    )


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_what_is_kept_for_the_backward_pass_does_not_depend_on_the_type_of_its_sums(
    tiny, batch, remat
):
    def kept(reduction):
        config = dataclasses.replace(
            tiny, dtype="bfloat16", gradient_reduction_dtype=reduction, remat=remat
        )
        graphdef, params = parameters.split(small_modules.made(models.make_encoder, config))

        def backward(params):
            return jax.vjp(lambda p: parameters.merge(graphdef, p)(batch), params)[1]

        leaves = jax.tree.leaves(jax.eval_shape(backward, params))
        return sorted((leaf.shape, str(leaf.dtype)) for leaf in leaves if leaf.ndim == 3)

    assert kept("float32") == kept("compute")


@pytest.mark.parametrize("reduction", ["float32", "compute"])
def test_gradients_of_kernels_are_rounded_to_bfloat16_only_where_it_is_asked_for(
    tiny, batch, reduction
):
    config = dataclasses.replace(
        *(tiny,), dtype="bfloat16", gradient_reduction_dtype=reduction, num_hidden_layers=1,
        embedding_size=16,
    )  # fmt: skip
    task = pretraining.Pretraining(config)
    graphdef, params = parameters.split(small_modules.made(task.init))

    def loss(params):
        means = task.loss(parameters.merge(graphdef, params), batch, key=None)
        return means["mlm_loss"].total + means["nsp_loss"].total

    grads = jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(params))
    # What no token of the batch reads has a gradient from the masked-token head alone.
    table = grads["encoder"]["embeddings"]["word"]["embedding"]
    unread = np.setdiff1d(np.arange(config.vocab_size), batch["input_ids"])
    found = {"head": table[unread]} | {
        parameters.path_name(path): grad
        for path, grad in jax.tree_util.tree_leaves_with_path(grads)
        if path[-1].key == "kernel" or path[-2].key == "intermediate"
    }
    rounded = {name for name, grad in found.items() if (grad == grad.astype(jnp.bfloat16)).all()}
    float32_layers = {"nsp_head.dense.kernel"}
    assert len(found) == 12
    assert rounded == (set() if reduction == "float32" else set(found) - float32_layers)


def test_bfloat16_stays_near_float32(tiny, batch):
    outputs = []
    for dtype in ("float32", "bfloat16"):
        model = small_modules.made(models.make_encoder, dataclasses.replace(tiny, dtype=dtype))
        hidden = model(batch)
        assert hidden.dtype == dtype
        outputs.append(np.asarray(hidden, np.float32))
    np.testing.assert_allclose(*outputs, atol=0.1)
    assert np.abs(outputs[0] - outputs[1]).max() > 0


def test_too_long_an_input_is_an_error(tiny):
    model = small_modules.made(models.make_encoder, tiny)
    ids = jnp.ones((1, 25), jnp.int32)
    with pytest.raises(ValueError, match="25 positions.*max_position_embeddings = 24"):
        model({"input_ids": ids, "input_mask": ids})


def test_initial_kernels_are_truncated_at_two_sigmas(tiny):
    _, params = parameters.split(models.make_encoder(tiny, rngs=nnx.Rngs(0)))
    kernel = np.asarray(params["layers"]["0"]["intermediate"]["kernel"])
    assert np.abs(kernel).max() <= 0.04
    # The standard deviation of a normal truncated at two sigmas is 0.88 of the normal's.
    assert np.isclose(kernel.std(), 0.88 * 0.02, rtol=0.05)
