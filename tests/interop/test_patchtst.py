"""PatchTST compared with transformers: the losses of fifty updates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bertjax import models
from bertjax.data import value_masking
from bertjax.models import parameters
from bertjax.tasks import masked_values
from tests import lazily

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")

PATCH, PATCHES, ROWS, UPDATES, RATE = 4, 6, 8, 50, 1e-3
SIZES = models.EncoderConfig(
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 0},
    **{"intermediate_size": 24, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    **{"max_position_embeddings": PATCHES, "type_vocab_size": 0, "layer_norm_eps": 1e-5},
    **{"embeddings": "patches", "value_width": PATCH, "hidden_input": "zeros"},
    **{"normalized_rows": True, "partial_patches": False},
)


def of_torch():
    """Theirs with the paper's choices in place of its defaults, but for the norm."""
    config = transformers.PatchTSTConfig(
        **{"num_input_channels": 1, "context_length": PATCH * PATCHES, "patch_length": PATCH},
        **{"patch_stride": PATCH, "d_model": SIZES.hidden_size, "mask_value": 0},
        **{"num_hidden_layers": SIZES.num_hidden_layers, "ffn_dim": SIZES.intermediate_size},
        **{"num_attention_heads": SIZES.num_attention_heads, "norm_eps": SIZES.layer_norm_eps},
        **{"norm_type": "layernorm", "pre_norm": False},
        **{"activation_function": "gelu", "positional_encoding_type": "random", "scaling": "std"},
        **{"pooling_type": None, "channel_attention": False, "use_cls_token": False},
        **dict.fromkeys(("attention_dropout", "positional_dropout", "path_dropout"), 0.0),
        **dict.fromkeys(("ff_dropout", "head_dropout"), 0.0),
    )
    torch.manual_seed(0)
    return transformers.PatchTSTForPretraining(config).train()


def ours_of(theirs):
    """The same parameters under our names."""
    state = {name: it.detach().numpy().copy() for name, it in theirs.named_parameters()}
    body = "model.encoder"
    given = {
        "encoder.embeddings.patches": f"{body}.embedder.input_embedding",
        "value_head.dense": "head.linear",
    }
    norms = {}
    for layer in range(SIZES.num_hidden_layers):
        theirs_of, ours_of_layer = f"{body}.layers.{layer}", f"encoder.layers.{layer}"
        for ours, name in {
            "attention.query": "self_attn.q_proj", "attention.key": "self_attn.k_proj",
            "attention.value": "self_attn.v_proj", "attention.output": "self_attn.out_proj",
            "intermediate": "ff.0", "output": "ff.3",
        }.items():  # fmt: skip
            given[f"{ours_of_layer}.{ours}"] = f"{theirs_of}.{name}"
        norms[f"{ours_of_layer}.attention_norm"] = f"{theirs_of}.norm_sublayer1"
        norms[f"{ours_of_layer}.output_norm"] = f"{theirs_of}.norm_sublayer3"
    params = {}
    for ours, name in given.items():
        params[f"{ours}.kernel"] = state.pop(f"{name}.weight").T
        params[f"{ours}.bias"] = state.pop(f"{name}.bias")
    for ours, name in norms.items():
        params[f"{ours}.scale"] = state.pop(f"{name}.weight")
        params[f"{ours}.bias"] = state.pop(f"{name}.bias")
    params["encoder.embeddings.position.embedding"] = state.pop(
        f"{body}.positional_encoder.position_enc"
    )
    assert not state, state.keys()
    params["encoder.embeddings.empty.embedding"] = np.zeros((1, SIZES.hidden_size), np.float32)
    return {path: jnp.asarray(it) for path, it in params.items()}


def losses_of_updates(batches, monkeypatch):
    """Returns our losses and theirs of an update of each batch, with the same weights and masks."""
    theirs = of_torch()
    task = masked_values.MaskedValues(SIZES)
    graph, drawn = parameters.split(task.init(nnx.Rngs(0)))
    leaves = ours_of(theirs)
    assert leaves.keys() == parameters.flat(drawn).keys()
    params = parameters.nested(leaves)
    masks = []

    def given_masks(inputs, *, mask_value, **_):
        mask = torch.tensor(masks[-1])[:, None]
        return inputs.masked_fill(mask[..., None].bool(), mask_value), mask

    monkeypatch.setattr(
        transformers.models.patchtst.modeling_patchtst, "random_masking", given_masks
    )
    adam = torch.optim.Adam(theirs.parameters(), lr=RATE, eps=1e-8)
    ours = optax.adam(RATE, eps=1e-8)
    moments = ours.init(params)

    @jax.jit
    def update(params, moments, batch):
        def objective(params):
            mean = task.loss(parameters.merge(graph, params), batch, key=None)["value_loss"]
            return mean.total / mean.weight

        loss, gradient = jax.value_and_grad(objective)(params)
        step, moments = ours.update(gradient, moments)
        return optax.apply_updates(params, step), moments, loss

    found, expected = [], []
    for batch in batches:
        masks.append(batch["hidden"])
        given = {name: jnp.asarray(it) for name, it in batch.items()}
        params, moments, loss = update(params, moments, given)
        found.append(float(loss))
        adam.zero_grad()
        series = batch["values"].reshape(len(batch["values"]), -1, 1)
        out = theirs(past_values=torch.tensor(series))
        out.loss.backward()
        adam.step()
        expected.append(out.loss.item())
    return np.array(found), np.array(expected)


def masked(values, rng):
    """Returns a batch of series cut to patches, of which our own draw hides 40%."""
    batch = {"values": values, "input_mask": np.ones(values.shape[:2], np.int32)}
    drawn = value_masking.draw(batch, rng, value_masking.Options(share=0.4))
    return batch | drawn | {"example_weights": np.ones(len(values), np.float32)}


def walks(rng):
    """Returns random walks."""
    series = np.cumsum(rng.normal(size=(ROWS, PATCH * PATCHES)), axis=1)
    return series.astype(np.float32).reshape(ROWS, PATCHES, PATCH)


def test_fifty_updates_have_the_losses_of_torch(monkeypatch):
    rng = np.random.default_rng(0)
    batches = [masked(walks(rng), rng) for _ in range(UPDATES)]
    found, expected = losses_of_updates(batches, monkeypatch)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert np.ptp(found) > 0.05
