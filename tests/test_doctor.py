"""Claims about the findings of the doctor; a probe that hangs or dies does not stop the others."""

import errno
import fcntl
import json
import subprocess

import pytest
from etils import epath

from bertjax import doctor
from tests import programs


def by_name(found):
    return {it.what: it for it in found}


def test_a_probe_that_hangs_dies_or_fails_is_a_fault_and_the_others_are_run(monkeypatch):
    line = json.dumps({"what": "well", "found": "fine", "expected": "", "status": "ok"})
    answers = {
        "hangs": subprocess.TimeoutExpired("doctor", 120),
        "dies": subprocess.CompletedProcess("", -9, "", ""),
        "fails": subprocess.CompletedProcess("", 1, "", "a warning\nbertjax: [Errno 13] no"),
        "well": subprocess.CompletedProcess("", 0, f"a library says something\n{line}\n", ""),
    }

    def run(command, timeout, **_):
        assert timeout == doctor.PROBE_SECONDS
        answer = answers[command[-1].removeprefix("--only=")]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(doctor, "versions", lambda: iter(()))
    monkeypatch.setattr(doctor, "PROBES", {name: (None, "the hint") for name in answers})
    monkeypatch.setattr(subprocess, "run", run)
    found = [(it.what, it.found, it.status) for it in doctor.findings("here")]
    assert found == [
        ("hangs", "no answer in 120 s; the hint", "fault"),
        ("dies", "ended with -9; the hint", "fault"),
        ("fails", "[Errno 13] no", "fault"),
        ("well", "fine", "ok"),
    ]


@pytest.mark.slow
def test_the_program_checks_everything_and_leaves_nothing_behind(tmp_path):
    workdir = tmp_path / "not" / "there"
    done = programs.succeed("bertjax.doctor", f"--workdir={workdir}", "--json")
    names = {it["what"] for it in done.lines}
    assert {"python", "jax", "devices", "free disk", "workdir"} <= names
    assert all(it["status"] == "ok" for it in done.lines), done.lines
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("status", "code"), [("ok", ""), ("fault", "1")])
def test_the_exit_code_says_whether_there_is_a_fault(monkeypatch, status, code):
    line = json.dumps({"what": "other", "found": "y", "expected": "z", "status": status})
    done = subprocess.CompletedProcess("", 0, line, "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    shown = programs.run("bertjax.doctor")
    assert shown.error == code
    lines = shown.output.decode().splitlines()
    assert lines[-2].split() == [status, "other", "y", "(expected:", "z)"]


def test_a_package_that_is_missing_or_too_old_is_a_fault(monkeypatch):
    installed = dict.fromkeys(doctor.PACKAGES, "9.0") | {"jax": "0.9.2", "flax": None}
    monkeypatch.setattr(doctor, "_version", installed.get)
    requirements = ["jax>=0.10", "optax>=0.2.8", 'numpy[x]>=99; extra == "tpu"', "psutil"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: requirements)
    found = by_name(doctor.versions())
    assert {it.what for it in found.values() if it.status == "fault"} == {"jax", "flax"}
    assert (found["jax"].found, found["jax"].expected) == ("0.9.2", ">=0.10")
    assert "libtpu" not in found


def test_a_device_that_jax_does_not_use_is_a_fault(tmp_path, monkeypatch):
    driver = tmp_path / "accel0"
    monkeypatch.setattr(doctor, "DRIVERS", {str(driver): ("a TPU", "pip install it")})
    assert by_name(doctor.devices(""))["devices"].status == "ok"
    driver.touch()
    found = by_name(doctor.devices(""))["devices"]
    assert found.status == "fault" and "a TPU is there and not used" in found.expected


def test_a_full_disk_is_a_fault(tmp_path, monkeypatch):
    for free, status in ((doctor.LEAST_FREE, "ok"), (10**9, "fault")):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path, usage=usage: usage)
        assert by_name(doctor.storage(str(tmp_path)))["free disk"].status == status


def test_a_workdir_is_written_and_left_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "kept").touch()
    assert by_name(doctor.storage(str(tmp_path)))["workdir"].status == "ok"
    assert by_name(doctor.storage(str(tmp_path / "a" / "b")))["workdir"].status == "ok"
    monkeypatch.setattr(type(epath.Path(tmp_path)), "read_bytes", lambda self: b"other")
    found = by_name(doctor.storage(str(tmp_path)))["workdir"]
    assert found.status == "fault" and "other bytes" in found.found
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    with pytest.raises(OSError):
        list(doctor.storage(str(tmp_path / "kept")))


def test_a_mount_without_locks_is_named(tmp_path, monkeypatch):
    assert by_name(doctor.storage(str(tmp_path)))["workdir"].found.startswith("a local disk")

    def unknown(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", unknown)
    found = by_name(doctor.storage(str(tmp_path)))["workdir"]
    assert found.status == "ok" and "one session at a time" in found.found
