"""Every command that README, docs, launch scripts, recipes and programs show is one that runs.

Each is parsed by its own program, and its options are checked as the program checks them before it
reads any file. The chain of the README is run whole, with options behind each command that make it
small and change nothing else.
"""

import functools
import importlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest

from bertjax import __main__ as console
from bertjax import config as config_lib
from bertjax.cli import command_line
from bertjax.jobs import automatic
from bertjax.training import config_faults
from data_pipelines.building import options as build_options
from tests import programs

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("launch/*")])
SOURCES = sorted(
    [*ROOT.glob("configs/*.py"), *ROOT.glob("bertjax/*.py"), *ROOT.glob("data_pipelines/*.py")]
    + [*ROOT.glob("bertjax/*/__main__.py"), *ROOT.glob("data_pipelines/*/__main__.py")]
)
PACKAGES, PROGRAMS = "|".join(console.PACKAGES), console.programs()
# Values of placeholders: of the shell, then in capitals.
SHELL = {"split": "train", "length": "128", "dir": "quickstart", "RECIPE": "bert_base"}
PLACEHOLDERS = {"HEAD": "none", "ID": "mit", "N": "3", "configs/NAME.py": "configs/smoke.py"}
# Programs whose flags Beam parses, and lines that are the beginning of a command.
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


def commands_in(text):
    """The (module, arguments) of every whole command in a text, without mentions of a program."""
    text = text.replace("[--config.OPTION=VALUE ...]", "")
    text = text.replace("${QUICKSTART_OPTIONS:-}", "").replace(" [--hours=2]", "")
    for script in SCRIPTS:
        text = script.sub(r"python -m bertjax.train --config=\1 --workdir=\2\3", text)
    for module, line in mentions_in(text):
        if UNPARSED.search(module + line) or ("=" not in line and "DIR" not in line):
            continue
        line = re.sub(r"\$\{?(\w+)\}?", lambda it: SHELL.get(it[1], "1"), line)
        arguments = shlex.split(re.split(r"[<>&;]|, (?:which|that)", line)[0], comments=True)
        yield module, tuple(filled(argument.strip("[],")) for argument in arguments)


def mentions_in(text):
    """The (module, rest of the line) of every mention of a program."""
    short = rf"(?<![\w./-])bertjax (?=(?:{'|'.join(PROGRAMS)}) )"
    text = re.sub(short, "python -m bertjax.", text)
    for package, name, rest in re.findall(rf"python -m ({PACKAGES})\.(\w+)( [^`\n]*)", text):
        # `bertjax build` is a program of data_pipelines.
        yield (PROGRAMS.get(name, f"{package}.{name}"), rest)


def filled(argument):
    name, equals, value = argument.partition("=")
    return f"{name}{equals}{PLACEHOLDERS.get(value, value).split('|')[0]}"


@functools.cache
def commands_of(path):
    return list(commands_in(text_of(path)))


def text_of(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        text = importlib.import_module(module).__doc__ or ""
    return re.sub(r"\\\n\s*", " ", re.sub(r"^#+ ?", "", text, flags=re.MULTILINE))


def check_options(main, choices=None):
    """Stands for `command_line.run`."""
    options, module = command_line._program.options, sys.argv[0]
    if isinstance(options, build_options.Options):
        build_options.checked(options)
    if module in ("bertjax.train", "bertjax.glue"):
        config = options.config
        if module == "bertjax.glue":
            config.init_from, config.finetuning.data_dir = options.init_from, options.data
        # Records would decide the options that a recipe leaves open.
        defaults = config_lib.default_config().to_dict()
        config_faults.validate(automatic.decided(config, defaults))
    raise SystemExit(0)


@functools.cache
def refusal(module, arguments):
    """What the program says if it refuses a command, else ""."""
    with mock.patch.object(command_line, "run", check_options):
        try:
            return programs.run(module, *arguments).error
        except ValueError as error:
            return str(error)


@pytest.mark.parametrize("paths", [*([page] for page in PAGES), SOURCES], ids=lambda it: it[0].name)
def test_every_documented_command_is_accepted_by_its_program(paths):
    commands = [command for path in paths for command in commands_of(path)]
    assert {command: refusal(*command) for command in commands if refusal(*command)} == {}


def test_a_program_that_is_mentioned_has_the_flags_of_the_mention():
    """Also where the command is not whole: `python -m bertjax.train ... --distributed`."""
    flags = set()
    for path in (*PAGES, *SOURCES):
        whole = {(module, it.split("=")[0]) for module, line in commands_of(path) for it in line}
        for module, rest in mentions_in(text_of(path)):
            line = re.split(r"[<>&;|]|, (?:which|that)| #", rest)[0]
            given = re.findall(r"(?<=\s)\[?(--[a-z_]+)(?![\w.])", line)
            flags |= {(module, flag) for flag in given} - whole
    flags = {it for it in flags if not UNPARSED.search(it[0]) and it[1] != "--help"}
    assert len(flags) > 10
    assert [it for it in sorted(flags) if "is not a flag" in refusal(it[0], (f"{it[1]}=1",))] == []
    assert "is not a flag" in refusal("bertjax.encode", ("--max_seq_length=1",))


def test_the_commands_are_seen():
    modules = [module for path in (*PAGES, *SOURCES) for module, _ in commands_of(path)]
    assert {f"bertjax.{name}" for name in programs.NAMES} <= set(modules)
    assert modules.count("bertjax.train") > 25 and modules.count("data_pipelines.build") > 3
    assert all(commands_of(path) for path in ROOT.glob("configs/*.py"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("bertjax.train --config=bert_base --workdir=DIR", "config.data.train_dir is empty"),
        ("bertjax.train --config=bert_base --workdir=DIR --config.data.train_dir=RECORDS",
         "phases have 128 and 512 tokens"),
        ("bertjax.evaluate --checkpont=DIR --data=x", "--checkpont is not a flag"),
        ("data_pipelines.build --input=x --vocabulary=v --output=o --max_seq_length=4",
         "max_seq_length is 4"),
        ("data_pipelines.build --input=x --output=o=4", "--vocabulary must be given"),
    ],
)  # fmt: skip
def test_a_command_that_its_program_refuses_is_found(command, message):
    (found,) = commands_in(f"    python -m {command}\n")
    assert message in refusal(*found)


# Module -> the options that let it end in seconds. The steps of a training follow from its records.
SMALLER = {
    "data_pipelines.train_vocabulary": "--size=400",
    "data_pipelines.build": "--dupe_factor=1",
    "bertjax.train": "--config.model.hidden_size=32 --config.model.num_attention_heads=2 "
    "--config.model.intermediate_size=64 --config.model.vocab_size=0 --config.global_batch_size=64 "
    "--config.phases.phase1.num_epochs=3",
}
# Module -> the flag of its output, and a file there.
WRITES = {
    "data_pipelines.train_vocabulary": ("output", "vocab.txt"),
    "data_pipelines.build": ("output", "manifest.json"),
    "bertjax.train": ("workdir", "config.json"),
    "bertjax.convert": ("to", "model.safetensors"),
}
PRINTS = {"bertjax.evaluate": b"unigram_loss", "bertjax.fill_mask": b"mask 1:"}
CHAIN = ["train_vocabulary", "build", "build", "train", "evaluate", "fill_mask", "encode"]
CHAIN += ["train", "predict", "convert"]


def write_inputs(folder):
    """Writes what the chain reads and does not make, under the names that it has there."""
    rng = np.random.default_rng(0)
    things = ["array", "function", "method", "class", "module", "statement", "import", "package"]
    verbs = ["returns", "uses", "holds", "makes", "reads", "imports"]

    def sentence():
        return f"The {rng.choice(things)} {rng.choice(verbs)} a {rng.choice(things)}."

    (folder / "corpus").mkdir()
    for number in range(2):
        documents = [" ".join(sentence() for _ in range(8)) for _ in range(50)]
        (folder / "corpus" / f"{number}.txt").write_text("\n\n".join(documents))
    (folder / "lines.txt").write_text("".join(f"{sentence()}\n" for _ in range(3)))
    for name, count in {"train.csv": 32, "dev.csv": 16}.items():
        rows = [f"{sentence()},{('good', 'bad')[row % 2]}\n" for row in range(count)]
        (folder / name).write_text("text,label\n" + "".join(rows))
    texts = [json.dumps({"text": sentence()}) for _ in range(3)]
    (folder / "examples.jsonl").write_text("\n".join(texts) + "\n")


def run(module, command):
    """Runs a command of the README, made smaller; returns what it prints.

    The shell runs what reads or writes a stream; other programs run in this process, where their
    libraries are imported already.
    """
    line, *redirected = re.split(r" ([<>]) ", command)
    files = {sign: pathlib.Path(name) for sign, name in zip(*[iter(redirected)] * 2, strict=True)}
    arguments = shlex.split(line)[3:]
    if "init_from" not in command:  # else the model is given
        arguments += SMALLER.get(module, "").split()
    if files:
        words = shlex.join([sys.executable, "-m", module, *arguments])
        line = " ".join([words, *(f"{sign} {name}" for sign, name in files.items())])
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True)
        assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr.decode()
        return done.stdout
    done = programs.run(module, *arguments)
    assert not done.error, f"{command}\n{done.error}"
    return done.output


@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "quick_runs")
def test_the_chain_of_the_readme_goes_from_text_to_predictions_and_an_export(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## The chain\n(.*?)^## ", text, flags=re.DOTALL | re.MULTILINE)
    blocks = "".join(re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL))
    commands = re.sub(r"\\\n\s*", " ", blocks).split("\n")
    (held,) = re.findall(r"^The workdir holds (.*?)\.$", text, flags=re.DOTALL | re.MULTILINE)
    write_inputs(tmp_path)
    modules = []
    for command in filter(str.strip, commands):
        module = re.findall(r"python -m ([\w.]+)", command)[0]
        modules.append(module.split(".")[1])
        output = run(module, command)
        assert PRINTS.get(module, b"") in output, command
        if module in WRITES:
            flag, file = WRITES[module]
            folder = tmp_path / re.findall(rf"--{flag}=(\S+)", command)[0].strip("'\"")
            assert (folder / file).stat().st_size, command
            names = re.findall(r"`([\w.]+)/?`", held) if module == "bertjax.train" else []
            assert {it.name for it in folder.iterdir()} >= set(names), command
    assert modules == CHAIN
    with np.load(tmp_path / "features.npz") as features:
        assert features["features"].shape == (3, 4 * 32)
    answers = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] in ("good", "bad") for line in answers] == [True] * 3
