"""The attention kernel is taken where it computes what plain JAX does, and nowhere else."""

import dataclasses
import functools

import jax
import pytest

from bertjax import config as config_lib
from bertjax import jobs, train
from bertjax.devices import sharding
from bertjax.models import relative
from bertjax.models.kernels import pallas_attention, pallas_terms
from bertjax.tasks import mixed_rows
from bertjax.training import attention_trial, program
from tests import small_records, small_runs
from tests.models.kernels import test_pallas_attention


def job_of(**changes):
    config = config_lib.default_config()
    config.model.update(
        vocab_size=100, hidden_size=128, num_attention_heads=2, num_hidden_layers=2,
        intermediate_size=16, dtype="float32", attention="auto", **changes,
    )  # fmt: skip
    config.data.source = "synthetic"
    config.phases.phase1.update(max_seq_length=128, num_steps=1)
    return jobs.JOBS[config.task].abstract(config)


ROTARY = {"position_embedding": "rotary", "rotary_base": 1e4}


@pytest.fixture
def mesh():
    return sharding.make_mesh(jax.devices()[:1], data=1, tensor=1)


@pytest.fixture
def kernels(monkeypatch):
    """Lets a CPU take the kernels, interpreted; returns a function that puts another in place."""

    def put(context):
        monkeypatch.setattr(pallas_attention, "context", context)

    put(functools.partial(pallas_attention.context, interpret=True))
    interpreted = functools.partial(pallas_attention.gradients, interpret=True)
    monkeypatch.setattr(pallas_attention, "gradients", interpreted)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, tpu, default: tpu(*x))
    return put


@pytest.mark.slow
def test_the_trial_runs_on_rows_and_heads_of_all_devices(kernels):
    """With packed rows, a window and dropout, as a run may have them."""
    job = job_of(window=20, global_every=2, attention_probs_dropout_prob=0.1)
    assert attention_trial.agrees(job, sharding.make_mesh(jax.devices()[:8], data=4, tensor=2))


def test_the_trial_turns_queries_and_keys_as_the_layers_do(kernels, mesh, monkeypatch, caplog):
    """A kernel that leaves rotary positions out is found."""
    right = pallas_attention.context
    kernels(lambda *x, rotary_base, **options: right(*x, rotary_base=None, **options))
    assert not attention_trial.agrees(job_of(**ROTARY), mesh)
    assert "is off by" in caplog.text


@pytest.mark.slow
def test_the_trial_has_the_terms_by_distance_of_the_layers(kernels, mesh, monkeypatch, caplog):
    """A kernel that leaves them out or swaps them is found; those without one are not tried."""
    terms = {"relative": "disentangled", "position_embedding": "none"}
    right = pallas_attention.context
    monkeypatch.setattr(pallas_terms.pltpu, "roll", test_pallas_attention.rolled)
    assert attention_trial.agrees(job_of(**terms), mesh)
    for wrong in (lambda it: None, lambda it: relative.Terms(it.of_query, it.of_key)):
        kernels(lambda *x, terms, wrong=wrong, **rest: right(*x, terms=wrong(terms), **rest))
        assert not attention_trial.agrees(job_of(**terms), mesh)
    caplog.clear()
    assert attention_trial.agrees(job_of(relative="t5_bias"), mesh)
    assert not caplog.text


def test_what_is_tried_are_all_lengths_encoders_and_windows_of_the_run_once():
    config = jobs.unfrozen(job_of(window=20, global_every=2).config)
    config.data.length_buckets = True
    job = jobs.JOBS["pretraining"].abstract(config)
    small = dataclasses.replace(job.task.encoder, hidden_size=32, num_attention_heads=1, window=0)
    plain = dataclasses.replace(small, attention="xla", hidden_size=64)
    inner = dataclasses.replace(job.task, encoder=plain)

    @dataclasses.dataclass(frozen=True)
    class Both:  # as ELECTRA's task has a generator, and distillation a task in it
        encoder: object
        generator: object
        inner: object

    job = dataclasses.replace(job, task=Both(job.task.encoder, small, inner))
    tried = {rows.kernel[:5] for rows in attention_trial._all_rows(job, "tpu")}
    wide, narrow = (128, False, 64, 2), (128, False, 32, 1)
    assert tried == {(*wide, None), (*wide, 20), (*narrow, None)}


def test_the_rotary_bases_of_all_phases_are_tried():
    job = job_of(position_embedding="rotary", window=20, global_every=2)
    config = small_runs.set_phases(jobs.unfrozen(job.config), {}, {"rotary_base": 500.0})
    job = jobs.JOBS["pretraining"].abstract(config)
    tried = {rows.kernel[4:6] for rows in attention_trial._all_rows(job, "tpu")}
    assert tried == {(None, 10_000.0), (20, 10_000.0), (None, 500.0)}


def test_both_kinds_of_rows_of_a_hybrid_run_are_tried():
    job = job_of()
    job = dataclasses.replace(job, task=mixed_rows.Hybrid(job.task.encoder))
    orders = [rows.left_to_right for rows in attention_trial._all_rows(job, "tpu")]
    assert orders == [False, False, True, True]  # of two layers


def test_kernels_that_compute_the_same_are_taken_on_rows_of_each_order(mesh, kernels, caplog):
    job = job_of(**ROTARY)
    job = dataclasses.replace(job, task=mixed_rows.PrefixRows(job.task.encoder))
    readings = [rows.reading for rows in attention_trial._all_rows(job, "tpu")]
    assert readings == ["whole", "whole", "order", "order"]
    with caplog.at_level("INFO", logger="absl"):
        assert attention_trial.agrees(job, mesh)
    whole, in_order = [text for text in caplog.messages if "agrees" in text]
    assert "rows of 128 positions, no window: off by at most" in whole and "% (keys)" in whole
    assert "no window, with an order of each: off by at most" in in_order


def test_a_kernel_that_is_off_or_does_not_compile_is_not_taken(kernels, mesh, caplog):
    right = pallas_attention.context

    def off_in_places(*arguments, **options):
        context, statistics = right(*arguments, **options)
        return context.at[0, 3].set(0.0), statistics

    def refused(*arguments, **options):
        raise NotImplementedError("no such instruction")

    for wrong, words in [
        (off_in_places, ("is off by", "config.model.attention=xla")),
        (refused, ("does not compile", "no such instruction")),
    ]:
        caplog.clear()
        kernels(wrong)
        assert not attention_trial.agrees(job_of(), mesh)
        assert all(it in caplog.text for it in words)


def test_a_run_whose_trial_fails_goes_on_in_plain_jax(monkeypatch, tmp_path):
    """As on a TPU, whose "auto" is left to the trial."""
    small_records.write(tmp_path / "train", counts=(64,))
    config = config_lib.default_config()
    config.model.update(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, vocab_size=0)
    config.model.intermediate_size = 16
    config.data.train_dir = str(tmp_path / "train")
    config.phases.phase1.update(max_seq_length=16, num_steps=1)
    config.global_batch_size = 16
    resolve = program.resolve
    monkeypatch.setattr(
        program, "resolve", lambda config, *_: resolve(config, "tpu", "TPU v5 lite")
    )
    for agrees, expected in ((True, "auto"), (False, "xla")):
        monkeypatch.setattr(attention_trial, "agrees", lambda job, mesh, agrees=agrees: agrees)
        run = train.prepare(config, tmp_path / "run")
        assert run.config.model.attention == run.job.config.model.attention == expected


def test_a_gradient_that_is_no_number_is_no_agreement(kernels, mesh, monkeypatch):
    right = pallas_attention.gradients

    def wrong(*arguments, **options):
        of_query, of_keys, of_values = right(*arguments, **options)
        return of_query, of_keys.at[0, 0, 0, 0].set(float("nan")), of_values

    monkeypatch.setattr(pallas_attention, "gradients", wrong)
    assert not attention_trial.agrees(job_of(), mesh)
