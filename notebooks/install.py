"""Installs bertjax and replaces no installed package: for Colab, Kaggle and their like.

    python notebooks/install.py

These images bring a jax that fits their libtpu or CUDA, and a tensorflow. `pip install .` may take
a newer jax, and lays tensorflow-cpu over the files of tensorflow. This program constrains pip to
the installed versions, and builds bertjax to ask for the installed distribution of TensorFlow. So
the running kernel needs no restart. If the image is too old for bertjax, pip names the package,
and bertjax is not installed.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Container
from importlib import metadata

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
# Distributions that hold the module `tensorflow`.
TENSORFLOWS = ("tensorflow-cpu", "tensorflow", "tensorflow-tpu", "tensorflow-gpu", "tf-nightly")
FAILED = (
    "bertjax was not installed, and what was here has not changed. pip says above why. Where it "
    "names a version that is too old, take a newer image of the notebook, or run `pip install .` "
    "in an environment of its own (python -m venv)."
)
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def main() -> None:
    """Installs what bertjax needs and is not here, and bertjax itself."""
    before = {_plain(it.name): it.version for it in metadata.distributions()}
    os.environ["BERTJAX_TENSORFLOW"] = tensorflow_of(before)  # setup.py reads it
    with tempfile.TemporaryDirectory() as scratch:
        bounds = pathlib.Path(scratch, "installed.txt")
        others = {name: version for name, version in before.items() if name != "bertjax"}
        bounds.write_text("".join(f"{name}=={version}\n" for name, version in others.items()))
        command = [*PIP, "install", f"--constraint={bounds}", str(CHECKOUT)]
        if subprocess.run(command).returncode:
            raise SystemExit(FAILED)
    added = {_plain(it.name) for it in metadata.distributions()} - set(before)
    print(f"installed beside what was here: {', '.join(sorted(added)) or 'nothing'}")


def tensorflow_of(installed: Container[str]) -> str:
    """Returns the distribution that brings the module `tensorflow`: the one that is here if any."""
    return next((name for name in TENSORFLOWS if name in installed), TENSORFLOWS[0])


def _plain(name: str) -> str:
    """Returns a distribution's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
