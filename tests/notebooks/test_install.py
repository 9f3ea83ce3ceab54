"""notebooks/install.py asks for the TensorFlow that is there, and binds pip to what is there."""

import importlib.util
import pathlib
import re
import runpy
import subprocess

import pytest
import setuptools

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def install():
    spec = importlib.util.spec_from_file_location("install", ROOT / "notebooks" / "install.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("installed", "asked"),
    [
        ((), "tensorflow-cpu"),
        (("numpy", "tensorflow-datasets"), "tensorflow-cpu"),
        (("tensorflow-cpu",), "tensorflow-cpu"),
        (("tensorflow", "tensorflow-hub"), "tensorflow"),
        (("tf-nightly",), "tf-nightly"),
    ],
)
def test_the_tensorflow_that_is_there_is_asked_for(install, installed, asked):
    assert install.tensorflow_of(installed) == asked


@pytest.mark.parametrize("name", ["tensorflow-cpu", "tensorflow"])
def test_setup_requires_one_tensorflow_the_one_that_is_named(monkeypatch, name):
    seen = {}
    monkeypatch.setattr(setuptools, "setup", lambda **told: seen.update(told))
    monkeypatch.setenv("BERTJAX_TENSORFLOW", name)
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    names = [re.split(r"[^\w-]", it)[0] for it in seen["install_requires"]]
    assert [it for it in names if it in ("tensorflow", "tensorflow-cpu")] == [name]


def test_pip_is_bound_to_everything_that_is_installed(install, monkeypatch, capsys):
    commands = []

    def run(command):
        bounds = next(it for it in command if it.startswith("--constraint=")).partition("=")[2]
        commands.append((command, pathlib.Path(bounds).read_text()))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(install.subprocess, "run", run)
    monkeypatch.setenv("BERTJAX_TENSORFLOW", "none")
    install.main()
    ((command, bounds),) = commands
    assert command[-1] == str(ROOT)
    for name in ("jax", "jaxlib", "numpy", "flax"):
        assert len(re.findall(rf"^{name}==\d", bounds, re.M)) == 1
    assert "bertjax==" not in bounds
    assert "beside what was here: nothing" in capsys.readouterr().out


def test_what_pip_refuses_is_not_installed_and_said_so(install, monkeypatch):
    failed = subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(install.subprocess, "run", lambda command: failed)
    monkeypatch.setenv("BERTJAX_TENSORFLOW", "none")
    with pytest.raises(SystemExit, match="bertjax was not installed, and what was here has not"):
        install.main()
