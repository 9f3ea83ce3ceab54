"""The soak with a few kills; for hundreds run `python -m tests.faults.soak` in the background."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD"),
]


def test_a_run_that_is_killed_again_and_again_ends_as_one_left_alone(tmp_path):
    # One process cannot write its part of a checkpoint; SIGTERM to one; SIGKILL to another.
    command = [sys.executable, "-m", "tests.faults.soak", "--kills=3", "--seed=358"]
    command.append(f"--directory={tmp_path / 'soak'}")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout[-22000:] + ended.stderr[-3000:]
    assert "bit-identical after" in ended.stdout
