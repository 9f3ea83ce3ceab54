"""Finetuning compared with torch: the same rows give the same losses, update after update."""

import jax
import numpy as np
import pytest

from bertjax import train
from bertjax.convert import __main__ as program
from bertjax.devices import sharding
from bertjax.training import warm_start
from tests import lazily, small_datasets

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")

BATCH, EPOCHS, WARMUP = 6, 4, 0.25  # of 16 rows: every third batch has 4
NOT_DECAYED = ("bias", "LayerNorm.weight")


def torch_side(weights, head_kernel, num_steps):
    """Returns the model, optimizer and schedule that BERT's finetuning has in torch."""
    model = transformers.BertForSequenceClassification.from_pretrained(
        weights,
        num_labels=head_kernel.shape[1],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.no_grad():
        model.classifier.weight.copy_(torch.tensor(head_kernel.T))
        model.classifier.bias.zero_()
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if not n.endswith(NOT_DECAYED)], "weight_decay": 0.01},
        {"params": [p for n, p in named if n.endswith(NOT_DECAYED)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.999), eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, int(WARMUP * num_steps), num_steps
    )
    return model.train(), optimizer, schedule


def torch_update(model, optimizer, schedule, batch):
    """Returns the loss before the update; rows that only fill up the batch are left out."""
    real = batch["example_weights"] > 0
    ids, mask, segments = (
        torch.tensor(batch[name][real].astype(np.int64))
        for name in ("input_ids", "input_mask", "segment_ids")
    )
    labels = torch.tensor(batch["labels"][real]).long()
    loss = model(ids, attention_mask=mask, token_type_ids=segments, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    return float(loss.detach())


@pytest.mark.usefixtures("one_device", "quick_runs")
def test_twelve_updates_have_the_losses_and_parameters_of_torch(tmp_path):
    """Warm-up, decay, clipping, weight decay and partial batches included."""
    program.convert(small_datasets.write_source(tmp_path / "source"), tmp_path / "hf")
    changes = {
        "global_batch_size": BATCH,
        "finetuning.num_epochs": float(EPOCHS),
        "schedule.warmup_share": WARMUP,
        "optimizer.clip_norm": 1.0,
        "finetuning.length_buckets": False,
    }
    config = small_datasets.make_config(tmp_path / "data", "glue", tmp_path / "hf", **changes)
    run = train.prepare(config, tmp_path / "run")
    assert run.job.last_step == 12
    source = warm_start.of_job(run.job, run.abstract_state.params)
    ours = warm_start.apply(source, run.init(run.step_inputs.seed))
    head = np.asarray(ours.params["classifier"]["kernel"])
    theirs = torch_side(tmp_path / "hf", head, run.job.last_step)
    with jax.set_mesh(run.mesh):
        for _, _, batch in train.remaining_batches(run, 0):
            wanted = torch_update(*theirs, batch)
            ours, report = run.train_step(
                ours, sharding.to_devices(batch, run.mesh, BATCH), run.step_inputs
            )
            assert float(report.means["loss"].value()) == pytest.approx(wanted, rel=1e-4)
    embedding = np.asarray(ours.params["encoder"]["embeddings"]["word"]["embedding"])
    moved = theirs[0].bert.embeddings.word_embeddings.weight.detach().numpy()
    np.testing.assert_allclose(embedding, moved, atol=1e-5)
    kernel = np.asarray(ours.params["classifier"]["kernel"])
    np.testing.assert_allclose(kernel.T, theirs[0].classifier.weight.detach().numpy(), atol=1e-5)
    assert np.abs(kernel - head).max() > 1e-3
