"""Claims about what the doctor finds, and that what hangs or dies keeps it from nothing else."""

import errno
import fcntl
import os
import sys
import time

import jax
import pytest
from etils import epath

from bertjax import doctor
from bertjax.checkup import findings, machine, probes, speed, storage
from bertjax.checkup.findings import Finding
from bertjax.devices import accelerators
from bertjax.training import attention_trial
from tests import programs


def hang(workdir):
    time.sleep(1000)
    yield


def die(workdir):
    print("libtpu: no such chip", file=sys.stderr, flush=True)
    os._exit(9)
    yield


def fail(workdir):
    yield Finding("first", "there")
    raise PermissionError(f"may not write {workdir}/x at https://me:secret@host/y?token=secret")


def well(workdir):
    print("a library says something")
    yield Finding("well", "fine", "fine")


def by_name(found):
    return {it.what: it for it in found}


@pytest.mark.slow
def test_what_hangs_dies_or_fails_is_a_fault_and_the_rest_is_looked_at(tmp_path, capfd):
    toys = {
        "hang": probes.Probe(hang, 20, needs_devices=True, hint="a TPU serves one process"),
        "matmul": probes.Probe(well, 60, needs_devices=True),
        "die": probes.Probe(die, 60),
        "fail": probes.Probe(fail, 60),
        "well": probes.Probe(well, 60),
    }
    start = time.monotonic()
    found = list(probes.all_findings(str(tmp_path), toys))
    assert time.monotonic() - start < 100
    assert [(it.what, it.status) for it in found] == [
        ("hang", "fault"), ("matmul", "fault"), ("die", "fault"),
        ("first", "ok"), ("fail", "fault"), ("well", "ok"),
    ]  # fmt: skip
    told = by_name(found)
    assert told["hang"].found == "no answer in 20 s; a TPU serves one process"
    assert "devices did not answer" in told["matmul"].found
    assert told["die"].found == "its process ended with 9: libtpu: no such chip"
    assert told["fail"].found == "PermissionError: may not write WORKDIR/x at https://.../y?..."
    assert "a library says" not in "".join(capfd.readouterr())


@pytest.mark.slow
def test_the_program_looks_at_everything_and_leaves_nothing_behind(tmp_path):
    workdir = tmp_path / "not" / "there"
    done = programs.succeed("bertjax.doctor", f"--workdir={workdir}", "--json")
    found = {it["what"]: it for it in done.lines}
    assert {"python", "jax", "devices", "matmul bfloat16", "matmul float32", "workdir"} <= {*found}
    assert {"free disk", "storage write", "storage read"} <= {*found}
    assert all(it["status"] != "fault" for it in done.lines), done.lines
    assert str(tmp_path) not in done.output.decode() and not [*tmp_path.iterdir()]
    assert len(done.lines) < 40  # a screen


@pytest.mark.parametrize(("status", "code"), [("ok", ""), ("slow", ""), ("fault", "1")])
def test_the_exit_code_says_whether_there_is_a_fault(monkeypatch, status, code):
    found = [Finding("one", "x"), Finding("other", "y", "z", status)]
    monkeypatch.setattr(probes, "all_findings", lambda workdir: iter(found))
    done = programs.run("bertjax.doctor")
    assert done.error == code
    lines = done.output.decode().splitlines()
    assert lines[1].split() == [status, "other", "y", "(expected:", "z)"]


def test_the_last_line_counts():
    found = [Finding("a", "x"), Finding("b", "x", "", "slow"), Finding("c", "x")]
    assert [*doctor.lines(found)][-1] == "2 ok, 1 slow, 0 fault"


def test_an_error_is_told_without_home_bucket_or_token(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    told = findings.told(OSError("/home/me/.config: gs://bucket-of-me/x?sig=1 no\nmore"), "")
    assert told == "OSError: ~/.config: gs://.../x?... no"


def test_a_package_that_lacks_or_is_too_old_is_a_fault(monkeypatch):
    versions = dict.fromkeys(machine.PACKAGES, "9.0") | {"jax": "0.9.2", "flax": None}
    versions["libtpu"] = None
    monkeypatch.setattr(machine, "_version", versions.get)
    monkeypatch.setattr(machine, "_asked_for", lambda: {"jax": "0.10", "optax": "0.2.8"})
    found = by_name(machine.packages(""))
    assert {it.what for it in found.values() if it.status == "fault"} == {"jax", "flax"}
    assert (found["jax"].found, found["jax"].expected) == ("0.9.2", ">=0.10")
    assert found["libtpu"].found == "not installed"


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("jax>=0.10", {"jax": "0.10"}),
        ('jax[tpu]>=0.10; extra == "tpu"', {}),
        ('tensorflow>=2.18; sys_platform == "darwin"', {"tensorflow": "2.18"}),
        ("importlib_resources", {}),
    ],
)
def test_what_bertjax_asks_for_is_read_from_its_metadata(monkeypatch, line, asked):
    monkeypatch.setattr("importlib.metadata.requires", lambda name: [line])
    assert machine._asked_for() == asked


def test_a_device_that_jax_passes_over_is_a_fault(tmp_path, monkeypatch):
    driver = tmp_path / "accel0"
    monkeypatch.setattr(machine, "DRIVERS", {str(driver): ("tpu", "a TPU", "pip install it")})
    assert by_name(machine.devices(""))["devices"].status == "ok"
    driver.touch()
    found = by_name(machine.devices(""))["devices"]
    assert found.status == "fault" and "a TPU (tpu) is there and not used" in found.expected


def test_products_slower_than_half_the_peak_are_slow(monkeypatch):
    monkeypatch.setattr(speed, "WIDTHS", {"cpu": 64})
    kind = jax.devices()[0].device_kind
    for peak, status in ((1e3, "ok"), (1e18, "slow")):
        row = accelerators.Accelerator(peak, 2**30)
        monkeypatch.setitem(accelerators.ACCELERATORS, kind, row)
        found = by_name(speed.matmul(""))
        assert found["matmul bfloat16"].status == status
        assert "50% or more of the peak" in found["matmul bfloat16"].expected
        assert found["matmul float32"].status == "ok"


class Tpu:
    """A device that says it is a TPU."""

    platform, device_kind = "tpu", "TPU v5e"


@pytest.mark.parametrize(
    ("error", "seconds", "statuses"),
    [
        (0.01, {"auto": 1.0, "xla": 2.0}, ["ok", "ok"]),
        (1.0, {"auto": 2.0, "xla": 1.0}, ["fault", "slow"]),
    ],
)
def test_a_kernel_that_is_wrong_is_a_fault_and_one_that_gains_nothing_is_slow(
    monkeypatch, error, seconds, statuses
):
    monkeypatch.setattr(jax, "devices", lambda: [Tpu()])
    monkeypatch.setattr(speed.sharding, "make_mesh", lambda devices, data: None)
    monkeypatch.setattr(attention_trial, "errors", lambda *_: {"context": error, "keys": 0.0})
    monkeypatch.setattr(speed, "_attention_seconds", seconds.__getitem__)
    assert [it.status for it in speed.attention_kernel("")] == statuses


def test_no_kernel_is_asked_for_elsewhere():
    (found,) = speed.attention_kernel("")
    assert found.status == "ok" and "plain JAX" in found.found


@pytest.mark.slow
def test_both_ways_of_attention_are_compared_and_timed(monkeypatch):
    monkeypatch.setattr(speed, "ATTENTION_ROWS", 1)
    monkeypatch.setattr(speed, "ATTENTION_LENGTH", 128)
    mesh = speed.sharding.make_mesh(jax.devices()[:1], data=1)
    errors = attention_trial.errors(speed.ATTENTION, 128, mesh)
    assert {*errors} == {"context", "query", "keys", "values"}
    assert max(errors.values()) <= attention_trial.TOLERANCE  # 0 here: both are plain JAX
    assert speed._attention_seconds("xla") > 0 and speed._attention_seconds("pallas") > 0


def test_a_full_disk_is_a_fault(tmp_path, monkeypatch):
    workdir = str(tmp_path / "not" / "there")
    for free, status in ((storage.LEAST_FREE, "ok"), (10**9, "fault")):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr(storage.shutil, "disk_usage", lambda path, usage=usage: usage)
        assert by_name(storage.disk(workdir))["free disk"].status == status
    assert not [*storage.disk("gs://bucket/runs")]


def test_a_workdir_is_written_and_left_as_it_was(tmp_path):
    (tmp_path / "kept").touch()
    assert by_name(storage.reach(str(tmp_path)))["workdir"].status == "ok"
    assert by_name(storage.reach(str(tmp_path / "a" / "b")))["workdir"].status == "ok"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_mount_without_locks_is_told(tmp_path, monkeypatch):
    assert by_name(storage.reach(str(tmp_path)))["workdir"].found.startswith("a local disk")

    def unknown(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", unknown)
    found = by_name(storage.reach(str(tmp_path)))["workdir"]
    assert found.status == "ok" and "one session at a time" in found.found


def test_storage_that_reads_back_something_else_is_a_fault(tmp_path, monkeypatch):
    path_class = type(epath.Path(tmp_path))
    monkeypatch.setattr(path_class, "read_bytes", lambda self: b"other")
    (found,) = storage.reach(str(tmp_path))
    assert found.status == "fault" and "other bytes" in found.found
    assert not [*tmp_path.iterdir()]


def test_a_workdir_that_is_a_file_is_told(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError):
        list(storage.reach(str(file)))


@pytest.mark.parametrize(("least", "status"), [(1.0, "ok"), (1e15, "slow")])
def test_slow_storage_is_slow(tmp_path, monkeypatch, least, status):
    monkeypatch.setattr(storage, "PIECES", 2)
    monkeypatch.setattr(storage, "LEAST_RATE", least)
    found = by_name(storage.rate(str(tmp_path)))
    assert [found[name].status for name in ("storage write", "storage read")] == [status] * 2
    assert not [*tmp_path.iterdir()]
