"""The calls of the file system that fail, compiled once."""

import pathlib
import subprocess

import pytest


@pytest.fixture(scope="package")
def library(tmp_path_factory):
    """The interposed calls, compiled."""
    path = tmp_path_factory.mktemp("library") / "failing_calls.so"
    source = pathlib.Path(__file__).with_name("failing_calls.c")
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return path
