"""Weights read from transformers' files give what transformers computed from them.

The files are tests/golden, made by its make_golden.py: every head, padding, two segments, three
activations, float32 in safetensors, float16 and bfloat16 in pytorch_model.bin.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.convert import huggingface_read, names
from bertjax.convert.families import bert
from bertjax.models import parameters
from bertjax.tasks import pretraining
from tests.convert import outputs

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
HEADS = tuple(bert.ARCHITECTURES)


def load(head):
    """Returns the model's static part, the folder's weights and inputs and the golden outputs."""
    read = huggingface_read.read(GOLDEN / head)
    assert read.head == head
    assert read.unused == ()
    golden = dict(np.load(GOLDEN / head / "golden.npz"))
    inputs = {
        ours: jnp.asarray(golden[theirs], jnp.int32)
        for ours, theirs in [
            ("input_ids", "input_ids"),
            ("input_mask", "attention_mask"),
            ("segment_ids", "token_type_ids"),
        ]
    }
    graphdef, params = outputs.module_of(read)
    return graphdef, params, inputs, golden


# Head -> transformers' names of its outputs; the others have `logits` alone.
NAMES = {
    "pretraining": ("prediction_logits", "seq_relationship_logits"),
    "none": ("last_hidden_state", "pooler_output"),
    "question_answering": ("start_logits", "end_logits"),
}


@pytest.mark.parametrize("head", HEADS)
def test_every_layer_and_every_output_equal_transformers(head):
    graphdef, params, inputs, golden = load(head)

    @jax.jit
    def apply(params):
        model = parameters.merge(graphdef, params)
        rows = {name: x.reshape(-1, x.shape[-1]) for name, x in inputs.items()}
        states = model.encoder.hidden_states(rows)
        return states, outputs.outputs_of(head, model, inputs)

    states, found = apply(params)
    assert f"hidden_states_{len(states)}" not in golden
    for number, ours in enumerate(states):
        np.testing.assert_allclose(ours, golden[f"hidden_states_{number}"], atol=1e-5)
    for name, ours in zip(NAMES.get(head, ("logits",)), found, strict=True):
        np.testing.assert_allclose(ours, golden[name], atol=1e-5, err_msg=name)


def test_loss_and_gradients_equal_those_of_torch():
    graphdef, params, inputs, golden = load("pretraining")
    task = pretraining.Pretraining(
        huggingface_read.read(GOLDEN / "pretraining").config, pair_loss="nsp"
    )
    batch = dict(inputs)
    for name in ("masked_lm_positions", "masked_lm_ids", "next_sentence_labels"):
        batch[name] = jnp.asarray(golden[name], jnp.int32)
    batch["masked_lm_weights"] = jnp.asarray(golden["masked_lm_weights"])
    batch["example_weights"] = jnp.ones(len(batch["input_ids"]))

    def loss(params):
        means = task.loss(parameters.merge(graphdef, params), batch, key=None)
        return sum(means[name].total / means[name].weight for name in task.objectives)

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    np.testing.assert_allclose(value, golden["loss"], rtol=1e-5)
    theirs = {
        name.removeprefix("gradient "): array
        for name, array in golden.items()
        if name.startswith("gradient ")
    }
    wanted = names.to_ours(theirs, bert.TENSORS)
    ours = parameters.flat(gradients)
    assert ours.keys() == wanted.keys()
    for path, gradient in wanted.items():
        np.testing.assert_allclose(ours[path], gradient, atol=1e-4, rtol=1e-4, err_msg=path)
