"""Who imports whom: the contracts of pyproject.toml, which `lint-imports` checks by itself too."""

import pathlib
import subprocess
import sysconfig


def test_every_room_imports_only_what_lies_below_it():
    program = pathlib.Path(sysconfig.get_path("scripts"), "lint-imports")
    root = pathlib.Path(__file__).parents[1]
    done = subprocess.run([program, "--no-cache"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
