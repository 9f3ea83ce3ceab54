"""A resumed run is the run that never stopped, bit for bit: objective x optimizer x data.

Each case trains to its end and saves after every step. It then goes on from copies of some of these
checkpoints, and must end in the same state and log the same numbers. Real kills and several
processes are in test_interruption.py. The last tests show that batches, masks, rotary bases and the
average of the parameters are functions of the step.
"""

import dataclasses
import json
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from bertjax import evaluate, finetuning, finish, inference, jobs, tasks, train
from bertjax.convert import formats
from bertjax.convert.__main__ import convert as export
from bertjax.convert.families import modernbert
from bertjax.devices import sharding
from bertjax.models import encoder, parameters
from bertjax.plan import estimates, planner, text
from bertjax.training import optim, planned, program
from bertjax.workdirs import checkpoint
from configs import smoke
from tests import (
    marks,
    small_byte_bpe,
    small_datasets,
    small_embeddings,
    small_modules,
    small_packed,
    small_records,
    small_values,
)
from tests.convert import weights

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")


@dataclasses.dataclass(frozen=True)
class Case:
    """What a run trains on, what differs from the base of its data, and where it is resumed."""

    data: str
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    resumed_at: tuple[int, ...] = (2,)


def objective(name, **options):
    """The options of an objective whose records hold no pairs, or whose model reads none."""
    return {"pretraining.objective": name, "pretraining.pair_loss": "none"} | {
        f"pretraining.{option}": value for option, value in options.items()
    }


TWO_LENGTHS = {
    **{"phases.phase1.num_steps": 3, "phases.phase2.num_steps": 2},
    **{"phases.phase2.max_seq_length": 24, "phases.phase2.global_batch_size": 16},
}
DYNAMIC = {"pretraining.masking": "dynamic", "pretraining.mask_strategy": "span"}
# Batches of 8, 8, 16 and 16 rows with masks from 40% to 20%; then two of another length, at 10%.
RAMP = {
    **{"global_batch_size": 16, "phases.phase1.num_steps": 0, "phases.phase1.ramp_from": 8},
    "phases.phase1.num_tokens": 16 * (8 + 8 + 16 + 16),
    "phases.phase1.ramp_tokens": 16 * (8 + 8),
    **{"phases.phase1.masked_lm_prob": 0.4, "phases.phase1.final_masked_lm_prob": 0.2},
    **{"phases.phase2.num_steps": 2, "phases.phase2.max_seq_length": 24},
    **{"phases.phase2.global_batch_size": 8, "phases.phase2.masked_lm_prob": 0.1},
    **{"phases.phase2.rate_share": 0.5, "schedule.warmup_steps": 0},
    "schedule.warmup_tokens": 16 * (8 + 8 + 16),
}
ROTARY = {f"model.{name}": value for name, value in modernbert.FAMILY.traits.items()} | {
    **{"model.window": 3, "model.global_every": 2, "model.num_hidden_layers": 2},
    **{"phases.phase1.num_steps": 3, "phases.phase2.num_steps": 2},
    "phases.phase2.rotary_base": 20.0,
}
VALUES = {
    kind: {f"model.{name}": value for name, value in (small_values.SIZES | model).items()}
    for kind, model in small_values.MODELS.items()
}
HIDDEN = {"masking": "dynamic", "masked_lm_prob": 0.5}
DECODER = {
    **{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
    "intermediate_size": 16,
}
NARROW_MOMENTS = {"optimizer.moment_dtype": "bfloat16"}
TEACHER = {
    **{"distillation.teacher": "{root}/teacher", "model.hidden_size": 32},
    **{"model.num_attention_heads": 4, "model.intermediate_size": 64, "model.pooler_act": "relu"},
    **{"model.max_position_embeddings": 40, "model.type_vocab_size": 0},
}

PRETRAINING = {
    "two lengths, pairs": Case("static", TWO_LENGTHS, (2, 3)),
    "lamb, sentence order, bfloat16 moments, micro-batches": Case(
        "sentence_order",
        {"optimizer.name": "lamb", "pretraining.pair_loss": "sop", "gradient_accumulation_steps": 2}
        | NARROW_MOMENTS,
    ),
    "stable_adamw, batch ramp, dynamic masks": Case(
        "unmasked", {**RAMP, **DYNAMIC, "optimizer.name": "stable_adamw"}, (1, 4)
    ),
    "muon, bfloat16 moments, packed rows, dynamic masks": Case(
        "packed", {**DYNAMIC, **NARROW_MOMENTS, "optimizer.name": "muon"}
    ),
    "next_token, length buckets, average of the parameters": Case(
        "short",
        {"data.length_buckets": True, "optimizer.ema_decay": 0.7, "model.left_to_right": True}
        | objective("next_token", masking="none"),
    ),
    "rotary base by phase": Case("static", ROTARY | objective("masked_tokens"), (2, 3)),
    "span_boundary, lamb, dynamic masks": Case(
        "unmasked", {"optimizer.name": "lamb"} | objective("span_boundary") | DYNAMIC
    ),
    "replaced_tokens, stable_adamw, disentangled, dynamic masks": Case(
        "unmasked",
        {
            **{"pretraining.generator.embeddings": "gradient_disentangled"},
            **{"pretraining.generator.hidden_size": 8, "optimizer.name": "stable_adamw"},
            **objective("replaced_tokens", masking="dynamic"),
        },
    ),
    "hybrid, dynamic masks": Case(
        "unmasked", {**DYNAMIC, "pretraining.causal_share": 0.25} | objective("hybrid")
    ),
    "prefix_rows": Case("static", {"pretraining.prefix_share": 0.25} | objective("prefix_rows")),
    "languages by alpha, one by hand, with embeddings, dynamic masks": Case(
        "languages",
        {
            **{"phases.phase1.language_alpha": 0.3, "phases.phase1.languages": "eo=0.25, *"},
            **{"model.language_embeddings": 3, **DYNAMIC},
        },
    ),
    "masked_values, patches": Case(
        "patches", VALUES["patches"] | objective("masked_values", **HIDDEN)
    ),
    "masked_values, exchanged cells": Case(
        "cells",
        VALUES["cells"]
        | objective("masked_values", predicts="replaced", exchanged_cells=True, **HIDDEN),
    ),
    "masked_autoencoder, crops": Case(
        "pixels",
        VALUES["pixels"]
        | {f"pretraining.decoder.{name}": size for name, size in DECODER.items()}
        | {"phases.phase1.max_seq_length": 17}
        | objective("masked_autoencoder", least_crop=0.5, flips=True, **HIDDEN),
    ),
    "masked_spans_to_sequence, mass": Case(
        "unmasked", objective("masked_spans_to_sequence", masking="dynamic")
    ),
    "masked_spans_to_sequence, bart, micro-batches": Case(
        "unmasked",
        {"gradient_accumulation_steps": 2}
        | objective("masked_spans_to_sequence", masking="dynamic", sequence_rows="bart"),
    ),
    "teacher": Case("static", TEACHER | objective("masked_tokens")),
}
EPOCHS = {"finetuning.num_epochs": 2.0}
FINETUNING = {
    "classes": Case("table", EPOCHS | {"finetuning.length_buckets": False}, (1,)),
    "spans, length buckets, odd batches": Case(
        "squad_v2",
        {
            **{"finetuning.num_epochs": 3.0, "global_batch_size": 5, "finetuning.name": "v2"},
            "finetuning.max_seq_length": 40,
        },
        (4,),
    ),
    "tags, micro-batches": Case("conll", {**EPOCHS, "gradient_accumulation_steps": 2}),
    "choices, low rank": Case("swag", {**EPOCHS, "finetuning.lora_rank": 2}),
    "teacher, layer decay, frozen words": Case(
        "glue",
        {
            **{"distillation.teacher": "{root}/finetuned", "optimizer.layer_decay": 0.5, **EPOCHS},
            "optimizer.frozen": (r"encoder\.embeddings\.word\..*",),
        },
    ),
    "embeddings, weighted files, micro-batches, a dense layer": Case(
        "embeddings",
        {
            **{"gradient_accumulation_steps": 2, **EPOCHS},
            "finetuning.projections": ((8, "tanh", True),),
        },
        (3,),
    ),
    "values": Case("values", EPOCHS),
    "sequences": Case("sequences", EPOCHS),
}
QUICK = {"two lengths, pairs", "classes"}
SLOW = {
    "lamb, sentence order, bfloat16 moments, micro-batches",
    "stable_adamw, batch ramp, dynamic masks",
    "replaced_tokens, stable_adamw, disentangled, dynamic masks",
    "masked_values, patches",
    "spans, length buckets, odd batches",
    "embeddings, weighted files, micro-batches, a dense layer",
    "sequences",
}
NO_DROPOUT = {"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0}


def cases(table):
    quick, slow = (names & table.keys() for names in (QUICK, SLOW))
    return pytest.mark.parametrize("name", marks.cases(table, quick=quick, slow=slow))


def write_packed(directory, rows, most):
    known = small_records.vocabulary()
    sizes = {"length": 16, "most": most, "vocab_size": known.vocab_size}
    record_set = small_packed.write(directory, rows, **sizes)
    known.save(directory)
    dataclasses.replace(record_set.manifest, tokenizer=known.describe()).save(directory)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Records of every sort, in lengths of 16 and 24."""
    root = tmp_path_factory.mktemp("records")
    for length in (16, 24):
        sizes = {"max_seq_length": length, "counts": (24, 25), "documents": range(90)}
        small_records.write(root / f"static_{length}", **sizes)
        unmasked = {"is_masked": False, "counts_words": True, **sizes}
        unmasked["stores_sentence_ends"] = True
        small_records.write(root / f"unmasked_{length}", **unmasked)
    small_records.write(root / "sentence_order_16", pair_objective="sop")
    languages = {"de": (24, 24), "eo": (9,), "fr": (16, 16)}
    small_records.write_languages(root / "languages_16", languages, is_masked=False)
    held_out = {"documents": range(90, 100), "counts": (16,), "seed": 2}
    small_records.write(root / "heldout", max_seq_length=24, is_masked=False, **held_out)
    known = small_byte_bpe.vocabulary()
    small_records.write(root / "bytes_16", known=known, documents=range(90))
    small_records.write(root / "bytes_heldout", known=known, **held_out)
    rows = [[[7, 5, 4], [16], [3, 3, 3, 3], [5, 11]][: 3 + shard % 2] for shard in range(8)]
    write_packed(root / "packed_16", rows, most=4)
    short = [[[3 + (row + shard) % 14] for row in range(12)] for shard in range(8)]
    write_packed(root / "short_16", short, most=1)
    for kind, length in small_values.LENGTHS.items():
        small_values.write(root / f"{kind}_{length}", kind)
    return root


@pytest.fixture(scope="module")
def teachers(root):
    """A masked-token model beside the records, and a finetuned one."""
    formats.write(weights.make("masked_lm"), root / "teacher", format="huggingface")
    source = small_datasets.write_source(root / "source")
    config = small_datasets.make_config(root / "glue", "glue", source)
    config.finetuning.update(num_epochs=1.0, test_file="", eval_file="")
    train.train(config, root / "finetuned")
    return root


def pretraining_config(root, case):
    config = smoke.get_config()
    config.model.update(vocab_size=0, hidden_size=16, num_hidden_layers=1, intermediate_size=32)
    config.model.update(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    config.data.update(source="records", train_dir=f"{root}/{case.data}_{{max_seq_length}}")
    config.global_batch_size = 8
    config.phases.phase1.update(num_steps=4, max_seq_length=16)
    config.schedule.update(peak_learning_rate=1e-2, warmup_steps=2)
    if any("phase2" in name for name in case.changes):
        with config.phases.unlocked():
            config.phases.phase2 = config.phases.phase1.copy_and_resolve_references()
    return finished(config, root, case)


def finetuning_config(root, directory, case):
    if case.data == "embeddings":
        rows = small_embeddings.pairs(32, 0)
        config = small_embeddings.make_config(directory, root / "source", rows=rows)
        config.finetuning.train_file += "=1.5"
    elif case.data == "values":
        config = small_values.finetuned_from_scratch(directory)
    else:
        config = small_datasets.make_config(directory, case.data, root / "source")
    config.model.hidden_dropout_prob = 0.1
    config.finetuning.update(eval_file="", test_file="")
    return finished(config, root, case)


def finished(config, root, case):
    changes = {
        name: value.format(root=root) if isinstance(value, str) else value
        for name, value in case.changes.items()
    }
    config.checkpoint.update(save_every_steps=1, keep_last=99)
    config.log_every_steps = 1
    config.writers = ()
    config.update_from_flattened_dict(changes)
    return config


def copy_checkpoint(step, source, target):
    name = f"checkpoints/{step}"
    shutil.copytree(source / name, target / name)


def trained(config, workdir, like=None):
    """Trains to the end; what `like`, a run of the same steps, has compiled is compiled once."""
    run = program.for_job(like, opened(config)) if like else train.prepare(config, workdir)
    return run, train.execute(run, epath.Path(workdir))


def opened(config):
    return jobs.JOBS[config.task].open(program.resolve(config, "cpu"))


def logged(workdir, after):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [
        {name: value for name, value in line.items() if not name.startswith("perf/")}
        for line in lines
        if line["step"] > after
    ]


def assert_same_bits(state, other):
    assert jax.tree.structure(state) == jax.tree.structure(other)
    for one, two in zip(
        *(jax.tree.leaves(jax.device_get(it)) for it in (state, other)), strict=True
    ):
        assert np.asarray(one).dtype == np.asarray(two).dtype
        assert np.asarray(one).tobytes() == np.asarray(two).tobytes()


def check(config, resumed_at, tmp_path):
    """Goes on in other workdirs, as the same command does in a process of its own."""
    run, whole = trained(config, tmp_path / "whole")
    assert int(whole.step) > max(resumed_at)
    for step in resumed_at:
        workdir = tmp_path / f"from_{step}"
        copy_checkpoint(step, tmp_path / "whole", workdir)
        assert_same_bits(trained(run.config, workdir, like=run)[1], whole)
        assert logged(workdir, 0) == logged(tmp_path / "whole", step)
    return whole


@cases(PRETRAINING)
def test_pretraining_goes_on_as_if_it_had_never_stopped(request, root, tmp_path, name):
    case = PRETRAINING[name]
    if "distillation.teacher" in case.changes:
        request.getfixturevalue("teachers")
    state = check(pretraining_config(root, case), case.resumed_at, tmp_path)
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(state.opt_state)}
    assert ("bfloat16" in dtypes) == ("bfloat16 moments" in name)


@cases(FINETUNING)
def test_finetuning_goes_on_as_if_it_had_never_stopped(request, source, tmp_path, name):
    case, root = FINETUNING[name], tmp_path
    if "distillation.teacher" in case.changes:
        root = request.getfixturevalue("teachers")
    else:
        (tmp_path / "source").symlink_to(source)
    check(finetuning_config(root, tmp_path / "data", case), case.resumed_at, tmp_path)


@pytest.mark.slow
def test_a_run_of_one_device_goes_on_on_eight(root, tmp_path, monkeypatch):
    """To rounding: sums over devices have another order; without dropout, drawn by device."""
    states, losses = [], []
    for devices, changes in ((1, {}), (8, {"sharding": "fsdp"})):
        available, workdir = jax.local_devices()[:devices], tmp_path / str(devices)
        monkeypatch.setattr(jax, "devices", lambda available=available: available)
        run = train.prepare(pretraining_config(root, Case("static", NO_DROPOUT | changes)), workdir)
        if devices == 8:
            copy_checkpoint(2, tmp_path / "1", workdir)
        states.append(jax.device_get(train.execute(run, workdir)))
        losses.append([line["train/loss"] for line in logged(workdir, 2)])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), *states)
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_every_objective_optimizer_and_kind_of_finetuning_has_a_case():
    def values(option):
        return {case.changes.get(option) for case in PRETRAINING.values()} - {None}

    assert values("pretraining.objective") >= {*tasks.OBJECTIVES}
    assert values("optimizer.name") | {"adamw"} == {*optim.OPTIMIZERS}
    assert values("optimizer.moment_dtype") | {"float32"} == {*optim.MOMENT_DTYPES}
    kinds = {case.data.removesuffix("_v2") for case in FINETUNING.values()}
    assert kinds == {*finetuning.KINDS}


@pytest.mark.slow
def test_the_first_step_with_the_words_of_a_mark_is_kept_whatever_stops_the_run(
    root, tmp_path, monkeypatch
):
    changes = {"checkpoint.keep_last": 1, "checkpoint.save_every_steps": 100}
    config = pretraining_config(root, Case("unmasked", {**RAMP, **DYNAMIC, **changes}))
    first = train.prepare(config, tmp_path / "whole")
    counts = [it["word_count"].sum() for *_, it in train.remaining_batches(first, 0)]
    seen = np.cumsum(counts).tolist()
    assert len(seen) == 6
    marks = {1: 1, seen[1]: 2, seen[1] + 1: 3, seen[4] - 1: 5, seen[4]: 5, seen[5] + 1: None}
    config.checkpoint.save_at_words = tuple(reversed(marks))
    run, _ = trained(config, tmp_path / "whole")
    assert [it["train/words"] for it in logged(tmp_path / "whole", 0)] == seen
    assert [it["train/epochs"] for it in logged(tmp_path / "whole", 0)] == pytest.approx(
        np.cumsum([8, 8, 16, 16, 8, 8]) / 49
    )
    for step in (2, 5):
        for saved in {1, 2, 3, 5} & {*range(step + 1)}:
            copy_checkpoint(saved, tmp_path / "whole", tmp_path / f"from_{step}")
    trained(run.config, tmp_path / "from_2", like=run)
    monkeypatch.undo()
    devices = jax.devices()[:8]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    train.train(config, tmp_path / "from_5")
    for step in (2, 5):
        lines = logged(tmp_path / f"from_{step}", 0)
        assert [it["train/words"] for it in lines] == seen[step:]
    for workdir in tmp_path.iterdir():
        assert sorted(int(it.name) for it in (workdir / "checkpoints").iterdir()) == [1, 2, 3, 5, 6]
        meta, _ = checkpoint.read_meta(workdir)
        assert {mark: step for mark, step in meta["word_marks"]} == {
            mark: step for mark, step in marks.items() if step
        }
        assert (meta["words"], meta["epochs"]) == (seen[-1], pytest.approx(64 / 49))


def decaying_config(root, steps, **more):
    changes = {
        **{"schedule.name": "wsd", "schedule.decay_steps": 5, "phases.phase1.num_steps": steps},
        **{"checkpoint.save_every_steps": 1_000, "checkpoint.keep_last": 1},
        **{"optimizer.name": "stable_adamw", "optimizer.fully_decoupled_decay": True},
    }
    return pretraining_config(root, Case("static", changes | more))


@pytest.mark.slow
def test_the_state_before_the_decay_is_kept_and_a_longer_run_goes_on_from_it(root, tmp_path):
    def saved_steps(name):
        return sorted(int(path.name) for path in (tmp_path / name / "checkpoints").iterdir())

    run, _ = trained(decaying_config(root, 12), tmp_path / "short")
    assert saved_steps("short") == [7, 12]
    with pytest.raises(ValueError, match="cannot be continued"):
        trained(decaying_config(root, 16), tmp_path / "short", like=run)
    copy_checkpoint(7, tmp_path / "short", tmp_path / "on")
    _, state = trained(decaying_config(root, 16), tmp_path / "on", like=run)
    assert_same_bits(state, trained(decaying_config(root, 16), tmp_path / "long", like=run)[1])
    assert saved_steps("on") == [11, 16]  # 7 is before no decay of this run


@pytest.mark.slow
def test_a_run_is_extended_or_decays_early_as_if_it_had_been_that_long(root, tmp_path):
    run, short = trained(decaying_config(root, 12), tmp_path / "short")
    _, long = trained(decaying_config(root, 16), tmp_path / "long", like=run)
    extended = decaying_config(root, 12, **{"budget.extend_to": 16})
    with pytest.raises(ValueError, match="config.budget.extend_to is 16"):
        train.train(extended, tmp_path / "none")
    copy_checkpoint(7, tmp_path / "short", tmp_path / "on")
    assert_same_bits(long, train.train(extended, tmp_path / "on"))
    # The next resume knows it, without the option.
    assert int(train.train(decaying_config(root, 12), tmp_path / "on").step) == 16
    extended.budget.extend_to = 20
    with pytest.raises(ValueError, match=r"cannot be continued.*\n.*num_steps: was 16, is 20"):
        train.train(extended, tmp_path / "on")  # which has decayed
    copy_checkpoint(7, tmp_path / "short", tmp_path / "begun")
    assert_same_bits(short, finish.finish(tmp_path / "begun"))
    assert {it.name for it in (tmp_path / "begun/checkpoints").iterdir()} == {"7"}
    assert int(finish.finish(tmp_path / "begun").step) == 12  # again: nothing more to do
    assert (
        int(finish.finish(tmp_path / "on", tmp_path / "other", step=11, decay_steps=2).step) == 13
    )
    with pytest.raises(ValueError, match=r"step 16 is in the decay, which began at step 11"):
        finish.finish(tmp_path / "on")


def test_batches_and_masks_are_those_of_the_step_and_evaluation_has_its_own(root):
    changes = {"evaluation.masked_lm_prob": 0.15, "data.eval_dir": "{root}/heldout"}
    changes |= RAMP | {"pretraining.masking": "dynamic"}
    job = opened(pretraining_config(root, Case("unmasked", changes)))
    sizes = []
    for phase in job.phases:
        batches = job.data.train_batches(phase, start_step=phase.first_step, rows=None)
        for _, batch in zip(range(phase.num_steps), batches, strict=False):
            rows = batch["masked_lm_weights"].sum(axis=1)
            assert len(set(rows)) == 1
            sizes.append((len(rows), batch["masked_lm_weights"].shape[1], int(rows[0])))
            shapes = {name: it.shape for name, it in job.data.abstract_batch(phase).items()}
            assert shapes == {name: batch[name].shape for name in shapes}
    # Of 16 tokens 40% are 6.4, for which there are 7 places. The rates are 40%, 35%, 30% and 25%.
    assert sizes == [(8, 7, 6), (8, 7, 6), (16, 7, 5), (16, 7, 4), (8, 3, 2), (8, 3, 2)]
    [one, _] = job.data.evaluation_batches(batch_size=8, rows=None)
    assert one["masked_lm_weights"].shape == (8, 4)
    assert set(one["masked_lm_weights"].sum(axis=1)) == {4}  # 15% of 24


def assert_close(tree, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), tree, expected
    )


@pytest.mark.slow
def test_the_average_of_the_parameters_is_kept_scored_and_skips_bad_steps(root, tmp_path):
    changes = {
        **{"data.eval_dir": "{root}/heldout", "evaluation.global_batch_size": 16},
        **{"optimizer.ema_decay": 0.7, "evaluation.ema": True, "pretraining.masking": "dynamic"},
        "phases.phase1.max_seq_length": 24,
    }
    run, end = trained(pretraining_config(root, Case("unmasked", NO_DROPOUT | changes)), tmp_path)
    mean = jax.device_get(run.init(run.step_inputs.seed).params)
    for step in range(1, 5):
        params = checkpoint.load_params(tmp_path, step, ema=False)[0]
        mean = jax.tree.map(lambda old, new: 0.7 * np.float64(old) + 0.3 * new, mean, params)
        assert_close(checkpoint.load_params(tmp_path, step)[0], mean)
    assert_same_bits(end.ema, checkpoint.load_params(tmp_path)[0])
    scores = evaluate.evaluate_checkpoint(tmp_path, str(root / "heldout"), batch_size=16)
    (loss,) = scored(tmp_path).values()
    assert scores["mlm_loss"] == pytest.approx(loss, rel=1e-6)

    batches = run.job.data.train_batches(run.job.phases[0], start_step=0, rows=None)
    poisoned = {name: np.asarray(value) for name, value in next(batches).items()}
    poisoned["masked_lm_weights"] = poisoned["masked_lm_weights"] * np.nan
    before = jax.device_get(end)
    with jax.set_mesh(run.mesh):
        on_devices = sharding.to_devices(poisoned, run.mesh, 8)
        after, report = run.train_step(end, on_devices, run.placed_step_inputs())
    assert not report.is_finite
    assert_same_bits((after.params, after.ema), (before.params, before.ema))


def scored(workdir):
    """The losses on held-out records by their steps."""
    name = "eval/heldout/mlm_loss"
    return {line["step"]: line[name] for line in logged(workdir, 0) if name in line}


BASES = {3: (10_000.0, 10_000.0), 5: (20.0, 10_000.0)}  # by the last step of a phase


@pytest.fixture(scope="module")
def two_bases(root):
    """Three steps in which all layers have one base, two in which the first has another."""
    changes = {
        **{"model.num_attention_heads": 2, "model.initializer_range": 0.3},
        **{"data.eval_dir": "{root}/bytes_heldout", "evaluation.global_batch_size": 8},
        **{"evaluation.every_steps": 3, "schedule.name": "constant"},
    }
    case = Case("bytes", ROTARY | NO_DROPOUT | objective("masked_tokens") | changes)
    config, devices = pretraining_config(root, case), jax.local_devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: devices)
        run, _ = trained(config, root / "two_bases")
    return config, root / "two_bases", run


@pytest.mark.slow
def test_a_phase_trains_as_a_run_whose_model_has_its_rotary_bases(two_bases, tmp_path):
    config, whole, run = two_bases
    config = config.copy_and_resolve_references()
    config.phases.phase2.rotary_base = 0.0
    config.model.update(rotary_base=20.0, local_rotary_base=10_000.0)
    other = program.build(opened(config), run.mesh)
    assert not other.of_phases and run.of_phases
    copy_checkpoint(3, whole, tmp_path)
    with checkpoint.Checkpointer(tmp_path, checkpoint.RetentionOptions()) as checkpointer:
        restored = checkpointer.restore(run.abstract_state)
    batch = next(other.job.data.train_batches(other.job.phases[1], start_step=3, rows=None))
    with jax.set_mesh(run.mesh):
        on_devices = sharding.to_devices(batch, run.mesh, 8)
        after, _ = other.train_step(restored.state, on_devices, run.placed_step_inputs())
    assert_same_bits(after.params, checkpoint.load_params(whole, 4)[0])


@pytest.mark.slow
def test_a_checkpoint_is_used_with_the_rotary_bases_of_its_phase(two_bases, root, tmp_path):
    _, whole, _ = two_bases
    rows = jnp.arange(6, 22, dtype=jnp.int32)[None]
    batch = {"input_ids": rows, "input_mask": jnp.ones_like(rows)}

    def by_hand(step, base, local):
        params, meta, _ = checkpoint.load_params(whole, step)
        fields = meta["config"]["model"] | {"rotary_base": base, "local_rotary_base": local}
        made = small_modules.made(encoder.make_encoder, encoder.EncoderConfig(**fields))
        graphdef, _ = parameters.split(made)
        return parameters.merge(graphdef, jax.tree.map(jnp.asarray, params["encoder"]))(batch)

    for step, (base, local) in BASES.items():
        hidden = inference.load(whole, step=step).module().encoder(batch)
        np.testing.assert_array_equal(hidden, by_hand(step, base, local))
        # The scores between the phases and at the end are those of a later evaluation.
        scores = evaluate.evaluate_checkpoint(
            whole, str(root / "bytes_heldout"), batch_size=8, step=step
        )
        assert scores["mlm_loss"] == pytest.approx(scored(whole)[step], rel=1e-6)
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
    # The last parameters with the first bases are another model.
    assert np.abs(np.asarray(by_hand(5, *BASES[3]) - hidden)).max() > 1e-2


@pytest.mark.slow
def test_a_plan_is_of_the_step_of_each_phase(two_bases):
    config, _, run = two_bases
    target = estimates.Target("cpu", "cpu", "cpu", 1)
    config = config.copy_and_resolve_references()
    config.model.vocab_size = run.config.model.vocab_size
    made = planner.plan(config, planner.Planner(target, jax.devices()[:1], False, None))
    assert [phase.details for phase in made.phases] == [phase.details for phase in run.job.phases]
    first, second = (phase.fingerprint for phase in made.phases)
    assert first != second
    assert [first, second] == [planned.fingerprint(run, phase) for phase in run.job.phases]
    first, second = (line for line in text.lines(made, {}) if line.startswith("phase"))
    assert first.startswith("phase1: 3 steps of 8 x 16 tokens, rotary base 10,000: not known")
    assert second.startswith(
        "phase2: 2 steps of 8 x 16 tokens, rotary base 20, 10,000 in windows: not known"
    )
