"""Claims about DeBERTa's mask decoder and head of replaced tokens: definitions in float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax import models
from bertjax.models import heads, parameters, relative_tables, visibility
from bertjax.tasks import pretraining
from tests import small_modules

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")

SIZES = models.EncoderConfig(
    **{"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2},
    **{"intermediate_size": 32, "max_position_embeddings": 16, "type_vocab_size": 0},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layer_norm_eps": 1e-7},
    **{"position_embedding": "none", "relative": "disentangled"},
    **{"relative_buckets": 8, "relative_span": 16, "pooler_act": "gelu"},
    **{"mask_decoder": True, "replaced_head": "with_first"},
)
LENGTH = 14
POSITIONS = np.array([[2, 9, 13, 1], [5, 3, 0, 0]], np.int32)  # unused places point at 0


def make_batch(*, packed=False):
    rng = np.random.default_rng(1)
    batch = {"input_ids": rng.integers(5, 60, (2, LENGTH)).astype(np.int32)}
    lengths = np.array([[LENGTH], [9]])
    mask = (np.arange(LENGTH) < lengths).astype(np.int32)
    if packed:  # the first sequence has 6 tokens
        batch["sequence_ids"] = np.where(np.arange(LENGTH) < 6, 1, 2).astype(np.int32) * mask
    return jax.tree.map(jnp.asarray, batch | {"input_mask": mask})


def of_numpy(module):
    flat = parameters.flat(parameters.split(module)[1])
    return {path: np.asarray(leaf, np.float64) for path, leaf in flat.items()}


def dense(x, p, name):
    return x @ p[f"{name}.kernel"] + p[f"{name}.bias"]


def norm(x, p, name):
    centered = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-7)
    return centered / scale * p[f"{name}.scale"] + p[f"{name}.bias"]


def gelu(x):
    return x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2)))


def one_pass(p, asked, places, states, seen, number):
    """A layer for the queries of one row at `places`, with keys and values of `states`."""
    layer, table = f"encoder.layers.{number}", "encoder.relative"
    rows = norm(p[f"{table}.table.embedding"], p, f"{table}.norm")
    distance = places[:, None] - np.arange(len(states))
    index = relative_tables.log_buckets(distance.ravel(), 8, 16).reshape(distance.shape)
    query = dense(asked, p, f"{layer}.attention.query")
    keys, values = (dense(states, p, f"{layer}.attention.{it}") for it in ("key", "value"))
    of_key, of_query = (dense(rows, p, f"{layer}.attention.{it}") for it in ("key", "query"))
    context = []
    for head in (slice(0, 8), slice(8, 16)):
        scores = query[:, head] @ keys[:, head].T
        scores = scores + np.einsum("mk,mlk->ml", query[:, head], of_key[:, head][index])
        scores = scores + np.einsum("lk,mlk->ml", keys[:, head], of_query[:, head][index])
        scores = np.where(seen, scores / np.sqrt(3 * 8), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        context.append(weights / weights.sum(-1, keepdims=True) @ values[:, head])
    attended = dense(np.concatenate(context, -1), p, f"{layer}.attention.output")
    hidden = norm(asked + attended, p, f"{layer}.attention_norm")
    inner = dense(gelu(dense(hidden, p, f"{layer}.intermediate")), p, f"{layer}.output")
    return norm(hidden + inner, p, f"{layer}.output_norm")


# Mistakes in the queries: how they start, and what the second pass reads.
WRONG = {
    "positions alone": {"states_in_queries": False},
    "the last states": {"states": -1},
    "one pass": {"passes": 1},
    "keys of the first pass": {"own_keys": True},
}


def decoded(module, batch, row, *, states=-2, states_in_queries=True, passes=2, own_keys=False):
    p = of_numpy(module)
    all_states = [np.asarray(it, np.float64)[row] for it in module.encoder.hidden_states(batch)]
    before = all_states[states]
    places = POSITIONS[row]
    seen = np.asarray(visibility.of(batch).is_real)[row][None].repeat(len(places), 0)
    in_sequence = places
    if "sequence_ids" in batch:
        ids = np.asarray(batch["sequence_ids"])[row]
        seen = seen & (ids[places][:, None] == ids)
        in_sequence = places - np.where(ids[places] == 2, 6, 0)
    hidden = p["mask_decoder.position.embedding"][in_sequence] + before[places] * states_in_queries
    for _ in range(passes):
        hidden = one_pass(p, hidden, places, before, seen, 2)
        if own_keys:
            before = before.copy()
            before[places] = hidden
    return hidden


@pytest.mark.parametrize("packed", [False, True])
def test_masked_tokens_pass_the_last_layer_twice_from_their_positions(packed):
    module = small_modules.made(pretraining.PretrainingModel, SIZES, pair_loss="none")
    batch = make_batch(packed=packed)
    found = np.asarray(module.mask_decoder(module.encoder, batch, jnp.asarray(POSITIONS)))
    for row, count in enumerate((4, 2)):
        wanted = decoded(module, batch, row)[:count]
        np.testing.assert_allclose(found[row, :count], wanted, atol=1e-5)
        for options in WRONG.values():
            assert np.abs(decoded(module, batch, row, **options)[:count] - wanted).max() > 1e-3
    logits = module.masked_logits(batch, jnp.asarray(POSITIONS))
    words = module.encoder.embeddings.word.embedding[...]
    np.testing.assert_allclose(logits, module.mlm_head(jnp.asarray(found), words), atol=1e-6)


@pytest.mark.slow
def test_the_loss_has_these_logits_and_gradients_for_table_and_last_layer():
    task = pretraining.Pretraining(SIZES, pair_loss="none")
    module = small_modules.made(pretraining.PretrainingModel, SIZES, pair_loss="none")
    batch = make_batch() | {
        "masked_lm_positions": jnp.asarray(POSITIONS),
        "masked_lm_ids": jnp.full(POSITIONS.shape, 7),
        "masked_lm_weights": jnp.asarray([[1.0, 1, 1, 1], [1, 1, 0, 0]]),
    }
    graphdef, params = parameters.split(module)

    def loss(params, remat="none"):
        module = parameters.merge(graphdef, params)
        module.encoder.remat = remat
        mean = task.loss(module, batch, key=None)["mlm_loss"]
        return mean.total / mean.weight

    logits = np.float64(module.masked_logits(batch, batch["masked_lm_positions"]))
    losses = scipy.special.logsumexp(logits, axis=-1) - logits[:, :, 7]
    weights = np.asarray(batch["masked_lm_weights"])
    wanted = (losses * weights).sum() / weights.sum()
    value, gradients = jax.value_and_grad(loss)(params)
    assert float(value) == pytest.approx(wanted, rel=1e-5)
    again = jax.grad(lambda it: loss(it, "full"))(params)
    flat, recomputed = map(parameters.flat, (gradients, again))
    for path, gradient in flat.items():
        np.testing.assert_allclose(gradient, recomputed[path], atol=1e-5, err_msg=path)
    positions = np.abs(np.asarray(flat["mask_decoder.position.embedding"])).max(axis=1)
    assert (positions[[1, 2, 3, 5, 9, 13]] > 0).all() and positions[0] == positions[4] == 0
    assert np.abs(flat["encoder.layers.2.attention.query.kernel"]).max() > 0


@pytest.mark.parametrize("packed", [False, True])
def test_the_head_of_replaced_tokens_norms_the_sum_with_the_first_state(packed):
    head = small_modules.made(heads.ReplacedHead, SIZES)
    p = of_numpy(head)
    hidden = np.random.default_rng(2).normal(size=(2, LENGTH, 16))
    ids = np.asarray(make_batch(packed=True)["sequence_ids"]) if packed else None
    first = np.zeros((2, LENGTH), int)
    if packed:
        first = np.where(ids == 2, 6, 0)
    summed = hidden + np.take_along_axis(hidden, first[:, :, None], axis=1)
    wanted = dense(gelu(dense(norm(summed, p, "norm"), p, "dense")), p, "output")[:, :, 0]
    found = np.asarray(head(jnp.float32(hidden), None if ids is None else jnp.asarray(ids)))
    real = np.ones((2, LENGTH), bool) if ids is None else ids > 0
    np.testing.assert_allclose(found[real], wanted[real], atol=1e-5)


def test_flops_count_the_two_passes():
    plain = dataclasses.replace(SIZES, mask_decoder=False)
    length, positions, hidden, inner = 14, 4, 16, 32
    attended = length * 2 * (length + 2 * length - 1) * hidden
    each = 2 * hidden**2 + 2 * hidden * inner  # query, output, feed-forward
    more = SIZES.masked_flops(length, positions) - plain.masked_flops(length, positions)
    assert more == 2 * (attended + (2 * positions - length) * each)


@pytest.mark.parametrize(
    "changes",
    [{"relative": "none", "position_embedding": "learnt"}, {"layer": "full_pre_norm"}],
)
def test_a_mask_decoder_needs_layers_without_positions(changes):
    with pytest.raises(ValueError, match="mask_decoder"):
        dataclasses.replace(SIZES, **changes)
