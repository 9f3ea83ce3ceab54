"""Claims about programs: they lower for TPU without one, and presets reach only TPU's compiler."""

import dataclasses
import re

import jax
import numpy as np
import pytest
from jax import export as jax_export

from benchmarks import plan_recipes
from bertjax import config as config_lib
from bertjax import jobs, recipes
from bertjax.devices import sharding, xla_presets
from bertjax.jobs import finetuning, pretraining
from bertjax.plan import compiled, hlo
from bertjax.training import config_faults, planned, program, schedules
from tests import conftest, marks, small_runs

FAST = ("smoke", "quickstart")
# One size of each recipe, and the sizes with other widths of heads.
SLOW = (
    *("bert_base", "albert:base", "electra:small", "mass:base", "modernbert:base"),
    *("deberta_v3:base", "classification", "squad", "bert2bert", "patchtst:base", "mae:base"),
)
WEEKLY = (
    *("bert_mini", "left_to_right_base", "roberta:base", "distilbert_base", "albert:xlarge"),
    *("spanbert:base", "esm2:8m", "esm2:35m", "esm2:150m", "esm2:650m", "modern_mini"),
    *("babylm:mini", "ettin:17m", "conll", "glue", "embeddings", "swag"),
    *("tables:replaced", "tables:mini", "mae:mini", "values"),
)


def recipe(name):
    """A recipe with the sizes of values that records would say."""
    config = recipes.load(name)
    if name.partition(":")[0] in ("patchtst", "tables", "mae", "values"):
        config.update_from_flattened_dict(plan_recipes.SETTINGS[name].options)
    return config


def built(config, platform="cpu", devices=1):
    config = config.copy_and_resolve_references()
    config.model.vocab_size = config.model.vocab_size or 1000
    count = devices if config.mesh.data == -1 else config.mesh.data * config.mesh.tensor
    mesh = sharding.make_mesh(
        jax.devices()[:count], data=config.mesh.data, tensor=config.mesh.tensor
    )
    job = jobs.JOBS[config.task].abstract(program.resolve(config, platform))
    return program.build(job, mesh)


def test_a_size_of_every_recipe_is_lowered_here_with_every_width_of_heads():
    def kind(name):
        model = recipe(name).model
        family = re.sub(r"^bert_.*", "bert", name.partition(":")[0])
        for kin, of in (
            ("xlm_r|camembert", "roberta"),
            ("mbert", "bert"),
            ("mmbert", "modernbert"),
        ):
            family = re.sub(f"^({kin})$", of, family)  # with other vocabularies
        return family, model.hidden_size // model.num_attention_heads

    lowered = {kind(name) for name in (*FAST, *SLOW, *WEEKLY)}
    assert lowered == {*map(kind, plan_recipes.SETTINGS)}


@pytest.mark.parametrize("name", marks.cases((*FAST, *SLOW, *WEEKLY), quick=FAST, slow=SLOW))
def test_the_step_of_a_recipe_lowers_for_tpu_without_one(name):
    config = recipe(name)
    # A layer of every kind that a recipe has, at its width; the others repeat them.
    config.model.num_hidden_layers = 3 if config.model.window else 1
    made = built(config, platform="tpu")
    phase = made.job.phases[-1]
    with jax.set_mesh(made.mesh):
        exported = jax_export.export(made.in_phase(phase).train_step, platforms=["tpu"])(
            made.abstract_state, compiled.abstract_batch(made, phase), made.abstract_step_inputs
        )
    assert exported.platforms == ("tpu",)
    # What the platform wants is in the program: bfloat16 products, and bits from the hardware.
    text, has_dropout = exported.mlir_module(), made.config.model.hidden_dropout_prob > 0
    # The kernels that a plan of the recipe meets are those that it can count.
    names = set(re.findall(r"attention_[a-z]+_\d\w+", text))
    assert all(hlo._kernel_cycles(name, 1000) for name in names)
    assert "xbf16>" in text
    assert ("stablehlo.rng_bit_generator" in text) == has_dropout


def test_a_resolved_config_has_no_auto_and_keeps_choices():
    for platform, dtype, bits in (("cpu", "float32", "threefry2x32"), ("tpu", "bfloat16", "rbg")):
        config = program.resolve(config_lib.default_config(), platform)
        assert (config.model.dtype, config.prng_impl) == (dtype, bits)
    config = config_lib.default_config()
    config.model.dtype, config.prng_impl = "float32", "threefry2x32"
    resolved = program.resolve(config, "tpu")
    assert (resolved.model.dtype, resolved.prng_impl) == ("float32", "threefry2x32")


def test_attention_is_left_open_on_devices_that_take_the_kernels():
    for platform, kind, attention in [
        *(("cpu", "", "xla"), ("gpu", "", "xla")),
        *(("tpu", "TPU v4", "xla"), ("tpu", "TPU v5 lite", "auto")),
    ]:
        config = config_lib.default_config()
        assert program.resolve(config, platform, kind).model.attention == attention
        config.model.attention = "pallas"
        assert program.resolve(config, platform, kind).model.attention == "pallas"


def test_a_share_of_warm_up_is_rounded_down_as_in_the_released_code():
    config = recipe("classification")
    config.model.update(vocab_size=1000, dtype="float32")
    for steps, warmup_steps in ((19, 1), (20, 2), (9, 0), (234, 23)):
        config.phases.phase1.num_steps = steps
        made = program.schedule_options(finetuning.abstract(config))
        assert (made.warmup_steps, made.total_steps) == (warmup_steps, steps)


def test_tokens_of_warm_up_and_decay_are_the_first_and_the_last_of_the_run():
    config = recipe("smoke")
    config.schedule.update(name="wsd", warmup_share=0.5, decay_steps=3, end_share=0.1)
    phase = config.phases.phase1
    tokens = config.global_batch_size * phase.max_seq_length
    config.schedule.update(warmup_tokens=7 * tokens, decay_tokens=20 * tokens - 1)
    found = program.schedule_options(pretraining.abstract(program.resolve(config, "cpu")))
    assert (found.warmup_steps, found.decay_steps) == (7, 20)
    assert (found.total_steps, found.end_share) == (phase.num_steps, 0.1)


@pytest.mark.parametrize(
    ("name", "short", "long"),
    [("modernbert:base", 8e-4, 3e-4), ("modernbert:large", 5e-4, 5e-5), ("bert_base", 1e-4, None)],
)
def test_the_rate_of_long_texts_is_a_share_of_that_of_short_ones(name, short, long):
    config = recipe(name)
    config.model.vocab_size = 1000
    job = pretraining.abstract(program.resolve(config, "cpu"))
    options = program.schedule_options(job)
    rate = schedules.make_schedule(options)
    if long is None:
        assert not options.phase_shares
        return
    begun = {phase.max_seq_length: phase.first_step for phase in reversed(job.phases)}
    rates = [float(rate(step)) for step in (begun[8192] - 1, begun[8192])]
    np.testing.assert_allclose(rates, [short, long], rtol=1e-5)


ROTARY = {"position_embedding": "rotary", "window": 2, "global_every": 2, "num_hidden_layers": 2}


def of_bases(*bases):
    """The smoke recipe with windows, and phases of two steps with these rotary bases."""
    config = recipe("smoke")
    config.model.update(**ROTARY, vocab_size=50, hidden_size=16, intermediate_size=16)
    config.phases.phase1.update(num_steps=2, max_seq_length=16)
    return small_runs.set_phases(config, *({"rotary_base": base} for base in bases))


def test_a_phase_with_rotary_bases_of_its_own_has_a_program_of_its_own():
    made = built(of_bases(0.0, 500.0, 10_000.0, 500.0))
    first, second, third, fourth = made.job.phases
    assert made.in_phase(first) is made is made.in_phase(third)
    other = made.in_phase(second)
    assert other is made.in_phase(fourth) is made.at(3) is made.at(4) is made.at(9)
    assert [made.at(step) is made for step in (0, 1, 2, 5, 6)] == [True] * 5
    for each, base in ((made, 10_000.0), (other, 500.0)):
        encoder = each.learner.task.encoder
        assert (encoder.rotary_base_of(0), encoder.rotary_base_of(1)) == (base, 10_000.0)
    # What is planned and compiled is the phase's own.
    prints = [planned.fingerprint(made, phase) for phase in made.job.phases]
    assert prints[0] == prints[2] != prints[1] == prints[3]

    class Asked(Exception):
        """Raised in place of being lowered."""

    class Step:
        def lower(self, *arguments):
            raise Asked

    both = {name: dataclasses.replace(it, train_step=Step()) for name, it in made.of_phases.items()}
    with pytest.raises(Asked):
        compiled.compile_step(dataclasses.replace(made, of_phases=both), second)


def test_the_program_of_another_job_has_its_phases_too():
    config = of_bases(0.0, 500.0)
    made = built(config)
    config.seed = 7
    job = jobs.JOBS[config.task].abstract(program.resolve(config, "cpu"))
    again = program.for_job(made, job)
    other, before = (each.in_phase(job.phases[1]) for each in (again, made))
    assert other.train_step is before.train_step and other.config.seed == 7
    assert int(other.step_inputs.seed) == 7


@pytest.mark.parametrize(
    ("name", "bases"),
    [
        ("modernbert:base", [(1e4, 1e4), (1.6e5, 1e4), (1.6e5, 1e4)]),
        ("modernbert:large", [(1e4, 1e4), (1.6e5, 1e4), (1.6e5, 1e4)]),
        ("modern_mini", [(1.6e5, 1e4)]),
        ("ettin:150m", [(1e4, 1e4), (1.6e5, 1.6e5), (1.6e5, 1.6e5)]),
        ("ettin:17m", [(1e4, 1e4), (1.6e5, 1e4), (1.6e5, 1.6e5)]),
        ("bert_base", [None, None]),
    ],
)
def test_the_rotary_bases_of_a_recipe_are_those_of_the_released_runs(name, bases):
    found = {phase.name: phase.rotary_bases for phase in jobs.phases(recipe(name))}
    assert list(found.values()) == bases


def test_a_preset_is_for_tpu_alone_and_says_so_elsewhere(caplog):
    assert tuple(xla_presets.PRESETS) == config_faults.CHOICES["xla_preset"]
    for name, options in xla_presets.PRESETS.items():
        caplog.clear()
        assert xla_presets.compiler_options(name, "tpu") == (options or None)
        assert not caplog.messages
        assert xla_presets.compiler_options(name, "gpu") is None
        assert len(caplog.messages) == (name != "none")


def test_the_attention_kernel_is_for_tpu_v4_and_newer():
    config = recipe("smoke")
    program.check_attention(config, "TPU v3")
    config.model.attention = "pallas"
    program.check_attention(config, "TPU v4")
    with pytest.raises(ValueError, match="attention is 'pallas'; it must be 'xla' on TPU v3"):
        program.check_attention(config, "TPU v3")
    config.model.relative = "disentangled"
    program.check_attention(config, "TPU v5 lite")
    with pytest.raises(ValueError, match="on TPU v4, since the kernel needs a TPU v5"):
        program.check_attention(config, "TPU v4")


def test_presets_reach_the_compiler_of_the_step(monkeypatch):
    config = recipe("smoke")
    config.xla_preset = "large_vmem"
    # A CPU that takes itself for a TPU: its compiler names the option it does not know.
    monkeypatch.setattr(
        xla_presets, "compiler_options", lambda name, platform: xla_presets.PRESETS[name]
    )
    made = built(config)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_tpu_scoped_vmem_limit_kib"):
        compiled.compile_step(made, made.job.phases[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduction", "changes"),
    [
        ("compute", {}),
        ("float32", {}),
        ("float32", {"gradient_accumulation_steps": 2}),
        ("float32", {"sharding": "fsdp"}),
        ("float32", {"sharding": "fsdp_tensor", "mesh.tensor": 2}),
    ],
)
def test_no_gradient_of_a_step_is_summed_over_devices_in_bfloat16_unless_asked_for(
    reduction, changes, tmp_path
):
    config = recipe("smoke")
    config.model.update(dtype="bfloat16", gradient_reduction_dtype=reduction, num_hidden_layers=1)
    config.update_from_flattened_dict({"mesh.data": 8 // changes.get("mesh.tensor", 1)} | changes)
    made = built(config)
    batch = compiled.abstract_batch(made, made.job.phases[0])
    with jax.set_mesh(made.mesh):
        lowered = made.train_step.lower(made.abstract_state, batch, made.abstract_step_inputs)
    # As the partitioner leaves it: later on XLA makes every sum on CPU one in float32.
    options = conftest.QUICK_COMPILER | {"xla_dump_hlo_pass_re": "spmd-partitioning"}
    lowered.compile(options | {"xla_dump_to": str(tmp_path)})
    partitioned = next(tmp_path.glob("*after_spmd-partitioning*")).read_text()
    # Matrices and vectors: what has rows of a batch, as under "tensor", has three axes.
    a_sum = r"= (\w+)\[\d+(?:,\d+)?\]\S* (?:all-reduce|reduce-scatter)\("
    assert ("bf16" in re.findall(a_sum, partitioned)) == (reduction == "compute")
    assert "f32" in re.findall(a_sum, partitioned)
