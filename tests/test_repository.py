"""The files for contributors and for the host of the repository: they name what exists."""

import os
import re
from pathlib import Path

import pytest
import yaml

import bertjax

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
SCRIPTS = {".ci/run", ".ci/matrix"}
INPUTS = {"checkboxes", "dropdown", "input", "markdown", "textarea"}  # of a form of an issue


def parsed(path):
    # The plain strings: YAML 1.1 reads the key `on` as true.
    return yaml.load((ROOT / path).read_text("utf-8"), yaml.BaseLoader)


def commands(workflow):
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(len({"run", "uses"} & step.keys()) == 1 for step in steps)
    return [step["run"] for step in steps if "run" in step]


def test_a_workflow_calls_scripts_that_exist_and_nothing_else():
    workflows = [parsed(path) for path in sorted(GITHUB.glob("workflows/*.yml"))]
    called = {command for workflow in workflows for command in commands(workflow)}
    assert called == SCRIPTS
    assert [it for it in called if not os.access(ROOT / it, os.X_OK)] == []


def test_pushes_and_pull_requests_run_the_gate_and_a_week_the_matrix():
    workflow = parsed(".github/workflows/ci.yml")
    assert {"push", "pull_request", "schedule"} <= workflow["on"].keys()
    (time,) = workflow["on"]["schedule"]
    assert re.fullmatch(r"\d+ \d+ \* \* \d", time["cron"])
    events = {
        name: set(re.findall(r"event_name == '(\w+)'", job["if"]))
        for name, job in workflow["jobs"].items()
    }
    assert events["run"] == {"push", "pull_request"}
    assert "schedule" in events["matrix"] and not events["run"] & events["matrix"]


@pytest.mark.parametrize(
    "path", sorted(GITHUB.glob("ISSUE_TEMPLATE/[!c]*.yml")), ids=lambda it: it.stem
)
def test_a_form_of_an_issue_has_what_github_asks_for(path):
    form = parsed(path)
    assert {"name", "description", "body"} <= form.keys() and form["body"]
    for part in form["body"]:
        assert part["type"] in INPUTS and part["attributes"]["label"]
    assert len({part["id"] for part in form["body"]}) == len(form["body"])


def test_the_citation_has_the_required_keys_and_the_version():
    citation = parsed("CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["message"] and citation["title"]
    assert citation["authors"] == [{"name": "The bertjax developers"}]
    setup = (ROOT / "setup.py").read_text("utf-8")
    assert f'version="{citation["version"]}"' in setup
    assert f'author="{citation["authors"][0]["name"]}"' in setup
    assert f'license_expression="{citation["license"]}"' in setup
    assert f'REPOSITORY = "{citation["repository-code"]}"' in setup
    assert citation["version"] == bertjax.__version__


def test_the_changelog_has_this_version_first():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert re.fullmatch(
        rf"\[{re.escape(bertjax.__version__)}\] - (Unreleased|\d{{4}}-\d\d-\d\d)", headings[0]
    )


def test_the_examples_of_style_are_in_the_code():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    examples = re.findall(r"```python\n# (\S+)\n(.*?)```", text, re.DOTALL)
    assert len(examples) == len(re.findall("```python", text)) == 5
    for path, example in examples:
        assert example in (ROOT / path).read_text("utf-8"), f"{path} does not have:\n{example}"


def test_contributors_read_of_each_suite_and_script():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    marks = re.findall(r'^  "(\w+): ', pyproject, re.MULTILINE)
    assert marks == ["slow", "faults", "weekly"]
    rows = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    assert rows == {"pytest", *(f"pytest -m {mark}" for mark in marks), *SCRIPTS}
