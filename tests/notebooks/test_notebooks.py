"""The notebooks run from top to bottom, and hold what came out of such a run."""

import ast
import functools
import importlib
import itertools
import pathlib
import re

import nbformat
import pytest

import bertjax
from tests import environments, marks

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
SLOW = [it for it in NOTEBOOKS if it.stem != "finetune_and_serve"]
BADGE = "https://colab.research.google.com/github/bertjax/bertjax/blob/main/notebooks/{}"
MEGABYTE = 2**20


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Python of an environment with what executes a notebook, and nothing of ours."""
    programs = environments.make(tmp_path_factory.mktemp("clean"))
    environments.install(programs, "ipykernel", "nbclient")
    return programs / "python"


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def python_of(cell):
    """Returns the Python of a cell: what IPython runs in a shell, or as a magic, is left out."""
    lines = cell.source.splitlines()
    return "\n".join(re.sub(r"^(\s*)(?:\w+ = !|!|%).*", r"\1pass", line) for line in lines)


def names_of_bertjax(tree):
    """Returns (object, name) of everything that a program takes from bertjax."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bertjax"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if hasattr(module, "__path__") and not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                yield module, alias.name
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node).split(".")
            if dotted[0] == "bertjax" and all(part.isidentifier() for part in dotted):
                yield functools.reduce(getattr, dotted[1:-1], bertjax), dotted[-1]


def outputs_of(notebook):
    return [output for cell in code_of(notebook) for output in cell.outputs]


def shown_by(cell):
    """Returns the types of a cell's outputs, once where a run redraws them.

    Warnings are left out: bertjax warns of little text and of few steps, which the test has.
    """
    shown = (output for output in cell.outputs if output.get("name") != "stderr")
    return [kind for kind, _ in itertools.groupby(output.output_type for output in shown)]


def test_there_are_three_whose_first_cell_is_the_same_and_installs():
    names = ["finetune_and_serve", "modules_in_your_project", "pretrain_your_own_bert"]
    assert [path.stem for path in NOTEBOOKS] == names
    (first,) = {code_of(nbformat.read(path, as_version=4))[0].source for path in NOTEBOOKS}
    assert "notebooks/install.py" in first and "git clone" in first


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_opens_in_colab_and_holds_the_outputs_of_a_whole_run(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < MEGABYTE
    assert BADGE.format(path.name) in notebook.cells[0].source
    assert BADGE.format(path.name) in (ROOT / "README.md").read_text(encoding="utf-8")
    counts = [cell.execution_count for cell in code_of(notebook)]
    assert counts == [*range(1, len(counts) + 1)] and outputs_of(notebook)
    assert "error" not in {output.output_type for output in outputs_of(notebook)}
    for private in (r"Traceback", r"/tmp/", r"/root/", r"/home/", r"Error:", r"\x1b\["):
        assert not re.search(private, str(outputs_of(notebook))), private


def test_the_cells_parse_and_take_from_bertjax_what_is_there(notebook):
    for cell in code_of(notebook):
        for owner, name in names_of_bertjax(ast.parse(python_of(cell))):
            assert hasattr(owner, name), f"{owner}: {name}"


# The machine is taken away when steps are logged, however long the first ones take.
TAKEN_AWAY = """
import time

def take_away():
    metrics = folder / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text()):
        time.sleep(0.1)
    _thread.interrupt_main()

taken_away = threading.Timer(0, take_away)
"""
# Smaller values for the test; `notebooks/execute.py` writes what the whole values give.
SMALLER = {
    "finetune_and_serve": {
        "--input=documentation": "--input=docs/*.md",
        "num_steps = 400": "num_steps = 5",
        "warmup_steps = 40": "warmup_steps = 1",
        "num_epochs = 3": "num_epochs = 0.2",
        "seeds = 3": "seeds = 2",
        "--size=8192": "--size=800",
    },
    "modules_in_your_project": {"range(600)": "range(100)"},
    "pretrain_your_own_bert": {
        'CORPUS = "documentation"': 'CORPUS = "docs/*.md"',
        "40 if platform": "5 if platform",
        "400 if platform": "24 if platform",
        "100 if platform": "12 if platform",
        "taken_away = threading.Timer(30, _thread.interrupt_main)": TAKEN_AWAY,
        "--size=8192": "--size=800",
    },
}


@pytest.mark.parametrize("path", marks.cases(NOTEBOOKS, slow=SLOW), ids=lambda path: path.stem)
def test_a_notebook_runs_where_nothing_is_installed(path, clean, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    for value, smaller in SMALLER[path.stem].items():
        cells = [cell for cell in code_of(notebook) if value in cell.source]
        assert cells, f"{path.stem} has no {value!r}"
        for cell in cells:
            cell.source = cell.source.replace(value, smaller)
    copy = tmp_path / path.name
    nbformat.write(notebook, copy)
    program = ROOT / "notebooks" / "execute.py"
    # Another test may have one of the cores.
    environments.checked(clean, program, "--seconds=480", copy, cwd=tmp_path)
    before, now = (code_of(nbformat.read(it, as_version=4)) for it in (path, copy))
    for old, new in zip(before, now, strict=True):
        assert shown_by(new) == shown_by(old)
