"""The chain of the README runs as it is printed: from text to answers and to an exported model.

Each command is run by a shell, with options behind it that make it small and change nothing else.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[1]
# Module -> the options that let it end in seconds. The steps of a training follow from its records.
SMALLER = collections.defaultdict(
    str,
    {
        "data_pipelines.train_vocabulary": "--size=400",
        "data_pipelines.build": "--dupe_factor=1",
    },
)
SMALL_MODEL = (
    "--config.model.hidden_size=32 --config.model.num_attention_heads=2 "
    "--config.model.intermediate_size=64 --config.model.vocab_size=0 --config.global_batch_size=64"
)
# What each command of the chain leaves, or says on standard output.
LEAVES = {
    "data_pipelines.train_vocabulary": "vocab.txt",
    "data_pipelines.build": "manifest.json",
    "bertjax.convert": "model.safetensors",
}
SAYS = {"bertjax.evaluate": "unigram_loss", "bertjax.fill_mask": "mask 1:"}


def chain():
    """Returns the commands of the section, in order: those of its blocks and of its sentences."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## The chain\n(.*?)^## ", text, flags=re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)
    commands = re.sub(r"\\\n\s*", " ", "".join(blocks)).splitlines()
    return [line for line in commands if line.strip()]


def module_of(command):
    return re.findall(r"python -m ([\w.]+)", command)[0]


def option(command, name):
    return re.findall(rf"--{name}=(\S+)", command)[0].strip("'\"")


def write_inputs(folder):
    """Writes what the chain reads and does not make itself, under the names that it has there."""
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


def run(command, folder):
    """Runs a command of the README in a folder, made smaller, and returns what it wrote."""
    module = module_of(command)
    smaller = SMALLER[module]
    if module == "bertjax.train" and "init_from" not in command:  # else the model is given
        smaller = SMALL_MODEL
    environment = os.environ | {
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
    }
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        ["bash", "-c", f"{command} {smaller}"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


def what_a_workdir_holds():
    """Returns what the README says that a workdir holds."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^The workdir holds (.*?)\.$", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([\w.]+)/?`", sentence)


@pytest.mark.slow
def test_the_chain_of_the_readme_runs_as_printed(tmp_path):
    commands = chain()
    write_inputs(tmp_path)
    for command in commands:
        output, module = run(command, tmp_path), module_of(command)
        if file := LEAVES.get(module):
            name = "to" if module == "bertjax.convert" else "output"
            assert (tmp_path / option(command, name) / file).stat().st_size, command
        assert SAYS.get(module, "") in output, command
        if module == "bertjax.train":
            held = {path.name for path in (tmp_path / option(command, "workdir")).iterdir()}
            assert held >= set(what_a_workdir_holds()), command
    with np.load(tmp_path / "features.npz") as features:
        assert features["features"].shape == (3, 4 * 32)
    answers = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["label"] in ("good", "bad") for line in answers] == [True] * 3


def test_the_chain_goes_from_text_to_answers_and_export():
    modules = [module_of(command) for command in chain()]
    order = ["data_pipelines.train_vocabulary", "data_pipelines.build", "bertjax.train"]
    order += ["bertjax.evaluate", "bertjax.fill_mask", "bertjax.encode"]
    order += ["bertjax.train", "bertjax.predict", "bertjax.convert"]
    rest = iter(modules)
    assert all(module in rest for module in order)
