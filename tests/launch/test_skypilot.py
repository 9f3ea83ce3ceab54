"""Claims about SkyPilot, with a sky that fails."""

import shlex

import pytest

from tests.launch import fakes

ARGUMENTS = ("bert", "bert_base", "gs://b/r", "--config.data.train_dir=gs://b/{max_seq_length} x")


@pytest.fixture
def sky(tmp_path):
    environment = fakes.install(tmp_path, sky=fakes.SKY)

    def launch(dry_run="", **files):
        fakes.tell(tmp_path, **files)
        return fakes.launch(environment, "skypilot.sh", *ARGUMENTS, DRY_RUN=dry_run)

    return launch


def test_a_job_is_launched_once_and_followed_to_its_end(sky, tmp_path):
    done = sky(fails_logs=[101, 1])  # not finished; the connection broke
    assert done.returncode == 0
    assert len(fakes.calls(tmp_path, "jobs launch")) == 1
    assert len(fakes.calls(tmp_path, "jobs logs")) == 3


@pytest.mark.parametrize(("code", "status"), [(100, 1), (102, 69), (103, 69)])
def test_a_job_that_failed_or_was_cancelled_ends_the_launch(sky, code, status):
    done = sky(fails_logs=[code])
    assert done.returncode == status and "job bert" in done.stderr


def test_a_refused_job_is_told(sky):
    done = sky(fails_launch=[1])
    assert done.returncode == 69 and "the job was not taken" in done.stderr


def test_the_options_arrive_as_they_were_given(sky, tmp_path):
    """What the job evaluates has each argument whole."""
    done = sky(dry_run=1)
    assert not fakes.calls(tmp_path)
    launch = shlex.split(done.stdout.splitlines()[0])
    options = next(it for it in launch if it.startswith("OPTIONS=")).removeprefix("OPTIONS=")
    wanted = ["--config=bert_base", "--workdir=gs://b/r", ARGUMENTS[3]]
    assert shlex.split(options) == wanted
