"""Whole runs in which something changes on the way: all of it is a function of the step."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from bertjax import evaluate, inference, jobs, train
from bertjax.convert import formats
from bertjax.convert.__main__ import convert as export
from bertjax.convert.families import modernbert
from bertjax.devices import sharding
from bertjax.models import encoder, parameters
from bertjax.plan import estimates, planner, text
from bertjax.training import planned, program
from bertjax.workdirs import checkpoint
from configs import smoke
from tests import small_byte_bpe, small_modules, small_records

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device", "quick_runs")]


def make_config(**changes):
    """One layer of 16 on random tokens: 12 steps of 8 sequences on one device."""
    config = smoke.get_config()
    config.model.update(vocab_size=50, hidden_size=16, num_hidden_layers=1, intermediate_size=32)
    config.model.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config.global_batch_size = 8
    config.phases.phase1.update(num_steps=12, max_seq_length=16)
    config.schedule.update(peak_learning_rate=1e-2, warmup_steps=2)
    config.log_every_steps = 1
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    return config


def run_in(workdir, config, like=None):
    """Trains to the end; what `like`, a run of the same steps, has compiled is compiled once."""
    if like is None:
        run = train.prepare(config, workdir)
    else:
        job = jobs.JOBS["pretraining"].open(program.resolve(config, "cpu"))
        run = program.for_job(like, job)
    return run, train.execute(run, epath.Path(workdir))


def copy_checkpoint(step, source, target):
    saved = f"checkpoints/{step}"
    shutil.copytree(source / saved, target / saved)


def assert_same_state(one, other):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(one), jax.device_get(other))


def saved_steps(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())


def test_the_state_before_the_decay_is_kept_and_a_longer_run_goes_on_from_it(tmp_path):
    options = {
        "schedule.name": "wsd",
        "schedule.decay_steps": 5,
        "checkpoint.keep_last": 1,
        "optimizer.name": "stable_adamw",
        "optimizer.fully_decoupled_decay": True,
    }
    run, _ = run_in(tmp_path / "short", make_config(**options))
    assert saved_steps(tmp_path / "short") == [7, 12]
    longer = make_config(**options | {"phases.phase1.num_steps": 16})
    with pytest.raises(ValueError, match="cannot be continued"):
        run_in(tmp_path / "short", longer, like=run)
    copy_checkpoint(7, tmp_path / "short", tmp_path / "on")
    _, going_on = run_in(tmp_path / "on", longer, like=run)
    assert_same_state(going_on, run_in(tmp_path / "long", longer, like=run)[1])
    assert saved_steps(tmp_path / "on") == [11, 16]  # 7 is before no decay of this run


def changing(root):
    """Batches of 8, 8, 16 and 16 rows, masks from 40% to 20%; then two of other rows, at 10%."""
    config = make_config(
        **{
            "data.source": "records",
            "data.train_dir": str(root / "train_{max_seq_length}"),
            "model.vocab_size": 0,
            "pretraining.masking": "dynamic",
            "evaluation.masked_lm_prob": 0.15,
            "evaluation.global_batch_size": 8,
            "global_batch_size": 16,
            "checkpoint.save_every_steps": 1,
            "checkpoint.keep_last": 99,
            "optimizer.name": "stable_adamw",
            "schedule.warmup_tokens": 16 * (8 + 8 + 16),
        }
    )
    first = config.phases.phase1
    first.update(num_steps=0, num_tokens=16 * (8 + 8 + 16 + 16), max_seq_length=16)
    first.update(ramp_from=8, ramp_tokens=16 * (8 + 8))
    first.update(masked_lm_prob=0.4, final_masked_lm_prob=0.2)
    with config.phases.unlocked():
        config.phases.phase2 = first.copy_and_resolve_references()
    second = {"num_steps": 2, "num_tokens": 0, "max_seq_length": 24, "global_batch_size": 8}
    config.phases.phase2.update({**second, "ramp_from": 0, "ramp_tokens": 0})
    config.phases.phase2.update(masked_lm_prob=0.1, final_masked_lm_prob=0.0, rate_share=0.5)
    return config


@pytest.fixture(scope="module")
def records_of_tokens(tmp_path_factory):
    root = tmp_path_factory.mktemp("records")
    for length in (16, 24):
        where = root / f"train_{length}"
        small_records.write(where, max_seq_length=length, is_masked=False, documents=range(90))
    held_out = {"documents": range(90, 100), "counts": (16,), "seed": 2, "is_masked": False}
    small_records.write(root / "heldout", max_seq_length=24, **held_out)
    return root


def test_batches_and_masks_are_those_of_the_step_and_evaluation_has_its_own(records_of_tokens):
    config = changing(records_of_tokens)
    config.data.eval_dir = str(records_of_tokens / "heldout")
    job = jobs.JOBS["pretraining"].open(program.resolve(config, "cpu"))
    found = []
    for phase in job.phases:
        batches = job.data.train_batches(phase, start_step=phase.first_step, rows=None)
        for _, batch in zip(range(phase.num_steps), batches, strict=False):
            rows = batch["masked_lm_weights"].sum(axis=1)
            assert len(set(rows)) == 1
            found.append((len(rows), batch["masked_lm_weights"].shape[1], int(rows[0])))
            shapes = {name: it.shape for name, it in job.data.abstract_batch(phase).items()}
            assert shapes == {name: batch[name].shape for name in shapes}
    # Of 16 tokens 40% are 6.4, for which there are 7 places. The rates are 40%, 35%, 30% and 25%.
    assert found == [(8, 7, 6), (8, 7, 6), (16, 7, 5), (16, 7, 4), (8, 3, 2), (8, 3, 2)]
    [one, _] = job.data.evaluation_batches(batch_size=8, rows=None)
    assert one["masked_lm_weights"].shape == (8, 4)
    assert set(one["masked_lm_weights"].sum(axis=1)) == {4}  # 15% of 24


def test_the_average_of_the_parameters_is_kept_scored_used_and_exported(
    records_of_tokens, tmp_path
):
    config = make_config(
        **{
            "data.source": "records",
            "data.train_dir": str(records_of_tokens / "train_24"),
            "data.eval_dir": str(records_of_tokens / "heldout"),
            "model.vocab_size": 0,
            "pretraining.masking": "dynamic",
            "phases.phase1.max_seq_length": 24,
            "phases.phase1.num_steps": 4,
            "checkpoint.save_every_steps": 1,
            "checkpoint.keep_last": 9,
            "evaluation.global_batch_size": 16,
            "evaluation.ema": True,
            "optimizer.ema_decay": 0.7,
        }
    )
    whole = tmp_path / "whole"
    run, end = run_in(whole, config)
    assert_same_state(end.ema, checkpoint.load_params(whole)[0])
    first, *later = (checkpoint.load_params(whole, step, ema=False)[0] for step in range(1, 5))
    mean = jax.tree.map(np.float64, checkpoint.load_params(whole, 1, ema=True)[0])
    for params in later:
        mean = jax.tree.map(lambda old, new: 0.7 * old + 0.3 * new, mean, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), end.ema, mean)
    fresh = jax.device_get(run.init(run.step_inputs.seed).params)
    expected = jax.tree.map(lambda old, new: 0.7 * old + 0.3 * new, fresh, first)
    begun = checkpoint.load_params(whole, 1, ema=True)[0]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), begun, expected
    )

    lines = (whole / "metrics.jsonl").read_text().splitlines()
    loss = next(
        line["eval/heldout/mlm_loss"]
        for line in map(json.loads, lines)
        if "eval/heldout/mlm_loss" in line
    )
    scores = evaluate.evaluate_checkpoint(whole, str(records_of_tokens / "heldout"), batch_size=16)
    assert scores["mlm_loss"] == pytest.approx(loss, rel=1e-6)

    poisoned = {name: np.asarray(value) for name, value in next(batches_of(run)).items()}
    poisoned["masked_lm_weights"] = poisoned["masked_lm_weights"] * np.nan
    before = jax.device_get(end)
    with jax.set_mesh(run.mesh):
        on_devices = sharding.to_devices(poisoned, run.mesh, 8)
        after, report = run.train_step(end, on_devices, run.placed_step_inputs())
    assert not report.is_finite
    assert_same_state((after.params, after.ema), (before.params, before.ema))


def batches_of(run):
    return run.job.data.train_batches(run.job.phases[0], start_step=0, rows=None)


BASES = {3: (10_000.0, 10_000.0), 6: (20.0, 10_000.0)}  # by the last step of a phase


def of_two_bases(root):
    """Three steps in which all layers have one base, three in which the first has another."""
    sizes = {"window": 3, "global_every": 2, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = make_config(
        **{
            **{f"model.{name}": value for name, value in modernbert.FAMILY.traits.items()},
            **{f"model.{name}": value for name, value in sizes.items()},
            "model.vocab_size": 0,
            "model.initializer_range": 0.3,
            "data.source": "records",
            "data.train_dir": str(root / "train"),
            "data.eval_dir": str(root / "heldout"),
            "pretraining.pair_loss": "none",
            "phases.phase1.num_steps": 3,
            "evaluation.global_batch_size": 8,
            "evaluation.every_steps": 3,
            "checkpoint.save_every_steps": 1,
            "checkpoint.keep_last": 99,
            "schedule.name": "constant",
        }
    )
    with config.phases.unlocked():
        config.phases.phase2 = config.phases.phase1.copy_and_resolve_references()
    config.phases.phase2.rotary_base = 20.0
    return config


@pytest.fixture(scope="module")
def two_bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("two_bases")
    known = small_byte_bpe.vocabulary()
    small_records.write(root / "train", known=known, documents=range(90))
    held_out = {"documents": range(90, 100), "counts": (16,), "seed": 2}
    small_records.write(root / "heldout", known=known, **held_out)
    config, devices = of_two_bases(root), jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: devices)
        run, end = run_in(root / "whole", config)
    return root, config, run, end


def test_a_phase_trains_as_a_run_whose_model_has_its_rotary_bases(two_bases, tmp_path):
    root, config, run, _ = two_bases
    config = config.copy_and_resolve_references()
    config.phases.phase2.rotary_base = 0.0
    config.model.update(rotary_base=20.0, local_rotary_base=10_000.0)
    job = jobs.JOBS["pretraining"].open(program.resolve(config, "cpu"))
    other = program.build(job, run.mesh)
    assert not other.of_phases and run.of_phases
    copy_checkpoint(3, root / "whole", tmp_path)
    with checkpoint.Checkpointer(tmp_path, checkpoint.RetentionOptions()) as checkpointer:
        begun = checkpointer.restore(run.abstract_state)
    assert begun is not None
    batch = next(job.data.train_batches(job.phases[1], start_step=3, rows=None))
    with jax.set_mesh(run.mesh):
        on_devices = sharding.to_devices(batch, run.mesh, 8)
        after, _ = other.train_step(begun.state, on_devices, run.placed_step_inputs())
    assert_same_state(after.params, checkpoint.load_params(root / "whole", 4)[0])


def test_a_checkpoint_is_used_with_the_rotary_bases_of_its_phase(two_bases, tmp_path):
    root, _, _, _ = two_bases
    whole, rows = root / "whole", jnp.arange(6, 22, dtype=jnp.int32)[None]
    batch = {"input_ids": rows, "input_mask": jnp.ones_like(rows)}
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    losses = {it["step"]: it.get("eval/heldout/mlm_loss") for it in lines}
    found = {}
    for step, (base, local) in BASES.items():
        params, meta, _ = checkpoint.load_params(whole, step)
        sizes = encoder.EncoderConfig(
            **{**meta["config"]["model"], "rotary_base": base, "local_rotary_base": local}
        )
        graphdef, _ = parameters.split(small_modules.made(encoder.make_encoder, sizes))
        by_hand = parameters.merge(graphdef, jax.tree.map(jnp.asarray, params["encoder"]))(batch)
        made = inference.load(whole, step=step).module().encoder(batch)
        np.testing.assert_array_equal(made, by_hand)
        found[step] = np.asarray(made)
        # What the run scored, between the phases and at the end, is what is scored afterwards.
        scores = evaluate.evaluate_checkpoint(whole, str(root / "heldout"), batch_size=8, step=step)
        assert scores["mlm_loss"] == pytest.approx(losses[step], rel=1e-6)
        target = tmp_path / f"exported_{step}"
        export(whole, target, step=step)
        exported = json.loads((target / "config.json").read_text())
        assert (exported["global_rope_theta"], exported["local_rope_theta"]) == (base, local)
        theta = {kind: it["rope_theta"] for kind, it in exported["rope_parameters"].items()}
        assert theta == {"full_attention": base, "sliding_attention": local}
        # As a workdir of weights alone, step 0, and as what finetuning begins with.
        export(whole, tmp_path / f"weights_{step}", step=step, format="bertjax")
        copy_checkpoint(step, whole, tmp_path / f"run_{step}")
        for path in (tmp_path / f"weights_{step}", tmp_path / f"run_{step}", target):
            sizes = formats.describe(path).config
            assert (sizes.rotary_base_of(0), sizes.rotary_base_of(1)) == (base, local)
    # The last parameters with the first base are another model.
    params, meta, _ = checkpoint.load_params(whole, 6)
    graphdef, _ = parameters.split(
        small_modules.made(encoder.make_encoder, encoder.EncoderConfig(**meta["config"]["model"]))
    )
    wrong = parameters.merge(graphdef, jax.tree.map(jnp.asarray, params["encoder"]))(batch)
    assert np.abs(np.asarray(wrong) - found[6]).max() > 1e-2


def test_a_plan_is_of_the_step_of_each_phase(two_bases):
    _, config, run, _ = two_bases
    target = estimates.Target("cpu", "cpu", "cpu", 1)
    config = config.copy_and_resolve_references()
    config.model.vocab_size = run.config.model.vocab_size
    made = planner.plan(config, planner.Planner(target, jax.devices()[:1], False, None))
    assert [phase.rotary for phase in made.phases] == [phase.rotary for phase in run.job.phases]
    found = [phase.fingerprint for phase in made.phases]
    assert found[0] != found[1]
    assert found == [planned.fingerprint(run, phase) for phase in run.job.phases]
    shown = [line for line in text.lines(made, {}) if line.startswith("phase")]
    assert shown == [
        "phase1: 3 steps of 8 x 16 tokens, rotary base 10,000: not known whether it fits",
        "phase2: 3 steps of 8 x 16 tokens, rotary base 20, 10,000 in windows: not known whether it "
        "fits",
    ]
