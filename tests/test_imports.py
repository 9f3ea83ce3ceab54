"""Claims about the shape of the source: who imports whom (DESIGN section 2), and how long it is.

The source is parsed, never imported, so a room that is not built yet is simply absent. The first
tests run the checker on this repository, the others on small trees with a fault in them.
"""

from __future__ import annotations

import ast
import dataclasses
import pathlib
from collections.abc import Iterator

import pytest

REPOSITORY = pathlib.Path(__file__).parents[1]
PACKAGES = ("bertjax", "data_pipelines", "configs", "benchmarks", "tests")

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
LONGER_FUNCTIONS = {("bertjax.train", "execute"): 80}  # the one loop

# The entry points and what they share; each may use everything below, and none but `train`
# and `glue` uses another entry point. A main that is not listed in DESIGN section 2 does not exist.
LIBRARY = (
    "bertjax.accelerators",
    "bertjax.checkpoint",
    "bertjax.config",
    "bertjax.data",
    "bertjax.metrics",
    "bertjax.models",
    "bertjax.optim",
    "bertjax.rules",
    "bertjax.sharding",
    "bertjax.state",
    "bertjax.tasks",
    "bertjax.writers",
    "bertjax.xla_presets",
)
SHARED_BY_MAINS = (
    *LIBRARY,
    "bertjax.command_line",
    "bertjax.convert",
    "bertjax.inference",
    "bertjax.jobs",
    "bertjax.planning",
    "bertjax.program",
)

# Room -> what it may import of ours besides itself; the longest name that fits a module counts.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "bertjax": (),
    "bertjax.train": (
        *SHARED_BY_MAINS,
        "bertjax.evaluate",
        "bertjax.held_out",
        "bertjax.monitor",
        "bertjax.plan",
        "bertjax.preemption",
        "bertjax.trials",
        "bertjax.warm_start",
    ),
    "bertjax.evaluate": SHARED_BY_MAINS,
    "bertjax.plan": SHARED_BY_MAINS,
    "bertjax.fill_mask": SHARED_BY_MAINS,
    "bertjax.encode": SHARED_BY_MAINS,
    "bertjax.predict": (*SHARED_BY_MAINS, "bertjax.evaluate", "bertjax.scores"),
    # All tasks of a benchmark, each a training.
    "bertjax.glue": (
        *SHARED_BY_MAINS,
        "bertjax.held_out",
        "bertjax.preemption",
        "bertjax.scores",
        "bertjax.train",
        "bertjax.trials",
    ),
    "bertjax.held_out": (*LIBRARY, "bertjax.evaluate", "bertjax.program"),
    "bertjax.inference": (*LIBRARY, "bertjax.jobs"),
    # What is read of the weights that finetuning begins with.
    "bertjax.jobs": (*LIBRARY, "bertjax.convert", "bertjax.scores"),
    "bertjax.program": (*LIBRARY, "bertjax.jobs"),
    "bertjax.trials": (*LIBRARY, "bertjax.jobs", "bertjax.program"),
    "bertjax.planning": (*LIBRARY, "bertjax.jobs", "bertjax.program"),
    # What is known of slices, prices and compiled text, without a config or a job.
    "bertjax.planning.topologies": ("bertjax.accelerators",),
    "bertjax.planning.prices": (),
    "bertjax.planning.hlo": ("bertjax.planning.hlo_text",),
    "bertjax.planning.hlo_text": (),
    "bertjax.warm_start": (*LIBRARY, "bertjax.convert", "bertjax.jobs"),
    "bertjax.monitor": (
        "bertjax.metrics",
        "bertjax.state",
        "bertjax.tasks.base",
        "bertjax.writers",
    ),
    "bertjax.command_line": ("bertjax.checkpoint", "bertjax.monitor"),
    "bertjax.preemption": (),
    "bertjax.checkpoint": ("bertjax.rules", "bertjax.sharding", "bertjax.state"),
    "bertjax.state": (
        "bertjax.metrics",
        "bertjax.optim",
        "bertjax.reductions",
        "bertjax.sharding",
        "bertjax.tasks.base",
    ),
    "bertjax.optim": ("bertjax.reductions", "bertjax.rules"),
    "bertjax.sharding": ("bertjax.rules",),
    "bertjax.tasks": ("bertjax.metrics", "bertjax.models"),
    "bertjax.models": ("bertjax.reductions", "bertjax.sharding"),
    "bertjax.convert": ("bertjax.data", "bertjax.models"),
    # What knows of runs: their workdirs, and the program that writes all formats.
    "bertjax.convert.workdir": (*LIBRARY, "bertjax.convert", "bertjax.jobs"),
    "bertjax.convert.model_card": (*LIBRARY, "bertjax.convert", "bertjax.jobs"),
    "bertjax.convert.formats": (*LIBRARY, "bertjax.convert"),
    "bertjax.convert.__main__": SHARED_BY_MAINS,
    "bertjax.data": (),
    "bertjax.reductions": (),
    "bertjax.rules": (),
    "bertjax.scores": (),
    "bertjax.metrics": (),
    "bertjax.config": ("bertjax.config_faults",),
    "bertjax.config_faults": (),
    "bertjax.writers": (),
    "bertjax.accelerators": (),
    "bertjax.xla_presets": (),
    "data_pipelines": ("bertjax.data",),
    "configs": ("bertjax.config",),
}
# The rooms that read and write records: TensorFlow belongs there alone, JAX does not. What reads
# checkpoints of the released code has it from `records.import_tensorflow`.
RECORD_ROOMS = ("bertjax.data", "data_pipelines")
TENSORFLOW = ("tensorflow", "tensorflow_datasets", "tensorflow_text")
JAX = ("jax", "flax", "optax", "orbax")
# Models take the functions that tell the compiler where an activation lies and that run a kernel on
# every device, and the names of the mesh axes that they are called with.
FROM_SHARDING_TO_MODELS = ("constrain", "per_device")


@dataclasses.dataclass(frozen=True)
class Module:
    """A source file under its dotted name."""

    name: str
    path: pathlib.Path
    tree: ast.Module


@dataclasses.dataclass(frozen=True)
class Import:
    """An imported name, and whether importing the module runs the import."""

    name: str
    line: int
    at_import_time: bool


def modules(root: pathlib.Path) -> Iterator[Module]:
    """Yields every Python file of our packages."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield Module(name, path, ast.parse(path.read_text(encoding="utf-8")))


def imports(module: Module) -> Iterator[Import]:
    """Yields what a module imports, `from a import b` as a.b, relative names made absolute."""
    pending = [(node, True) for node in module.tree.body]
    while pending:
        node, runs = pending.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, runs) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = absolute_source(module, node)
            for alias in node.names:
                yield Import(f"{source}.{alias.name}", node.lineno, runs)
        for child in ast.iter_child_nodes(node):
            pending.append((child, runs and runs_when_imported(node, child)))


def runs_when_imported(parent: ast.AST, child: ast.AST) -> bool:
    """Returns False inside a function and in the body of `if TYPE_CHECKING`."""
    if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    is_type_checking = isinstance(parent, ast.If) and "TYPE_CHECKING" in ast.unparse(parent.test)
    return not (is_type_checking and child in parent.body)


def absolute_source(module: Module, node: ast.ImportFrom) -> str:
    """Returns the module that `from ... import` names, resolved where it begins with dots."""
    if not node.level:
        return node.module or ""
    package = module.name.split(".")
    if module.path.name != "__init__.py":
        package = package[:-1]
    package = package[: len(package) - (node.level - 1)]
    return ".".join([*package, *([node.module] if node.module else [])])


def inside(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def room_of(name: str) -> str | None:
    """Returns the room that a module belongs to, None where the diagram has no place for it."""
    rooms = [room for room in MAY_IMPORT if inside(name, room)]
    room = max(rooms, key=len, default=None)
    return None if room == "bertjax" and name != "bertjax" else room


def is_ours(name: str) -> bool:
    return any(inside(name, package) for package in PACKAGES)


def import_faults(root: pathlib.Path) -> list[str]:
    """Returns a sentence for each import that the diagram does not hold."""
    faults = []
    for module in modules(root):
        if module.name.split(".")[0] in ("tests", "benchmarks"):
            continue  # they may use all rooms
        room = room_of(module.name)
        if room is None:
            faults.append(f"{module.name} is in no room of the diagram; add it to MAY_IMPORT")
            continue
        for imported in imports(module):
            if reason := import_fault(room, imported):
                faults.append(f"{module.name}:{imported.line} imports {imported.name}: {reason}")
        if room == "bertjax.models":
            faults.extend(sharding_faults(module))
    return faults


def import_fault(room: str, imported: Import) -> str | None:
    """Returns why the room may not import the name, None where it may."""
    top = imported.name.split(".")[0]
    if top in TENSORFLOW and room not in RECORD_ROOMS:
        return f"TensorFlow belongs to {' and '.join(RECORD_ROOMS)}"
    if top in TENSORFLOW and imported.at_import_time:
        return "TensorFlow is imported inside the functions that touch records"
    if top in JAX and room in RECORD_ROOMS:
        return "what reads and writes records does without JAX"
    version = ("bertjax", "bertjax.__version__")  # a string, not a room
    if not is_ours(imported.name) or imported.name in version:
        return None
    allowed = MAY_IMPORT[room]
    itself = () if room == "bertjax" else (room,)
    if any(inside(imported.name, name) for name in (*allowed, *itself)):
        return None
    return f"{room} may import {', '.join(allowed) or 'nothing of ours'}"


def sharding_faults(module: Module) -> list[str]:
    """Returns a sentence for each use of `sharding` in a model that is not `constrain`."""
    faults = []
    for imported in imports(module):
        inner = imported.name.removeprefix("bertjax.sharding.")
        if inner != imported.name and not is_for_models(inner):
            faults.append(f"{module.name}:{imported.line} imports sharding.{inner}")
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Attribute) or is_for_models(node.attr):
            continue
        if ast.unparse(node.value) in ("sharding", "bertjax.sharding"):
            faults.append(f"{module.name}:{node.lineno} uses sharding.{node.attr}")
    return faults


def is_for_models(name: str) -> bool:
    return name in FROM_SHARDING_TO_MODELS or name.isupper()


def length_faults(root: pathlib.Path) -> list[str]:
    """Returns a sentence for each file and each function that is too long."""
    faults = []
    for module in modules(root):
        lines = len(module.path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_FILE_LINES:
            faults.append(f"{module.name} has {lines} lines; at most {MAX_FILE_LINES}")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                limit = LONGER_FUNCTIONS.get((module.name, node.name), MAX_FUNCTION_LINES)
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > limit:
                    faults.append(f"{module.name}.{node.name} has {length} lines; at most {limit}")
    return faults


def tree_of(root: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_rooms_import_only_what_the_diagram_holds():
    assert import_faults(REPOSITORY) == []


def test_no_file_and_no_function_is_too_long():
    assert length_faults(REPOSITORY) == []


def test_the_checker_reads_this_repository():
    names = {module.name for module in modules(REPOSITORY)}
    assert {"bertjax", "bertjax.writers", "tests.test_imports"} <= names


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("bertjax/models/encoder.py", "from bertjax import tasks"),
        ("bertjax/models/encoder.py", "from bertjax.data.records import Manifest"),
        ("bertjax/models/encoder.py", "import bertjax.config"),
        ("bertjax/models/encoder.py", "from ..tasks import base"),
        ("bertjax/models/encoder.py", "from bertjax.sharding import make_mesh"),
        ("bertjax/models/encoder.py", "from bertjax import sharding\nsharding.make_mesh()"),
        ("bertjax/tasks/pretraining.py", "def f():\n    from bertjax import state"),
        ("bertjax/tasks/pretraining.py", "from bertjax.data import records"),
        ("bertjax/state.py", "from bertjax.tasks import pretraining"),
        ("bertjax/data/records.py", "import jax.numpy as jnp"),
        ("bertjax/data/records.py", "from bertjax import config"),
        ("bertjax/data/records.py", "from data_pipelines import build"),
        ("bertjax/data/records.py", "import tensorflow as tf"),
        ("bertjax/data/records.py", "try:\n    import tensorflow as tf\nfinally:\n    pass"),
        ("data_pipelines/build.py", "from tensorflow import io"),
        ("data_pipelines/build.py", "from bertjax import models"),
        ("bertjax/train.py", "def f():\n    import tensorflow as tf"),
        ("bertjax/train.py", "from configs import bert_base"),
        ("bertjax/convert/tensorflow1.py", "def f():\n    import tensorflow as tf"),
        ("bertjax/convert/names.py", "from bertjax import jobs"),
        ("bertjax/program.py", "from bertjax.convert import formats"),
        ("bertjax/evaluate.py", "from bertjax import train"),
        ("bertjax/rules.py", "from bertjax import metrics"),
        ("bertjax/metrics.py", "from . import rules"),
        ("bertjax/config.py", "from bertjax.models import encoder"),
        ("bertjax/__init__.py", "from bertjax import models"),
        ("bertjax/helpers.py", "import os"),
        ("configs/bert_base.py", "from bertjax import optim"),
    ],
)
def test_an_import_outside_the_diagram_is_one_fault(tmp_path, file, line):
    assert len(import_faults(tree_of(tmp_path, {file: line}))) == 1


def test_the_imports_of_the_diagram_are_no_faults(tmp_path):
    guarded = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tensorflow as tf\n"
    files = {
        "bertjax/__init__.py": "",
        "bertjax/train.py": "import jax\nfrom bertjax import config, evaluate, state\n",
        "bertjax/models/__init__.py": "from bertjax.models.encoder import Encoder\n",
        "bertjax/models/encoder.py": "from bertjax import sharding as s\ns.constrain(1, s.DATA)\n",
        "bertjax/tasks/base.py": "from bertjax import metrics\nfrom . import pretraining\n",
        "bertjax/state.py": "import optax\nfrom bertjax.tasks.base import Task\n",
        "bertjax/convert/tensorflow1.py": "from bertjax.data import records\n",
        "bertjax/convert/workdir.py": "from bertjax import convert, jobs\n",
        "bertjax/warm_start.py": "from bertjax import jobs\nfrom bertjax.convert import formats\n",
        "bertjax/data/records.py": guarded + "def f():\n    import tensorflow as tf\n",
        "data_pipelines/build.py": "from bertjax import __version__, data\n",
        "configs/bert_base.py": "from bertjax import config\n",
        "tests/test_all.py": "import tensorflow\nfrom bertjax import train\n",
    }
    assert import_faults(tree_of(tmp_path, files)) == []


@pytest.mark.parametrize(
    ("file", "name", "lines", "faults"),
    [
        ("bertjax/state.py", "train", 60, 0),
        ("bertjax/state.py", "train", 61, 1),
        ("bertjax/train.py", "execute", 80, 0),
        ("bertjax/train.py", "execute", 81, 1),
        ("bertjax/train.py", "main", 61, 1),
        ("tests/test_state.py", "test_it", 61, 1),
    ],
)
def test_a_function_over_its_limit_is_a_fault(tmp_path, file, name, lines, faults):
    text = f"class A:\n    def {name}(self):\n" + "        pass\n" * (lines - 1)
    assert len(length_faults(tree_of(tmp_path, {file: text}))) == faults


@pytest.mark.parametrize(("lines", "faults"), [(400, 0), (401, 1)])
def test_a_file_over_its_limit_is_a_fault(tmp_path, lines, faults):
    assert len(length_faults(tree_of(tmp_path, {"bertjax/state.py": "pass\n" * lines}))) == faults
