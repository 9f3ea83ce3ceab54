"""Claims about budgets: what a time gives each recipe, what is marked, and what is refused."""

import dataclasses
import json
import os
import subprocess
import sys

import jax
import pytest

from bertjax import jobs, recipes
from bertjax.plan import budget, compiled, estimates, planner, rates, topologies
from configs import smoke
from tests import programs, small_runs

GIB = compiled.GIB
V5E = estimates.Target("v5e-1", "tpu", "TPU v5 lite", 1, topologies.parse("v5e-1"))
ON_V5E = planner.Planner(V5E, jax.devices()[:1], True, None)


ON_CPU = planner.Planner(estimates.Target("cpu", "cpu", "cpu", 1), jax.devices()[:1], True, None)


def make_config(**changes):
    config = smoke.get_config()
    config.update_from_flattened_dict(changes)
    return config


def entry(recipe, size, tokens):
    rate = rates.Rate(None if tokens is None else tokens / 3600, "estimated")
    return budget.Entry(recipe, 2 * size, size, rate, tokens)


def make_budget(*entries, enough=100.0):
    return budget.Budget("2026-11-27", 1.0, V5E, enough, entries, {}, (), {"jax": "0.10"})


@pytest.fixture
def compiler(monkeypatch):
    """A step takes 1 ms for 1,024 tokens, and 1 GiB for 256 of a micro-batch; 15 are there."""
    asked = []

    def compile_step(program, phase):
        number = program.config.gradient_accumulation_steps
        needed = phase.tokens_per_step // number * GIB // 256
        asked.append((phase.name, number))
        if needed > 15 * GIB:
            return compiled.OutOfMemory(needed, 15 * GIB, "RESOURCE_EXHAUSTED: too large")
        cycles = 1.5e6 * phase.tokens_per_step / 1024
        analysis = compiled.hlo.Analysis(cycles, {"jit(f)/dot": cycles}, {}, (), {})
        return compiled.Compiled(0, 0, 0, needed, 0, 1.0, analysis)

    monkeypatch.setattr(compiled, "compile_step", compile_step)
    return asked


def test_a_budget_is_a_number_with_its_unit_and_nothing_else():
    for text, hours in {"24h": 24, "90m": 1.5, "2d": 48, " 1.5H ": 1.5}.items():
        assert budget.parse_hours(text) == pytest.approx(hours)
    for text in ("24", "h", "-3h", "0.0d", "1 h", "3w", "1h30m", "1e3h"):
        with pytest.raises(ValueError, match=f"--budget is '{text}'"):
            budget.parse_hours(text)


def test_the_rate_of_a_run_is_its_tokens_by_its_seconds_over_all_phases():
    """900 steps of 1,000 tokens at 100 a second take 9,000 s, 100 of 4,000 at 50 take 8,000."""
    phases = (jobs.Phase("phase1", 0, 900, 10, 100), jobs.Phase("phase2", 900, 100, 10, 400))
    assert rates.average(phases, [100.0, 50.0]) == pytest.approx(1_300_000 / 17_000)
    assert rates.average(phases[:1], [100.0]) == pytest.approx(100.0)


def test_an_hour_of_a_model_is_its_rate_times_its_seconds(compiler):
    """1,024,000 tokens a second, 3,686,400,000 an hour; parameters counted by hand."""
    (made,) = budget.fill({"smoke": make_config()}, ON_V5E, hours=1.0, enough=100.0, with_all=True)
    assert made.rate.tokens_per_second == pytest.approx(1_024_000)
    assert made.tokens == pytest.approx(3_686_400_000)
    layer = 4 * (64 * 64 + 64) + 2 * 64 * 256 + 256 + 64 + 2 * 2 * 64
    heads = 64 * 64 + 64 + 2 * 64 + 1000 + 64 * 64 + 64 + 2 * 64 + 2  # of tokens; pooler and pairs
    outside = 2 * layer + 2 * 64 + heads
    assert made.without_embeddings == outside
    assert made.parameters == outside + (1000 + 64 + 2) * 64
    assert made.tokens_per_parameter == pytest.approx(3_686_400_000 / outside)


def test_a_batch_is_cut_into_the_fewest_micro_batches_that_fit_all_phases(compiler):
    config = small_runs.set_phases(make_config(global_batch_size=96), {}, {"max_seq_length": 32})
    rate = rates.estimated(config, ON_V5E)  # 6,144 tokens, of which 3,840 fit
    assert rate.note == "in 2 micro-batches" and rate.how == "estimated"
    assert compiler == [("phase1", 1), ("phase1", 2), ("phase2", 2)]
    compiler.clear()
    config.update(global_batch_size=18)
    config.phases.phase1.update(global_batch_size=576, max_seq_length=64)
    # 36,864 tokens, of which a tenth fits: 2, 3, 6 and 9 of 18 rows do not need to be tried.
    assert rates.estimated(config, ON_V5E).note == "in 18 micro-batches"
    assert compiler == [("phase1", 1), ("phase1", 18), ("phase2", 18)]


def test_what_fits_in_no_micro_batches_is_listed_and_is_not_marked(compiler):
    config = make_config(global_batch_size=3, **{"phases.phase1.max_seq_length": 8192})
    config.model.max_position_embeddings = 8192
    (made,) = budget.fill({"long": config}, ON_V5E, hours=1.0, enough=1.0, with_all=True)
    assert made.tokens is made.tokens_per_parameter is None
    listed = make_budget(made, enough=1.0)
    assert listed.largest is None
    shown = "\n".join(budget.lines(listed))
    assert "does not fit in any number of micro-batches" in shown and "No recipe sees" in shown


def test_a_config_that_the_devices_cannot_take_is_listed_with_the_reason(compiler):
    config = make_config(global_batch_size=7, gradient_accumulation_steps=2)
    (made,) = budget.fill({"odd": config}, ON_V5E, hours=1.0, enough=1.0, with_all=True)
    assert made.tokens is None
    assert "not possible: " in made.rate.note and "phases.phase1 is 7" in made.rate.note


def test_the_largest_that_sees_enough_is_marked_and_none_where_none_does():
    small, middle, large = entry("a", 10, 1e4), entry("b", 20, 2000.0), entry("c", 30, 2999.0)
    unknown = entry("d", 40, None)
    made = make_budget(small, middle, large, unknown)
    assert made.largest is middle  # exactly 100 a parameter; c sees 99.97
    assert make_budget(large, unknown).largest is None
    marked = [line for line in budget.lines(made) if line.startswith("* ")]
    assert len(marked) == 2 and marked[0].split()[1] == "b"
    assert marked[1].endswith("1 h on v5e-1 are 2 k tokens of b")
    fields = json.loads(json.dumps(budget.to_json(made)))
    assert fields["largest"] == "b" and fields["entries"][3]["tokens"] is None
    assert fields["entries"][1]["tokens_per_parameter"] == 100.0
    assert budget.to_json(make_budget(large))["largest"] is None
    shown = "\n".join(budget.lines(dataclasses.replace(made, hours=0.5)))
    assert "Budget of 2026-11-27: 30 min on v5e-1" in shown
    assert "enough are 100 tokens a parameter" in shown and "Hoffmann et al. 2022" in shown


def test_models_far_too_large_are_not_compiled_unless_they_are_named(compiler):
    configs = {
        f"wide_{width}": make_config(**{"model.hidden_size": width, "model.num_hidden_layers": 1})
        for width in (256, 64, 128)
    }
    sizes = {name: budget.count(config)[0] for name, config in configs.items()}
    enough = 1_024_000 * 3600 / sizes["wide_128"] / budget.LEAST_SHARE * 1.01
    few = list(budget.fill(configs, ON_V5E, hours=1.0, enough=enough, with_all=False))
    assert [it.recipe for it in few] == ["wide_64", "wide_128", "wide_256"]  # by size
    assert [it.tokens is None for it in few] == [False, False, True]
    assert "not planned: the smaller wide_128" in few[2].rate.note and len(compiler) == 2
    del configs["wide_64"]
    named = list(budget.fill(configs, ON_V5E, hours=1.0, enough=enough, with_all=True))
    assert all(it.tokens for it in named)


def test_a_family_is_all_of_its_sizes_and_options_are_those_of_every_config():
    options = {"seed": 7, "mesh.data": 4}
    configs, assumed = budget.candidates(
        ["ettin", "bert_mini", "modern_mini"], options, vocab_size=0
    )
    assert [name for name in configs if name.startswith("ettin")] == recipes.of_family("ettin")
    assert len(configs) == 8 and all(config.seed == 7 for config in configs.values())
    assert {config.mesh.data for config in configs.values()} == {4}
    assert any("30,522" in it and it.endswith("(modern_mini)") for it in assumed)
    ramps = {phase.ramp_from for config in configs.values() for phase in jobs.phases(config)}
    assert ramps == {0}
    ours, _ = budget.candidates(["electra:base", "babylm:mini"], {}, vocab_size=500)
    assert {config.mesh.data for config in ours.values()} == {-1}
    assert ours["babylm:mini"].model.vocab_size == 500
    assert jobs.phases(ours["babylm:mini"])[0].num_steps  # without records, for their passes
    with pytest.raises(ValueError, match=r"config\.task of glue is 'finetuning'"):
        budget.candidates(["glue"], {}, vocab_size=0)


def test_recipes_listed_by_default_pretrain_on_any_text():
    configs, _ = budget.candidates(budget.DEFAULT_RECIPES, {}, vocab_size=0)
    assert len(configs) > 10
    assert all(config.data.source == "records" for config in configs.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--budget=24h --topology=v5e-7", "--topology: topology is 'v5e-7'; it must be v5e with"),
        ("--budget=24h --topology=gpu", "JAX finds no gpu on this machine, where --budget"),
        ("--budget=0h --topology=cpu", "--budget is '0h'"),
        ("--budget=1h --topology=cpu --num_slices=2", "--num_slices is 2, but cpu has no slices"),
        (
            "--budget=1h --topology=cpu --search --num_examples=3",
            "--search cannot be given with --budget",
        ),
        ("--topology=cpu", "--config must be given, or --budget"),
        ("--topology=cpu --config=smoke,bert_tiny", "--config names several recipes"),
        ("--topology=cpu --config=smoke --tokens_per_parameter=3", "goes with --budget"),
    ],
)
def test_flags_that_do_not_go_together_end_in_one_line(arguments, message):
    ended = programs.run("bertjax.plan", *arguments.split())
    assert message in ended.error and "\n" not in ended.error


def test_a_measured_step_says_which_part_of_the_batch_it_took(monkeypatch):
    build = planner.Planner.build
    monkeypatch.setattr(
        planner.Planner,
        "build",
        lambda *of_run: dataclasses.replace(build(*of_run), init=lambda seed: None),
    )
    monkeypatch.setattr(rates.time_budget, "seconds_per_step", lambda *of_run: (0.5, None))
    small = {"model.num_hidden_layers": 1}
    rate = rates.measured(make_config(global_batch_size=96, **small), ON_CPU)
    # 32 of 64 tokens are 2,048.
    assert rate == rates.Rate(32 * 64 / 0.5, "measured", "by steps of 32 of 96 rows")
    config = small_runs.set_phases(make_config(**small), {}, {"global_batch_size": 5})
    assert rates.measured(config, ON_CPU).note == "by steps of 32 and 5 rows"
    monkeypatch.setattr(rates, "_memory", lambda target: 1000)
    assert "does not fit: parameters, gradients" in rates.measured(config, ON_CPU).note


def test_a_measured_batch_that_does_not_fit_is_halved(monkeypatch):
    def tokens_per_second(config, on_target, phase, size, seconds):
        if size > 8:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return 10.0

    monkeypatch.setattr(rates, "_tokens_per_second", tokens_per_second)
    assert rates.measured(make_config(), ON_CPU).note == "by steps of 8 of 32 rows"


@pytest.mark.slow
def test_a_budget_on_this_machine_is_measured_and_printed(tmp_path):
    sizes = ("hidden_size=32", "num_hidden_layers=1", "intermediate_size=64")
    command = [sys.executable, "-m", "bertjax.plan", "--budget=30m", "--topology=cpu", "--json"]
    command += ["--config=smoke,configs/smoke.py", *(f"--config.model.{size}" for size in sizes)]
    command += ["--price_per_chip_hour=2"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
    fields = json.loads(ended.stdout)
    assert [it["recipe"] for it in fields["entries"]] == ["configs/smoke.py", "smoke"]
    for it in fields["entries"]:
        assert it["rate"]["how"] == "measured" and it["rate"]["tokens_per_second"] > 0
        assert it["tokens"] == pytest.approx(it["rate"]["tokens_per_second"] * 1800)
    assert fields["prices"]["price"]["value"] == pytest.approx(1.0)
    assert "Measuring phase1 on cpu" in ended.stderr and "a parameter; measured" in ended.stderr
