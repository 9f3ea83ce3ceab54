"""Weights read from transformers' files give what transformers computed from them.

The files are tests/golden, made by its make_golden.py: every head, padding, two segments, three
activations, float32 in safetensors, float16 and bfloat16 in pytorch_model.bin.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import models
from bertjax.convert import huggingface_read, names
from bertjax.convert.families import bert
from bertjax.models import parameters
from bertjax.tasks import pretraining

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
HEADS = tuple(bert.ARCHITECTURES)


class Headless(nnx.Module):
    def __init__(self, config, *, rngs):
        self.encoder = models.make_encoder(config, rngs=rngs)
        self.pooler = models.Pooler(config, rngs=rngs)


class PairModel(Headless):
    def __init__(self, config, *, rngs):
        super().__init__(config, rngs=rngs)
        self.nsp_head = models.PairHead(config, rngs=rngs)


def make_module(read):
    config, rngs = read.config, nnx.Rngs(0)
    match read.head:
        case "pretraining":
            return pretraining.PretrainingModel(config, pair_loss="nsp", rngs=rngs)
        case "masked_lm":
            return pretraining.PretrainingModel(config, pair_loss="none", rngs=rngs)
        case "none":
            return Headless(config, rngs=rngs)
        case "next_sentence":
            return PairModel(config, rngs=rngs)
        case "sequence_classification":
            return models.SequenceClassifier(config, num_labels=len(read.labels), rngs=rngs)
        case "token_classification":
            return models.TokenClassifier(config, num_labels=len(read.labels), rngs=rngs)
        case "question_answering":
            return models.SpanClassifier(config, rngs=rngs)
        case "multiple_choice":
            return models.MultipleChoice(config, rngs=rngs)


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
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: make_module(read)))
    params = jax.tree.map(jnp.asarray, parameters.nested(read.params))
    return graphdef, params, inputs, golden


def outputs_of(head, model, inputs, hidden):
    """Returns what the head computes under the names of transformers."""
    ids = inputs["input_ids"]
    positions = jnp.broadcast_to(jnp.arange(ids.shape[-1]), ids.shape)
    match head:
        case "pretraining":
            mlm, pair = model.mlm_logits(hidden, positions), model.pair_logits(hidden)
            return {"prediction_logits": mlm, "seq_relationship_logits": pair}
        case "masked_lm":
            return {"logits": model.mlm_logits(hidden, positions)}
        case "none":
            return {"last_hidden_state": hidden, "pooler_output": model.pooler(hidden[:, 0])}
        case "next_sentence":
            return {"logits": model.nsp_head(model.pooler(hidden[:, 0]))}
        case "question_answering":
            start, end = model(inputs)
            return {"start_logits": start, "end_logits": end}
    return {"logits": model(inputs)}


@pytest.mark.parametrize("head", HEADS)
def test_every_layer_and_every_output_equal_transformers(head):
    graphdef, params, inputs, golden = load(head)

    @jax.jit
    def apply(params):
        model = parameters.merge(graphdef, params)
        rows = {name: x.reshape(-1, x.shape[-1]) for name, x in inputs.items()}
        states = model.encoder.hidden_states(rows)
        return states, outputs_of(head, model, inputs, states[-1])

    states, outputs = apply(params)
    assert f"hidden_states_{len(states)}" not in golden
    for number, ours in enumerate(states):
        np.testing.assert_allclose(ours, golden[f"hidden_states_{number}"], atol=1e-5)
    for name, ours in outputs.items():
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
