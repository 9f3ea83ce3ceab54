"""Claims about the program `plan`: what it prints, and what it refuses in one line."""

import json
import os
import subprocess
import sys

import jax
import pytest

from bertjax.plan import assumptions as assumptions_lib
from bertjax.plan import cache, compiled, planner, targets, text, topologies
from configs import bert_base, classification, smoke
from tests import programs, small_datasets, small_records


def make_config(**changes):
    config = smoke.get_config()
    config.update_from_flattened_dict(changes)
    return config


def planned(config, name, **options):
    target = targets.make_target(name, config)
    made = planner.plan(config, targets.make_planner(target, None), **options)
    totals = planner.price_totals(made, only_spot=False, price_per_chip_hour=None)
    return made, totals


@pytest.fixture
def fake_slice(monkeypatch):
    """A slice of CPU devices, and a compiler that takes a thousandth of a second of a v5e."""
    monkeypatch.setattr(topologies, "devices", lambda it: jax.devices()[: it.num_devices])
    analysis = compiled.hlo.Analysis(
        1.5e6, {"jit(f)/jvp(encoder)/dot": 1.5e6}, {"fusion": 1.5e6},
        (compiled.hlo.Collective("all-reduce", 3, 4096),), {"splash": 24},
    )  # fmt: skip
    outcome = compiled.Compiled(1000, 900, 900, 2**30, 5000, 1.0, analysis)
    monkeypatch.setattr(compiled, "compile_step", lambda program, phase: outcome)


def test_what_does_not_fit_the_slice_is_refused_with_what_would(fake_slice, monkeypatch):
    with pytest.raises(ValueError, match=r"--topology: .*v9-8.*v5e.*or cpu, or gpu"):
        targets.make_target("v9-8", make_config())
    config = make_config(**{"mesh.data": 16})
    message = r"data=16 x tensor=1.* v5e-8 has 8.*mesh.data=-1.*--topology=v5e-16"
    with pytest.raises(ValueError, match=message):
        targets.make_target("v5e-8", config)
    with pytest.raises(ValueError, match=r"data=-1 x tensor=3.* has 8 devices"):
        targets.make_target("v5e-8", make_config(**{"mesh.tensor": 3}))
    assert targets.make_target("v5e-16", config).num_devices == 16
    assert targets.make_target("v5e-8", config, num_slices=2).num_devices == 16
    with pytest.raises(ValueError, match=r"phases\.phase1 is 36; it must be a multiple of 8"):
        planned(make_config(global_batch_size=36), "v5e-8")

    def missing(tpu_slice):
        raise ImportError("needs libtpu: pip install 'bertjax[plan]'")

    monkeypatch.setattr(topologies, "devices", missing)
    with pytest.raises(ValueError, match=r"pip install 'bertjax\[plan\]'"):
        targets.make_planner(targets.make_target("v5e-8", make_config()), None)


def test_text_and_json_hold_what_was_asked_for(fake_slice):
    made, totals = planned(make_config(), "v5e-8", with_search=True)
    shown = "\n".join(text.lines(made, totals))
    for expected in (
        "8 x TPU v5 lite", "phase1: 200 steps of 32 x 64 tokens: fits", "activations",
        "of bf16 peak", "0.00100", "all-reduce", "encoder (forward)", "24 x splash",
        "price on demand", "largest global batch", "estimated", "counted",
    ):  # fmt: skip
        assert expected in shown
    fields = json.loads(json.dumps(text.to_json(made, totals)))
    (phase,) = fields["phases"]
    assert phase["speed"]["step_seconds"]["value"] == pytest.approx(1e-3)
    assert phase["speed"]["step_seconds"]["how"] == "estimated"
    figure = {"value": 2**30, "unit": "bytes", "how": "counted", "source": "by the compiler"}
    assert phase["memory"]["activations"] == figure
    hours = 200 * 1e-3 / 3600
    assert fields["totals"]["price on demand"]["value"] == pytest.approx(hours * 8 * 1.2)
    assert fields["searches"]["phase1"]["largest_batch"] >= 32
    assert fields["versions"]["jax"] == jax.__version__
    spot = planner.price_totals(made, only_spot=True, price_per_chip_hour=None)
    assert set(spot) == {"hours", "spot price"}
    given = planner.price_totals(made, only_spot=False, price_per_chip_hour=3.0)
    assert given["price"].value == pytest.approx(given["hours"].value * 8 * 3.0)
    assert set(given) == {"hours", "price"}


@pytest.mark.slow
def test_on_cpu_the_local_compiler_lays_out_the_memory_and_no_time_is_claimed():
    made, totals = planned(make_config(**{"mesh.data": 2}), "cpu")
    (phase,) = made.phases
    assert made.target.num_devices == 2 and phase.memory["activations"].value > 0
    assert phase.fits is None and not phase.speed and not totals
    shown = "\n".join(text.lines(made, totals))
    assert "not known whether it fits" in shown and "Hours and price: not known" in shown


def test_on_gpu_what_shapes_tell_is_told(caplog):
    made, totals = planned(make_config(**{"mesh.data": 4}), "gpu", with_search=True)
    assert "No search: the memory of gpu is not known" in caplog.text and not made.searches
    assert "model FLOPs" in "\n".join(text.lines(made, totals))
    assert made.phases[0].memory["parameters"].value > 0


def test_the_vocabulary_of_records_that_are_not_there_is_assumed_and_told():
    config = bert_base.get_config()
    config.model.vocab_size = 0
    filled, assumptions = assumptions_lib.with_vocabulary(config, 0)
    assert filled.model.vocab_size == 30522 and "30,522" in assumptions[0]
    filled, assumptions = assumptions_lib.with_vocabulary(config, 8000)
    assert filled.model.vocab_size == 8000 and "--vocab_size" in assumptions[0]
    config.model.vocab_size = 5000
    filled, assumptions = assumptions_lib.with_vocabulary(config, 8000)
    assert filled.model.vocab_size == 5000
    assert not any("vocabulary" in assumption for assumption in assumptions)


def test_the_length_of_finetuning_is_that_of_its_data_and_else_asked_for(tmp_path, source):
    recipe = classification.get_config()
    with pytest.raises(ValueError, match=r"give --num_examples=N, or the weights and the files"):
        assumptions_lib.with_length(recipe, 0)
    filled, assumptions = assumptions_lib.with_length(recipe, 3668)
    assert filled.phases.phase1.num_steps == 3 * 115 and recipe.phases.phase1.num_steps != 345
    assert assumptions == [
        "3,668 examples (--num_examples), 3 epochs of them",
        "a model of 12 layers, 768 wide (config.model; config.init_from is not read)",
        "every batch 128 tokens long; length buckets make most shorter",
    ]
    # The data tells all of it, sizes and labels too.
    changes = {"model.dtype": "auto", "seeds": 3}
    own = small_datasets.make_config(tmp_path, "table", source, **changes)
    filled, assumptions = assumptions_lib.with_length(own, 0)
    assert filled.phases.phase1.num_steps == 20 * 2 and filled.model.hidden_size == 32
    assert (filled.model.dtype, filled.prng_impl) == ("auto", "auto")
    assert filled.finetuning.labels == ("class 0", "class 1", "class 2")
    assert assumptions[0] == "16 examples (its files), 20 epochs of them"
    assert assumptions[-1] == "one of 3 trainings: seeds and settings"
    made, _ = planned(filled, "gpu", assumptions=assumptions)
    assert [phase.num_steps for phase in made.phases] == [40]
    assert "assumed: 16 examples" in "\n".join(text.lines(made, {}))


def test_the_length_in_epochs_is_that_of_the_records_and_else_asked_for(tmp_path):
    config = make_config(**{"data.source": "records", "phases.phase1.num_epochs": 2.0})
    with pytest.raises(ValueError, match=r"phase1.num_epochs is 2.0, .* --num_examples=N"):
        assumptions_lib.with_length(config, 0)
    filled, assumptions = assumptions_lib.with_length(config, 100)
    assert (filled.phases.phase1.num_steps, filled.phases.phase1.num_epochs) == (7, 0.0)
    assert assumptions == ["phase1 of 7 steps, by the number of examples (--num_examples)"]
    records = small_records.write(tmp_path / "records", max_seq_length=64)
    config.data.train_dir, config.model.vocab_size = str(records), 0
    filled, _ = assumptions_lib.with_length(config, 0)
    assert filled.phases.phase1.num_steps == 11  # 2 x 168 of 32
    without = make_config()
    assert assumptions_lib.with_length(without, 0) == (without, [])


@pytest.mark.slow
def test_the_program_prints_json_and_leaves_the_plan_in_the_workdir(tmp_path):
    sizes = ("hidden_size=32", "num_hidden_layers=1", "intermediate_size=64")
    command = [sys.executable, "-m", "bertjax.plan", "--config=configs/smoke.py", "--topology=cpu"]
    command += ["--json", f"--workdir={tmp_path / 'run'}", "--config.mesh.data=2"]
    command += [f"--config.model.{size}" for size in sizes]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
    fields = json.loads(ended.stdout)
    assert fields["mesh"] == {"data": 2, "tensor": 1}
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == fields
    assert len(list((tmp_path / "bertjax" / "plan").glob("*.json"))) == 1


def test_the_program_ends_what_cannot_be_planned_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ended = programs.run("bertjax.plan", "--config=smoke", "--topology=v5e-7")
    assert ended.error.startswith("bertjax: --topology: ") and "\n" not in ended.error


@pytest.mark.slow
def test_counted_bytes_are_those_of_the_tpu_compiler():
    """For one layer of BERT-base, most of whose parameters are not those of the small table."""
    pytest.importorskip("libtpu")
    config = bert_base.get_config()
    config.model.update(num_hidden_layers=1, vocab_size=2048)
    made = targets.make_planner(targets.make_target("v5e-4", config), cache.default_directory())
    program = made.build(config)
    phase = program.job.phases[0]
    outcome = made.outcome(program, phase)
    counted = compiled.count_bytes(program, phase)
    total = counted.parameters + counted.optimizer + counted.batch
    assert total == pytest.approx(outcome.argument_bytes, rel=0.02)
    assert outcome.analysis.cycles > 0
