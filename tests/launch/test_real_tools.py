"""The vendors' own checks of our commands and files, none of which needs an account.

shellcheck and the schemas of Kubernetes are installed with the tests. gcloud, SkyPilot (0.14.1) and
the schema of JobSets, a file of kubernetes-sigs/jobset, are used where they are:

    JOBSET_CRD=jobset.x-k8s.io_jobsets.yaml SKYPILOT_PYTHON=venv/bin/python \
        pytest -m slow tests/launch
"""

import json
import os
import pathlib
import shlex
import shutil
import subprocess

import kubernetes_validate as validate
import pytest
import yaml

from tests import environments
from tests.launch import fakes, test_scripts

CLOUD_TPU = test_scripts.ARGUMENTS["tpu_vm.sh"]
GKE = test_scripts.ARGUMENTS["gke.sh"]


@pytest.fixture(autouse=True)
def commit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", fakes.install(tmp_path, git=fakes.GIT)["PATH"])


def dry_run(script, *arguments, **variables):
    done = fakes.launch(
        os.environ | test_scripts.VARIABLES, script, *arguments, DRY_RUN=1, **variables
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def jobset():
    text = dry_run("gke.sh", *GKE, SLICES=2).split("<<'END'\n")[1].split("\nEND\n")[0]
    return yaml.safe_load(text)


def job():
    """The Job that the controller makes of a slice."""
    spec = jobset()["spec"]["replicatedJobs"][0]["template"]["spec"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "bert"}, "spec": spec}


def test_only_the_code_75_starts_the_jobset_or_a_task_of_skypilot_again():
    """And a preempted host, whatever its code."""
    task = yaml.safe_load((fakes.ROOT / "launch" / "skypilot.yaml").read_text())
    assert task["resources"]["job_recovery"] == {"recover_on_exit_codes": [75]}
    assert task["resources"]["use_spot"] is True
    rules = job()["spec"]["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Count", "FailJob"]
    assert rules[0]["onPodConditions"][0]["type"] == "DisruptionTarget"
    codes = rules[1]["onExitCodes"]
    assert (codes["operator"], codes["values"]) == ("NotIn", [75])
    assert job()["spec"]["backoffLimit"] == 0
    rules = jobset()["spec"]["failurePolicy"]["rules"]
    actions = ["RestartJobSet", "FailJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
    assert [rule["action"] for rule in rules] == actions
    assert rules[0]["onJobFailureMessagePatterns"] == ["exit code 134"]
    assert rules[1]["onJobFailureReasons"] == ["PodFailurePolicy"] and len(rules[1]) == 3
    assert len(rules[2]) == 2  # any other failure


def test_a_jobset_has_a_job_for_each_slice_and_a_pod_for_each_host():
    slices = jobset()["spec"]["replicatedJobs"][0]
    container = job()["spec"]["template"]["spec"]["containers"][0]
    assert slices["replicas"] == 2 and job()["spec"]["completions"] == 4
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    assert container["args"][-1] == GKE[-1]  # quotes and a backslash as they are


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
def test_gcloud_knows_our_commands_and_flags(tmp_path):
    printed = dry_run("tpu_vm.sh", *CLOUD_TPU) + dry_run("queued_resource.sh", *CLOUD_TPU)
    printed += dry_run("queued_resource.sh", *CLOUD_TPU, SLICES=2, ON_DEMAND=1)
    printed += dry_run("gke.sh", *GKE)
    lines = [line for line in printed.splitlines() if line.startswith("gcloud ")]
    # gcloud reads a command as words, and would read a host's command as more of them.
    commands = [" ".join(w.split(" ")[0] for w in shlex.split(line)) for line in lines]
    commands += [
        "gcloud compute tpus tpu-vm list --zone=z --filter=name --format=value(state)",
        "gcloud compute tpus queued-resources list --zone=z --filter=n --format=value(state.state)",
        "gcloud compute tpus queued-resources describe bert --zone=z --format=yaml(state)",
        "gcloud container node-pools list --cluster=c --location=z --filter=n --format=value(name)",
    ]
    results = linted(commands, tmp_path)
    assert [it for it in results if not it["success"]] == []
    assert len(results) == len(set(commands)) > 12
    (wrong,) = linted(["gcloud compute tpus tpu-vm delete bert --zone=z --forced"], tmp_path)
    assert not wrong["success"]  # the check finds what is wrong


def linted(commands, folder):
    file = folder / "commands.json"
    file.write_text(json.dumps([{"command_string": it} for it in commands]))
    environment = {"CLOUDSDK_CONFIG": str(folder), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
    done = subprocess.run(
        ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={file}"],
        env=os.environ | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.slow
def test_shellcheck_finds_nothing(tmp_path):
    scripts = [*(fakes.ROOT / "launch").glob("*.sh"), fakes.ROOT / ".ci" / "run"]
    done = subprocess.run(
        ["shellcheck", "--external-sources", "--source-path=launch", *scripts],
        cwd=fakes.ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.sh"
    wrong.write_text("#!/bin/sh\nrm $1/*\n")
    assert subprocess.run(["shellcheck", wrong], capture_output=True).returncode == 1


@pytest.mark.slow
def test_the_job_of_a_slice_fits_the_schema_of_kubernetes():
    validate.validate(job(), validate.latest_version(), strict=True)
    wrong = job()
    wrong["spec"]["podFailurePolicy"]["rule"] = []
    with pytest.raises(validate.ValidationError):
        validate.validate(wrong, validate.latest_version(), strict=True)


@pytest.mark.slow
@pytest.mark.skipif("JOBSET_CRD" not in os.environ, reason="JOBSET_CRD is not set")
def test_the_jobset_fits_its_schema():
    jsonschema = pytest.importorskip("jsonschema")
    crd = yaml.safe_load(pathlib.Path(os.environ["JOBSET_CRD"]).read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    closed(schema)
    jsonschema.validate(jobset(), schema)
    wrong = jobset()
    wrong["spec"]["failurePolicy"]["rules"][0]["onJobFailureReason"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def closed(schema):
    """Makes a field that the schema does not know an error, as kubectl does."""
    if schema.get("x-kubernetes-int-or-string"):
        schema["type"] = ["integer", "string"]
    if "properties" in schema:
        if schema["properties"].keys() - {"metadata"}:
            schema["additionalProperties"] = False
        for inner in schema["properties"].values():
            closed(inner)
    if "items" in schema:
        closed(schema["items"])


SKYPILOT_READS = """
import sys, sky, yaml
config = yaml.safe_load(open(sys.argv[1]))
task = sky.Task.from_yaml_config(config, env_overrides=[("OPTIONS", "--config=x")])
assert len(task.resources) == 2, task.resources
for resources in task.resources:
    assert resources.use_spot, resources
    assert resources.job_recovery["recover_on_exit_codes"] == [75], resources.job_recovery
"""


@pytest.mark.slow
@pytest.mark.skipif("SKYPILOT_PYTHON" not in os.environ, reason="SKYPILOT_PYTHON is not set")
def test_skypilot_takes_our_task(tmp_path):
    python, task = os.environ["SKYPILOT_PYTHON"], fakes.ROOT / "launch" / "skypilot.yaml"
    environments.checked(python, "-c", SKYPILOT_READS, task)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(task.read_text().replace("exit_codes: [75]", "exit_codes: '75!'"))
    with pytest.raises(AssertionError, match="75!"):
        environments.checked(python, "-c", SKYPILOT_READS, wrong)
