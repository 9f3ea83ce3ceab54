"""Claims about what runs on each host of a slice; a home folder stands for the host."""

import os
import subprocess
import time

import pytest

from tests.launch import fakes

PYTHON = """#!/usr/bin/env bash
echo "$@" | tee -a ~/trainings
trap 'exit 75' TERM
[ -z "$WAITS" ] || while true; do /bin/sleep 0.05; done
exit "${CODE:-0}"
"""


@pytest.fixture
def host(tmp_path):
    environment = fakes.install(tmp_path) | {"HOME": str(tmp_path)}
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").write_text(PYTHON)
    (tmp_path / "venv/bin/python").chmod(0o755)

    def tell(*verb, **variables):
        return fakes.launch(environment, "host.sh", *verb, **variables)

    return tell


def until_written(path):
    while not path.exists():
        time.sleep(0.02)


@pytest.mark.parametrize("code", [0, 1, 75])
def test_a_host_shows_the_log_and_keeps_the_code(host, code):
    assert host("start", "--config=bert_base", "--config.seed=3", CODE=code).returncode == 0
    followed = host("follow")
    assert followed.returncode == 0
    assert "-m bertjax.train --distributed --config=bert_base --config.seed=3" in followed.stdout
    assert host("code").stdout == f"{code}\n"


def test_a_start_that_is_repeated_starts_nothing(host, tmp_path):
    host("start", "--config=first", WAITS=1)
    until_written(tmp_path / "trainings")
    process = (tmp_path / "bertjax.pid").read_text()
    host("start", "--config=second", WAITS=1)
    assert (tmp_path / "bertjax.pid").read_text() == process
    host("stop")


def test_a_host_that_is_stopped_lets_the_run_save(host, tmp_path):
    host("start", WAITS=1)
    until_written(tmp_path / "trainings")
    assert host("stop").returncode == 0
    assert (tmp_path / "bertjax.code").read_text() == "75\n"


def test_a_run_outlives_the_connection_that_started_it(host, tmp_path):
    host("start", WAITS=1)
    until_written(tmp_path / "trainings")
    follower = subprocess.Popen(
        [fakes.ROOT / "launch/host.sh", "follow"],
        env=os.environ | {"HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert follower.stdout and follower.stdout.readline()
    os.killpg(follower.pid, 15)
    follower.communicate()
    assert not (tmp_path / "bertjax.code").exists()
    host("stop")
    assert host("code").stdout == "75\n"


def test_a_machine_that_was_restarted_in_the_middle_says_run_me_again(host, tmp_path):
    (tmp_path / "bertjax.pid").write_text("999999999\n")  # of before
    (tmp_path / "bertjax.log").write_text("step 10\n")
    assert host("follow").stdout == "step 10\n" and host("code").stdout == "75\n"


def test_a_verb_that_is_not_known_is_refused(host):
    assert host("strat").returncode == 2 and "the verbs are setup, start" in host("strat").stderr
