"""Builds of values, killed from outside: the same command makes what they would have made."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.data_pipelines import decoded

pytestmark = pytest.mark.faults
ROOT = pathlib.Path(__file__).parent.parent.parent


def start(place, *arguments, **streams):
    """Starts a build of the records of a table."""
    return subprocess.Popen(
        [sys.executable, "-m", "data_pipelines.build_tables", "--input=t.csv", *arguments],
        **{"cwd": place, "env": os.environ | {"PYTHONPATH": str(ROOT)}, **streams},
    )


def killed_at(place, path, *arguments):
    """Kills a build as soon as a path is there."""
    process = start(place, *arguments)
    while not (place / path).exists():
        assert process.poll() is None, "it ended before"
    process.kill()
    process.wait()


def test_a_build_that_is_asked_to_end_says_how_it_goes_on(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n" + "1.5,2\n" * 500_000)
    process = start(tmp_path, "--output=out", stderr=subprocess.PIPE)
    while not (tmp_path / "out.partial").exists():
        assert process.poll() is None, "it ended before"
    process.terminate()
    assert b"SIGTERM: run the same command again" in process.communicate()[1]
    assert process.returncode == 75
    assert build(tmp_path, "--output=out")


def build(place, *arguments):
    assert start(place, *arguments).wait() == 0
    return decoded.files(place / "out", "**/*")


@pytest.mark.parametrize(
    "path", ["out.partial/records/train/manifest.json", "out.partial/records/test", "out"]
)
def test_a_build_killed_between_parts_is_completed_by_the_same_command(tmp_path, path):
    numbers = np.random.default_rng(0).normal(size=(4000, 3))
    np.savetxt(tmp_path / "t.csv", numbers, delimiter=",", header="a,b,c", comments="")
    expected = build(tmp_path, "--output=out")
    os.rename(tmp_path / "out", tmp_path / "undisturbed")
    killed_at(tmp_path, path, "--output=out")
    assert build(tmp_path, "--output=out") == expected
    killed_at(tmp_path, "out.partial/records/heldout", "--output=out", "--overwrite", "--seed=1")
    assert decoded.files(tmp_path / "out", "**/*") == expected
    other = build(tmp_path, "--output=out", "--overwrite", "--seed=1", "--parts=0.9,0.1")
    assert {name.split("/")[0] for name in other} == {"bertjax.json", "train", "heldout"}
    assert sorted(it.name for it in tmp_path.iterdir()) == ["out", "t.csv", "undisturbed"]
