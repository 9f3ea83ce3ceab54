"""Executes the notebooks from top to bottom, and writes them with what came out.

    python -m venv clean && clean/bin/pip install ipykernel nbclient
    clean/bin/python notebooks/execute.py notebooks/*.ipynb

The environment needs nothing else: the first cell of a notebook installs bertjax. A notebook runs
in a copy of the checkout, which is removed again; so nothing that was trained here before is found.
An error in a cell, or a cell that takes too long, ends the program, and the notebook stays as it
was.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

import nbclient
import nbformat

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
# The files of a clone that a first cell needs; the rest of a working folder can be large.
COPIED = ("bertjax", "configs", "data_pipelines", "docs", "notebooks",
          "setup.py", "pyproject.toml", "README.md", "LICENSE")  # fmt: skip
SECONDS, SECONDS_TO_INSTALL = 120, 900  # of a cell, at most; the first one downloads


def main() -> None:
    """Executes the notebooks of the command line."""
    os.environ["PIP_QUIET"] = "1"  # what pip warns of concerns the machine here
    os.environ["HF_HUB_OFFLINE"] = "1"  # the same everywhere: nothing is downloaded
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of a cell, at most")
    parser.add_argument("notebooks", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    for path in options.notebooks:
        print(f"{path.name} ...", flush=True)
        nbformat.write(execute(path, options.seconds), path)


def execute(path: pathlib.Path, seconds: int) -> Any:
    """Returns the notebook with its outputs; a cell may take `seconds`, the first one more.

    Raises:
      nbclient.exceptions.CellExecutionError, nbclient.exceptions.CellTimeoutError: of a cell.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch, "bertjax")
        for name in COPIED:
            source = CHECKOUT / name
            copied = shutil.copytree if source.is_dir() else shutil.copy
            copy.mkdir(exist_ok=True)
            copied(source, copy / name)
        client = nbclient.NotebookClient(
            notebook,
            kernel_name="python3",
            timeout_func=lambda cell: (
                SECONDS_TO_INSTALL if "install.py" in cell.source else seconds
            ),
            resources={"metadata": {"path": str(copy / "notebooks")}},
        )
        client.execute()
    return _tidied(notebook)


def _tidied(notebook: Any) -> Any:
    """Returns the notebook as people see it, without the time of day."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = _joined(cell.outputs)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def _joined(outputs: list[Any]) -> list[Any]:
    """Returns the outputs of a cell; what went to one stream in parts is one output."""
    joined: list[Any] = []
    for output in outputs:
        is_more = joined and output.output_type == joined[-1].output_type == "stream"
        if is_more and output.name == joined[-1].name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    for output in joined:
        if output.output_type == "stream":
            output.text = _as_seen(output.text)
    return joined


def _as_seen(text: str) -> str:
    """Returns a text as a terminal shows it: a line that is written anew replaces the old one."""
    return re.sub(r"[^\n]*\r(?!\n)", "", text)


if __name__ == "__main__":
    main()
