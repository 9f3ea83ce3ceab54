"""Claims about runs that learn from a teacher: meshes, what is saved, who is refused."""

import dataclasses
import json
import re
import shutil

import jax
import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax import jobs, train
from bertjax.convert import formats
from bertjax.devices import sharding
from bertjax.models import parameters
from bertjax.plan import compiled
from bertjax.training import program, warm_start
from bertjax.workdirs import reader
from tests import small_records
from tests.convert import weights

pytestmark = pytest.mark.usefixtures("quick_runs")
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "type_vocab_size": 0, "pooler_act": "relu",
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Records, and a teacher with their vocabulary."""
    directory = tmp_path_factory.mktemp("distilling")
    small_records.write(directory / "train", documents=range(50))
    formats.write(weights.make("masked_lm"), directory / "teacher", format="bertjax")
    return directory


def make_config(root, **changes):
    config = config_lib.default_config()
    config.pretraining.pair_loss = "none"
    config.data.train_dir = str(root / "train")
    config.model.update(SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config.distillation.teacher = str(root / "teacher")
    config.update(global_batch_size=8, log_every_steps=1)
    config.phases.phase1.update(num_steps=4, max_seq_length=16)
    config.schedule.update(warmup_steps=1, peak_learning_rate=1e-3)
    config.checkpoint.save_every_steps = 2
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    return config


def run(config, workdir):
    with pytest.MonkeyPatch.context() as monkeypatch:
        devices = jax.local_devices()[:1]
        monkeypatch.setattr(jax, "devices", lambda: devices)
        return train.train(config, workdir)


@pytest.fixture(scope="module")
def trained(root):
    """A run of four steps, and what it left."""
    state = run(make_config(root), root / "run")
    return jax.device_get(state)


def lines(workdir):
    found = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if "train/loss" in line]


@pytest.mark.slow
def test_the_student_alone_is_saved_and_starts_from_its_teacher(root, trained):
    assert reader.read(root / "run").params.keys() == {"encoder", "mlm_head"}
    sizes = [
        sum(leaf.size for leaf in jax.tree.leaves(it)) for it in (trained.opt_state, trained.params)
    ]
    assert sizes[0] < 2.1 * sizes[1]
    first = lines(root / "run")[0]
    loss = 2 * first["train/mlm_loss"] + 5 * first["train/soft_loss"] + first["train/cosine_loss"]
    assert first["train/loss"] == pytest.approx(loss, rel=1e-5)
    exported = formats.read(root / "run")
    assert (exported.family.title, exported.head) == ("DistilBERT", "masked_lm")


@pytest.mark.slow
def test_a_run_may_move_its_teacher_but_not_change_it(root, trained, tmp_path):
    moved = shutil.copytree(root / "teacher", tmp_path / "moved")
    run(make_config(root, **{"distillation.teacher": str(moved)}), root / "run")
    other = tmp_path / "other"
    formats.write(weights.make("masked_lm", seed=9), other, format="bertjax")
    for teacher in (str(other), ""):
        with pytest.raises(ValueError, match="is not the teacher that the run began with"):
            run(make_config(root, **{"distillation.teacher": teacher}), root / "run")


def test_a_teacher_that_does_not_fit_or_teaches_nothing_is_refused(root, tmp_path):
    words = [*small_records.WORDS[:-1], "other"]
    other, bare = str(tmp_path / "other"), str(tmp_path / "bare")
    made = weights.make("masked_lm", vocabulary=small_records.vocabulary(words))
    formats.write(made, other, format="bertjax")
    formats.write(weights.make("none"), bare, format="bertjax")
    for options, error, message in [
        ({"teacher": other}, ValueError, r"teach this run:\n  .* differ: entry 94 is"),
        ({"teacher": bare}, ValueError, "mlm_head|cls.predictions"),
        ({"temperature": 0.0}, ValueError, "temperature is 0.0; it must be above 0"),
        ({"soft_weight": -1.0}, ValueError, "soft_weight is -1.0; it must be at least 0"),
        ({"teacher": "", "temperature": 3.0}, ValueError, "temperature is 3.0, but .* a teacher"),
        ({"teacher": "/no/where"}, FileNotFoundError, "config.distillation.teacher is /no/where"),
    ]:
        changes = {f"distillation.{name}": value for name, value in options.items()}
        with pytest.raises(error, match=message):
            run(make_config(root, **changes), tmp_path / "run")


def built(root, devices, **changes):
    config = make_config(root, **changes)
    mesh = sharding.make_mesh(jax.devices()[:devices], data=-1, tensor=config.mesh.tensor)
    job = jobs.JOBS["pretraining"].open(program.resolve(config, "cpu"))
    return program.build(job, mesh)


def steps(made):
    """The parameters after all steps, and the step_inputs as the devices hold them."""
    (phase,) = made.job.phases
    batches = made.job.data.train_batches(phase, start_step=0, rows=None)
    with jax.set_mesh(made.mesh):
        state = warm_start.apply(
            warm_start.of_job(made.job, made.abstract_state.params),
            made.init(made.step_inputs.seed),
        )
        step_inputs = made.placed_step_inputs()
        for _ in range(phase.num_steps):
            rows = sharding.to_devices(next(batches), made.mesh, phase.global_batch_size)
            state, _ = made.train_step(state, rows, step_inputs)
    return jax.device_get(state.params), step_inputs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "changes"),
    [
        (4, {"gradient_accumulation_steps": 2, "sharding": "fsdp"}),
        (8, {"sharding": "tensor", "mesh.tensor": 4}),
    ],
)
def test_micro_batches_and_meshes_change_nothing(root, trained, devices, changes):
    params, step_inputs = steps(built(root, devices, **changes))
    for got, wanted in zip(jax.tree.leaves(params), jax.tree.leaves(trained.params), strict=True):
        np.testing.assert_allclose(got, wanted, atol=3e-5)
    kernel = step_inputs.fixed["teacher"]["encoder"]["layers"]["0"]["intermediate"]["kernel"]
    assert kernel.addressable_shards[0].data.size * 4 == kernel.size
    teacher = formats.read(root / "teacher").params
    for path, array in parameters.flat(step_inputs.fixed["teacher"]).items():
        np.testing.assert_array_equal(array, teacher[path])


def test_the_teacher_is_no_constant_of_the_program(root):
    made = built(root, 1)
    batch = compiled.abstract_batch(made, made.job.phases[0])
    with jax.set_mesh(made.mesh):
        lowered = made.train_step.lower(made.abstract_state, batch, made.abstract_step_inputs)
    text = lowered.as_text()
    # Constants of several numbers that differ are written out in hexadecimal, 8 digits a number.
    longest = max((len(digits) // 8 for digits in re.findall(r'dense<"0x(\w+)"', text)), default=0)
    assert longest < 32
    state_and_rows = len(jax.tree.leaves((made.abstract_state, batch)))
    given = len(jax.tree.leaves(made.abstract_step_inputs))
    without = jax.tree.leaves(dataclasses.replace(made.step_inputs, fixed=None))
    assert given == len(jax.tree.leaves(made.step_inputs.fixed)) + len(without) > len(without)
    assert text.count("%arg") >= state_and_rows + given


def test_a_plan_knows_the_teacher_without_reading_it(root, monkeypatch):
    monkeypatch.setattr(formats, "read", None)
    config = program.resolve(make_config(root), "cpu")
    config.model.vocab_size = 95
    job = jobs.JOBS["pretraining"].abstract(config)
    plain = dataclasses.replace(job, task=job.task.student)
    assert jobs.train_flops(job, job.phases[0]) > jobs.train_flops(plain, job.phases[0])
    made = program.build(job, sharding.make_mesh(jax.devices()[:1], data=1, tensor=1))
    assert made.abstract_step_inputs.fixed["teacher"].keys() == {"encoder", "mlm_head"}
