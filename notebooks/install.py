"""Installs bertjax and replaces no installed package: for Colab, Kaggle and their like.

    python notebooks/install.py [WHAT]

WHAT is a wheel, an sdist or the name `bertjax`, by default this checkout. This file also works
without one.

These images bring a jax that fits their libtpu or CUDA, and a tensorflow. `pip install .` may take
a newer jax, and lays tensorflow-cpu over the files of tensorflow. This program constrains pip to
the installed versions, and has the wheel of bertjax ask for the installed distribution of
TensorFlow. So the running kernel needs no restart. If the image is too old for bertjax, pip names
the package, and bertjax is not installed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Container
from importlib import metadata

CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
# Distributions that hold the module `tensorflow`.
TENSORFLOWS = ("tensorflow-cpu", "tensorflow", "tensorflow-tpu", "tensorflow-gpu", "tf-nightly")
# The lines of a wheel of bertjax, one for each platform.
REQUIREMENTS = re.compile(
    r"(?:^Requires-Dist: tensorflow(?:-cpu)?([<>=!~][^;\n]*);.*\n)+", re.MULTILINE
)
FAILED = (
    "bertjax was not installed, and what was here has not changed. pip says above why. Where it "
    "names a version that is too old, take a newer image of the notebook, or run `pip install .` "
    "in an environment of its own (python -m venv)."
)
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def main(what: str = str(CHECKOUT)) -> None:
    """Installs what bertjax needs and is not here, and bertjax itself."""
    before = {_plain(it.name): it.version for it in metadata.distributions()}
    with tempfile.TemporaryDirectory() as scratch:
        bounds = pathlib.Path(scratch, "installed.txt")
        others = {name: version for name, version in before.items() if name != "bertjax"}
        bounds.write_text("".join(f"{name}=={version}\n" for name, version in others.items()))
        _pip("wheel", "--no-deps", f"--wheel-dir={scratch}", what)
        wheel = next(pathlib.Path(scratch).glob("bertjax-*.whl"), None)
        if wheel is None:
            raise SystemExit(f"{what} is not bertjax; nothing was installed")
        ask_for(tensorflow_of(before), wheel)
        _pip("install", f"--constraint={bounds}", str(wheel))
        if "bertjax" in before:  # pip keeps an installed one of the same version
            _pip("install", "--no-deps", "--force-reinstall", str(wheel))
    added = {_plain(it.name) for it in metadata.distributions()} - set(before)
    print(f"installed beside what was here: {', '.join(sorted(added)) or 'nothing'}")


def tensorflow_of(installed: Container[str]) -> str:
    """Returns the distribution that brings the module `tensorflow`: the one that is here if any."""
    return next((name for name in TENSORFLOWS if name in installed), TENSORFLOWS[0])


def ask_for(tensorflow: str, wheel: pathlib.Path) -> None:
    """Has a wheel of bertjax require this distribution of TensorFlow, in the same versions."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (it for it in files if it.endswith(".dist-info/METADATA"))
    text, number = REQUIREMENTS.subn(
        rf"Requires-Dist: {tensorflow}\1\n", files[name].decode("utf-8")
    )
    if number != 1:
        raise SystemExit(f"{wheel.name} does not require TensorFlow as this program expects it.")
    files[name] = text.encode("utf-8")
    digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode().rstrip("=")
    record = name.replace("METADATA", "RECORD")
    rows = [row.split(",") for row in files[record].decode("utf-8").splitlines()]
    changed = {name: [name, f"sha256={digest}", str(len(files[name]))]}
    rows = [changed.get(row[0], row) for row in rows]
    files[record] = "".join(f"{','.join(row)}\n" for row in rows).encode("utf-8")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)


def _pip(*arguments: str) -> None:
    """Runs pip, and ends the program where pip fails."""
    if subprocess.run([*PIP, *arguments]).returncode:
        raise SystemExit(FAILED)


def _plain(name: str) -> str:
    """Returns a distribution's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Installs bertjax, replaces nothing.")
    parser.add_argument("what", nargs="?", default=str(CHECKOUT), help="a wheel, sdist or bertjax")
    main(parser.parse_args().what)
