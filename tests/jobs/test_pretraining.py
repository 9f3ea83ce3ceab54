"""Claims about what a config and its records are joined into, and which pairs are refused."""

import dataclasses
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import jobs, tasks
from bertjax.data import contents, masking, records
from bertjax.jobs import base, pretraining
from bertjax.workdirs import checkpoint
from tests import small_records, small_runs

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Records of two lengths with one vocabulary, and of one length with another."""
    root = tmp_path_factory.mktemp("jobs")
    for length in (16, 32):
        small_records.write(root / f"records_{length}", max_seq_length=length, seed=length)
    small_records.write(root / "other_words", words=[f"v{n}" for n in range(90)])
    return root


def change_manifest(source, target, **changes):
    """Copies a record directory with some fields of its manifest changed."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    manifest = records.Manifest.load(source)
    dataclasses.replace(manifest, **{"features": {}, **changes}).save(target)
    return target


def make_config(directories, train="records_{max_seq_length}", **changes):
    config = config_lib.default_config()
    config.data.train_dir = str(directories / train)
    config.model.dtype = "float32"
    config.global_batch_size = 8
    config.phases.phase1.num_steps = 6
    config.phases.phase1.max_seq_length = 16
    config.update_from_flattened_dict(changes)
    return config


def with_second_phase(config, *, num_steps=4, max_seq_length=32, global_batch_size=4):
    sizes = {"max_seq_length": max_seq_length, "global_batch_size": global_batch_size}
    return small_runs.set_phases(config, {}, {"num_steps": num_steps, "num_epochs": 0.0} | sizes)


def test_phases_follow_each_other_and_fill_in_the_batch_size():
    config = with_second_phase(config_lib.default_config(), num_steps=5)
    config.phases.phase1.num_steps = 7
    assert jobs.phases(config) == (
        jobs.Phase("phase1", 0, 7, 256, 128),
        jobs.Phase("phase2", 7, 5, 4, 32),
    )
    assert [phase.end_step for phase in jobs.phases(config)] == [7, 12]
    with config.phases.unlocked():
        config.phases.phase10 = config_lib.phase_config()
    assert [phase.name for phase in jobs.phases(config)] == ["phase1", "phase2", "phase10"]


def test_tokens_become_the_steps_that_take_them_phase_after_phase():
    config = with_second_phase(config_lib.default_config(), num_steps=5)
    config.phases.phase1.num_steps = 7
    phases = jobs.phases(config)
    per_step = [256 * 128, 4 * 32]
    assert [phase.tokens_per_step for phase in phases] == per_step
    for tokens, steps in ((0, 0), (1, 1), (per_step[0], 1), (per_step[0] + 1, 2)):
        assert jobs.steps_of_tokens(phases, tokens) == steps
    assert jobs.steps_of_tokens(phases, 7 * per_step[0] + 3 * per_step[1]) == 10
    assert jobs.steps_of_tokens(phases[::-1], 5 * per_step[1] + 1) == 6  # the last ones
    assert jobs.steps_of_tokens(phases, 10**12) == 12


@pytest.mark.slow
def test_each_phase_reads_the_records_of_its_length(directories):
    job = pretraining.open_job(with_second_phase(make_config(directories)))
    for phase, length, batch_size in zip(job.phases, (16, 32), (8, 4), strict=True):
        batch = next(job.data.train_batches(phase, start_step=phase.first_step, rows=None))
        assert batch["input_ids"].shape == (batch_size, length)
        assert job.data.train_sets[phase.name].directory.name == f"records_{length}"
        assert job.data.of_phase(phase).unigram_entropy == pytest.approx(np.log(90))
    assert jobs.train_flops(job, job.phases[0]) != jobs.train_flops(job, job.phases[1])
    assert isinstance(job, jobs.Job)


def test_epochs_of_a_phase_become_steps_once_its_records_are_known(directories):
    options = {"phases.phase1.num_epochs": 2.5, "phases.phase1.num_steps": 999}
    job = pretraining.open_job(with_second_phase(make_config(directories, **options)))
    first, second = job.phases
    examples = job.data.of_phase(first).num_examples
    assert examples == job.data.train_sets["phase1"].manifest.num_examples
    assert first.num_steps == math.ceil(2.5 * examples / first.global_batch_size)
    assert job.config.phases.phase1.num_steps == first.num_steps == second.first_step
    # A run goes on, however its length is written.
    saved = job.config.to_dict()
    options = {"phases.phase1.num_steps": first.num_steps}
    again = pretraining.open_job(with_second_phase(make_config(directories, **options)))
    allowed, refused = config_lib.differences(saved, again.config)
    assert not refused and allowed == ["config.phases.phase1.num_epochs: was 2.5, is 0.0"]


def test_a_phase_whose_records_are_not_there_may_be_left_out(directories):
    config = with_second_phase(make_config(directories), max_seq_length=64)
    missing = r"records_64.*phase2 needs records of 64.*phase2.num_steps=0 leaves"
    with pytest.raises(FileNotFoundError, match=missing):
        pretraining.open_job(config)
    config.phases.phase2.num_steps = 0
    job = pretraining.open_job(config)
    assert [phase.name for phase in job.phases] == [*job.data.train_sets] == ["phase1"]
    missing = r"nowhere/manifest.json.*data_pipelines.build"
    with pytest.raises(FileNotFoundError, match=missing) as caught:
        pretraining.open_job(make_config(directories, "nowhere"))
    assert "num_steps" not in str(caught.value)


def test_a_phase_counts_its_batches_from_its_own_first_step(directories):
    def opened(steps_before):
        changes = {"phases.phase1.num_steps": steps_before}
        config = make_config(directories, "records_16", **changes)
        return pretraining.open_job(
            with_second_phase(config, max_seq_length=16, global_batch_size=8)
        )

    def positions(job, phase=1, steps_into=0):
        phase = job.phases[phase]
        start = phase.first_step + steps_into
        batches = job.data.train_batches(phase, start_step=start, rows=None)
        return [next(batches)["record_positions"].tolist() for _ in range(2)]

    job = opened(6)
    second = positions(job)
    assert second == positions(opened(11))
    assert second[1] == positions(job, steps_into=1)[0]
    assert second != positions(job, phase=0)  # Over the same records, in another order.


def test_the_vocabulary_size_comes_from_the_records_and_a_much_larger_one_is_warned_of(
    directories, caplog
):
    config = make_config(directories)
    assert pretraining.open_job(config).config.model.vocab_size == 95
    assert config.model.vocab_size == 0
    for given, is_warned in ((100, False), (128, True)):
        job = pretraining.open_job(make_config(directories, **{"model.vocab_size": given}))
        assert job.config.model.vocab_size == given
        assert (f"vocab_size is {given}, but the vocabulary of" in caplog.text) == is_warned


def test_phases_with_different_vocabularies_are_refused(directories, tmp_path):
    (tmp_path / "16").symlink_to(directories / "other_words")
    (tmp_path / "32").symlink_to(directories / "records_32")
    config = with_second_phase(make_config(directories))
    config.data.train_dir = str(tmp_path / "{max_seq_length}")
    with pytest.raises(ValueError, match="their vocabulary .* is not the one of .*16"):
        pretraining.open_job(config)


# Changes of the manifest and of the config, and what is said.
MISFITS = [
    ({}, {"model.vocab_size": 94}, r"config.model.vocab_size is 94.* 95 entries"),
    ({}, {"phases.phase1.max_seq_length": 32}, 
     r"is 16, and config.phases.phase1.max_seq_length is 32: .*--max_seq_length=32"),
    ({}, {"data.eval_dir": "{}/other_words"},
     r"other_words cannot be used(.|\n)*vocabulary .* is not the one of .*: build both"),
    ({"pair_objective": "none"}, {}, "is 'none', and config.pretraining.pair_loss is 'nsp'"),
    ({"pair_objective": "sop"}, {}, "pair_objective is 'sop', .* is 'nsp'.*'none' or 'sop'"),
    ({}, {"pretraining.masking": "dynamic"},
     r"with masks in them, and .* set .*masking=static.*--mask=none$"),
    ({}, {"checkpoint.save_at_words": (1e6, "babylm")},
     r"count no words, .* is \(1000000.0, 'babylm'\): build them with --count_words"),
    ({"pair_objective": "none"},
     {"pretraining.masking": "dynamic", "phases.phase1.max_seq_length": 8},
     r"max_seq_length(.|\n)*pair_objective(.|\n)*masks in them"),
    ({"max_predictions_per_seq": 0}, {},
     "built with --mask=none, and .*: set --config.pretraining.masking=dynamic"),
]  # fmt: skip


def test_records_that_do_not_fit_the_run_are_refused(directories, tmp_path):
    for number, (fields, changes, message) in enumerate(MISFITS):
        held = change_manifest(directories / "records_16", tmp_path / str(number), **fields)
        if "data.eval_dir" in changes:
            changes = {"data.eval_dir": changes["data.eval_dir"].format(directories)}
        with pytest.raises(ValueError, match=message):
            pretraining.open_job(make_config(directories, str(held), **changes))


def test_records_that_an_objective_cannot_read_are_refused(directories, monkeypatch):
    def green(manifest, options):
        yield f"they are not green, and {options.objective} needs it"

    row = dataclasses.replace(tasks.OBJECTIVES["masked_tokens"], needs=(green,))
    monkeypatch.setitem(tasks.OBJECTIVES, "masked_tokens", row)
    with pytest.raises(ValueError, match="they are not green, and masked_tokens needs it"):
        pretraining.open_job(make_config(directories))


def test_a_vocabulary_that_was_changed_after_the_build_is_named(directories, tmp_path):
    directory = change_manifest(directories / "records_16", tmp_path / "records")
    path = directory / "vocab.txt"
    path.write_text(path.read_text().replace("w7\n", "changed\n"))
    with pytest.raises(ValueError, match=f"the vocabulary in {directory} was changed after the re"):
        pretraining.open_job(make_config(directories, str(directory)))


def test_a_run_learns_the_pairs_that_its_records_hold_or_none(directories, tmp_path):
    for held, pair_loss in (("none", "none"), ("sop", "sop"), ("nsp", "none"), ("sop", "none")):
        target = tmp_path / f"{held}_{pair_loss}"
        held = change_manifest(directories / "records_16", target, pair_objective=held)
        config = make_config(directories, str(held), **{"pretraining.pair_loss": pair_loss})
        losses = set(pretraining.open_job(config).task.objectives)
        assert losses == {"mlm_loss", f"{pair_loss}_loss"} - {"none_loss"}


def test_dynamic_masks_are_of_words_and_drawn_anew_at_every_step_and_the_same_way_again(tmp_path):
    words = [f"{mark}w{number}" for number in range(30) for mark in ("", "##")]
    dynamic = change_manifest(
        small_records.write(tmp_path / "static", words=words),
        tmp_path / "dynamic",
        max_predictions_per_seq=0,
    )
    changes = {"masking": "dynamic", "mask_strategy": "whole_word", "masked_lm_prob": 0.5}
    changes = {f"pretraining.{name}": value for name, value in changes.items()}
    config = make_config(tmp_path, str(dynamic), **changes)
    job = pretraining.open_job(config)

    def batch_of(step):
        return next(job.data.train_batches(job.phases[0], start_step=step, rows=None))

    batch, again, other = batch_of(0), batch_of(0), batch_of(1)
    assert batch["masked_lm_positions"].shape == (8, 8)  # 50% of 16
    assert batch["masked_lm_positions"].tolist() == again["masked_lm_positions"].tolist()
    assert batch["masked_lm_positions"].tolist() != other["masked_lm_positions"].tolist()
    assert (batch["input_ids"] == 4).any()  # [MASK]
    chosen = np.zeros(batch["input_ids"].shape, bool)
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    positions = batch["masked_lm_positions"][rows, slots]
    chosen[rows, positions] = True
    originals = batch["input_ids"].copy()
    originals[rows, positions] = batch["masked_lm_ids"][rows, slots]
    # Entries are 5 specials, then words and pieces in turn; 3 is [SEP], 2 is [CLS].
    is_piece = (originals >= 5) & (originals % 2 == 0)
    joined = is_piece[:, 1:] & (originals[:, :-1] >= 5)
    assert joined.sum() > 20 and chosen.any(axis=1).all()
    assert (chosen[:, 1:] == chosen[:, :-1])[joined].all()


def test_a_run_without_held_out_records_has_no_evaluation(directories):
    job = pretraining.open_job(make_config(directories))
    assert not job.evaluation.sets
    with pytest.raises(ValueError, match="config.data.eval_dir is "):
        job.data.evaluation_batches(batch_size=8, rows=None)


def test_held_out_records_have_the_length_of_the_last_phase(directories):
    held_out = {
        "data.eval_dir": str(directories / "records_{max_seq_length}"),
        "data.eval_may_overlap": True,
    }
    job = pretraining.open_job(with_second_phase(make_config(directories, **held_out)))
    assert job.evaluation.sets
    batch = next(job.data.evaluation_batches(batch_size=8, rows=None))
    assert batch["input_ids"].shape == (8, 32)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Records to train on, and others to be held out, with the numbers of their documents."""
    root = tmp_path_factory.mktemp("corpora")
    starts = {"train": 0, "apart": 90, "few": 88, "most": 85}
    for seed, (name, start) in enumerate(starts.items()):
        documents = range(start, start + (10 if start else 90))
        counts = (1300, 1300) if name == "apart" else (40, 41)
        small_records.write(root / name, seed=seed, documents=documents, counts=counts)
    return root


def open_with(corpora, held_out, workdirs=(), **changes):
    config = make_config(corpora, "train", **{"data.eval_dir": str(corpora / held_out)} | changes)
    return pretraining.open_job(config, workdirs)


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        ("train", "train holds the very records that are trained on"),
        ("most", "50.0% of the documents of .*most are trained on too, word for word"),
    ],
)
def test_a_new_run_is_not_scored_on_what_it_trains_on(
    corpora, held_out, message, tmp_path, monkeypatch, caplog
):
    with pytest.raises(ValueError, match=f"eval_dir is not held out: .*{message}") as refused:
        open_with(corpora, held_out, [tmp_path])
    assert "--split=heldout" in str(refused.value) and "eval_may_overlap" in str(refused.value)
    assert open_with(corpora, held_out, **{"data.eval_may_overlap": True}).evaluation.sets
    assert re.search(message, caplog.text)
    # A run that has begun is not stopped by it.
    caplog.clear()
    monkeypatch.setattr(checkpoint, "read_meta", lambda workdir: ({}, 5))
    assert open_with(corpora, held_out, [tmp_path]).evaluation.sets
    assert re.search(message, caplog.text)


def test_some_documents_on_both_sides_are_a_warning_and_none_are_nothing(corpora, caplog):
    job = open_with(corpora, "few")
    assert "20.0% of the documents" in caplog.text
    caplog.clear()
    open_with(corpora, "apart")
    assert not caplog.messages
    scores = job.evaluation.chance["heldout"]
    trained, asked = (records.open(corpora / name).contents for name in ("train", "few"))
    assert scores == dict(
        zip(
            ("unigram_loss", "most_frequent_token_accuracy"),
            masking.unigram_scores(trained.token_counts, asked.token_counts),
            strict=True,
        )
    )


def test_a_loss_over_few_tokens_is_called_uncertain(corpora, caplog):
    tokens = int(records.open(corpora / "few").contents.token_counts.sum())
    assert tokens < 5_000
    open_with(corpora, "few")
    assert f"has about {tokens} masked tokens to score: a loss over so few" in caplog.text
    caplog.clear()
    small = {"evaluation.max_batches": 1, "evaluation.global_batch_size": 8}
    open_with(corpora, "few", **small)
    assert f"has about {round(tokens * 8 / 81)} masked tokens" in caplog.text
    assert "or raise config.evaluation.max_batches" in caplog.text


def test_without_counts_of_both_sides_there_is_no_unigram_loss(directories, corpora):
    held_out = {"data.eval_dir": str(corpora / "apart")}
    config = make_config(directories, "records_16", **held_out)
    assert pretraining.open_job(config).evaluation.chance == {}


def test_records_that_tell_no_documents_are_said_to_be_compared_by_nothing(
    directories, corpora, caplog, tmp_path
):
    uncounted, apart = f"{directories}/records_16", {"data.eval_dir": str(corpora / "apart")}
    pretraining.open_job(make_config(directories, "records_16", **apart))
    assert f"in the training records: those of {uncounted} are not known" in caplog.text
    assert f"no unigram_loss, because the tokens of {uncounted} are not counted" in caplog.text
    assert f"{corpora / 'apart'} are" not in caplog.text
    caplog.clear()
    # Adopted records: their tokens are counted, their documents unknown.
    adopted = shutil.copytree(corpora / "apart", tmp_path / "adopted")
    contents.RecordSummary(contents.load(adopted).token_counts).save(adopted)
    config = make_config(corpora, "train", **{"data.eval_dir": str(adopted)})
    assert pretraining.open_job(config).evaluation.chance["heldout"]["unigram_loss"] > 0
    assert f"in the training records: those of {adopted} are not known" in caplog.text
    assert "unigram_loss" not in caplog.text


def test_identity_tells_other_records_apart_and_knows_the_same_again(directories, tmp_path):
    def identity(train):
        return pretraining.open_job(make_config(directories, train)).data.identity()

    same, other = identity("records_16"), identity("other_words")
    assert same == identity("records_16")
    assert json.loads(json.dumps(same)) == same
    assert same["tokenizer_sha256"] != other["tokenizer_sha256"]
    rebuilt = change_manifest(directories / "records_16", tmp_path / "rebuilt", seed=99)
    assert identity(str(rebuilt)) != same


def test_a_config_is_frozen_once_its_job_is_open():
    config = config_lib.default_config()
    config.update_from_flattened_dict({"data.source": "synthetic", "model.vocab_size": 50})
    config.model.dtype = "float32"
    job = pretraining.open_job(config)
    for frozen in (job.config.model, job.data.config.model):
        with pytest.raises(AttributeError, match="immutable"):
            frozen.vocab_size = 60
    changed = base.unfrozen(job.config)
    changed.model.vocab_size = 60
    assert job.config.model.vocab_size == 50 and config.model.vocab_size == 50


def test_synthetic_data_has_batches_and_neither_vocabulary_nor_evaluation():
    config = config_lib.default_config()
    config.update_from_flattened_dict(
        {"data.source": "synthetic", "model.vocab_size": 50, "model.dtype": "float32"}
    )
    job = pretraining.open_job(config)
    phase = job.phases[0]
    batch = next(job.data.train_batches(phase, start_step=0, rows=range(4)))
    assert batch["input_ids"].shape == (4, 128) and batch["input_ids"].max() < 50
    assert batch["masked_lm_positions"].shape == (4, 20)
    config.model.language_embeddings = 2
    batch = next(pretraining.open_job(config).data.train_batches(phase, start_step=0, rows=None))
    assert batch["language"].shape == (config.global_batch_size,)
    assert job.data.of_phase(phase).unigram_entropy is None and not job.evaluation.sets
    assert job.data.identity()["tokenizer_sha256"] is None
    assert job.data.vocabulary is None
    for given in (["train_dir"], ["eval_dir"], ["train_dir", "eval_dir"]):  # would not be read
        config.data.update({"train_dir": "", "eval_dir": ""} | dict.fromkeys(given, "records"))
        with pytest.raises(ValueError, match=r"--config\.data\.source=records, or") as refused:
            pretraining.open_job(config)
        for name in given:
            assert f"config.data.{name} is 'records'" in str(refused.value)


WITHOUT_TENSORFLOW = """
import sys

sys.modules["tensorflow"] = None  # as if it were not installed, for whoever looks too
import bertjax.models
from bertjax import train
from configs import smoke

run = train.prepare(smoke.get_config(), sys.argv[1])
phase, facts, batch = next(train.remaining_batches(run, 0))
print(batch["input_ids"].shape, sys.modules["tensorflow"])
"""


@pytest.mark.slow
def test_models_and_synthetic_training_need_no_tensorflow(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[0] == "(32, 64) None"


@pytest.mark.parametrize("objective", ["next_token", "replaced_tokens"])
def test_a_left_to_right_model_scores_pairs_without_sep(directories, tmp_path, objective):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"sentence_good": "w1", "sentence_bad": "w2"}\n')
    changes = {"pretraining.objective": objective, "evaluation.pairs_file": str(path)}
    changes |= {"model.left_to_right": objective == "next_token", "pretraining.pair_loss": "none"}
    config = make_config(directories, **changes)
    job = jobs.JOBS["pretraining"].open(config)
    (batch,) = job.data.evaluation_batches("pairs", batch_size=2, rows=None)
    lengths = batch["input_mask"].sum(axis=1).tolist()
    assert lengths == ([2, 2] if objective == "next_token" else [3, 3])
