"""A hybrid model in torch: its two exports together have its losses and its gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import fill_mask, inference, models, recipes
from bertjax.convert import formats, names, pretrained
from bertjax.models import parameters
from bertjax.tasks import mixed_rows
from tests import conftest, lazily
from tests.convert import weights

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")

pytestmark = pytest.mark.usefixtures("quick_runs", "one_device")
SHARE = 1 / 4
SIDES = {
    "masked_lm": "ModernBertForMaskedLM",
    "causal_lm": "ModernBertDecoderForCausalLM",
}


@pytest.fixture(scope="module")
def made():
    fields = recipes.load("babylm:mini").model.to_dict() | {"dtype": "float32", "vocab_size": 96}
    fields |= {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    fields |= {"num_hidden_layers": 2, "max_position_embeddings": 40, "attention": "xla"}
    model = weights.make("masked_lm", config=models.EncoderConfig(**fields), norm_scale=1.0)
    return dataclasses.replace(model, is_shifted=True)


@pytest.fixture(scope="module")
def directories(made, tmp_path_factory):
    root = tmp_path_factory.mktemp("hybrid")
    for head in SIDES:
        formats.write(pretrained.select(made, head), root / head, format="huggingface")
    return {head: root / head for head in SIDES}


def their_losses(models_of_torch, masked, causal):
    """The loss of masked tokens, read one position before them, and that of next tokens."""
    ids, mask = (torch.tensor(np.array(masked[it])).long() for it in ("input_ids", "input_mask"))
    logits = models_of_torch["masked_lm"](ids, attention_mask=mask).logits
    rows = torch.arange(len(ids))[:, None]
    before = np.maximum(np.array(masked["masked_lm_positions"]) - 1, 0)
    predicted = logits[rows, torch.tensor(before).long()].log_softmax(-1)
    right = torch.tensor(np.array(masked["masked_lm_ids"])).long()[..., None]
    counted = torch.tensor(np.array(masked["masked_lm_weights"]))
    of_masked = -(predicted.gather(-1, right)[..., 0] * counted).sum() / counted.sum()
    ids, mask = (torch.tensor(np.array(causal[it])).long() for it in ("input_ids", "input_mask"))
    labels = torch.where(mask != 0, ids, -100)
    return of_masked, models_of_torch["causal_lm"](ids, attention_mask=mask, labels=labels).loss


def test_losses_and_gradients_are_those_of_torch(made, directories):
    task = mixed_rows.Hybrid(made.config, share=SHARE)
    graphdef, _ = parameters.split(nnx.eval_shape(lambda: task.init(nnx.Rngs(0))))
    params = parameters.nested(jax.tree.map(jnp.asarray, dict(made.params)))
    batch = conftest.make_batch()
    for name in ("input_ids", "masked_lm_ids"):  # torch gives the row of padding no gradient
        batch[name] = jnp.maximum(batch[name], 1)
    theirs = {
        head: getattr(transformers, kind).from_pretrained(directories[head])
        for head, kind in SIDES.items()
    }
    masked, causal = task.split(batch)
    of_masked, of_causal = their_losses(theirs, masked, task.as_last(causal))
    ((1 - SHARE) * of_masked + SHARE * of_causal).backward()

    def objective(params):
        means = task.loss(parameters.merge(graphdef, params), batch, key=None)
        losses = {name: means[name].total / means[name].weight for name in task.objectives}
        return sum(task.objectives[name] * losses[name] for name in losses), losses

    gradient, losses = jax.jit(jax.grad(objective, has_aux=True))(params)
    np.testing.assert_allclose(losses["mlm_loss"], of_masked.item(), rtol=1e-5)
    np.testing.assert_allclose(losses["lm_loss"], of_causal.item(), rtol=1e-5)
    summed = {}
    for head, model in theirs.items():
        side = pretrained.select(made, head)
        grads = {path: it.grad.numpy() for path, it in model.named_parameters()}
        grads = names.unfuse(grads, side.family.fused)
        for path, array in names.to_ours(grads, names.of_head(side.family.tensors, head)).items():
            ours = path.replace("lm_head.", "mlm_head.") if head == "causal_lm" else path
            summed[ours] = summed.get(ours, 0.0) + array
    gradient = parameters.flat(gradient)
    assert gradient.keys() == summed.keys()
    for path, array in gradient.items():
        tolerance = 3e-5 * np.abs(summed[path]).max() + 1e-6
        np.testing.assert_allclose(array, summed[path], atol=tolerance, err_msg=path)


def test_an_export_comes_back_as_what_it_is(made, directories):
    masked, causal = (formats.read(directories[head]) for head in SIDES)
    assert masked.is_shifted and not causal.is_shifted
    assert (masked.head, causal.head) == ("masked_lm", "causal_lm")
    assert causal.config == dataclasses.replace(made.config, left_to_right=True)
    for read in (masked, causal):
        for path, array in read.params.items():
            ours = path.replace("lm_head.", "mlm_head.") if read is causal else path
            np.testing.assert_array_equal(array, made.params[ours], err_msg=path)
    card = (directories["masked_lm"] / "README.md").read_text()
    assert "Shifted by one" in card and "pipeline_tag: fill-mask" not in card


def test_fill_mask_reads_the_export_one_position_before_the_mask(made, directories):
    model = inference.load(directories["masked_lm"])
    (found,) = fill_mask.fill_mask(model, "w1 w2 [MASK] w4", num_candidates=3)
    known = made.vocabulary
    ids = torch.tensor([[known.cls_id, *known.encode_with_masks("w1 w2 [MASK] w4"), known.sep_id]])
    theirs = transformers.ModernBertForMaskedLM.from_pretrained(directories["masked_lm"])
    place = ids[0].tolist().index(known.mask_id)
    with torch.no_grad():
        wanted = theirs(ids).logits[0, place - 1].softmax(-1).topk(3)
    np.testing.assert_allclose([it["probability"] for it in found], wanted.values, rtol=1e-4)
