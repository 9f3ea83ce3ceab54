"""Rows with a prefix: transformers' BERT with UniLM's mask has the same losses and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax.convert import formats, names
from bertjax.models import parameters
from bertjax.tasks import mixed_rows
from tests import conftest, lazily
from tests.convert import weights

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")

pytestmark = pytest.mark.usefixtures("quick_runs", "one_device")
SHARE = 1 / 4


def seen(row, is_prefix):
    """Returns which positions each one sees. Source: microsoft/unilm, seq2seq_loader.py."""
    segments, length = row["segment_ids"], int(row["input_mask"].sum())
    made = np.zeros((len(segments), len(segments)), np.float32)
    for i in range(length):
        for j in range(length):
            made[i, j] = not is_prefix or segments[j] == 0 or (segments[i] == 1 and j <= i)
    made[length:, 0] = 1  # torch's softmax over nothing; no loss reads it
    return made


def their_losses(model, batch, are_prefix):
    rows = [{name: np.asarray(values[n]) for name, values in batch.items()} for n in range(16)]
    mask = np.stack([seen(row, bool(it)) for row, it in zip(rows, are_prefix, strict=True)])
    tensor = lambda name: torch.tensor(np.asarray(batch[name])).long()  # noqa: E731
    out = model(
        input_ids=tensor("input_ids"),
        token_type_ids=tensor("segment_ids"),
        attention_mask=(1 - torch.tensor(mask))[:, None] * torch.finfo(torch.float32).min,
    )
    which = torch.arange(16)[:, None]
    predicted = out.prediction_logits[which, tensor("masked_lm_positions")].log_softmax(-1)
    losses = -predicted.gather(-1, tensor("masked_lm_ids")[..., None])[..., 0]
    counted = torch.tensor(np.asarray(batch["masked_lm_weights"]))
    pairs = torch.nn.functional.cross_entropy(
        out.seq_relationship_logits[:12], tensor("next_sentence_labels")[:12]
    )

    def mean(which):
        return (losses * counted)[which].sum() / counted[which].sum()

    return {"mlm_loss": mean(slice(12)), "prefix_loss": mean(slice(12, 16)), "nsp_loss": pairs}


def test_losses_and_gradients_are_those_of_torch(tmp_path):
    made = weights.make("pretraining", config=conftest.TINY)
    formats.write(made, tmp_path / "export", format="huggingface")
    theirs = transformers.BertForPreTraining.from_pretrained(
        tmp_path / "export", attn_implementation="eager"
    ).eval()
    batch = conftest.make_batch()
    for name in ("input_ids", "masked_lm_ids"):  # torch gives the row of padding no gradient
        batch[name] = jnp.maximum(batch[name], 1)
    positions, mask = (np.asarray(batch[it]) for it in ("masked_lm_positions", "input_mask"))
    is_real = np.take_along_axis(mask, positions, axis=1)
    batch["masked_lm_weights"] = batch["masked_lm_weights"] * is_real
    task = mixed_rows.PrefixRows(made.config, share=SHARE)
    losses = their_losses(theirs, batch, np.arange(16) >= 12)
    sum(share * losses[name] for name, share in task.objectives.items()).backward()

    graphdef, _ = parameters.split(nnx.eval_shape(lambda: task.init(nnx.Rngs(0))))
    params = parameters.nested(jax.tree.map(jnp.asarray, dict(made.params)))

    def objective(params):
        means = task.loss(parameters.merge(graphdef, params), batch, key=None)
        ours = {name: means[name].total / means[name].weight for name in task.objectives}
        return sum(share * ours[name] for name, share in task.objectives.items()), ours

    gradient, ours = jax.jit(jax.grad(objective, has_aux=True))(params)
    for name, loss in losses.items():
        np.testing.assert_allclose(ours[name], loss.item(), rtol=1e-5, err_msg=name)
    found = {path: it.grad.numpy() for path, it in theirs.named_parameters()}
    found = names.unfuse(found, made.family.fused)
    expected = names.to_ours(found, names.of_head(made.family.tensors, "pretraining"))
    gradient = parameters.flat(gradient)
    assert gradient.keys() == expected.keys()
    for path, array in gradient.items():
        tolerance = 3e-5 * np.abs(expected[path]).max() + 1e-6
        np.testing.assert_allclose(array, expected[path], atol=tolerance, err_msg=path)
