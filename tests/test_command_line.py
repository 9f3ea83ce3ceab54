"""Claims about what every program does when it ends."""

import dataclasses
import json
import logging
import os
import re
import subprocess
import sys

import pytest
from absl import flags

from bertjax import doctor
from bertjax.cli import command_line
from bertjax.cli import programs as options
from bertjax.convert import formats, heads, hub, huggingface_write
from bertjax.data import sentence_rows
from bertjax.files import text_encodings
from bertjax.inference import encoding, likelihood, vector_files
from bertjax.models import pooling
from tests import programs


@dataclasses.dataclass(frozen=True)
class Options:
    size: int = command_line.option("Rows.", default=32, at_least=1, at_most=64)
    file: str = command_line.option("A file.", default="")
    column: str = command_line.option("Of the file.", needs="file", default="text")
    stream: bool = command_line.option("No file.", excludes="file", default=False)


PROGRAM = """
import dataclasses
from bertjax.cli import command_line
command_line.parse(dataclasses.make_dataclass("Options", []), "")
command_line.run(lambda options: [print(number) for number in range({count})])
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 100_000], ids=["at the end", "before"])
def test_a_reader_that_has_enough_ends_the_program_without_a_word(count):
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", PROGRAM.format(count=count)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = subprocess.Popen(command, env=buffered, **pipes)
    program.stdout.close()
    _, errors = program.communicate()
    assert (program.returncode, errors) == (1, b"")


@pytest.mark.parametrize("platform", ["cuda", pytest.param("abacus", marks=pytest.mark.slow)])
def test_a_device_that_is_not_there_is_told_in_a_line(platform):
    told = f"bertjax: JAX_PLATFORMS is '{platform}', and JAX finds no such device"
    code = "import jax; from bertjax.cli import command_line as it, programs; "
    code += "it.parse(programs.Doctor, ''); it.run(lambda _: jax.devices())"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"JAX_PLATFORMS": platform}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 1 and ended.stderr.startswith(told), ended.stderr
    assert "unset JAX_PLATFORMS" in ended.stderr and len(ended.stderr.splitlines()) == 1


# The error of a command, as the program prints it in one line.
UNUSABLE = [
    ("--workdirr=x --config=smoke --config.data.train_dir=y",
     "--workdirr is not a flag. Did you mean --workdir? --help lists the flags"),
    ("--workdir=x --confg=smoke --config.seed=3",
     "--confg is not a flag. Did you mean --config? --help lists the flags"),
    ("--workdir=x --config.seed=3",
     "--config.seed is an option of a recipe; give --config=RECIPE before it"),
    ("--workdir=x --config.seed=3 --config=smoke",
     "--config.seed is an option of a recipe; give --config=RECIPE before it"),
    ("--config=smoke --config.seed=3", "--workdir must be given; --help lists the flags"),
    ("", "--config and --workdir must be given; --help lists the flags"),
    ("--config=smoke --workdir=x --config.model.hiden_size=3 --noconfig.serch "
     "--config.peak_learning_rate=1",
     "config.model.hiden_size is not an option. Did you mean config.model.hidden_size?; "
     "config.serch is not an option. Did you mean config.search?; config.peak_learning_rate "
     "is not an option. Did you mean config.schedule.peak_learning_rate?"),
    ("--config=configs/squad.py:v3 --workdir=x",
     "flag --config=configs/squad.py:v3: the version is 'v3'; known are v1, v2"),
    ("--config=smoke --workdir=x --config.seed=1.5",
     "flag --config.seed=1.5: '1.5' is not a whole number"),
    ("--config=smoke --workdir=x --config.seed=many",
     "flag --config.seed=many: 'many' is not a whole number"),
    ("--config=smoke --workdir=x --config.seed=1.5e0",
     "flag --config.seed=1.5e0: '1.5e0' is not a whole number"),
    ("--config=smoke --workdir=x --config.phases.phase1.num_steps=3 "
     "--config.phases.phase1.num_epochs=3",
     "flag --config=smoke: --config.phases.phase1.num_steps and "
     "--config.phases.phase1.num_epochs are both given; one is enough"),
]  # fmt: skip


def test_a_command_that_cannot_be_used_is_reported_in_a_line_that_names_the_fault():
    for arguments, reason in UNUSABLE:
        done = programs.run("bertjax.train", *arguments.split())
        assert done.error == f"bertjax: the command line cannot be used: {reason}"


def test_whole_numbers_may_be_written_with_an_exponent(tmp_path):
    config = "--config=smoke --config.data.source=record --config.phases.phase1.num_steps=1.5e3 "
    config += "--config.checkpoint.save_every_steps=-1e+2"
    done = programs.run("bertjax.train", *config.split(), f"--workdir={tmp_path}")
    assert "config.checkpoint.save_every_steps is -100; it must be" in done.error
    assert "not a whole number" not in done.error and "num_steps" not in done.error


def test_a_flag_of_a_program_is_a_whole_number_in_its_bounds():
    values = flags.FlagValues()
    command_line.define_flags(Options, values)
    values(["program", "--size=3.2e1"])
    assert values["size"].value == 32
    reasons = {it: f"'{it}' is not a whole number" for it in ("1.5", "1e-3", "1.2.3e4", "1e999")}
    for value, reason in reasons.items():
        message = re.escape(f"--size={value}: {reason}")
        with pytest.raises(flags.IllegalFlagValueError, match=message):
            values(["program", f"--size={value}"])
    for value, fault in (
        ("-1e3", "--size is -1000; .* at least 1 and at most 64"),
        ("65", "is 65"),
    ):
        values(["program", f"--size={value}"])
        with pytest.raises(ValueError, match=fault):
            command_line.parsed(Options, values)
    assert "Rows. (at least 1 and at most 64)" in values.get_help()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--column=x"], "--column goes with --file"),
        (["--stream", "--file=x"], "--stream cannot be given with --file"),
        (["x"], "'x' is not a flag"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, fault):
    values = flags.FlagValues()
    command_line.define_flags(Options, values)
    _, *rest = values(["program", *arguments])
    with pytest.raises(ValueError, match=fault):
        command_line.parsed(Options, values, rest)


def test_options_in_python_are_checked_as_a_command_line_is():
    assert command_line.made(options.Vectors, layers="last4") == options.Vectors(layers="last4")
    for wrong, fault in (
        ({"layer": "last"}, "Did you mean layers"),
        ({"layers": "last44"}, "layers is 'last44'.*Did you mean last4"),
    ):
        with pytest.raises(ValueError, match=fault):
            command_line.made(options.Vectors, **wrong)
    for size in (0, 65, float("nan")):
        with pytest.raises(ValueError, match=f"--size is {size}; it must be at least 1"):
            command_line.made(Options, size=size)


def test_the_choices_of_flags_are_the_keys_of_the_tables_that_they_choose_from():
    assert list(encoding.LAYERS) == [*options.LAYERS]
    assert list(pooling.POOLINGS) == [*options.POOLINGS]
    assert list(vector_files.FORMATS) == [*options.VECTOR_FORMATS]
    assert list(sentence_rows.MASKINGS) == [*options.MASKINGS]
    assert list(likelihood.READINGS) == [*options.READINGS]
    assert list(formats.WRITERS) == [*options.WEIGHT_FORMATS]
    assert list(huggingface_write.DTYPES) == [*options.DTYPES]
    assert {*heads.HEADS} == {*options.HEADS}
    assert list(doctor.PROBES) == [*options.PROBES]
    assert options.Predict(checkpoint="x").encoding == text_encodings.UTF8
    assert options.Convert(source="x", target="y").revision == hub.MAIN


# Program -> a mistake in its command.
MISTAKES = {
    "train": "--config=smoke --wordir=x",
    "finish": "",
    "evaluate": "--checkpoint=x",
    "predict": "--checkpoint=x --batch_size=big",
    "generate": "--checkpoint=x lines.txt",
    "encode": "--checkpoint=x --layers=first",
    "fill_mask": "--checkpoint=x",
    "score": "--checkpoint=x --masking=all",
    "glue": "--config=glue:rte",
    "plan": "--topology=v5e-1",
    "doctor": "--only=net",
    "compare": "",
    "start": "--input=x",
    "convert": "--from=x --to=y --private",
}


# Runs each program with its mistake, in a process that has imported nothing slow.
RUNS = """
import json, runpy, sys
from absl.testing import flagsaver
from bertjax.cli import command_line

for name, arguments in json.loads(sys.argv[1]).items():
    sys.argv = [name, *arguments.split()]
    with flagsaver.flagsaver():
        try:
            runpy.run_module(f"bertjax.{name}", run_name="__main__")
        except SystemExit as end:
            print(name, end.code, *({"jax", "tensorflow", "numpy"} & set(sys.modules)))
"""


def test_a_mistake_in_a_command_is_reported_before_jax_and_tensorflow_are_imported():
    command = [sys.executable, "-c", RUNS, json.dumps(MISTAKES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [[name, "bertjax:"] for name in MISTAKES]
    assert not [line for line in lines if line.endswith(("jax", "tensorflow", "numpy"))]


def test_help_lists_the_flags_of_a_program_and_the_options_of_a_recipe_with_their_comments():
    def shown(program, *arguments):
        return programs.succeed(f"bertjax.{program}", *arguments).output.decode()

    flags_of_predict = shown("predict", "--help")
    assert flags_of_predict.startswith("A finetuned model answers JSON lines")
    assert "\n  --checkpoint: Workdir of " in flags_of_predict
    rows = "Rows at a time, over all devices. (at least 1 and at most 16,777,216) (default: '32')"
    assert f"\n  --batch_size: {rows}" in flags_of_predict
    assert "--help=config" not in flags_of_predict
    (first,) = [it for it in flags_of_predict.splitlines() if it.endswith("(required)")]
    assert first.startswith("  --checkpoint:") and "--input: " in flags_of_predict.split(first)[1]
    assert re.search(r"--hours: .*\(default: '0.0'\)", shown("start", "--help"))
    assert "--help=config lists them" in shown("train", "-h")
    lines = shown("train", "--help=config", "--config=squad:v2").splitlines()
    options = dict(map(str.strip, line.strip().partition("  ")[::2]) for line in lines)
    assert "--config.finetuning.name=v2" in options
    stride = options["--config.finetuning.doc_stride=128"]
    assert stride == "squad: tokens from window to window"
    assert options["--config.task=finetuning"].endswith("; known are pretraining, finetuning")
    assert [line.split()[0] for line in shown("glue", "--help=warmup").splitlines()] == [
        *("--config.schedule.warmup_share=0.1", "--config.schedule.warmup_steps=10000"),
        "--config.schedule.warmup_tokens=0",
    ]
    assert "--config.phases.phase1.num_steps=1000000" in shown("train", "--help=phase1")
    assert "no recipe smok" in programs.run("bertjax.train", "--help=x", "--config=smok").error


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_program_with_closed_streams_ends_as_with_open_ones_and_writes_into_no_file(
    tmp_path, closed
):
    (tmp_path / "c.txt").write_text("A word or two.\n\nOne more word, two more words.\n" * 20)
    command = f"{sys.executable} -m data_pipelines.train_vocabulary --input={tmp_path}/c.txt"
    done = subprocess.run(
        f"{command} --output={tmp_path}/v --size=60 {closed}", shell=True, stderr=subprocess.PIPE
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "v" / "vocab.txt").read_text().startswith("[PAD]\n[UNK]\n")


@pytest.mark.parametrize(
    ("name", "path", "level", "is_shown"),
    [
        ("absl", "/lib/orbax/checkpoint/future.py", logging.ERROR, False),
        ("asyncio", "/lib/asyncio/base_events.py", logging.ERROR, False),
        ("absl", "/lib/orbax/checkpoint/future.py", logging.WARNING, True),
        ("absl", "/home/bertjax/train.py", logging.ERROR, True),
        ("jax", "/lib/jax/xla_bridge.py", logging.INFO, False),
    ],
)
def test_errors_that_are_raised_as_well_are_not_logged_by_each_thread(name, path, level, is_shown):
    record = logging.LogRecord(name, level, path, 1, "a message", (), None)
    assert command_line._is_ours(record) == is_shown


def test_a_path_of_a_flag_may_begin_with_the_home_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    argv = [
        "x",
        "--output=~/a",
        "--input=b,~/c/*.txt",
        "~/ is home",
        "--text=a~/b",
        "--dir=~other/d",
    ]
    assert command_line.with_home(argv) == [
        *("x", "--output=/home/me/a", "--input=b,/home/me/c/*.txt", "~/ is home", "--text=a~/b"),
        "--dir=~other/d",
    ]


def test_a_terminal_obeys_no_name_of_a_file(capsys):
    """A column may be called ESC ]0;hi BEL, which renames the window."""
    command_line.print_report("a \x1b]0;hi\x07\tb")
    assert capsys.readouterr().out == "a \\x1b]0;hi\\x07\tb\n"
    with pytest.raises(SystemExit, match=r"column '\\x1b' of\n t"):
        command_line.fail("column '\x1b' of\n t")
