"""Claims about Slurm, with an sbatch that runs the job here."""

import time

import pytest

from tests.launch import fakes


@pytest.fixture
def slurm(tmp_path):
    programs = {"sbatch": fakes.SBATCH, "srun": fakes.SRUN, "squeue": fakes.SQUEUE}
    environment = fakes.install(tmp_path, **programs, scontrol=fakes.SCONTROL)
    (tmp_path / "bin/sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.1\n")
    environment |= {"VENV": str(tmp_path), "SBATCH_OPTIONS": "--partition=gpu --time=1:00:00"}

    def launch(**files):
        fakes.tell(tmp_path, **files)
        variables = {"DRY_RUN": 1} if not files else {}
        arguments = ("bert", "4", "bert_base", "/shared/base", "--config.seed=3")
        return fakes.launch(environment, "slurm.sh", *arguments, **variables)

    yield launch
    while (tmp_path / "job").exists():
        time.sleep(0.02)


def test_a_job_runs_one_process_on_each_node_and_its_end_is_told(slurm, tmp_path):
    done = slurm(trainings=[0])
    assert done.returncode == 0 and "job 7: COMPLETED" in done.stderr, done.stderr
    (submitted,) = fakes.calls(tmp_path, "sbatch")
    assert "--nodes=4 --ntasks-per-node=1 --requeue --signal=TERM@180" in submitted
    assert "--partition=gpu --time=1:00:00 launch/slurm.sh" in submitted
    (step,) = fakes.calls(tmp_path, "srun")
    assert step.endswith(
        "python -m bertjax.train --distributed --config=bert_base --workdir=/shared/base"
        " --config.seed=3"
    )


def test_a_run_that_saved_queues_again_and_goes_on(slurm, tmp_path):
    done = slurm(trainings=[75, 75, 0])
    assert done.returncode == 0, done.stderr
    assert len(fakes.calls(tmp_path, "srun")) == 3
    assert len(fakes.calls(tmp_path, "scontrol requeue 7")) == 2


def test_an_error_of_the_training_is_not_repeated(slurm, tmp_path):
    done = slurm(trainings=[1])
    assert done.returncode == 1 and "job 7: FAILED" in done.stderr
    assert not fakes.calls(tmp_path, "scontrol requeue")


def test_a_job_that_was_cancelled_does_not_come_back(slurm, tmp_path):
    assert slurm(trainings=["75 cancelled"]).returncode == 75
    assert not fakes.calls(tmp_path, "scontrol requeue")


def test_a_cluster_that_does_not_requeue_is_an_error(slurm, tmp_path):
    assert slurm(trainings=[75], fails_requeue=[1]).returncode == 1
    assert len(fakes.calls(tmp_path, "srun")) == 1


def test_a_refused_job_is_told(slurm):
    done = slurm(fails_sbatch=[1])
    assert done.returncode == 69 and "the job was not taken" in done.stderr


def test_a_dry_run_prints_the_calls_and_makes_none(slurm, tmp_path):
    done = slurm()
    assert done.returncode == 0 and "sbatch --parsable" in done.stdout
    assert not fakes.calls(tmp_path)
