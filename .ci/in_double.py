"""Outputs, losses and gradients of every family compared with transformers', all in float64.

`python .ci/in_double.py [OPTIONS OF PYTEST]` copies the tracked files and writes float64 in place
of float32 into the models, their tasks and tests/interop/test_families.py of the copy. Then it runs
that test's comparison with torch, whose casts to float32 become casts to float64, and asks for
1e-9 of a tensor's largest entry. Nothing is left to rounding: a difference is a formula's.

Outside of the gate: it takes a few minutes, and needs `.[test]`, `.[interop]` and torch.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import jax
import mutants
import numpy as np
import pytest
import torch

TEST = "tests/interop/test_families.py"
CHOSEN = f"{TEST}::test_outputs_losses_and_gradients_are_theirs"
SOURCES = ("bertjax/models/**/*.py", "bertjax/tasks/*.py", "bertjax/options/encoder.py", TEST)
LIMITS = ("SHARE, ZERO = 1e-5, 5e-7", "SHARE, ZERO = 1e-9, 1e-14")


def copy_in_double(target: pathlib.Path) -> None:
    """Copies the tracked files, with float64 for float32 in SOURCES."""
    mutants.copy_tracked(target)
    for path in {path for pattern in SOURCES for path in target.glob(pattern)}:
        text = path.read_text(encoding="utf-8").replace("float32", "float64")
        path.write_text(text.replace(*LIMITS), encoding="utf-8")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Makes both models wide; pytest calls it in the copy, where this file is a plugin."""
    if not session.items:  # -k chose none
        return
    test = session.items[0].module
    assert (test.SHARE, test.ZERO) == (1e-9, 1e-14)

    single_dtype = torch.float32

    @contextlib.contextmanager
    def in_double():
        wide = mock.patch.multiple(torch, float=torch.float64, float32=torch.float64)
        with wide, mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            torch.set_default_dtype(torch.float64)
            try:
                yield
            finally:
                torch.set_default_dtype(single_dtype)

    def wide_of_torch(*args, **changes):
        single, read = of_torch(*args, **changes)
        with in_double():
            double = type(single)(single.config)
        weights = single.state_dict()
        trained = {name: it for name, it in weights.items() if not name.endswith("inv_freq")}
        double.load_state_dict(trained, strict=False)
        forward = double.forward

        def wide_forward(**inputs):
            with in_double():
                return forward(**inputs)

        double.forward = wide_forward
        return double.eval(), read

    def wide_module_of(read, **options):
        graphdef, params = module_of(read, **options)
        return graphdef, jax.tree.map(np.float64, params)

    of_torch, test.of_torch = test.of_torch, wide_of_torch
    module_of, test.outputs.module_of = test.outputs.module_of, wide_module_of
    test.assert_state = lambda *_: None  # the exports are in float32


def main() -> int:
    """Runs the comparison in a copy."""
    with tempfile.TemporaryDirectory(prefix="bertjax_in_double_") as directory:
        copy_in_double(pathlib.Path(directory))
        command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "in_double", CHOSEN]
        paths = os.pathsep.join((directory, f"{directory}/.ci"))
        env = os.environ | {"JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
        return subprocess.run([*command, *sys.argv[1:]], cwd=directory, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
