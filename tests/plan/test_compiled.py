"""Claims about what the compiler tells: counted bytes are its own, its refusals are understood."""

import dataclasses
import json

import jax
import pytest

from bertjax import jobs
from bertjax.devices import sharding
from bertjax.plan import compiled, hlo
from bertjax.training import program
from configs import smoke

# As libtpu 0.0.42.1 writes them (the first, 2026-11-21) and as TPU and GPU runs of others ended.
HBM = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(58.95G) exceeds available HBM (15.75G)."
)
USED = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 18.25G of 15.48G hbm. Exceeded hbm capacity by 2.77G.\n\nTotal hbm usage >= 18.77G:"
)


def small_program(devices=8, **changes):
    config = smoke.get_config()
    config.update_from_flattened_dict(changes)
    mesh = sharding.make_mesh(jax.devices()[:devices], data=-1, tensor=config.mesh.tensor)
    job = jobs.JOBS[config.task].abstract(program.resolve(config, "cpu"))
    return program.build(job, mesh)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sharding": "fsdp"},
        {"sharding": "fsdp_tensor", "mesh.tensor": 2},
        {"optimizer.bias_correction": False, "gradient_accumulation_steps": 2},
    ],
)
@pytest.mark.slow
def test_counted_bytes_are_those_of_the_compilers_arguments(changes):
    made = small_program(**changes)
    phase = made.job.phases[0]
    counted = compiled.count_bytes(made, phase)
    outcome = compiled.compile_step(made, phase)
    total = counted.parameters + counted.optimizer + counted.batch
    assert outcome.argument_bytes == pytest.approx(total, rel=0.02)
    assert outcome.temp_bytes > 0 and outcome.compile_seconds > 0
    assert outcome.analysis is None  # no cycles on CPU
    # The donated state comes back where it lay.
    assert outcome.alias_bytes >= counted.parameters + counted.optimizer - 64
    assert outcome.total_bytes < total + outcome.temp_bytes + 0.1 * total


def test_counted_bytes_shrink_with_the_devices_that_share_them():
    alone, shared = small_program(1), small_program(8, split_kernels=False)
    split = small_program(8, sharding="fsdp")
    phase = alone.job.phases[0]
    one, eight, parts = (compiled.count_bytes(made, phase) for made in (alone, shared, split))
    kernels = compiled.count_bytes(small_program(8), phase)
    assert parts.parameters < kernels.parameters < eight.parameters  # tables are whole
    assert kernels.optimizer == pytest.approx(2 * kernels.parameters, rel=0.01)
    assert eight.batch * 8 == one.batch == parts.batch * 8
    assert eight.parameters == one.parameters > 7 * parts.parameters
    assert parts.optimizer == pytest.approx(2 * parts.parameters, rel=0.01)


def test_the_bytes_of_a_refusal_are_read():
    for message, needed, available in [
        (HBM, 58.95, 15.75),
        (USED, 18.25, 15.48),
        ("RESOURCE_EXHAUSTED: out of memory trying to allocate 2147483648 bytes.", 2, None),
        ("RESOURCE_EXHAUSTED: no room", None, None),  # in other words it is still one
    ]:
        found = compiled.parse_refusal(message)
        gib = [it and pytest.approx(it * compiled.GIB, abs=1) for it in (needed, available)]
        assert [found.needed_bytes, found.available_bytes] == gib
        assert found.message == message.splitlines()[0]


class Refusing:
    def __init__(self, message):
        self.message = message

    def lower(self, *_):
        return self

    def compile(self):
        raise jax.errors.JaxRuntimeError(self.message)


def test_running_out_of_memory_is_an_outcome_and_other_failures_are_not():
    made = small_program(1)
    phase = made.job.phases[0]
    refusing = dataclasses.replace(made, train_step=Refusing(HBM))
    assert isinstance(compiled.compile_step(refusing, phase), compiled.OutOfMemory)
    failing = dataclasses.replace(made, train_step=Refusing("INTERNAL: a fault"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        compiled.compile_step(failing, phase)


def test_an_outcome_survives_json():
    collectives = (hlo.Collective("all-reduce", 2, 64),)
    analysis = hlo.Analysis(9.0, {"a/b": 9.0}, {"fusion": 9.0}, collectives, {"custom": 1})
    for outcome in (
        compiled.OutOfMemory(3, None, "no room"),
        compiled.Compiled(1, 2, 3, 4, 5, 6.5, None),
        compiled.Compiled(1, 2, 3, 4, 5, 6.5, analysis),
    ):
        assert compiled.from_json(json.loads(json.dumps(compiled.to_json(outcome)))) == outcome


def test_a_batch_is_outlined_as_it_is_made():
    made = small_program(1)
    phase = made.job.phases[0]
    batch = next(made.job.data.train_batches(phase, start_step=0, rows=None))
    outline = compiled.abstract_batch(made, phase)
    shown = {name: (shape.shape, shape.dtype) for name, shape in outline.items()}
    assert shown == {
        name: (rows.shape, rows.dtype) for name, rows in batch.items() if name != "record_positions"
    }
