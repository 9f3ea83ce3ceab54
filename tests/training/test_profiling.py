"""Claims about the profile of some steps, and about what a run leaves where memory is full."""

import gzip
import json

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from bertjax import config as config_lib
from bertjax.training import config_faults, monitor, profiling
from tests import programs

FULL = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123456 bytes.\n  details"


@jax.jit
def profiled_step(x):
    return x @ x


def run(workdir, steps, *, done_steps=0, last_step=6):
    state = jnp.eye(8)
    with profiling.Profile(epath.Path(workdir), steps, done_steps) as profile:
        for step in range(done_steps + 1, last_step + 1):
            profile.before(step, state)
            with jax.profiler.TraceAnnotation(f"step {step}"):
                state = profiled_step(state)
            profile.after(step, state)


def events(workdir):
    """Returns the names of the events of a profile, of the only one in the workdir."""
    (path,) = workdir.glob("profile/plugins/profile/*/*.trace.json.gz")
    return [
        it.get("name", "") for it in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ]


def test_a_profile_holds_the_steps_that_were_asked_for(tmp_path):
    for steps, expected in {(3, 5): {3, 4, 5}, (2, 2): {2}, (5, 9): {5, 6}, (): set()}.items():
        workdir = tmp_path / str(steps)
        workdir.mkdir()
        run(workdir, steps)
        if not steps:
            assert not [*workdir.iterdir()]
            continue
        profiled = {it for it in events(workdir) if it.startswith("step ")}
        assert profiled == {f"step {n}" for n in expected}
        assert [*workdir.glob("profile/plugins/profile/*/*.xplane.pb")]


def test_steps_that_a_resumed_run_has_behind_it_are_reported_and_not_profiled(tmp_path, caplog):
    run(tmp_path, (3, 5), done_steps=4)
    assert not [*tmp_path.iterdir()]
    assert "(3, 5), but the run goes on after step 4" in caplog.text
    assert "give later steps" in caplog.text


def test_steps_that_cannot_be_profiled_are_a_fault():
    config = config_lib.default_config()
    config.data.train_dir = "records"
    for steps in [(10,), (0, 5), (15, 10), (1, 2, 3)]:
        config.profile_steps = steps
        with pytest.raises(ValueError, match="config.profile_steps is .* a first and a last step"):
            config_faults.validate(config)


def test_a_full_memory_is_reported_with_its_content_and_advice_and_other_errors_are_not(tmp_path):
    explained = profiling.memory_explained(epath.Path(tmp_path))
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), explained:
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
    assert not [*tmp_path.iterdir()]
    held = jnp.ones((1000, 1000))
    explained = profiling.memory_explained(epath.Path(tmp_path))
    with pytest.raises(profiling.OutOfMemoryError) as caught, explained:
        raise jax.errors.JaxRuntimeError(FULL)
    path = tmp_path / "profile" / "memory.prof"
    message = str(caught.value)
    assert f"pprof -top {path}" in message and "123456 bytes" in message
    assert "details" not in message
    for advice in ("gradient_accumulation_steps", "remat", "global_batch_size", "bertjax.plan"):
        assert advice in message
    # pprof's protobuf, in which a sample has the bytes of the array.
    assert b"buffer" in gzip.decompress(path.read_bytes()) and held.nbytes


SMOKE = ("--config=smoke", "--config.phases.phase1.num_steps=4", "--config.mesh.data=1")


@pytest.mark.slow
def test_a_run_whose_step_does_not_fit_ends_with_a_line(tmp_path, monkeypatch, one_device):
    def full(*_):
        raise jax.errors.JaxRuntimeError(FULL)

    monkeypatch.setattr(monitor.Monitor, "begin", full)
    done = programs.run("bertjax.train", *SMOKE, f"--workdir={tmp_path}")
    assert done.error.startswith("bertjax: a step does not fit into the memory of the devices")
    assert (tmp_path / "profile" / "memory.prof").stat().st_size


@pytest.mark.slow
def test_xprof_reads_the_profile_of_a_run(tmp_path, one_device):
    converter = pytest.importorskip("xprof.convert.raw_to_tool_data")
    steps = "--config.profile_steps=(2, 3)"
    programs.succeed("bertjax.train", *SMOKE, steps, f"--workdir={tmp_path}")
    found = [str(path) for path in tmp_path.glob("profile/plugins/profile/*/*.xplane.pb")]
    assert {"trace_viewer@", "overview_page", "op_profile"} <= {
        *converter.xspace_to_tool_names(found)
    }
    trace, _ = converter.xspace_to_tool_data(found, "trace_viewer", {})
    assert "train_step" in (trace.decode() if isinstance(trace, bytes) else trace)
