"""Claims about plans: what is counted, what the cache spares, and what a search may change."""

import jax
import pytest

from bertjax import jobs
from bertjax.plan import cache, compiled, estimates, hlo, planner, text, topologies
from bertjax.training import planned
from configs import smoke
from tests import small_records, small_runs, small_values

GIB = compiled.GIB
V5E = estimates.Target("v5e-8", "tpu", "TPU v5 lite", 8, topologies.parse("v5e-8"))
ANALYSIS = hlo.Analysis(
    3e6,
    {"jit(train_step)/jvp(encoder)/dot": 2e6, "jit(train_step)/optimizer/add": 1e6},
    {"fusion": 3e6},
    (hlo.Collective("all-reduce", 2, 1000, 2e6),),
    {"my_kernel": 4},
    uncounted_bytes=819 * 10**6,
)
# At the clock and the rates of v5e; the chips of a v5e-8 have two ports that lead to neighbours.
SECONDS = 3e6 / 1.5e9 + 819e6 / 819e9 + 2e6 / 100e9


def make_config(**changes):
    config = smoke.get_config()
    fast = {"global_batch_size": 64, "model.num_hidden_layers": 1}
    config.update_from_flattened_dict(fast | changes)
    return config


def make_planner(directory=None, target=V5E, compiles=True):
    return planner.Planner(target, jax.devices()[:8], compiles, directory)


@pytest.fixture
def compiler(monkeypatch):
    """A compiler of our own: a step needs 1 GiB per two rows of a micro-batch, half with remat."""
    asked = []

    def compile_step(program, phase):
        asked.append(phase)
        rows = phase.global_batch_size / program.config.gradient_accumulation_steps
        share = {"none": 2.0, "dots": 1.5, "full": 1.0}[program.config.model.remat]
        temp_bytes = int(rows / 4 * share * GIB)
        if temp_bytes > 15 * GIB:
            return compiled.OutOfMemory(temp_bytes, 15 * GIB, "RESOURCE_EXHAUSTED: too large")
        arguments = sum(vars(compiled.count_bytes(program, phase)).values())
        return compiled.Compiled(arguments, arguments, arguments, temp_bytes, 0, 1.0, ANALYSIS)

    monkeypatch.setattr(compiled, "compile_step", compile_step)
    return asked


def test_the_figures_of_a_phase_follow_from_what_the_compiler_tells(compiler):
    made = planner.plan(make_config(global_batch_size=16), make_planner())
    (phase,) = made.phases
    assert phase.fits and not phase.refusal
    kinds = ("parameters", "optimizer", "batch", "activations", "code", "padding", "outputs")
    assert phase.memory["total"].value == sum(phase.memory[kind].value for kind in kinds)
    assert phase.memory["device"].value == 16 * GIB
    assert phase.step_seconds == pytest.approx(SECONDS)
    speed = {name: figure.value for name, figure in phase.speed.items()}
    parts = {"compute_seconds": 2e-3, "memory_seconds": 1e-3, "collective_seconds": 2e-5}
    assert {name: speed[name] for name in parts} == pytest.approx(parts)
    assert speed["tokens_per_second"] == pytest.approx(16 * 64 / SECONDS)
    utilization = phase.model_flops.value / SECONDS / (8 * 197e12)
    assert speed["model_flop_utilization"] == pytest.approx(utilization)
    hours = made.totals["hours"].value
    assert speed["hours"] == pytest.approx(SECONDS * 200 / 3600) == hours
    assert sum(phase.cycles_by_module.values()) == 3e6
    assert phase.uncounted == {"my_kernel": 4} and phase.collectives == ANALYSIS.collectives
    # Every figure says how it is known.
    price = estimates.dollars(hours, made.target, spot=False, price_per_chip_hour=None)
    estimated = {figure.how for figure in (*phase.speed.values(), *made.totals.values(), price)}
    counted = {figure.how for figure in (*phase.memory.values(), phase.model_flops)}
    assert (counted, estimated) == ({"counted"}, {"estimated"})


def test_what_a_plan_tells_of_records_that_are_there_is_in_their_manifest(compiler, tmp_path):
    path = tmp_path / "records_64"
    path.mkdir()
    sizes = {"max_seq_length": 64, "max_predictions_per_seq": 14, "max_sequences_per_row": 4}
    filled = {"pair_objective": "nsp", "statistics": {"fill": 0.75}}
    small_records.manifest(**sizes, **filled).save(path)
    config = make_config(global_batch_size=16)
    config.data.source = "records"
    config.data.train_dir = f"{tmp_path}/records_{{max_seq_length}}"
    made = make_planner()
    program = made.build(config)
    (phase,) = program.job.phases
    shapes = {name: it.shape for name, it in program.job.data.abstract_batch(phase).items()}
    assert shapes["sequence_ids"] == (16, 64) and shapes["next_sentence_labels"] == (16, 4)
    assert shapes["masked_lm_ids"] == (16, 14)
    speed = made.phase_plan(program, phase)[0].speed
    real, positions = (speed[f"{kind}tokens_per_second"].value for kind in ("real_", ""))
    assert real == pytest.approx(0.75 * positions)
    config.data.train_dir = f"{tmp_path}/elsewhere_{{max_seq_length}}"
    program = made.build(config)
    assert "sequence_ids" not in program.job.data.abstract_batch(phase)
    assert "real_tokens_per_second" not in made.phase_plan(program, phase)[0].speed


@pytest.mark.parametrize("kind", list(small_values.MODELS))
def test_a_plan_of_values_has_the_batches_of_a_run_with_records_and_without(kind, tmp_path):
    small_values.write(tmp_path / "records", kind)
    config = small_values.make_config(kind, tmp_path / "records")
    config.pretraining.exchanged_cells = kind == "cells"
    config.model.dtype = "float32"
    (phase,) = jobs.phases(config)
    run = jobs.JOBS["pretraining"].open(config)
    without = jobs.unfrozen(run.config)
    without.data.train_dir = ""
    shapes = run.data.abstract_batch(phase)
    assert {"values", "hidden"} <= shapes.keys()
    for given in (config, without):
        outline = jobs.JOBS["pretraining"].abstract(given)
        assert outline.config.model == run.config.model
        planned = outline.data.abstract_batch(phase)
        by_records = {"labels", "observed"}  # those of the run have labels, and may lack the other
        differing = planned.items() ^ shapes.items()
        assert {name for name, _ in differing} <= by_records and (given is without or not differing)
        program = make_planner().build(given)
        assert program.config.model.vocab_size == 0


def test_the_price_is_that_of_all_chips_and_can_be_overridden():
    listed = estimates.dollars(10, V5E, spot=False, price_per_chip_hour=None)
    spot = estimates.dollars(10, V5E, spot=True, price_per_chip_hour=None)
    assert listed.value == pytest.approx(10 * 8 * 1.20)
    assert 0 < spot.value < listed.value
    assert estimates.dollars(10, V5E, spot=False, price_per_chip_hour=2.5).value == 200
    unlisted = estimates.Target("x", "tpu", "TPU7x", 8, topologies.parse("tpu7x-8"))
    assert estimates.dollars(10, unlisted, spot=False, price_per_chip_hour=None) is None


def test_a_second_plan_compiles_nothing_and_says_the_same_also_of_a_refusal(compiler, tmp_path):
    for number, size in enumerate((64, 512), start=1):
        config = make_config(global_batch_size=size)
        first = planner.plan(config, make_planner(tmp_path))
        assert planner.plan(config, make_planner(tmp_path)) == first
        assert len(compiler) == number
    assert first.phases[0].fits is False and "too large" in first.phases[0].refusal
    assert first.totals == {}


V6E = estimates.Target("v6e-8", "tpu", "TPU v6 lite", 8, topologies.parse("v6e-8"))


def test_what_changes_the_step_or_the_slice_is_compiled_again_and_nothing_else(compiler, tmp_path):
    planner.plan(make_config(), make_planner(tmp_path))
    unseen = {"data.train_dir": "x", "checkpoint.keep_last": 9, "log_every_steps": 7}
    planner.plan(make_config(**unseen, **{"mesh.data": 8}), make_planner(tmp_path))
    assert len(compiler) == 1
    changes = {
        **{"model.remat": "full", "global_batch_size": 128, "sharding": "fsdp", "mesh.tensor": 2},
        **{"optimizer.name": "lamb", "pretraining.max_predictions_per_seq": 5},
        "xla_preset": "large_vmem",
    }
    for count, (name, value) in enumerate(changes.items(), start=2):
        planner.plan(make_config(**{name: value}), make_planner(tmp_path))
        assert len(compiler) == count, name
    planner.plan(make_config(), make_planner(tmp_path, V6E))
    assert len(compiler) == count + 1


def test_a_damaged_entry_is_compiled_again(compiler, tmp_path, caplog):
    first = planner.plan(make_config(), make_planner(tmp_path))
    (entry,) = tmp_path.iterdir()
    fields = b'{"kind": "Compiled", "temp_bytes": 1}'
    for count, content in enumerate([b"{", b"[]", b"\xff\xfe", fields], start=2):
        caplog.clear()
        entry.write_bytes(content)
        assert planner.plan(make_config(), make_planner(tmp_path)) == first
        assert len(compiler) == count
        assert entry.stem in caplog.text and "compiling again" in caplog.text
    assert planner.plan(make_config(), make_planner(tmp_path)) == first
    assert len(compiler) == count


def test_without_compiling_shapes_are_counted_and_nothing_else_is_claimed():
    target = estimates.Target("gpu", "gpu", "gpu", 8)
    made = planner.plan(make_config(), make_planner(target=target, compiles=False))
    (phase,) = made.phases
    assert phase.fits is None and not phase.speed and not made.totals
    assert set(phase.memory) == {"parameters", "optimizer", "batch"}
    assert phase.model_flops.value > 0


def test_a_search_finds_the_largest_batch_and_what_would_help(compiler):
    made = planner.plan(make_config(), make_planner(), with_search=True)
    assert made.phases[0].fits is False
    found = made.searches["phase1"]
    assert found.largest_batch == 24  # 30 rows fit; 8 devices
    assert all(size % 8 == 0 for size in found.batches)
    outcomes = {tuple(trial.changes.items()): trial.fits for trial in found.changes}
    assert outcomes == {
        (("model.remat", "dots"),): False,
        (("model.remat", "full"),): False,
        (("sharding", "fsdp"),): False,
        (("gradient_accumulation_steps", 2),): False,
        (("gradient_accumulation_steps", 4),): True,
    }
    lacked = [None if it.lacked_bytes is None else it.lacked_bytes / GIB for it in found.changes]
    assert lacked == [9, 1, 17, 1, None]  # of 15 GiB that the compiler gives
    shown = "\n".join(text.lines(made, made.totals))
    assert "does not fit, 25,769,803,776 = 24.000 GiB, 9,663,676,416 = 9.000 GiB too much" in shown
    assert found.changes[-1].step_seconds == pytest.approx(SECONDS)
    fitting = planner.plan(make_config(global_batch_size=16), make_planner(), with_search=True)
    found = fitting.searches["phase1"]
    assert found.changes == () and found.largest_batch == 24


def test_a_search_does_not_stumble_over_another_phase_and_tells_why_a_change_cannot_be(compiler):
    config = make_config(**{"model.hidden_size": 60})
    small_runs.set_phases(config, {}, {"global_batch_size": 8})  # no micro-batches of 8 devices
    made = planner.plan(config, make_planner(), with_search=True)
    assert any(trial.fits for trial in made.searches["phase1"].changes)
    assert [phase.fits for phase in made.phases] == [False, True]
    (sharded,) = [it for it in made.searches["phase1"].changes if "sharding" in it.changes]
    assert not sharded.fits and "does not fit the mesh" in sharded.fault


def test_the_step_asked_for_is_compiled_once_for_plan_and_search(compiler, tmp_path):
    config = make_config(global_batch_size=16)
    small_runs.set_phases(config, {}, {"max_seq_length": 32})
    planner.plan(config, make_planner(tmp_path), with_search=True)
    shapes = [(phase.global_batch_size, phase.max_seq_length) for phase in compiler]
    assert len(shapes) == len(set(shapes))


def test_a_cached_entry_comes_back_and_another_key_has_none(tmp_path, monkeypatch):
    cache.write(tmp_path / "new", "a", {"x": [1, 2.5, None]})
    assert cache.read(tmp_path / "new", "a") == {"x": [1, 2.5, None]}
    assert cache.read(tmp_path / "new", "b") is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.json"]  # no draft stays
    assert planned.digest({"a": 1, "b": 2}) == planned.digest({"b": 2, "a": 1})
    assert planned.digest({"a": 1, "b": 2}) != planned.digest({"a": 1, "b": 3})
    before = cache.environment()
    assert before == cache.environment()
    assert set(before["versions"]) == {"jax", "jaxlib", "libtpu", "flax", "optax"}
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=65536")
    assert cache.environment() != before
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(cache.default_directory()) == "/somewhere/bertjax/plan"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(cache.default_directory()) == "/home/someone/.cache/bertjax/plan"


def test_prices_are_by_the_chip_although_machines_are_listed():
    """v5p-8 is a machine of 4 chips (8 TensorCores) for $16.80, v6e-4 one of 4 for $10.80."""
    machines = {"v5p-8": 16.80, "v6e-4": 10.80, "v2-8": 4.50, "v5e-1": 1.20}
    for name, dollars in machines.items():
        machine = topologies.parse(name)
        price = estimates.price(machine.generation, spot=False)
        assert price and machine.num_chips * price.dollars_per_chip_hour == pytest.approx(dollars)
    for generation in topologies.known():
        spot, on_demand = (estimates.price(generation, spot=spot) for spot in (True, False))
        if generation == "tpu7x":
            assert spot is on_demand is None
            continue
        assert spot and on_demand
        assert 0 < spot.dollars_per_chip_hour < on_demand.dollars_per_chip_hour
        assert all(price.date and price.source and price.note for price in (spot, on_demand))
    assert estimates.price("gpu", spot=False) is estimates.price("", spot=True) is None
