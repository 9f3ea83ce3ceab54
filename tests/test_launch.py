"""Claims about the launch scripts, run with a gcloud that keeps its slices in files."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# The cloud: the file `slice` is there while the slice is, `queue` holds the state of the request.
# A line of `trainings` is what the next training does: the code that it ends with, and "taken" if
# the slice is taken away meanwhile; "gone" takes it as soon as the queue has made it.
GCLOUD = """#!/usr/bin/env bash
cd "$CLOUD"
echo "$*" >> calls
case "$*" in
  *"tpu-vm describe"*) [ -e slice ] ;;
  *"tpu-vm create"*) touch slice ;;
  *"tpu-vm scp"*) [ -e slice ] ;;
  *"queued-resources list"*) cat queue 2>/dev/null; true ;;
  *"queued-resources create"*)
    echo ACTIVE > queue
    touch slice
    if [ "$(head -1 trainings)" = gone ]; then sed -i 1d trainings; rm slice; fi ;;
  *"queued-resources delete"*) rm -f queue slice ;;
  *"tpu-vm ssh"*bertjax.train*)
    read -r code fate < trainings
    sed -i 1d trainings
    if [ "$fate" = taken ]; then rm slice; echo SUSPENDED > queue; fi
    exit "$code" ;;
  *"tpu-vm ssh"*) [ -e slice ] ;;
  *) exit 2 ;;
esac
"""


@pytest.fixture
def cloud(tmp_path):
    """A folder of programs that stand for gcloud and sleep, and the state of the cloud."""
    (tmp_path / "bin").mkdir()
    for name, text in {"gcloud": GCLOUD, "sleep": "#!/bin/sh\n"}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "calls").touch()
    return tmp_path


def launch(cloud, script, *trainings):
    (cloud / "trainings").write_text("".join(f"{line}\n" for line in trainings))
    command = [
        ROOT / "launch" / script,
        "bert",
        "us-west4-a",
        "v5litepod-16",
        "bert_base",
        "gs://b/r",
    ]
    environment = os.environ | {
        "CLOUD": str(cloud),
        "PATH": f"{cloud / 'bin'}:{os.environ['PATH']}",
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def calls(cloud, word):
    return [line for line in (cloud / "calls").read_text().splitlines() if word in line]


def test_a_slice_that_is_not_there_is_made_and_trained_on(cloud):
    assert launch(cloud, "tpu_vm.sh", 0).returncode == 0
    assert len(calls(cloud, "tpu-vm create bert")) == 1
    (command,) = calls(cloud, "bertjax.train")
    assert "--config=bert_base --workdir=gs://b/r" in command and "--worker=all" in command


def test_a_slice_of_the_queue_is_not_made_again_on_demand(cloud):
    (cloud / "queue").write_text("SUSPENDED\n")
    done = launch(cloud, "tpu_vm.sh")
    assert done.returncode == 69 and "use launch/queued_resource.sh" in done.stderr
    assert not calls(cloud, "tpu-vm create")


@pytest.mark.parametrize("fate", [("255 taken", 0), ("75 taken", 0), ("gone", 0)])
def test_a_slice_that_is_taken_away_comes_back_from_the_queue_alone(cloud, fate):
    done = launch(cloud, "queued_resource.sh", *fate)
    assert done.returncode == 0, done.stderr
    assert not calls(cloud, "tpu-vm create")
    assert len(calls(cloud, "queued-resources create")) == 2
    assert not (cloud / "slice").exists() and not (cloud / "queue").exists()  # nothing is billed


def test_a_command_that_is_wrong_ends_the_queue_and_removes_the_slice(cloud):
    assert launch(cloud, "queued_resource.sh", 1).returncode == 1
    assert len(calls(cloud, "queued-resources create")) == 1
    assert not (cloud / "slice").exists()
