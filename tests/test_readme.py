"""What README and docs say is so: the example runs; files, modules, options, links exist."""

import dataclasses
import importlib
import pathlib
import re

import numpy as np
import pytest
from apache_beam.options import pipeline_options

from bertjax import config as config_lib
from bertjax import tasks
from data_pipelines.beam import program
from tests import programs

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted(
    [ROOT / "README.md", *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md"]
    + [ROOT / "launch/README.md"]
)
FOLDERS = "bertjax|data_pipelines|configs|launch|benchmarks|docs|tests"
PLACEHOLDER = re.compile(r"NAME")
# Of the launcher, Python or another program, not of the module that the command runs.
COMMON_FLAGS = {"help", "verbosity"}


def text_of(page):
    """Returns a page without its HTML comments, which hold what is still to come."""
    return re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def page_id(page):
    return str(page.relative_to(ROOT))


def missing_options(text):
    """Returns the names of config options in `text` that default_config() does not have."""
    known = {name for name, _ in config_lib.flatten(config_lib.default_config())}
    known |= {name.rsplit(".", depth)[0] for name in known for depth in (1, 2)}
    known |= {f"phases.phase2.{name}" for name in config_lib.phase_config()}
    found = re.findall(r"(?:--|`)config\.([a-z_0-9]+(?:\.[a-z_0-9]+)*)", text)
    others = {"json", "py", *vars(config_lib)}  # config.json, config.py and what the module holds
    return {name for name in found if name not in known and name.split(".")[0] not in others}


def missing_files(text):
    """Returns the paths into our folders in `text` that are not there."""
    paths = re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w/.-]*\w)", text)
    return {path for path in paths if not (ROOT / path).exists() and not PLACEHOLDER.search(path)}


def missing_modules(text):
    """Returns what `python -m` runs in `text` that has no file."""
    modules = re.findall(r"python -m ((?:bertjax|data_pipelines)[\w.]*)", text)
    return {name for name in modules if not module_path(name).exists()}


def module_path(name):
    path = ROOT / name.replace(".", "/")
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def broken_links(page):
    """Returns the relative links of a page that lead nowhere."""
    targets = re.findall(r"\]\(([^)#\s]+)", text_of(page))
    return {
        target for target in targets if "://" not in target and not (page.parent / target).exists()
    }


def unknown_flags(text):
    """Returns `module --flag` for every flag that the module of its command does not define."""
    joined = re.sub(r"\\\n\s*", " ", text)
    # A command ends with its line or with the code span that holds it.
    commands = re.findall(r"python -m ((?:bertjax|data_pipelines)\.\w+)([^`\n]*)", joined)
    return {
        f"{module} --{flag}"
        for module, arguments in commands
        for flag in re.findall(r"(?<!\S)\[?--([a-z_]+)(?=[=\s\]]|$)", arguments)
        if flag not in flags_of(module) and flag not in COMMON_FLAGS
    }


def flags_of(module):
    """Returns the flags of a main: an Options field each, or what its source defines."""
    if module == "data_pipelines.beam":  # passes on what Beam and its runners know
        ours = {field.name for field in dataclasses.fields(program.BeamOptions)}
        # Those for Dask have other names there.
        source = pathlib.Path(program.__file__).read_text(encoding="utf-8")
        of_dask = set(re.findall(r"\"--(dask_\w+)\"", source))
        return ours | of_dask | set(pipeline_options.PipelineOptions([]).get_all_options())
    imported = importlib.import_module(module)
    if module.startswith("data_pipelines."):
        return {field.name for field in dataclasses.fields(imported.Options)}
    source = module_path(module).read_text(encoding="utf-8")
    for shared in re.findall(r"(\w+)\.define_flags?\(", source):  # as recipes.define_flag()
        source += pathlib.Path(getattr(imported, shared).__file__).read_text(encoding="utf-8")
    return set(re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", source))


def stray_flags(text):
    """Returns the flags of code spans in `text` that no program of ours defines."""
    mains = [
        f"data_pipelines.{name}"
        for name in ("train_vocabulary", "build", "inspect_records", "beam")
    ]
    mains += [f"bertjax.{name}" for name in programs.NAMES]
    known = set().union(*map(flags_of, mains), COMMON_FLAGS)
    for path in (ROOT / "benchmarks").glob("*.py"):
        program = path.read_text(encoding="utf-8")
        known |= set(re.findall(r"\"--(\w+)\"", program))
        # Some have the fields of a dataclass or the keys of a table for flags.
        known |= set(re.findall(r"^    (\w+): (?:str|int|float) = ", program, flags=re.M))
        known |= set(re.findall(r"^    \"(\w+)\": [A-Z]\w+\(", program, flags=re.M))
    spans = " ".join(re.findall(r"`(--[^`\n]*)`", text))
    flags = re.findall(r"(?<!\S)--([a-z_]+)(?![\w.])", spans)
    return {flag for flag in flags if not {flag, flag.removeprefix("no")} & known}


@pytest.mark.slow
def test_the_example_of_the_readme_runs_and_learns(capsys):
    blocks = re.findall(r"```python\n(.*?)```", text_of(ROOT / "README.md"), flags=re.DOTALL)
    assert len(blocks) == 1
    names = {"__name__": "readme"}
    exec(compile(blocks[0], "README.md", "exec"), names)
    assert np.log(2) > names["loss"] > 0  # below what a coin scores on two classes
    assert "loss of the last step" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_option_file_module_and_link_of_a_page_exists(page):
    text = text_of(page)
    missing = missing_options(text) | missing_files(text) | missing_modules(text)
    assert not missing | broken_links(page) | unknown_flags(text) | stray_flags(text)


def test_every_row_of_the_recipe_table_is_a_recipe_and_every_recipe_a_row():
    first_cells = re.findall(r"^\| (`configs/[^|]*) \|", text_of(ROOT / "docs/training.md"), re.M)
    named = re.findall(r"`(?:configs/)?(\w+\.py)`", "".join(first_cells))
    assert sorted(named) == sorted(path.name for path in ROOT.glob("configs/*.py"))


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (missing_options, "--config.optimizer.weight_decay=0 --config.optimizer.decay=0"),
        (missing_files, "`configs/bert_base.py` and `configs/bert_huge.py`"),
        (missing_modules, "python -m bertjax.train and python -m bertjax.plan_everything"),
        (unknown_flags, "python -m data_pipelines.build --input=x \\\n  --length=128"),
        (stray_flags, "`--nodo_lower_case`, `--lower_case`, `--distributed` and `--hidden_size=1`"),
        (unknown_flags, "`python -m bertjax.encode --checkpoint=x --layer=last`"),
    ],
)
def test_the_checks_find_the_one_thing_that_does_not_exist(check, fault):
    assert len(check(fault)) == 1


def test_the_page_of_options_names_every_objective():
    lines = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if line.startswith("| `config.pretraining.objective`")]
    assert not [name for name in tasks.OBJECTIVES if f"`{name}`" not in row]
