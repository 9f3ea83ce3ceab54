"""Virtual environments of their own, for what is tried outside of the one that runs the tests."""

import os
import pathlib
import subprocess
import sys
import sysconfig

PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def make(directory, *, python=sys.executable, borrowed=()):
    """Makes an environment; returns the directory of its programs.

    `borrowed` are directories whose packages it sees after its own.
    """
    checked(python, "-m", "venv", directory)
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = pathlib.Path(checked(directory / "bin" / "python", "-c", asked).strip())
    (packages / "borrowed.pth").write_text("".join(f"{it}\n" for it in borrowed))
    return directory / "bin"


def install(programs, *wanted):
    """Installs packages, or what else pip takes; Python compiles only the modules that are used."""
    checked(programs / "python", *PIP, "install", *wanted)


def here():
    """Returns where the packages of this environment lie."""
    return sysconfig.get_path("purelib")


def variables():
    """Returns the environment variables, without what leads here and what is set for tests.

    pip and XLA leave out what takes them long: .ci/run installs and trains without these.
    """
    names = os.environ.keys() - {"PYTHONPATH", "XLA_FLAGS"}
    kept = {name: os.environ[name] for name in names if not name.startswith("JAX_COMPILATION")}
    return kept | {"PIP_COMPILE": "0", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def checked(*command, cwd=None):
    """Runs a command, which has to succeed; returns what it printed."""
    done = subprocess.run(command, cwd=cwd, env=variables(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout
