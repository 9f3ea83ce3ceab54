"""The package's metadata: links, Pythons, and the files of the sdist."""

import re
import runpy
import subprocess
from pathlib import Path

import pytest
import setuptools
from packaging import specifiers

ROOT = Path(__file__).parents[1]
BLOB, RAW = (f"https://github.com/bertjax/bertjax/{it}/main/" for it in ("blob", "raw"))


def run_setup(monkeypatch, readme=None):
    """Returns setup.py's names and what it gives to setuptools, with another README if given."""
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: given.update(arguments))
    monkeypatch.chdir(ROOT)
    if readme is not None:
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: readme)
    runpy.run_path(str(ROOT / "setup.py"))
    return given


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[data](docs/data.md#format).", f"[data]({BLOB}docs/data.md#format)."),
        ("![A plot](docs/a.png)", f"![A plot]({RAW}docs/a.png)"),
        ("[x](launch/) [y](LICENSE)", f"[x]({BLOB}launch/) [y]({BLOB}LICENSE)"),
        ("[here](#install) [web](https://x.y/z)", "[here](#install) [web](https://x.y/z)"),
        ("[![b](https://x/b.svg)](https://y)", "[![b](https://x/b.svg)](https://y)"),
    ],
)
def test_links_to_files_are_absolute_on_a_package_index(monkeypatch, text, expected):
    assert run_setup(monkeypatch, text)["long_description"] == expected


def test_every_link_of_the_readme_leads_to_a_file_from_anywhere(monkeypatch):
    description = run_setup(monkeypatch)["long_description"]
    targets = re.findall(r"\]\(([^)]*)\)", description)
    assert all(it.startswith("https://") for it in targets)
    ours = [it.removeprefix(start) for it in targets for start in (BLOB, RAW) if start in it]
    assert len(ours) > 20
    assert [it for it in ours if not (ROOT / it.partition("#")[0]).exists()] == []
    assert f"]({RAW}docs/quickstart_curves.png)" in description


def test_the_pythons_of_the_classifiers_are_those_that_pip_lets_in(monkeypatch):
    given = run_setup(monkeypatch)
    listed = re.findall(r"Python :: (3\.\d+)", "\n".join(given["classifiers"]))
    allowed = specifiers.SpecifierSet(given["python_requires"])
    assert listed == [it for it in (f"3.{minor}" for minor in range(30)) if f"{it}.1" in allowed]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Python {', '.join(listed[:-1])} or {listed[-1]}" in readme


def test_the_sdist_holds_the_repository():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is an sdist, not a checkout")
    lines = [it.split() for it in (ROOT / "MANIFEST.in").read_text("utf-8").splitlines() if it]
    folders = {it for kind, *names in lines if kind == "graft" for it in names}
    files = {it for kind, *names in lines if kind == "include" for it in names}
    assert [it for it in folders if not (ROOT / it).is_dir()] == []
    assert [it for it in files if not (ROOT / it).is_file()] == []
    rest = {it for it in listed.stdout.split() if it not in files}
    assert {it for it in rest if it.split("/")[0] not in folders} <= {".gitignore"}
