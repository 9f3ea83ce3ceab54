"""notebooks/install.py: a wheel asks for the installed TensorFlow, and pip keeps every version."""

import base64
import hashlib
import importlib.util
import pathlib
import re
import runpy
import shutil
import subprocess
import types
import zipfile

import pytest
import setuptools

ROOT = pathlib.Path(__file__).parents[2]
FILES = ("METADATA", "RECORD")


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


def make_wheel(path, requirements):
    """Writes a wheel with these requirements, as setuptools writes them, and a file of bytes."""
    names = [f"{path.name.removesuffix('-py3-none-any.whl')}.dist-info/{it}" for it in FILES]
    lines = [f"Requires-Dist: {it}".replace("'", '"') for it in requirements]
    record = f"bertjax/weights,sha256=x,4\n{names[0]},sha256=old,1\n{names[1]},,\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("bertjax/weights", b"\0\xff\r\n")
        archive.writestr(names[0], "\n".join(["Name: bertjax", *lines, "", "Text\n"]))
        archive.writestr(names[1], record)
    return path


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel that asks for what setup.py says."""
    metadata = {}
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: metadata.update(arguments))
    runpy.run_path(str(ROOT / "setup.py"))
    return make_wheel(tmp_path / "bertjax-0.1.0-py3-none-any.whl", metadata["install_requires"])


@pytest.mark.parametrize("name", ["tensorflow-cpu", "tensorflow", "tf-nightly"])
def test_a_wheel_asks_for_one_tensorflow_the_one_that_is_named(install, wheel, name):
    before = contents(wheel)
    install.ask_for(name, wheel)
    after = contents(wheel)
    asked = re.findall(r"^Requires-Dist: (tensorflow|tensorflow-cpu|tf-nightly)([<>=].*)$",
                       after["METADATA"].decode(), re.M)  # fmt: skip
    assert asked == [(name, ">=2.20")]
    others = [it for it in before["METADATA"].splitlines() if b"tensorflow" not in it]
    assert [it for it in after["METADATA"].splitlines() if it in others] == others
    assert b"Requires-Dist: tensorflow-datasets>=" in after["METADATA"]
    assert after["weights"] == before["weights"]
    digest = base64.urlsafe_b64encode(hashlib.sha256(after["METADATA"]).digest()).strip(b"=")
    row = b"METADATA,sha256=%s,%d\n" % (digest, len(after["METADATA"]))
    assert after["RECORD"].endswith(row + b"bertjax-0.1.0.dist-info/RECORD,,\n")
    assert after["RECORD"].startswith(b"bertjax/weights,sha256=x,4\n")


def test_a_wheel_without_tensorflow_is_refused(install, tmp_path):
    wheel = make_wheel(tmp_path / "bertjax-0.1.0-py3-none-any.whl", ["jax", "tensorflow-datasets"])
    with pytest.raises(SystemExit, match=r"bertjax-0.1.0-py3-none-any.whl does not require Tensor"):
        install.ask_for("tensorflow", wheel)


@pytest.fixture
def commands(install, wheel, monkeypatch):
    """The commands that pip is given, and the bounds of the last one; it makes the wheel."""
    given = []

    def run(command):
        for it in command:
            if it.startswith("--wheel-dir="):
                shutil.copy(wheel, it.partition("=")[2])
            if it.startswith("--constraint="):
                command = [*command, pathlib.Path(it.partition("=")[2]).read_text()]
        given.append(command[len(install.PIP) :])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(install.subprocess, "run", run)
    return given


def test_pip_is_bound_to_everything_that_is_installed(install, commands, capsys):
    install.main()
    (_, *options, what), (_, _, wheel, bounds) = commands[:2]
    assert "--no-deps" in options and what == str(ROOT)
    assert pathlib.Path(wheel).name == "bertjax-0.1.0-py3-none-any.whl"
    for name in ("jax", "jaxlib", "numpy", "flax"):
        assert len(re.findall(rf"^{name}==\d", bounds, re.M)) == 1
    assert "bertjax==" not in bounds
    assert "beside what was here: nothing" in capsys.readouterr().out


@pytest.fixture
def here(install, monkeypatch):
    """The distributions that are installed; a test adds to them."""
    found = [types.SimpleNamespace(name="jax", version="0.10")]
    monkeypatch.setattr(install.metadata, "distributions", lambda: found)
    return found


def test_a_wheel_or_a_name_is_installed_as_the_checkout_is(install, commands, here):
    install.main("bertjax")
    assert commands[0][-1] == "bertjax" and len(commands) == 2
    assert commands[1][0] == "install" and commands[1][-1] == "jax==0.10\n"


def test_an_installed_bertjax_of_the_same_version_is_replaced(install, commands, here):
    here.append(types.SimpleNamespace(name="bertjax", version="0.1.0"))
    install.main()
    assert ["--force-reinstall" in it for it in commands] == [False, False, True]


@pytest.mark.usefixtures("here")
def test_what_pip_refuses_is_not_installed_and_said_so(install, monkeypatch):
    failed = subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(install.subprocess, "run", lambda command: failed)
    with pytest.raises(SystemExit, match="bertjax was not installed, and what was here has not"):
        install.main()
