"""Whole runs in this process: phases, resuming, what is written, and what bad input ends in."""

import contextlib
import json
import pathlib
import signal
import types

import jax
import numpy as np
import pytest

import bertjax
from bertjax import evaluate, jobs, train
from bertjax.data import contents, records, streams
from bertjax.files import directories
from bertjax.models import weight_masks
from bertjax.training import monitor, preemption, run_log, starting
from bertjax.workdirs import checkpoint, reader
from configs import smoke
from tests import small_records, stopping

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")


# By words that the vocabulary has: of two paradigms, so of two phenomena.
PAIRS = [
    {"sentence_good": good, "sentence_bad": bad, "UID": uid, "linguistics_term": term}
    for good, bad, uid, term in [
        ("w1 w2 w3", "w3 w2 w1", "reversed", "order"),
        ("w4 w5", "w5 w4", "reversed", "order"),
        ("w6", "w7 w8 w9", "chosen", "choice"),
    ]
]


def make_config(train_dir, **changes):
    """One layer of 32 on small records: 8 steps of 8 sequences on one device."""
    config = smoke.get_config()
    config.data.source = "records"
    config.data.train_dir = str(train_dir)
    config.model.update(vocab_size=0, hidden_size=32, num_hidden_layers=1, intermediate_size=64)
    config.model.hidden_dropout_prob = 0.1
    config.global_batch_size = 8
    config.phases.phase1.update(num_steps=8, max_seq_length=16)
    config.schedule.warmup_steps = 3
    config.evaluation.update(global_batch_size=8, every_steps=4)
    config.log_every_steps = 1
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    return config


@pytest.fixture(scope="module")
def record_root(tmp_path_factory):
    """Records of 16 and of 24 tokens, and held-out ones of 24."""
    root = tmp_path_factory.mktemp("records")
    trained, held_out = {"documents": range(90)}, {"documents": range(90, 100)}
    small_records.write(root / "train_16", max_seq_length=16, **trained)
    small_records.write(root / "train_24", max_seq_length=24, seed=1, **trained)
    small_records.write(root / "heldout", max_seq_length=24, counts=(13,), seed=2, **held_out)
    return root


@contextlib.contextmanager
def batches_read():
    """Collects (global step, batch) of every batch that training reads."""
    collected = []
    original = jobs.pretraining_data.PretrainingData.train_batches

    def recorded(self, phase, *, start_step, rows):
        batches = original(self, phase, start_step=start_step, rows=rows)
        for step, batch in enumerate(batches, start=start_step):
            collected.append((step, batch))
            yield batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs.pretraining_data.PretrainingData, "train_batches", recorded)
        yield collected


def metrics_of(workdir):
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def two_phases(record_root):
    config = make_config(record_root / "train_{max_seq_length}")
    config.data.eval_dir = str(record_root / "heldout")
    with config.phases.unlocked():
        config.phases.phase2 = config.phases.phase1.copy_and_resolve_references()
    config.phases.phase2.update(num_steps=4, max_seq_length=24, global_batch_size=16)
    return config


def batches_of_parts(record_root):
    """The batches of each phase by itself."""
    for index, (length, batch_size, steps) in enumerate([(16, 8, 8), (24, 16, 4)]):
        seed = int(np.random.SeedSequence([0, index]).generate_state(1)[0])
        batches = streams.train_batches(
            records.open(record_root / f"train_{length}"), streams.Order(batch_size, seed)
        )
        yield from (next(batches) for _ in range(steps))


@pytest.fixture(scope="module")
def whole(record_root, tmp_path_factory, quick_runs):
    """A run of two phases: its config, what `bertjax.run` returns, and the batches."""
    config, devices = two_phases(record_root), jax.devices()[:1]
    with batches_read() as batches, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: devices)
        done = bertjax.run(config, tmp_path_factory.mktemp("run"))
    return config, done, batches


def test_a_run_of_two_phases_reads_the_batches_of_each_and_leaves_what_people_watch(
    record_root, whole
):
    _, done, batches = whole
    tmp_path = done.workdir
    assert [step for step, _ in batches] == list(range(12))
    for (_, batch), reference in zip(batches, batches_of_parts(record_root), strict=True):
        for name in reference:
            np.testing.assert_array_equal(batch[name], reference[name], err_msg=name)
    rates = [line["train/learning_rate"] for line in metrics_of(tmp_path) if "train/loss" in line]
    steps = np.arange(12)
    linear = 1e-4 * np.minimum(steps / 3, (12 - steps) / 9)
    np.testing.assert_allclose(rates, linear, rtol=1e-5, atol=1e-12)
    assert done.results is None
    assert set(done.paths) == {
        "checkpoints", "config", "vocabulary", "metrics", "curves", "tensorboard"
    }  # fmt: skip
    assert all(path.exists() for path in done.paths.values())
    scores = [line for line in metrics_of(tmp_path) if "eval/heldout/mlm_loss" in line][-1]
    assert done.scores == {name: scores[name] for name in scores if name.startswith("eval/")}
    ((best, *_),) = done.model.fill_mask("w1 [MASK] w3")
    assert 0 < best["probability"] < 1
    names = {name for line in metrics_of(tmp_path) for name in line}
    assert {
        "train/loss", "train/mlm_loss", "train/mlm_accuracy", "train/nsp_accuracy",
        "train/learning_rate", "train/grad_norm", "perf/tokens_per_second", "perf/step_seconds",
        "perf/real_tokens_per_second",
        "eval/heldout/mlm_loss", "eval/heldout/mlm_perplexity", "eval/heldout/nsp_accuracy",
        "eval/heldout/unigram_loss", "eval/heldout/most_frequent_token_accuracy",
    } <= names  # fmt: skip
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "tensorboard").iterdir())
    assert (tmp_path / "vocabulary" / "vocab.txt").exists()
    trained = [records.open(record_root / f"train_{length}").contents for length in (16, 24)]
    assert contents.load(tmp_path / "training_data") == trained[0].merged(trained[1])
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert saved["model"]["vocab_size"] == small_records.vocabulary().vocab_size
    steps = sorted(int(path.name) for path in (tmp_path / checkpoint.DIRECTORY).iterdir())
    assert steps == [8, 12]  # the end of each phase


@pytest.mark.slow
def test_what_a_run_says_of_pairs_is_what_evaluate_says_of_its_model(record_root, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("\n".join(map(json.dumps, PAIRS)))
    config = make_config(record_root / "train_16", **{"evaluation.pairs_file": str(pairs)})
    done = bertjax.run(config, tmp_path / "run")
    judged = evaluate.evaluate_pairs(tmp_path / "run", pairs, batch_size=4)
    of_phenomena = {f"eval/pairs/accuracy_{n}": v for n, v in judged["phenomena"].items()}
    assert of_phenomena.keys() == {"eval/pairs/accuracy_order", "eval/pairs/accuracy_choice"}
    shown = {f"eval/pairs/{name}": judged[name] for name in ("accuracy", "ties", "chance")}
    assert done.scores == shown | of_phenomena


def test_a_finished_run_trains_no_further_and_says_where_its_model_is(whole, caplog, monkeypatch):
    config, workdir = whole[0].copy_and_resolve_references(), whole[1].workdir
    first, options = checkpoint.load_params(workdir)[0], workdir / "config.json"
    with caplog.at_level("INFO", logger="absl"), batches_read() as batches:
        config.log_every_steps = 5
        again = train.train(config, workdir)
    assert not batches
    assert f"the model of step 12 is in {workdir}" in caplog.text
    assert f"bertjax.fill_mask --checkpoint={workdir}" in caplog.text
    assert json.loads(options.read_text())["log_every_steps"] == 5
    assert "This run was finished already" in caplog.text
    assert "other versions" not in caplog.text
    monkeypatch.setattr(weight_masks, "VERSION", 3)
    train.train(config, workdir)
    assert "saved by other versions (attention_masks: was 2, is 3)" in caplog.text
    jax.tree.map(np.testing.assert_array_equal, first, again.params)
    config.phases.phase1.num_steps = 12  # linear: the rates so far would have been others
    written = options.read_bytes()
    with pytest.raises(ValueError, match=f"num_steps: was 8, is 12(.|\n)*init_from={workdir}"):
        train.train(config, workdir)
    config.update_from_flattened_dict({"seed": 5, "optimizer.beta2": 0.98, "log_every_steps": 2})
    with pytest.raises(ValueError, match="another --workdir") as caught:
        train.train(config, workdir)
    message = str(caught.value)
    assert "config.seed: was 0, is 5" in message
    assert "config.optimizer.beta2: was 0.999, is 0.98" in message
    assert "log_every_steps" not in message
    assert options.read_bytes() == written


@pytest.mark.slow
def test_a_run_whose_schedule_goes_by_no_length_can_be_lengthened(record_root, tmp_path):
    config = make_config(record_root / "train_16", **{"schedule.name": "constant"})
    train.train(config, tmp_path / "parts")
    config.phases.phase1.num_steps = 12
    parts = train.train(config, tmp_path / "parts")
    saved = json.loads((tmp_path / "parts" / "config.json").read_text())
    assert saved["phases"]["phase1"]["num_steps"] == 12
    whole = train.train(config, tmp_path / "whole")
    jax.tree.map(np.testing.assert_array_equal, parts, whole)
    config.phases.phase1.num_steps = 10
    with pytest.raises(ValueError, match="num_steps: was 12, is 10"):  # steps were taken beyond
        train.train(config, tmp_path / "parts")
    small_records.write(tmp_path / "other", seed=7)
    config.update_from_flattened_dict(
        {"phases.phase1.num_steps": 12, "data.train_dir": str(tmp_path / "other")}
    )
    with pytest.raises(ValueError, match="records or the vocabulary have changed"):
        train.train(config, tmp_path / "parts")


def scalars_of(workdir):
    """The lines of metrics.jsonl without what the clock says."""
    return [
        {name: value for name, value in line.items() if not name.startswith("perf/")}
        for line in metrics_of(workdir)
    ]


@pytest.fixture(scope="module")
def never_stopped(record_root, tmp_path_factory):
    """The config, the workdir and the last state of a run of two phases."""
    config, workdir = two_phases(record_root), tmp_path_factory.mktemp("whole")
    config.log_every_steps = 5
    devices = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: devices)
        return config, workdir, train.train(config, workdir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "step"),
    [
        (stopping.signal_in_evaluation(nth_batch=1), 4),
        (stopping.signal_in_evaluation(nth_batch=5, number=signal.SIGINT), 12),  # of the last
        (stopping.signal_after(4), 4),  # an evaluation is due
        (stopping.signal_after(7), 7),  # between two lines
    ],
    ids=["in evaluation", "in the last, by hand", "before evaluation", "between lines"],
)
def test_a_stop_loses_nothing_and_leaves_no_trace(never_stopped, tmp_path, stop, step):
    config, workdir, whole = never_stopped
    with stop, pytest.raises(preemption.Preempted, match=f"saved at step {step};"):
        train.train(config, tmp_path / "parts")
    assert checkpoint.load_params(tmp_path / "parts")[2] == step
    parts = train.train(config, tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, parts, whole)
    assert scalars_of(tmp_path / "parts") == scalars_of(workdir)


@pytest.mark.slow
def test_divergence_stops_the_run_and_names_step_records_and_checkpoint(record_root, tmp_path):
    changes = {
        **{"schedule.peak_learning_rate": 1e30, "max_skipped_steps": 3},
        **{"checkpoint.save_every_steps": 2, "phases.phase1.num_steps": 50},
    }
    with pytest.raises(monitor.DivergedError, match=r"3 steps in a row up to step \d+") as caught:
        train.train(make_config(record_root / "train_16", **changes), tmp_path)
    assert "shard:index" in str(caught.value)
    assert "checkpoint: step" in str(caught.value)
    params, _, _ = checkpoint.load_params(tmp_path)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


@pytest.mark.slow
def test_a_damaged_shard_is_named_and_the_checkpoint_stays(tmp_path):
    directory = small_records.write(tmp_path / "records")
    config = make_config(directory, **{"phases.phase1.num_steps": 40})
    with stopping.signal_after(2), pytest.raises(preemption.Preempted):
        train.train(config, tmp_path / "run")
    shard = directory / "records-1.tfrecord"
    content, middle = shard.read_bytes(), shard.stat().st_size // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for damaged in (flipped, content[:-7], None):
        shard.unlink() if damaged is None else shard.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"records-1\.tfrecord"):
            train.train(config, tmp_path / "run")
        assert checkpoint.load_params(tmp_path / "run")[2] == 2


def test_a_run_that_cannot_begin_is_refused_before_anything_is_compiled(
    record_root, tmp_path, monkeypatch
):
    small_records.write(tmp_path / "heldout", words=[f"x{number}" for number in range(90)])
    config = make_config(record_root / "train_16", **{"data.eval_dir": str(tmp_path / "heldout")})
    with pytest.raises(ValueError, match=r"heldout.*\n.*vocabulary .* is not the one of"):
        train.prepare(config, tmp_path)
    (tmp_path / "run").touch()
    with pytest.raises(NotADirectoryError, match="the workdir, .*run, is a file; give a directory"):
        train.prepare(make_config(record_root / "train_16"), tmp_path / "run")
    monkeypatch.undo()
    config = make_config(record_root / "train_16", **{"global_batch_size": 24, "mesh.data": 16})
    message = r"phases\.phase1 is 24; it must be a multiple of 16.*16 or 32"
    with pytest.raises(ValueError, match=message):
        train.prepare(config, tmp_path)


def test_a_workdir_is_ours_by_its_mark_and_files_of_others_are_never_written_over(tmp_path):
    weights, begun = tmp_path / "weights", tmp_path / "begun"
    weights.mkdir()
    for name in ("config.json", "metrics.jsonl", "model.safetensors"):
        (weights / name).write_text("theirs")
    message = r"holds config\.json, metrics\.jsonl, and no runs .*--workdir; --config\.init_from="
    with pytest.raises(directories.NotOursError, match=message), starting.owned(weights):
        pass
    assert {path.name: path.read_text() for path in weights.iterdir()} == dict.fromkeys(
        ("config.json", "metrics.jsonl", "model.safetensors"), "theirs"
    )
    begun.mkdir()
    (begun / "log.txt").write_text("mine")  # of `python -m bertjax.train ... > begun/log.txt`
    with starting.owned(begun):
        (begun / "config.json").touch()
    for name in (".nfs0001", ".DS_Store", "wandb"):
        (begun / name).mkdir()
    with starting.owned(begun):
        pass
    assert {path.name for path in begun.iterdir()} >= {".nfs0001", ".DS_Store", "wandb", "log.txt"}


@pytest.mark.slow
def test_a_run_of_one_step_in_a_relative_workdir_logs_its_options_and_gives_signals_back(
    record_root, tmp_path, caplog, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_log, "obstacles", lambda config, known, paths: [known.kind])
    config = make_config(record_root / "train_16", **{"phases.phase1.num_steps": 1})
    before = signal.getsignal(signal.SIGTERM)
    with caplog.at_level("INFO", logger="absl"):
        train.train(config, "run")
    assert signal.getsignal(signal.SIGTERM) is before
    assert checkpoint.load_params("run")[2] == 1
    (told,) = (record for record in caplog.records if "differs from" in record.message)
    assert "run/config.json" in told.message
    lines = told.message.splitlines()[1:]
    assert "  --config.phases.phase1.num_steps=1" in lines
    assert not any("beta1" in line for line in lines) and len(lines) < 30
    assert "phase1: 168 examples: 0.0476 epochs" in caplog.text
    assert "compiling step 1, 128 tokens" in caplog.text
    assert "transformers will not load this model: wordpiece" in caplog.text
    assert "warm-up too long: The warm-up of 3 steps is longer than the run of 1" in caplog.text


def test_the_end_of_a_run_names_its_model_and_what_follows(monkeypatch, caplog, tmp_path):
    config = make_config("train", **{"data.eval_dir": "heldout"})
    data = types.SimpleNamespace(vocabulary=None)
    job = types.SimpleNamespace(data=data, last_step=8)
    run = types.SimpleNamespace(config=config, job=job)
    monkeypatch.setattr(run_log.planned, "lines", lambda workdir, run: [])
    with caplog.at_level("INFO", logger="absl"):
        run_log.end(run, pathlib.Path("w"), is_new=True)
    assert "Finished: the model of step 8 is in w" in caplog.text
    assert run_log._next_commands(run, "w")[0].endswith("--checkpoint=w --data=heldout")
    (tmp_path / reader.START_FILE).touch()
    caplog.clear()
    with caplog.at_level("INFO", logger="absl"):
        run_log.end(run, tmp_path / "run", is_new=True)  # start goes on
    assert "Finished: " in caplog.text and "bertjax.evaluate" not in caplog.text
    config.task = "finetuning"
    for dataset, use in (("embeddings", "encode"), ("sequences", "generate"), ("glue", "predict")):
        config.finetuning.dataset = dataset
        assert run_log._next_commands(run, "w")[0].startswith(f"{use} --checkpoint=w")
    config.task = "pretraining"
    data.vocabulary, config.model.language_embeddings = object(), 2
    first, *_, last = run_log._next_commands(run, "w")
    assert "--language=NAME" in first and last.endswith("--config.finetuning.language=NAME")
    config.pretraining.objective = "masked_spans_to_sequence"
    commands = run_log._next_commands(run, "w")
    assert "--config=bert2bert" in commands[-1] and not any("fill_mask" in it for it in commands)
