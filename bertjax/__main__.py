"""`bertjax PROGRAM ...` is `python -m bertjax.PROGRAM ...`, or `python -m data_pipelines.PROGRAM`.

Programs are found by their files, so a new one is known at once. Nothing of them is imported before
one is chosen: help takes no seconds.
"""

from __future__ import annotations

import ast
import importlib.util
import pathlib
import re
import runpy
import sys

import bertjax
from bertjax.options import faults

PACKAGES = ("bertjax", "data_pipelines")
_IS_PROGRAM = re.compile(r'^if __name__ == "__main__":', re.MULTILINE)


def programs() -> dict[str, str]:
    """Returns the module of each program by its name: `train` is `bertjax.train`."""
    modules: dict[str, str] = {}
    for package in PACKAGES:
        for path in _files(package):
            name = path.parent.name if path.stem == "__main__" else path.stem
            if _IS_PROGRAM.search(path.read_text(encoding="utf-8")):
                modules.setdefault(name, f"{package}.{name}")
    return modules


def _files(package: str) -> list[pathlib.Path]:
    """Returns the files of a package that may be programs: its modules, and folders that run."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return []
    roots = [pathlib.Path(root) for root in spec.submodule_search_locations or ()]
    modules = (path for root in roots for path in root.glob("*.py") if path.stem != "__main__")
    folders = (path for root in roots for path in root.glob("*/__main__.py"))
    return sorted([*modules, *folders])


def _purpose(module: str) -> str:
    """Returns the first line of a program's docstring, without importing it."""
    package, _, name = module.partition(".")
    (path,) = (it for it in _files(package) if name in (it.stem, it.parent.name))
    documented = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return documented.partition("\n")[0]


def usage() -> str:
    """Returns the programs, a line each, with what they are for."""
    modules = programs()
    width = max(map(len, modules))
    lines = [f"  {name:<{width}}  {_purpose(module)}" for name, module in modules.items()]
    return "\n".join(
        [
            "bertjax PROGRAM [--FLAG=VALUE ...]",
            "",
            *lines,
            "",
            "bertjax PROGRAM --help lists the flags of a program. `bertjax train` is",
            "`python -m bertjax.train`, and so on.",
        ]
    )


def main() -> None:
    """Runs the program that the first argument names, with the arguments behind it.

    Raises:
      SystemExit: with the program's exit code; 1 where there is no such program.
    """
    name, *arguments = sys.argv[1:] or [""]
    if name in ("--help", "-h", "help"):
        print(usage())
        return
    if name == "--version":
        print(bertjax.__version__)
        return
    modules = programs()
    if not name:
        sys.exit(usage())
    if name not in modules:
        near = faults.suggestion(name, modules) or "."
        sys.exit(f"bertjax: {name!r} is not a program{near} Known are {', '.join(modules)}")
    sys.argv = [modules[name], *arguments]
    runpy.run_module(modules[name], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
