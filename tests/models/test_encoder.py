"""The encoder and its heads against a plain float64 numpy model written from the paper."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import nnx

from bertjax import models
from bertjax.models import encoder_config, parameters, visibility
from bertjax.tasks import pretraining
from tests import marks, small_modules


def numpy_layer_norm(x, p, epsilon=1e-12):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * p["scale"] + p["bias"]


def numpy_dense(x, p):
    return x @ p["kernel"] + p["bias"]


def numpy_gelu(x):
    return x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2)))


def numpy_attention(x, states, seen, p, num_heads):
    """`seen` is [batch, queries, keys]."""
    size = x.shape[-1] // num_heads
    query = numpy_dense(x, p["query"]) / np.sqrt(size)
    keys, values = (numpy_dense(states, p[name]) for name in ("key", "value"))
    context = np.zeros_like(x)
    for row in range(len(x)):
        for head in range(num_heads):
            of_head = slice(head * size, (head + 1) * size)
            scores = query[row][:, of_head] @ keys[row][:, of_head].T
            scores = np.where(seen[row], scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            context[row, :, of_head] = weights @ values[row][:, of_head]
    return numpy_dense(context, p["output"])


def numpy_hidden_states(batch, p, config):
    ids, mask, segments = (np.asarray(batch[n]) for n in ("input_ids", "input_mask", "segment_ids"))
    tables, seen = p["embeddings"], np.repeat(mask[:, None] != 0, ids.shape[1], axis=1)
    x = tables["word"]["embedding"][ids] + tables["segment"]["embedding"][segments]
    x = x + tables["position"]["embedding"][: ids.shape[1]]
    if "language" in tables:
        languages = np.asarray(batch["language"]).reshape(len(ids), -1)
        x = x + tables["language"]["embedding"][languages]
    states = [numpy_layer_norm(x, tables["norm"])]
    for index in range(config.num_hidden_layers):
        layer = p["layers"][str(index)]
        x = states[-1]
        attended = numpy_attention(x, x, seen, layer["attention"], config.num_attention_heads)
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


def test_languages_and_a_head_without_a_transform_equal_the_numpy_model(batch, tiny):
    config = dataclasses.replace(
        tiny, type_vocab_size=0, language_embeddings=3, mlm_transform=False, num_hidden_layers=1
    )
    task = pretraining.Pretraining(config, pair_loss="none")
    model = small_modules.made(task.init)
    p = jax.tree.map(np.float64, parameters.split(model)[1])
    p["encoder"]["embeddings"]["segment"] = {"embedding": np.zeros((2, config.hidden_size))}
    assert p["mlm_head"].keys() == {"bias"}
    rng, positions = np.random.default_rng(0), batch["masked_lm_positions"]
    for shape in ((16,), (16, 16)):  # one for a row; one for each token, as of pairs of texts
        rows = batch | {"language": jnp.asarray(rng.integers(0, 3, shape, dtype=np.int32))}
        hidden = numpy_hidden_states(rows, p["encoder"], config)[-1]
        masked = hidden[np.arange(16)[:, None], positions]
        expected = masked @ p["encoder"]["embeddings"]["word"]["embedding"].T
        ours = encode(model, rows)[-1]
        np.testing.assert_allclose(ours, hidden, atol=1e-5)
        np.testing.assert_allclose(
            model.mlm_logits(ours, positions), expected + p["mlm_head"]["bias"], atol=1e-5
        )
    lacking = np.asarray(model.encoder(batch | {"language": jnp.full(16, 1).at[2].set(3)}))
    assert np.isnan(lacking[2]).all() and np.isfinite(lacking[[0, 1, 3]]).all()
    with pytest.raises(ValueError, match="embeddings of 3 languages .* feature `language`"):
        model.encoder(batch)
    saved = tiny.head_flops(4) - config.head_flops(4)
    assert saved == 2 * 4 * tiny.hidden_size**2


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


@marks.MULTIPLIES_BFLOAT16
@pytest.mark.parametrize("reduction", ["float32", "compute"])
def test_gradients_of_kernels_are_rounded_to_bfloat16_only_where_it_is_asked_for(
    tiny, batch, reduction
):
    types = {"dtype": "bfloat16", "gradient_reduction_dtype": reduction}
    config = dataclasses.replace(tiny, **types, num_hidden_layers=1, embedding_size=16)
    task = pretraining.Pretraining(config)
    graphdef, params = parameters.split(small_modules.made(task.init))

    def loss(params):
        means = task.loss(parameters.merge(graphdef, params), batch, key=None)
        return means["mlm_loss"].total + means["nsp_loss"].total

    grads = parameters.flat(jax.tree.map(np.asarray, jax.jit(jax.grad(loss))(params)))
    # What no token of the batch reads has a gradient from the masked-token head alone.
    unread = np.setdiff1d(np.arange(config.vocab_size), batch["input_ids"])
    found = {"head": grads["encoder.embeddings.word.embedding"][unread]}
    found |= {n: g for n, g in grads.items() if n.endswith(".kernel") or ".intermediate." in n}
    rounded = {name for name, grad in found.items() if (grad == grad.astype(jnp.bfloat16)).all()}
    float32_layers = {"nsp_head.dense.kernel"}
    assert len(found) == 12
    assert rounded == (set() if reduction == "float32" else set(found) - float32_layers)


@marks.MULTIPLIES_BFLOAT16
def test_bfloat16_stays_near_float32(tiny, batch):
    outputs = []
    for dtype in ("float32", "bfloat16"):
        model = small_modules.made(models.make_encoder, dataclasses.replace(tiny, dtype=dtype))
        hidden = model(batch)
        assert hidden.dtype == dtype
        outputs.append(np.asarray(hidden, np.float32))
    np.testing.assert_allclose(*outputs, atol=0.1)
    assert np.abs(outputs[0] - outputs[1]).max() > 0


ROTARY = {"position_embedding": "rotary"}
ESM = {"embeddings": "token_dropout", "type_vocab_size": 0, **ROTARY}

FAULTS = [
    ({"hidden_size": 30, "num_attention_heads": 4, "hidden_act": "gleu"},
     "hidden_act is 'gleu'; .*; hidden_size is 30; .* a multiple of num_attention_heads, 4"),
    ({"type_vocab_size": -1}, "type_vocab_size is -1; it must be at least 0"),
    ({"language_embeddings": 1}, "is 1; it must be 0 .none. or the number of languages, at least"),
    ({"mlm_transform": False, "embedding_size": 8}, "embedding_size is 8; it must be 0 or hidden"),
    ({"embedding_size": -1}, "embedding_size is -1"),
    ({"num_hidden_groups": 13}, "num_hidden_groups is 13; it must be at most .*, 12"),
    ({"inner_group_num": 0}, "inner_group_num is 0; it must be at least 1"),
    ({"num_hidden_groups": 1, "layer": "pre_norm"}, "set num_hidden_groups to 0"),
    ({"position_offset": -1}, "position_offset is -1; .*at least 0"),
    ({"position_offset": 51, "vocab_size": 50}, "offset is 51; .*at most vocab_size, 50"),
    ({**ROTARY, "position_offset": 2}, "there is no table of positions"),
    ({**ROTARY, "hidden_size": 36}, "hidden_size is 36; it must be an even multiple"),
    ({**ROTARY, "hidden_size": 33, "num_attention_heads": 0}, "num_attention_heads is 0"),
    ({**ROTARY, "rotary_base": 0.0}, "must be above 0"),
    ({"window": 2, "global_every": 1}, "no layer has that window"),
    ({"window": -2}, "at least -1"),
    ({"norm": "batch"}, "known are layer_norm, scale_only, rms_norm"),
    ({"pooler_act": "no"}, "pooler_act is 'no'; known are tanh, gelu, gelu_tanh, "),
    ({**ESM, "type_vocab_size": 2}, "type_vocab_size is 2; it must be 0"),
    ({**ESM, "position_embedding": "learnt"}, "it must be 'rotary'"),
    ({**ESM, "mask_id": 12, "vocab_size": 12}, "mask_id is 12; .*, below vocab_size, 12"),
    ({"hidden_size": 192, "num_attention_heads": 2, "attention": "pallas"},
     "heads of 32, 64, 128; .* is 96: set attention='xla'"),
    *(({field: "none such"}, f"{field} is 'none such'; known are {', '.join(known)}")
      for field, known in encoder_config.CHOICES.items()),
]  # fmt: skip


def test_what_does_not_fit_is_named():
    for options, message in FAULTS:
        with pytest.raises(ValueError, match=message):
            models.EncoderConfig(**options)
    models.EncoderConfig(hidden_size=192, num_attention_heads=2)  # any size, in plain JAX
