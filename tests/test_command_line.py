"""Claims about what every program does when it ends."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
from bertjax import command_line
command_line.run(lambda argv: [print(number) for number in range({count})])
"""


def test_a_reader_that_has_enough_ends_the_program_without_a_word():
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for count in (1, 100_000):  # all at the end, and long before
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(count=count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=buffered,
        )
        program.stdout.close()
        _, errors = program.communicate()
        assert (program.returncode, errors) == (1, b"")


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ("configs/squad.py:v3", "the version is 'v3'; known are v1, v2\n"),
        ("configs/squat.py", "quickstart, smoke, squad, swag)\n"),
    ],
)
def test_a_recipe_that_is_not_there_is_told_without_a_traceback(tmp_path, recipe, reason):
    command = [sys.executable, "-m", "bertjax.train", f"--config={recipe}"]
    ended = subprocess.run(
        [*command, f"--workdir={tmp_path}"], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("bertjax: ") and ended.stderr.endswith(reason)
    assert "Traceback" not in ended.stderr
