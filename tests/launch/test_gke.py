"""Claims about GKE, with a gcloud, a kubectl and a docker that fail."""

import pytest

from tests.launch import fakes

ARGUMENTS = ("bert", "us-west4-a", "ct5lp-hightpu-4t:4x4", "bert_base", "gs://b/r", '--x="a b"\\')


@pytest.fixture
def gke(tmp_path):
    programs = {"gcloud": fakes.GCLOUD_GKE, "kubectl": fakes.KUBECTL, "docker": fakes.DOCKER}
    environment = fakes.install(tmp_path, **programs) | {"CLUSTER": "mine", "IMAGE": "here/bertjax"}

    def launch(*, variables=None, **files):
        fakes.tell(tmp_path, **files)
        return fakes.launch(environment, "gke.sh", *ARGUMENTS, **(variables or {}))

    return launch


def pools(folder):
    return (
        [path.name for path in (folder / "pools").iterdir()] if (folder / "pools").exists() else []
    )


def test_an_image_pools_and_a_jobset_are_made_followed_and_deleted(gke, tmp_path):
    done = gke(states=["", "", "Completed"], variables={"SLICES": 2})
    assert done.returncode == 0, done.stderr
    assert "step 10" in done.stdout and (tmp_path / "image.tar").stat().st_size > 10_000
    assert len(fakes.calls(tmp_path, "docker push here/bertjax:")) == 1
    made = fakes.calls(tmp_path, "node-pools create")
    assert [it.split()[4] for it in made] == ["bert-0", "bert-1"]
    assert all("--num-nodes=4 " in it and it.endswith("--tpu-topology=4x4 --spot") for it in made)
    assert not pools(tmp_path) and not (tmp_path / "jobset").exists()


def test_a_jobset_that_failed_is_an_error_and_nothing_is_left(gke, tmp_path):
    done = gke(states=["Failed"])
    assert done.returncode == 1 and "to run it again would repeat that" in done.stderr
    assert not pools(tmp_path)


def test_a_refused_quota_is_told_and_the_pools_made_before_are_deleted(gke, tmp_path):
    done = gke(fails_create=[0, 1], variables={"SLICES": 2})
    assert done.returncode == 69 and "bert-1 was not made" in done.stderr
    assert not pools(tmp_path) and not fakes.calls(tmp_path, "kubectl apply")


def test_hosts_that_are_taken_away_are_waited_for(gke, tmp_path):
    done = gke(fails_logs=[1, 0, 1, 1], fails_get=[0, 1], states=["", "", "", "Completed"])
    assert done.returncode == 0, done.stderr
    assert len(fakes.calls(tmp_path, "kubectl apply")) == 1


def test_a_jobset_that_somebody_deleted_ends_the_launch(gke, tmp_path):
    kubectl = tmp_path / "bin/kubectl"
    kubectl.write_text(kubectl.read_text().replace("cat > jobset", "cat > other"))
    done = gke()
    assert done.returncode == 69 and "somebody deleted the JobSet bert" in done.stderr
    assert not pools(tmp_path)


def test_a_refused_jobset_ends_the_launch_and_deletes_the_pools(gke, tmp_path):
    assert gke(fails_apply=[1]).returncode == 1
    assert not pools(tmp_path)


def test_pools_that_cannot_be_deleted_are_no_secret(gke):
    done = gke(states=["Completed"], fails_delete=[1] * 3)
    assert done.returncode == 69
    assert "MAY STILL BE UP, AND COSTING" in done.stderr
    assert "gcloud container node-pools delete bert-0 --cluster=mine" in done.stderr


def test_pools_are_deleted_where_the_question_fails_whether_they_are_there(gke, tmp_path):
    assert gke(states=["Completed"], fails_list=[0, 1]).returncode == 0
    assert not pools(tmp_path)


def test_a_launch_that_comes_back_makes_no_second_pool(gke, tmp_path):
    (tmp_path / "pools").mkdir()
    (tmp_path / "pools/bert-0").touch()
    assert gke(states=["Completed"]).returncode == 0
    assert not fakes.calls(tmp_path, "node-pools create") and not pools(tmp_path)


def test_a_dry_run_prints_the_calls_and_the_jobset_and_makes_none(gke, tmp_path):
    done = gke(variables={"DRY_RUN": 1})
    assert done.returncode == 0 and not fakes.calls(tmp_path)
    for words in (
        "docker push",
        "node-pools create bert-0",
        "kubectl apply",
        "pools delete bert-0",
    ):
        assert words in done.stdout
    assert "kind: JobSet" in done.stdout


@pytest.mark.parametrize(
    ("place", "word"),
    [(2, "n1-standard-8t:2x2"), (2, "ct5lp-hightpu-4t"), (4, "/local/run")],
)
def test_arguments_that_cannot_be_meant_are_refused(gke, tmp_path, place, word):
    arguments = list(ARGUMENTS)
    arguments[place] = word
    environment = fakes.os.environ | {"CLUSTER": "mine", "IMAGE": "here/bertjax"}
    done = fakes.launch(environment, "gke.sh", *arguments)
    assert done.returncode == 2 and (
        "launch/gke.sh NAME" in done.stderr or word[:13] in done.stderr
    )
