"""Claims about launch/: what each script does as machines are refused, taken away, lost, deleted.

The clouds are those of `fakes`. Whatever happens, nothing that costs is left without a word.
"""

import os
import shlex
import signal
import subprocess
import sys

import pytest

from tests.launch import fakes

QUEUE, DEMAND, GKE = "queued_resource.sh", "tpu_vm.sh", "gke.sh"
SLURM, SKY = "slurm.sh", "skypilot.sh"
OPTIONS = ("bert_base", "gs://b/r", '--config.x="a b"\\')
ARGUMENTS = {
    QUEUE: ("bert", "us-west4-a", "v5litepod-16", *OPTIONS),
    DEMAND: ("bert", "us-west4-a", "v5litepod-16", *OPTIONS),
    GKE: ("bert", "us-west4-a", "ct5lp-hightpu-4t:4x4", *OPTIONS),
    SLURM: ("bert", "4", *OPTIONS),
    SKY: ("bert", *OPTIONS),
}
SLEEP = {"sleep": "#!/bin/sh\nexec /bin/sleep 0.02\n"}
PROGRAMS = {
    QUEUE: {"gcloud": fakes.GCLOUD_TPU, "git": ""},  # packing all of it takes a second
    DEMAND: {"gcloud": fakes.GCLOUD_TPU, "git": ""},
    GKE: {
        **{"gcloud": fakes.GCLOUD_GKE, "kubectl": fakes.KUBECTL, "docker": fakes.DOCKER},
        "git": fakes.GIT,
    },
    SLURM: {
        **{"sbatch": fakes.SBATCH, "srun": fakes.SRUN, "squeue": fakes.SQUEUE},
        **{"scontrol": fakes.SCONTROL, "sleep": "#!/bin/sh\nexec /bin/sleep 0.1\n"},
    },
    SKY: {"sky": fakes.SKY},
}
VARIABLES = {"CLUSTER": "mine", "IMAGE": "here/bertjax", "SBATCH_OPTIONS": "--partition=gpu"}
AGAIN = "to run it again would repeat that"
MADE, START = " create bert", "host.sh start"
DONE = ["", "", "Completed"]

# Script, variables and what the clouds do; then its code, its last words, and the number of calls.
SCENARIOS = [
    (QUEUE, {"trainings": ["0"]}, 0, "", {MADE: 1, START: 1}),
    (DEMAND, {"trainings": ["0"]}, 0, "", {MADE: 1, START: 1}),
    # Taken away, which a host may tell by another code; saved, and still there; an error.
    (QUEUE, {"trainings": ["75 1 taken", "0"]}, 0, "was taken away", {MADE: 2}),
    (DEMAND, {"trainings": ["1 1 taken", "0"]}, 0, "was taken away", {MADE: 2}),
    (QUEUE, {"trainings": ["75 75", "134 75", "0"]}, 0, "", {MADE: 1, START: 3}),
    (QUEUE, {"trainings": ["1 0"]}, 1, AGAIN, {START: 1}),
    (QUEUE, {"trainings": ["0 130"]}, 130, AGAIN, {START: 1}),
    # No machine.
    (QUEUE, {"fails_create": ["1"]}, 69, "bert was not made", {MADE: 1}),
    (DEMAND, {"fails_create": ["1"]}, 69, "bert was not made", {MADE: 1}),
    (QUEUE, {"states": ["FAILED"] * 3}, 69, "failed 3 times; the lines above say why", {MADE: 3}),
    (QUEUE, {"states": ["WAITING_FOR_RESOURCES", "PROVISIONING", "SUSPENDED", "ACTIVE"],
             "trainings": ["0"]}, 0, "", {MADE: 2, START: 1}),
    (DEMAND, {"queue": ["SUSPENDED"]}, 69, "use launch/queued_resource.sh", {MADE: 0}),
    # A set-up that fails, half a slice, a broken connection, a question that fails.
    (QUEUE, {"fails_setup": ["1", "1"], "fails_list": ["1", "1"], "fails_follow": ["255", "255"],
             "fails_delete": ["1"], "trainings": ["0"]}, 0, "",
     {MADE: 1, START: 1, "host.sh follow": 3}),
    (QUEUE, {"fails_setup": ["4"] * 3}, 4, "the set-up of bert failed with code 4", {START: 0}),
    (QUEUE, {"fails_scp": ["255"] * 3, "trainings": ["0"]}, 0,
     "does not answer; asking for another", {MADE: 2}),
    (QUEUE, {"fails_scp": ["255"] * 9}, 69, "3 times a host of bert did not answer", {}),
    # A deletion that fails, or is not asked for.
    (DEMAND, {"fails_delete": ["1"], "trainings": ["0"]}, 0, "", {}),
    (QUEUE, {"fails_delete": ["1"] * 3, "trainings": ["0"]}, 69,
     "MAY STILL BE UP, AND COSTING: bert. Delete it: gcloud compute tpus", {}),
    (QUEUE, {"fails_delete": ["1"] * 3, "trainings": ["1"]}, 1, "COSTING: bert. Delete it", {}),
    (QUEUE, {"KEEP": 1, "trainings": ["0"]}, 0, "still up, and costing. Delete it: gcloud", {}),
    # GKE.
    (GKE, {"SLICES": 2, "states": DONE}, 0, "",
     {"docker push here/bertjax:": 1, MADE: 2, "--num-nodes=4": 2, "--tpu-topology=4x4 --spot": 2}),
    (GKE, {"states": ["Failed"]}, 1, AGAIN, {}),
    (GKE, {"SLICES": 2, "fails_create": ["0", "1"]}, 69, "bert-1 was not made",
     {"kubectl apply": 0}),
    (GKE, {"fails_logs": ["1", "0", "1", "1"], "fails_get": ["0", "1"], "fails_list": ["0", "1"],
           "states": ["", *DONE]}, 0, "", {"kubectl apply": 1}),
    (GKE, {"applied_to": ["other"]}, 69, "somebody deleted the JobSet bert", {}),
    (GKE, {"fails_apply": ["1"]}, 1, "", {MADE: 1}),
    (GKE, {"fails_delete": ["1"] * 3, "states": DONE}, 69,
     "STILL BE UP, AND COSTING: the nodes of bert. Delete it: gcloud container node-pools delete "
     "bert-0 --cluster=mine", {}),
    (GKE, {"pools/bert-0": [], "states": DONE}, 0, "", {MADE: 0}),
    # Slurm.
    (SLURM, {"trainings": ["0"]}, 0, "job 7: COMPLETED",
     {"--nodes=4 --ntasks-per-node=1 --requeue --signal=TERM@180": 1, "--partition=gpu": 1,
      "python -m bertjax.train --distributed --config=bert_base --workdir=gs://b/r": 1}),
    (SLURM, {"trainings": ["75", "75", "0"]}, 0, "", {"srun": 3, "scontrol requeue 7": 2}),
    (SLURM, {"trainings": ["1"]}, 1, "job 7: FAILED", {"scontrol requeue": 0}),
    (SLURM, {"trainings": ["75 cancelled"]}, 75, "", {"scontrol requeue": 0}),
    (SLURM, {"trainings": ["75"], "fails_requeue": ["1"]}, 1, "", {"srun": 1}),
    (SLURM, {"fails_sbatch": ["1"]}, 69, "the job was not taken", {}),
    # SkyPilot: 101 is a job that goes on, 1 a broken connection, 100 failed, 102 cancelled.
    (SKY, {"fails_logs": ["101", "1"]}, 0, "", {"jobs launch": 1, "jobs logs": 3}),
    (SKY, {"fails_logs": ["100"]}, 1, "job bert", {}),
    (SKY, {"fails_logs": ["102"]}, 69, "job bert", {}),
    (SKY, {"fails_logs": ["103"]}, 69, "job bert", {}),
    (SKY, {"fails_launch": ["1"]}, 69, "the job was not taken", {}),
]  # fmt: skip


def launch(folder, script, **settings):
    """Runs a script; a setting of several lines is a file of the fakes."""
    for name, lines in settings.items():
        if isinstance(lines, list):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
    environment = fakes.install(folder, **{**SLEEP, **PROGRAMS[script]}) | VARIABLES
    variables = {name: it for name, it in settings.items() if not isinstance(it, list)}
    return fakes.launch(
        environment | {"VENV": str(folder)}, script, *ARGUMENTS[script], **variables
    )


def costing(folder):
    """The machines that are left."""
    return [it for it in (folder / "vm", folder / "queue", *folder.glob("pools/*")) if it.exists()]


@pytest.mark.parametrize(("script", "settings", "code", "words", "counts"), SCENARIOS)
def test_a_launch_ends_as_it_should_and_leaves_nothing_that_costs(
    tmp_path, script, settings, code, words, counts
):
    done = launch(tmp_path, script, **settings)
    assert done.returncode == code and words in done.stderr, done.stderr
    assert {name: len(fakes.calls(tmp_path, name)) for name in counts} == counts
    assert bool(costing(tmp_path)) == ("costing" in done.stderr.lower() or "queue" in settings)


def test_the_steps_of_a_slice_are_in_order_and_on_all_hosts_of_all_slices(tmp_path):
    assert launch(tmp_path, QUEUE, SLICES=2, trainings=["0"]).returncode == 0
    (create,) = fakes.calls(tmp_path, MADE)
    assert "--node-count=2 --node-prefix=bert" in create and "--node-id" not in create
    hosts = fakes.calls(tmp_path, "tpu-vm ssh")
    assert all("--worker=all" in call for call in hosts)
    for verb in ("setup", "start", "follow", "code"):
        assert {it.split()[5] for it in hosts if f"host.sh {verb}" in it} == {"bert-0", "bert-1"}
    words = ["create", "scp", "setup", "start", "follow", "code", "delete"]
    steps = [[word for word in words if word in call] for call in fakes.calls(tmp_path, "gcloud")]
    steps = [step[0] for step in steps if step]  # the others ask for the state
    assert list(dict.fromkeys(steps)) == words


@pytest.mark.parametrize("script", ARGUMENTS)
def test_a_dry_run_prints_the_calls_and_makes_none(tmp_path, script):
    dry, real = tmp_path / "dry", tmp_path / "real"
    dry.mkdir()
    real.mkdir()
    done = launch(dry, script, DRY_RUN=1)
    assert done.returncode == 0 and not fakes.calls(dry)
    printed = [" ".join(shlex.split(it)) for it in done.stdout.splitlines() if "'END'" not in it]
    launch(real, script, trainings=["0"], states=DONE if script == GKE else [])
    questions = (" list ", "get jobset", "squeue", "scontrol", "srun", "apply", "build")
    for call in fakes.calls(real):
        asks = any(word in call for word in (*questions, "delete jobset"))
        assert asks or call in printed
    if script == SKY:  # the options of training arrive whole
        words = shlex.split(done.stdout.splitlines()[0])
        options = next(it for it in words if it.startswith("OPTIONS=")).removeprefix("OPTIONS=")
        assert shlex.split(options) == ["--config=bert_base", "--workdir=gs://b/r", OPTIONS[2]]


def test_arguments_that_cannot_be_meant_are_refused():
    for script, place, word, message in [
        (DEMAND, 4, "runs/base", "must be gs://"),
        (GKE, 2, "n1-standard-8t:2x2", "n1-standard"),
        (GKE, 2, "ct5lp-hightpu-4t", "launch/gke.sh NAME"),
        (GKE, 4, "/local/run", "launch/gke.sh NAME"),
        ("host.sh", 0, "strat", "the verbs are setup, start"),
    ]:
        arguments = list(ARGUMENTS.get(script, ("start",)))
        arguments[place] = word
        done = fakes.launch(os.environ | VARIABLES, script, *arguments)
        assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_launch_that_is_stopped_lets_the_run_save_and_deletes_the_slice(tmp_path, number):
    # A shell that started pytest in the background has SIGINT ignored, and so would the script. JAX
    # objects to a fork of this process, as preexec_fn would need it.
    heeds = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    environment = fakes.install(tmp_path, **{**SLEEP, **PROGRAMS[QUEUE]})
    process = subprocess.Popen(
        [sys.executable, "-c", heeds, fakes.ROOT / "launch" / QUEUE, *ARGUMENTS[QUEUE]],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout and any(line == "step 10\n" for line in process.stdout)
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number
    process.stdout.close()
    assert len(fakes.calls(tmp_path, "host.sh stop")) == 1 and not costing(tmp_path)


PYTHON = """#!/usr/bin/env bash
trap 'exit 75' TERM
echo "$@"
[ -z "$WAITS" ] || { /bin/sleep 600 & wait; }
exit "${CODE:-0}"
"""


@pytest.fixture
def host(tmp_path):
    """Runs a verb of host.sh; a home folder stands for the host."""
    environment = fakes.install(tmp_path, **SLEEP) | {"HOME": str(tmp_path)}
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").write_text(PYTHON)
    (tmp_path / "venv/bin/python").chmod(0o755)
    return lambda *verb, **variables: fakes.launch(environment, "host.sh", *verb, **variables)


@pytest.mark.parametrize("code", [0, 1, 75])
def test_a_host_shows_the_log_and_keeps_the_code(host, code):
    assert host("start", "--config=bert_base", "--config.seed=3", CODE=code).returncode == 0
    followed = host("follow")
    assert followed.returncode == 0
    assert "-m bertjax.train --distributed --config=bert_base --config.seed=3" in followed.stdout
    assert host("code").stdout == f"{code}\n"


def test_a_run_on_a_host_is_started_once_outlives_its_connection_and_saves_when_stopped(
    host, tmp_path
):
    host("start", "--config=first", WAITS=1)
    process = (tmp_path / "bertjax.pid").read_text()
    host("start", "--config=second", WAITS=1)
    assert (tmp_path / "bertjax.pid").read_text() == process
    follower = subprocess.Popen(
        [fakes.ROOT / "launch/host.sh", "follow"],
        env=os.environ | {"HOME": str(tmp_path)}, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert follower.stdout and follower.stdout.readline()
    os.killpg(follower.pid, signal.SIGTERM)
    follower.communicate()
    assert not (tmp_path / "bertjax.code").exists()
    assert host("stop").returncode == 0 and host("code").stdout == "75\n"


def test_a_machine_that_was_restarted_in_the_middle_says_run_me_again(host, tmp_path):
    (tmp_path / "bertjax.pid").write_text("999999999\n")  # from before
    (tmp_path / "bertjax.log").write_text("step 10\n")
    assert host("follow").stdout == "step 10\n" and host("code").stdout == "75\n"
