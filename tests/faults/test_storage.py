"""Whatever call of the file system fails, once or from then on: one clear line, and nothing lost.

A library in C stands between the process and its files and lets the n-th call below the workdir
fail: for every n that a restore has, and every eleventh of a save (the last argument of
`storage saving` chooses; all take long). Where there is no C compiler this is skipped.
"""

import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
ONCE, FROM_THEN_ON = 1, -1
pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD"),
]


def start(library, *arguments):
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.faults.storage", *map(str, arguments)]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def run(library, *arguments):
    ended = start(library, *arguments)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout)


def is_one_clear_line(told, directory):
    return "\n" not in told and str(directory) in told and "Error: " in told


@pytest.mark.slow
def test_an_error_that_passes_costs_a_restore_nothing(library, tmp_path):
    found = run(library, "restoring", tmp_path, ONCE, errno.EIO)
    assert len(found) > 20
    for case in found:
        # Only orbax's list of checkpoints is not made again: then nothing is restored, in a line.
        assert case["told"] == "6" or is_one_clear_line(case["told"], tmp_path), case
        assert case["then"] == "6"
    assert sum(case["told"] == "6" for case in found) >= len(found) - 6


@pytest.mark.faults
@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE], ids=errno.errorcode.get)
def test_an_error_that_stays_stops_a_restore_and_takes_no_older_one(library, tmp_path, number):
    found = run(library, "restoring", tmp_path, FROM_THEN_ON, number)
    for case in found:
        assert case["told"] == "6" or is_one_clear_line(case["told"], tmp_path), case
        assert case["then"] == "6"
    assert sum("cannot be read now" in case["told"] for case in found) > 20


@pytest.mark.faults
@pytest.mark.parametrize(
    ("times", "number", "stride"),
    [(ONCE, errno.EIO, 11), (FROM_THEN_ON, errno.ENOSPC, 29)],
    ids=["EIO", "ENOSPC"],
)
def test_a_save_that_fails_anywhere_leaves_what_was_there(library, tmp_path, times, number, stride):
    found = run(library, "saving", tmp_path, times, number, stride)
    assert len(found) > 100 / stride
    for case in found:
        # What was evaluated before, or the new one where it was complete before the error came.
        assert case["then"] in ("4", "6"), case
        if case["told"] == "None":
            assert case["then"] == "6", case
        else:
            assert is_one_clear_line(case["told"], tmp_path), case
        assert (case["again"], case["last"]) == ("None", "8"), case


@pytest.mark.faults
def test_a_kill_at_any_call_of_a_save_leaves_a_whole_checkpoint(library, tmp_path):
    (whole,) = run(library, "killed", tmp_path / "counted", 1_000_000)
    for nth in range(1, whole["calls"], max(whole["calls"] // 12, 1)):
        root = tmp_path / f"killed_{nth}"
        assert start(library, "killed", root, nth).returncode == -signal.SIGKILL
        (case,) = run(library, "restoring_once", root)
        assert case["told"] in ("4", "6"), case
