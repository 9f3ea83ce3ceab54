"""Every command that README, docs, launch scripts, recipes and programs show is one that runs.

Each is parsed by its own program, and its options are checked as the program checks them before it
reads any file. Only then does it stop.
"""

import functools
import importlib
import pathlib
import re
import shlex
import sys

import pytest
from absl import flags

from bertjax import command_line as programs_line
from bertjax import config as config_lib
from bertjax.training import config_faults
from data_pipelines import command_line as pipelines_line
from data_pipelines import options as build_options
from tests import programs

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("launch/*")])
SOURCES = sorted(
    [*ROOT.glob("configs/*.py"), *ROOT.glob("bertjax/*.py"), *ROOT.glob("data_pipelines/*.py")]
    + [ROOT / "bertjax/convert/__main__.py", ROOT / "data_pipelines/beam/__main__.py"]
)
# What stands for a value in a command: of the shell, then in capitals.
SHELL = {"split": "train", "length": "128", "dir": "quickstart", "RECIPE": "bert_base"}
PLACEHOLDERS = {"HEAD": "none", "ID": "mit", "N": "3", "configs/NAME.py": "configs/smoke.py"}
# Programs whose flags Beam parses, and lines that stand for a command's beginning.
UNPARSED = re.compile(r"data_pipelines\.beam|\$options|\.\.\.|\$config")
# A script, with the words that it takes before a recipe, a workdir and options of training.
SCRIPTS = [
    re.compile(rf"launch/(?:{names})\.sh bert{words} (\S+) (\S+)(.*)")
    for names, words in {
        "tpu_vm|queued_resource|gke": r" \S+ \S+",
        "slurm": r" \d+",
        "skypilot": "",
    }.items()
]
GONE = {"[--config.OPTION=VALUE ...]": "", "${QUICKSTART_OPTIONS:-}": ""}


def commands_in(text):
    """Returns (module, arguments) of every whole command in a text; those without arguments are
    mentions of a program."""
    for shown, meant in GONE.items():
        text = text.replace(shown, meant)
    joined = re.sub(r"\\\n\s*", " ", text)
    for script in SCRIPTS:
        joined = script.sub(r"python -m bertjax.train --config=\1 --workdir=\2\3", joined)
    found = re.findall(r"python -m ((?:bertjax|data_pipelines)\.\w+)([^`\n]*)", joined)
    for module, line in found:
        if UNPARSED.search(module + line) or not line.strip(" .,:;*)") or not line[0].isspace():
            continue
        if "=" not in line and "DIR" not in line:  # a sentence
            continue
        line = re.sub(r"\$\{?(\w+)\}?", lambda it: SHELL.get(it[1], "1"), line)
        arguments = shlex.split(re.split(r"[<>&;]|, (?:which|that)", line)[0], comments=True)
        yield module, [_filled(argument.strip("[],")) for argument in arguments]


def _filled(argument):
    name, equals, value = argument.partition("=")
    value = PLACEHOLDERS.get(value, value)
    return f"{name}{equals}{value.split('|')[0]}"


def text_of(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)).__doc__
            or ""
        )
    return re.sub(r"^#+ ?", "", text, flags=re.MULTILINE)


class Parsed(Exception):
    """A program would begin now."""


def check_program(main):
    """Stands for `command_line.run` of bertjax."""
    programs_line._parse_flags(sys.argv, "")
    module = sys.argv[0]
    if module in ("bertjax.train", "bertjax.glue"):
        config = flags.FLAGS.config
        if module == "bertjax.glue":
            config.init_from, config.finetuning.data_dir = flags.FLAGS.init_from, flags.FLAGS.data
        config_faults.validate(config)
    raise SystemExit(0)


def check_pipeline(options_class, main, *, positional=""):
    """Stands for `command_line.run` of data_pipelines."""
    values = flags.FLAGS
    pipelines_line.define_flags(options_class, values, positional)
    arguments = values(sys.argv)
    options = pipelines_line.parsed(options_class, values, positional, arguments[1:])
    if options_class is build_options.Options:
        build_options.checked(options)
    raise SystemExit(0)


def faults_of(commands, monkeypatch):
    """Returns what the programs say of the commands that they refuse."""
    monkeypatch.setattr(programs_line, "run", check_program)
    monkeypatch.setattr(pipelines_line, "run", check_pipeline)
    faults = {}
    for module, arguments in commands:
        try:
            error = programs.run(module, *arguments).error
        except (flags.Error, ValueError) as refused:
            error = str(refused)
        if error:
            faults[f"{module} {' '.join(arguments)}"] = error
    return faults


def path_id(path):
    return str(path.relative_to(ROOT))


@functools.cache
def known():
    return {path: list(commands_in(text_of(path))) for path in [*PAGES, *SOURCES]}


@pytest.mark.parametrize("path", PAGES, ids=path_id)
def test_every_command_of_a_page_is_taken_by_its_program(path, monkeypatch):
    assert faults_of(known()[path], monkeypatch) == {}


def test_every_command_of_a_recipe_and_of_a_program_is_taken_by_it(monkeypatch):
    commands = [command for path in SOURCES for command in known()[path]]
    assert faults_of(commands, monkeypatch) == {}
    recipes = [path for path in SOURCES if path.parent.name == "configs"]
    assert all(known()[path] for path in recipes)


def test_the_commands_are_found():
    modules = [module for commands in known().values() for module, _ in commands]
    assert {f"bertjax.{name}" for name in programs.NAMES} <= set(modules)
    assert modules.count("bertjax.train") > 25 and modules.count("data_pipelines.build") > 3


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("bertjax.train --config=bert_base --workdir=DIR", "config.data.train_dir is empty"),
        ("bertjax.train --config=bert_base --workdir=DIR --config.data.train_dir=RECORDS",
         "phases have 128 and 512 tokens"),
        ("bertjax.evaluate --checkpont=DIR --data=x", "--checkpont is no flag"),
        ("data_pipelines.build --input=x --vocabulary=v --output=o --max_seq_length=4",
         "max_seq_length is 4"),
        ("data_pipelines.build --input=x --output=o=4", "--vocabulary must have a value"),
    ],
)  # fmt: skip
def test_a_command_that_a_program_refuses_is_found(command, fault, monkeypatch):
    (found,) = commands_in(f"    python -m {command}\n")
    (said,) = faults_of([found], monkeypatch).values()
    assert fault in said


def test_the_commands_of_the_readme_read_what_those_before_them_wrote():
    block = next(
        it for it in re.findall(r"```bash\n(.*?)```", text_of(ROOT / "README.md"), re.DOTALL)
        if "train_vocabulary" in it
    )  # fmt: skip
    written = set()
    for module, arguments in commands_in(block):
        options = dict(it.removeprefix("--").split("=", 1) for it in arguments if "=" in it)
        for name in ("vocabulary", "checkpoint", "data", "config.data.eval_dir"):
            assert options.get(name, "none") in written | {"none"}, (module, name)
        if module == "bertjax.train":
            config = flags_of_train(arguments)
            for name in config_lib.phase_names(config):
                length = config.phases[name].max_seq_length
                assert config.data.train_dir.format(max_seq_length=length) in written
        written |= {options[name] for name in ("output", "workdir") if name in options}
    assert {"vocabulary", "train_128", "heldout_128", "runs/mini"} <= written


def flags_of_train(arguments):
    from bertjax import recipes

    values = flags.FlagValues()
    recipes.define_flag(flag_values=values)
    flags.DEFINE_string("workdir", None, "", flag_values=values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bertjax.train", *arguments])
        values(sys.argv)
    return values.config
