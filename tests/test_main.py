"""Claims about `bertjax PROGRAM`: it is `python -m` of a module, and its help costs nothing."""

import json
import subprocess
import sys

import pytest

import bertjax
from bertjax import __main__ as console
from bertjax.training import config_faults, preemption
from tests import programs

# Beam takes the flags that are left over, and its import takes seconds.
HERE = {name: module for name, module in console.programs().items() if name != "beam"}


def test_every_program_is_known_once_by_its_name():
    known = console.programs()
    assert {f"bertjax.{name}" for name in programs.NAMES} <= {*known.values()}
    assert known["build"] == "data_pipelines.build" and known["beam"] == "data_pipelines.beam"
    assert known["train_vocabulary"] == "data_pipelines.train_vocabulary"
    assert all(module.rpartition(".")[2] == name for name, module in known.items())
    assert "config" not in known and "workers" not in known


@pytest.mark.parametrize("flag", ["--help", "-h", "help"])
def test_help_lists_every_program_with_the_first_line_of_its_docstring(flag):
    shown = programs.succeed("bertjax", flag).output.decode().splitlines()
    for name in console.programs():
        (line,) = (it for it in shown if it.split()[:1] == [name])
        assert line.endswith(".") and len(line.split()) > 5
    (line,) = (it for it in shown if it.split()[:1] == ["doctor"])
    assert "Is this machine fit to train on?" in line


def test_help_imports_no_jax():
    code = (
        "import sys; from bertjax import __main__ as m; sys.argv = ['bertjax', '--help']; m.main()"
    )
    code += "; print('imported:', {'jax', 'numpy', 'absl', 'tensorflow'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "imported: set()", done.stderr


# Prints what each command prints. Some describe __main__, which here is pytest.
PRINTED = """
import contextlib, io, json, runpy, sys
from absl import app
from absl.testing import flagsaver

app.define_help_flags()
for module, *arguments in json.loads(sys.argv[1]):
    sys.argv, printed = [module, *arguments], io.StringIO()
    with flagsaver.flagsaver(), contextlib.redirect_stdout(printed):
        with contextlib.suppress(SystemExit):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    print(json.dumps(printed.getvalue()))
"""


def test_a_program_has_the_flags_and_the_help_of_its_module():
    commands = [["bertjax", name, "--help"] for name in HERE]
    commands += [[module, "--help"] for module in HERE.values()]
    python = [sys.executable, "-c", PRINTED, json.dumps(commands)]
    done = subprocess.run(python, capture_output=True, text=True, timeout=300)
    helps = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(helps) == len(commands), done.stderr
    by_name, by_module = helps[: len(HERE)], helps[len(HERE) :]
    assert by_name == by_module and all("--" in shown for shown in by_name)


@pytest.mark.parametrize(
    "command",
    [
        "train --config=smok --workdir=x",
        "train --config=smoke --workdir=x --config.seeds=0",
        "build --input=x",
    ],
)
def test_a_program_ends_as_its_module_does(command):
    name, *arguments = command.split()
    by_module = programs.run(console.programs()[name], *arguments)
    assert by_module.error and programs.run("bertjax", name, *arguments) == by_module


@pytest.mark.parametrize(("by_hand", "code"), [(False, "75"), (True, "130")])
def test_a_stopped_run_ends_with_the_code_of_its_signal(monkeypatch, tmp_path, by_hand, code):
    def preempt(_):
        raise preemption.Preempted(3, by_hand=by_hand)

    monkeypatch.setattr(config_faults, "validate", preempt)
    arguments = ("--config=smoke", f"--workdir={tmp_path}")
    assert programs.run("bertjax.train", *arguments).error == code
    assert programs.run("bertjax", "train", *arguments).error == code


def test_a_wrong_name_lists_the_known_ones():
    error = programs.run("bertjax", "trian").error
    assert error.startswith("bertjax: 'trian' is not a program. Did you mean train? Known are ")
    assert all(name in error for name in console.programs())
    assert "doctor" in programs.run("bertjax").error  # without a name


def test_the_version_is_told():
    assert programs.succeed("bertjax", "--version").output.decode() == f"{bertjax.__version__}\n"


@pytest.mark.slow
def test_processes_that_a_program_starts_find_their_way(tmp_path):
    (tmp_path / "text.txt").write_text("A sentence of words. Another one follows it.\n\n" * 300)

    def succeed(*arguments):
        command = [sys.executable, "-m", "bertjax", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr

    succeed("train_vocabulary", "--input=text.txt", "--output=vocabulary", "--size=40")
    given = ["--input=text.txt", "--vocabulary=vocabulary", "--output=records"]
    succeed("build", *given, "--max_seq_length=32", "--num_workers=2")
    assert (tmp_path / "records" / "manifest.json").exists()
