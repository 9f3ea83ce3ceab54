"""Claims about the profile of some steps, and about what a run leaves where memory is full."""

import gzip
import json

import jax
import jax.numpy as jnp
import pytest
from absl import logging as absl_logging
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


@pytest.mark.parametrize(
    ("steps", "last_step", "found"),
    [((3, 5), 6, {3, 4, 5}), ((2, 2), 6, {2}), ((5, 9), 6, {5, 6})],
    ids=["some", "one", "the run ends before"],
)
def test_a_profile_holds_the_steps_that_were_asked_for(tmp_path, steps, last_step, found):
    run(tmp_path, steps, last_step=last_step)
    assert {it for it in events(tmp_path) if it.startswith("step ")} == {f"step {n}" for n in found}
    assert [*tmp_path.glob("profile/plugins/profile/*/*.xplane.pb")]


def test_without_steps_there_is_no_profile(tmp_path):
    run(tmp_path, ())
    assert not [*tmp_path.iterdir()]


def test_steps_that_a_resumed_run_has_behind_it_are_told_and_not_profiled(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(absl_logging, "warning", lambda text, *values: told.append(text % values))
    run(tmp_path, (3, 5), done_steps=4)
    assert not [*tmp_path.iterdir()]
    (line,) = told
    assert "(3, 5), but the run goes on after step 4" in line and "give later steps" in line


@pytest.mark.parametrize("steps", [(10,), (0, 5), (15, 10), (1, 2, 3)])
def test_steps_that_cannot_be_profiled_are_a_fault(steps):
    config = config_lib.default_config()
    config.data.train_dir = "records"
    config.profile_steps = steps
    with pytest.raises(ValueError, match="config.profile_steps is .* a first and a last step"):
        config_faults.validate(config)


def test_a_full_memory_is_told_with_what_was_in_it_and_what_to_do(tmp_path):
    held = jnp.ones((1000, 1000))
    with (
        pytest.raises(profiling.OutOfMemoryError) as caught,
        profiling.memory_explained(epath.Path(tmp_path)),
    ):
        raise jax.errors.JaxRuntimeError(FULL)
    path = tmp_path / "profile" / "memory.prof"
    told = str(caught.value)
    assert f"pprof -top {path}" in told and "123456 bytes" in told and "details" not in told
    for advice in ("gradient_accumulation_steps", "remat", "global_batch_size", "bertjax.plan"):
        assert advice in told
    # pprof's protobuf, in which a sample has the bytes of the array.
    assert b"buffer" in gzip.decompress(path.read_bytes()) and held.nbytes


def test_other_errors_of_jax_stay_as_they_are(tmp_path):
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"),
        profiling.memory_explained(epath.Path(tmp_path)),
    ):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
    assert not [*tmp_path.iterdir()]


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
