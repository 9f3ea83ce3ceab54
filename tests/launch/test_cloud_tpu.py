"""Claims about slices of Cloud TPU, on demand and from the queue, with a gcloud that fails."""

import signal
import subprocess
import sys
import time

import pytest

from tests.launch import fakes

ARGUMENTS = ("bert", "us-west4-a", "v5litepod-16", "bert_base", "gs://b/r", "--config.seed=3")
QUEUE, ON_DEMAND = "queued_resource.sh", "tpu_vm.sh"
BOTH = pytest.mark.parametrize("script", [QUEUE, ON_DEMAND])


class Cloud:
    def __init__(self, folder):
        self.folder = folder
        self.environment = fakes.install(folder, gcloud=fakes.GCLOUD_TPU)

    def launch(self, script, *trainings, SLICES=1, KEEP="", DRY_RUN="", **files):
        fakes.tell(self.folder, trainings=trainings, **files)
        gone_from = {QUEUE: "queue", ON_DEMAND: "vm"}[script]
        if gone_from == "queue":  # the queue has another word for it
            gcloud = self.folder / "bin/gcloud"
            gcloud.write_text(gcloud.read_text().replace("PREEMPTED", "SUSPENDED"))
        self.environment |= {"GONE_FROM": gone_from}
        return fakes.launch(
            self.environment, script, *ARGUMENTS, SLICES=SLICES, KEEP=KEEP, DRY_RUN=DRY_RUN
        )

    def calls(self, *words):
        return fakes.calls(self.folder, *words)

    def is_empty(self):
        """Whether nothing is left that costs."""
        return not (self.folder / "vm").exists() and not (self.folder / "queue").exists()


@pytest.fixture
def cloud(tmp_path):
    return Cloud(tmp_path)


@BOTH
def test_a_slice_is_made_set_up_trained_on_and_deleted(cloud, script):
    done = cloud.launch(script, 0)
    assert done.returncode == 0, done.stderr
    assert len(cloud.calls(" create bert")) == 1 and cloud.is_empty()
    (start,) = cloud.calls("host.sh start")
    assert "--config=bert_base --workdir=gs://b/r --config.seed=3" in start
    assert all("--worker=all" in call for call in cloud.calls("tpu-vm ssh"))
    words = ["create", "scp", "setup", "start", "follow", "code", "delete"]
    order = [next(w for w in words if w in it) for it in cloud.calls() if " list " not in it]
    assert order == words


@BOTH
@pytest.mark.parametrize("codes", ["75 1", "1 1"])
def test_a_slice_that_is_taken_away_comes_back_by_itself(cloud, script, codes):
    done = cloud.launch(script, f"{codes} taken", 0)
    assert done.returncode == 0, done.stderr
    assert "was taken away" in done.stderr
    assert len(cloud.calls(" create bert")) == 2 and cloud.is_empty()


@pytest.mark.parametrize("codes", ["75 75", "134 75"])
def test_a_run_that_saved_goes_on_with_the_slice_that_stayed(cloud, codes):
    assert cloud.launch(QUEUE, codes, 0).returncode == 0
    assert len(cloud.calls("host.sh start")) == 2 and len(cloud.calls(" create bert")) == 1


@pytest.mark.parametrize("codes", ["1 0", "0 1", "130"])
def test_an_error_of_the_training_is_not_repeated(cloud, codes):
    done = cloud.launch(QUEUE, codes)
    assert done.returncode == max(map(int, codes.split()))
    assert "to run it again would repeat that" in done.stderr
    assert len(cloud.calls("host.sh start")) == 1 and cloud.is_empty()


@BOTH
def test_a_refused_quota_is_told_and_not_asked_for_again(cloud, script):
    done = cloud.launch(script, fails_create=[1])
    assert done.returncode == 69 and "bert was not made" in done.stderr
    assert len(cloud.calls(" create bert")) == 1 and cloud.is_empty()


def test_a_request_that_fails_in_the_queue_is_made_again_thrice_at_most(cloud):
    done = cloud.launch(QUEUE, states=["FAILED"] * 3)
    assert done.returncode == 69 and "failed 3 times" in done.stderr
    assert "quota exceeded" in done.stderr  # what the queue says of it
    assert len(cloud.calls(" create bert")) == 3 and cloud.is_empty()


def test_a_request_that_is_taken_from_the_queue_waits_in_it_again(cloud):
    states = ["WAITING_FOR_RESOURCES", "PROVISIONING", "SUSPENDED", "ACTIVE"]
    done = cloud.launch(QUEUE, 0, states=states)
    assert done.returncode == 0, done.stderr
    assert len(cloud.calls(" create bert")) == 2 and len(cloud.calls("host.sh start")) == 1


def test_a_set_up_that_fails_is_tried_again_on_the_same_slice(cloud):
    assert cloud.launch(QUEUE, 0, fails_setup=[1, 1]).returncode == 0
    assert len(cloud.calls(" create bert")) == 1


def test_a_set_up_that_fails_thrice_ends_the_launch(cloud):
    done = cloud.launch(QUEUE, fails_setup=[4, 4, 4])
    assert done.returncode == 4 and "the set-up of bert failed with code 4" in done.stderr
    assert not cloud.calls("host.sh start") and cloud.is_empty()


def test_half_a_slice_is_given_back_for_another(cloud):
    done = cloud.launch(QUEUE, 0, fails_scp=[255] * 3)
    assert done.returncode == 0, done.stderr
    assert "does not answer; asking for another" in done.stderr
    assert len(cloud.calls(" create bert")) == 2 and cloud.is_empty()


def test_three_half_slices_end_the_launch(cloud):
    done = cloud.launch(QUEUE, fails_scp=[255] * 9)
    assert done.returncode == 69 and "3 times a host of bert did not answer" in done.stderr
    assert cloud.is_empty()


def test_a_broken_connection_does_not_start_the_training_again(cloud):
    assert cloud.launch(QUEUE, 0, fails_follow=[255, 255]).returncode == 0
    assert len(cloud.calls("host.sh start")) == 1 and len(cloud.calls("host.sh follow")) == 3


def test_a_question_that_fails_is_asked_again(cloud):
    assert cloud.launch(QUEUE, 0, fails_list=[1, 1]).returncode == 0
    assert len(cloud.calls(" create bert")) == 1


@BOTH
def test_a_deletion_that_fails_is_repeated(cloud, script):
    assert cloud.launch(script, 0, fails_delete=[1]).returncode == 0
    assert cloud.is_empty()


@pytest.mark.parametrize("code", [0, 1])
def test_a_slice_that_cannot_be_deleted_is_no_secret(cloud, code):
    done = cloud.launch(QUEUE, code, fails_delete=[1] * 3)
    assert done.returncode == (code or 69)
    assert "MAY STILL BE UP, AND COSTING: bert. Delete it: gcloud compute tpus" in done.stderr


def test_a_slice_is_kept_on_request_and_said_to_cost(cloud):
    done = cloud.launch(QUEUE, 0, KEEP=1)
    assert done.returncode == 0 and not cloud.is_empty()
    assert "bert is still up, and costing. Delete it: gcloud" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launch_that_is_stopped_lets_the_run_save_and_deletes_the_slice(cloud, number):
    # A shell that started pytest in the background has SIGINT ignored, and so would the script. JAX
    # objects to a fork of this process, as preexec_fn would need it.
    heeds = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", heeds, fakes.ROOT / "launch" / QUEUE, *ARGUMENTS],
        env=cloud.environment | {"GONE_FROM": ""},
        stderr=subprocess.DEVNULL,
    )
    while not cloud.calls("host.sh follow") and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=20) == 128 + number
    assert len(cloud.calls("host.sh stop")) == 1 and cloud.is_empty()


def test_several_slices_are_one_request_and_every_host_of_all_runs_the_command(cloud):
    assert cloud.launch(QUEUE, 0, SLICES=2).returncode == 0
    (create,) = cloud.calls(" create bert")
    assert "--node-count=2 --node-prefix=bert" in create and "--node-id" not in create
    for verb in ("setup", "start", "follow", "code"):
        assert {it.split()[5] for it in cloud.calls(f"host.sh {verb}")} == {"bert-0", "bert-1"}


def test_a_slice_of_the_queue_is_not_made_again_on_demand(cloud):
    (cloud.folder / "queue").write_text("SUSPENDED\n")
    done = cloud.launch(ON_DEMAND)
    assert done.returncode == 69 and "use launch/queued_resource.sh" in done.stderr
    assert not cloud.calls("tpu-vm create")


@BOTH
def test_a_dry_run_prints_the_calls_and_makes_none(cloud, script):
    done = cloud.launch(script, DRY_RUN=1)
    assert done.returncode == 0 and not cloud.calls()
    printed = done.stdout.replace("\\", "")
    cloud.launch(script, 0)
    for call in cloud.calls():
        assert call.startswith("gcloud") and (" list " in call or call in printed)


def test_a_workdir_that_would_vanish_with_the_slice_is_refused(cloud):
    arguments = ("bert", "us-west4-a", "v5litepod-16", "bert_base", "runs/base")
    done = fakes.launch(cloud.environment, ON_DEMAND, *arguments)
    assert done.returncode == 2 and "must be gs://" in done.stderr and not cloud.calls()
