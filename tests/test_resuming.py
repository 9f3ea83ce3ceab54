"""A resumed run is the run that never stopped, bit for bit: objective x optimizer x data.

Each case trains to its end and saves after every step. It then goes on from copies of some of these
checkpoints, and must end in the same state and log the same numbers. Real kills and several
processes are in test_interruption.py.
"""

import dataclasses
import json
import shutil
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from bertjax import finetuning, jobs, tasks, train
from bertjax.convert import formats
from bertjax.convert.families import modernbert
from bertjax.training import optim, program
from configs import smoke
from tests import small_datasets, small_embeddings, small_packed, small_records
from tests.convert import weights

pytestmark = pytest.mark.usefixtures("quick_runs")


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
    "phases.phase1.num_steps": 3,
    "phases.phase2.num_steps": 2,
    "phases.phase2.max_seq_length": 24,
    "phases.phase2.global_batch_size": 16,
}
DYNAMIC = {"pretraining.masking": "dynamic", "pretraining.mask_strategy": "span"}
# Batches of 8, 8, 16 and 16 rows with masks from 40% to 20%; then two of another length, at 10%.
RAMP = {
    "global_batch_size": 16,
    "phases.phase1.num_steps": 0,
    "phases.phase1.num_tokens": 16 * (8 + 8 + 16 + 16),
    "phases.phase1.ramp_from": 8,
    "phases.phase1.ramp_tokens": 16 * (8 + 8),
    "phases.phase1.masked_lm_prob": 0.4,
    "phases.phase1.final_masked_lm_prob": 0.2,
    "phases.phase2.num_steps": 2,
    "phases.phase2.max_seq_length": 24,
    "phases.phase2.global_batch_size": 8,
    "phases.phase2.masked_lm_prob": 0.1,
    "phases.phase2.rate_share": 0.5,
    "schedule.warmup_steps": 0,
    "schedule.warmup_tokens": 16 * (8 + 8 + 16),
}
ROTARY = {f"model.{name}": value for name, value in modernbert.FAMILY.traits.items()} | {
    "model.window": 3,
    "model.global_every": 2,
    "model.num_hidden_layers": 2,
    "phases.phase1.num_steps": 3,
    "phases.phase2.num_steps": 2,
    "phases.phase2.rotary_base": 20.0,
}

PRETRAINING = {
    "two lengths, pairs": Case("static", TWO_LENGTHS, (2, 3, 4)),
    "lamb, sentence order": Case(
        "sentence_order", {"optimizer.name": "lamb", "pretraining.pair_loss": "sop"}
    ),
    "bfloat16 moments, micro-batches": Case(
        "static", {"optimizer.moment_dtype": "bfloat16", "gradient_accumulation_steps": 2}
    ),
    "stable_adamw, batch ramp, dynamic masks": Case(
        "unmasked", {**RAMP, **DYNAMIC, "optimizer.name": "stable_adamw"}, (1, 2, 4)
    ),
    "muon, bfloat16 moments, packed rows, dynamic masks": Case(
        "packed",
        {**DYNAMIC, "optimizer.name": "muon", "optimizer.moment_dtype": "bfloat16"},
    ),
    "length buckets, average of the parameters": Case(
        "short",
        {
            **{"data.length_buckets": True, "optimizer.ema_decay": 0.7},
            **objective("masked_tokens", masking="dynamic"),
        },
        (1, 3),
    ),
    "rotary base by phase": Case("static", ROTARY | objective("masked_tokens"), (2, 3, 4)),
    "span_boundary": Case("static", objective("span_boundary")),
    "span_boundary, lamb, dynamic masks": Case(
        "unmasked",
        {"optimizer.name": "lamb"}
        | objective("span_boundary", masking="dynamic", mask_strategy="span"),
    ),
    "replaced_tokens": Case(
        "static",
        {"model.embedding_size": 12, "pretraining.generator.hidden_size": 8}
        | objective("replaced_tokens"),
    ),
    "replaced_tokens, stable_adamw, disentangled, dynamic masks": Case(
        "unmasked",
        {
            **{"pretraining.generator.embeddings": "gradient_disentangled"},
            **{"pretraining.generator.hidden_size": 8, "optimizer.name": "stable_adamw"},
            **objective("replaced_tokens", masking="dynamic"),
        },
    ),
    "next_token": Case(
        "unmasked", {"model.left_to_right": True} | objective("next_token", masking="none")
    ),
    "next_token, muon, packed rows": Case(
        "packed",
        {"model.left_to_right": True, "optimizer.name": "muon"}
        | objective("next_token", masking="none"),
    ),
    "teacher": Case(
        "static",
        {
            **{"distillation.teacher": "{root}/teacher", "model.hidden_size": 32},
            **{"model.num_attention_heads": 4, "model.intermediate_size": 64},
            **{"model.max_position_embeddings": 40, "model.type_vocab_size": 0},
            **{"model.pooler_act": "relu"},
            **objective("masked_tokens"),
        },
    ),
}
EPOCHS = {"finetuning.num_epochs": 2.0}
FINETUNING = {
    "classes": Case("table", EPOCHS, (1, 3)),
    "number": Case("regression", EPOCHS),
    "labels": Case("multi_label", EPOCHS),
    "spans, length buckets, odd batches": Case(
        "squad_v2",
        {
            **{"finetuning.num_epochs": 3.0, "global_batch_size": 5, "finetuning.name": "v2"},
            "finetuning.max_seq_length": 40,
        },
        (4, 7),
    ),
    "tags, micro-batches": Case("conll", {**EPOCHS, "gradient_accumulation_steps": 2}),
    "choices, low rank": Case("swag", {**EPOCHS, "finetuning.lora_rank": 2}),
    "teacher, layer decay, frozen words": Case(
        "glue",
        {
            **EPOCHS,
            "distillation.teacher": "{root}/finetuned",
            "optimizer.layer_decay": 0.5,
            "optimizer.frozen": (r"encoder\.embeddings\.word\..*",),
        },
    ),
    "embeddings, weighted files, micro-batches": Case(
        "embeddings", {"gradient_accumulation_steps": 2, **EPOCHS}, (3, 7)
    ),
}
QUICK = ("two lengths, pairs", "classes")


def cases(table):
    marks = {name: () if name in QUICK else pytest.mark.slow for name in table}
    return pytest.mark.parametrize("name", [pytest.param(it, marks=marks[it]) for it in table])


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
        sizes = {"max_seq_length": length, "counts": (24, 25)}
        small_records.write(root / f"static_{length}", **sizes)
        small_records.write(root / f"unmasked_{length}", is_masked=False, **sizes)
    small_records.write(root / "sentence_order_16", pair_objective="sop")
    rows = [[[7, 5, 4], [16], [3, 3, 3, 3], [5, 11]][: 3 + shard % 2] for shard in range(8)]
    write_packed(root / "packed_16", rows, most=4)
    short = [[[3 + (row + shard) % 14] for row in range(12)] for shard in range(8)]
    write_packed(root / "short_16", short, most=1)
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
    config.update_from_flattened_dict(changes)
    config.checkpoint.update(save_every_steps=1, keep_last=99)
    config.log_every_steps = 1
    config.writers = ()
    return config


def copy_checkpoint(step, source, target):
    name = f"checkpoints/{step}"
    shutil.copytree(source / name, target / name)


def resumed(run, workdir):
    """Goes on in a workdir, as the same command does in a process of its own."""
    job = jobs.JOBS[run.config.task].open(run.config)
    return train.execute(program.for_job(run, job), epath.Path(workdir))


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
    run = train.prepare(config, tmp_path / "whole")
    whole = train.execute(run, tmp_path / "whole")
    assert int(whole.step) > max(resumed_at)
    for step in resumed_at:
        workdir = tmp_path / f"from_{step}"
        copy_checkpoint(step, tmp_path / "whole", workdir)
        assert_same_bits(resumed(run, workdir), whole)
        assert logged(workdir, 0) == logged(tmp_path / "whole", step)
    return whole


@pytest.mark.usefixtures("one_device")
@cases(PRETRAINING)
def test_pretraining_goes_on_as_if_it_had_never_stopped(request, root, tmp_path, name):
    case = PRETRAINING[name]
    if "distillation.teacher" in case.changes:
        request.getfixturevalue("teachers")
    state = check(pretraining_config(root, case), case.resumed_at, tmp_path)
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(state.opt_state)}
    assert ("bfloat16" in dtypes) == ("bfloat16 moments" in name)


@pytest.mark.usefixtures("one_device")
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
    no_dropout = {"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0}
    case = Case("static", no_dropout)
    for devices, changes in ((1, {}), (8, {"sharding": "fsdp"})):
        available = jax.devices()[:devices]
        with monkeypatch.context() as patch:
            patch.setattr(jax, "devices", lambda available=available: available)
            config = pretraining_config(
                root, dataclasses.replace(case, changes=no_dropout | changes)
            )
            run = train.prepare(config, tmp_path / str(devices))
            if devices == 8:
                copy_checkpoint(2, tmp_path / "1", tmp_path / "8")
            state = jax.device_get(train.execute(run, tmp_path / str(devices)))
        if devices == 1:
            alone = state
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), state, alone)
    losses = [
        [line["train/loss"] for line in logged(tmp_path / str(devices), 2)] for devices in (1, 8)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_every_objective_optimizer_and_kind_of_finetuning_has_a_case():
    def values(option):
        return {case.changes.get(option) for case in PRETRAINING.values()} - {None}

    assert values("pretraining.objective") >= {*tasks.OBJECTIVES}
    assert values("optimizer.name") | {"adamw"} == {*optim.OPTIMIZERS}
    assert values("optimizer.moment_dtype") | {"float32"} == {*optim.MOMENT_DTYPES}
    datasets = {"regression": "glue", "multi_label": "table", "squad_v2": "squad"}
    kinds = {datasets.get(case.data, case.data) for case in FINETUNING.values()}
    assert kinds == {*finetuning.KINDS}
