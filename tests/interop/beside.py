"""A model of transformers with torch and ours, side by side: rows, labels, losses, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from flax import nnx

from bertjax import models
from bertjax.convert import formats, names
from bertjax.models import parameters
from bertjax.tasks import base, pretraining
from tests.interop import exports

BATCH, LENGTH, LABELS, VOCAB_SIZE = 4, 11, 3, 61

# Head -> our module with it; "none" has a pooler.
MODULES = {
    "pretraining": lambda config, rngs: pretraining.PretrainingModel(
        config, pair_loss="sop", rngs=rngs
    ),
    "masked_lm": lambda config, rngs: pretraining.PretrainingModel(
        config, pair_loss="none", rngs=rngs
    ),
    "none": lambda config, rngs: nnx.Dict(
        encoder=models.make_encoder(config, rngs=rngs), pooler=models.Pooler(config, rngs=rngs)
    ),
    "sequence_classification": lambda config, rngs: models.SequenceClassifier(
        config, num_labels=LABELS, rngs=rngs
    ),
    "token_classification": lambda config, rngs: models.TokenClassifier(
        config, num_labels=LABELS, rngs=rngs
    ),
    "question_answering": models.SpanClassifier,
    "multiple_choice": models.MultipleChoice,
}
# Head -> how transformers finds its class.
AUTO = {head: exports.AUTO[head] for head in MODULES}
BY_TOKEN = ("pretraining", "masked_lm", "token_classification")


def graph_of(make, config):
    """The graph definition of a module that `make` makes; nothing is drawn."""
    return parameters.split(nnx.eval_shape(lambda: make(config, rngs=nnx.Rngs(0))))[0]


def saved(model, folder):
    """What we read of a model of theirs, with random weights far from zero, once it is saved."""
    torch.manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape) * 0.2
            is_norm = name.lower().endswith("norm.weight")
            parameter.copy_(1 + noise if is_norm else noise)
    model.save_pretrained(folder)
    return formats.read(folder)


def rows(head, *, padding=0):
    """Rows of several lengths; for a choice between two there are two in a row."""
    rng = np.random.default_rng(3)
    outer = (BATCH, 2) if head == "multiple_choice" else (BATCH,)
    lengths = rng.integers(4, LENGTH, (*outer, 1))
    lengths.flat[0] = LENGTH
    mask = (np.arange(LENGTH) < lengths).astype(np.int32)
    ids = rng.integers(padding + 1, VOCAB_SIZE, mask.shape)
    ids = np.where(mask != 0, ids, padding).astype(np.int32)
    segments = rng.integers(0, 2, mask.shape) * mask
    return {"input_ids": ids, "input_mask": mask, "segment_ids": segments}


def targets(head, mask):
    """Labels as transformers takes them, -100 where there are none."""
    rng = np.random.default_rng(4)
    if head in ("pretraining", "masked_lm"):
        drawn = rng.integers(1, VOCAB_SIZE, mask.shape)
        labels = np.where((rng.random(mask.shape) < 0.4) & (mask != 0), drawn, -100)
        order = {"sentence_order_label": np.array([0, 1, 1, 0])}
        return {"labels": labels} | (order if head == "pretraining" else {})
    if head == "token_classification":
        return {"labels": np.where(mask != 0, rng.integers(0, LABELS, mask.shape), -100)}
    if head == "question_answering":
        return {"start_positions": np.array([1, 2, 0, 3]), "end_positions": np.array([3, 2, 1, 3])}
    return {"labels": rng.integers(0, 2 if head == "multiple_choice" else LABELS, BATCH)}


def logits_of(head, model, inputs):
    """Our logits by the names of transformers' labels for them."""
    if head in ("pretraining", "masked_lm"):
        hidden = model.encoder(inputs)
        logits = {"labels": model.mlm_logits(hidden, jnp.tile(jnp.arange(LENGTH), (BATCH, 1)))}
        pair = {"sentence_order_label": model.pair_logits} if head == "pretraining" else {}
        return logits | {name: make(hidden) for name, make in pair.items()}
    if head == "question_answering":
        return dict(zip(("start_positions", "end_positions"), model(inputs), strict=True))
    return {"labels": model(inputs)}


def our_loss(head, model, inputs, wanted):
    """The loss of labels as transformers takes them, and the logits."""
    logits, total = logits_of(head, model, inputs), 0.0
    for name, labels in wanted.items():
        weights = (jnp.asarray(labels) >= 0).astype(jnp.float32)
        losses = base.cross_entropy(logits[name], jnp.maximum(jnp.asarray(labels), 0))
        total += (losses * weights).sum() / weights.sum()
    return total / (2 if head == "question_answering" else 1), logits


def their_logits(head, out):
    """Theirs by the same names."""
    if head == "pretraining":
        return {"labels": out.prediction_logits, "sentence_order_label": out.sop_logits}
    if head == "question_answering":
        return {"start_positions": out.start_logits, "end_positions": out.end_logits}
    return {"labels": out.logits}


def inputs_of(batch, *, segments=True):
    """The rows as transformers names them; not all of its models have segments."""
    wanted = {"input_ids": "input_ids", "attention_mask": "input_mask"}
    wanted |= {"token_type_ids": "segment_ids"} if segments else {}
    return {theirs: torch.tensor(batch[ours]) for theirs, ours in wanted.items()}


def trained(theirs, graphdef, params, batch, wanted, loss, *, segments=True):
    """Takes the gradients of both losses, which are the same: their output, our logits, and ours.

    `loss(model, batch)` is ours, with the logits. `wanted` are the labels of theirs.
    """
    labels = {name: torch.as_tensor(x) for name, x in wanted.items()}
    out = theirs(**inputs_of(batch, segments=segments), **labels)
    out.loss.backward()
    ours = jax.tree.map(jnp.asarray, batch)

    def objective(params):
        return loss(parameters.merge(graphdef, params), ours)

    (value, logits), gradient = jax.jit(jax.value_and_grad(objective, has_aux=True))(params)
    np.testing.assert_allclose(value, out.loss.item(), rtol=1e-5)
    return out, logits, gradient


def assert_gradients(theirs, gradient, table, *, reads_padding=False):
    """All are theirs, to 2e-5 of the largest of a tensor; `table` has their names."""
    of_theirs = dict(theirs.named_parameters())
    got = names.to_theirs(parameters.flat(gradient), table)
    assert got.keys() == of_theirs.keys()
    for name, array in got.items():
        expected = of_theirs[name].grad.numpy().copy()
        if name.endswith("word_embeddings.weight") and not reads_padding:
            # torch gives the row of padding_idx no gradient of its lookup; nothing reads it here.
            array, expected = array[1:], expected[1:]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(array, expected, atol=2e-5 * scale + 1e-6, err_msg=name)
    return got


def loaded(auto, directory, heard, capfd):
    """Their model of an export, and its tokenizer, of which they say nothing."""
    heard.clear()
    capfd.readouterr()
    model, report = getattr(transformers, auto).from_pretrained(directory, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    assert heard.messages == [] and capfd.readouterr() == ("", "")
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(model).__name__ == model.config.architectures[0]
    return model, tokenizer


def assert_comes_back(model, tokenizer, folder, made, params):
    """What they save of `made` again is read as it was, `params` to the bit."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    again = formats.read(folder)
    assert (again.head, again.config) == (made.head, made.config)
    assert {path: array.tobytes() for path, array in again.params.items()} == {
        path: array.tobytes() for path, array in params.items()
    }
    return again
