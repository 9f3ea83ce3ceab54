"""Where a run's scalars go: one table of writers, and how those of a run are opened.

A writer has three methods (`base.Writer`). Another one is a row of `WRITERS`, as
`config.writers` names it. What is measured, and when, belongs to the loop; what a person sees on
the terminal, and curves.png, to `training.writers`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Sequence

from bertjax.training.run_writers import base, files, mlflow_runs, told, wandb_runs

JSON_LINES = "json_lines"


@dataclasses.dataclass(frozen=True)
class Kind:
    """What there is to know of a kind of writers.

    `open` begins, or goes on with, what is written of a run; it raises a ValueError that says what
    to do. `forgets` says whether it drops what it was told after the step that a run resumes from;
    if it does not, it is not told the same again. `package` is what must be installed, and `extra`
    is that of setup.py which brings it; "" where bertjax brings it anyway.
    """

    open: Callable[[base.Run], base.Writer]
    forgets: bool = False
    package: str = ""
    extra: str = ""


WRITERS: dict[str, Kind] = {
    JSON_LINES: Kind(files.JsonLines, forgets=True),
    "tensorboard": Kind(files.TensorBoard, forgets=True),
    "wandb": Kind(wandb_runs.WeightsAndBiases, package="wandb", extra="wandb"),
    "mlflow": Kind(mlflow_runs.MLflow, package="mlflow", extra="mlflow"),
}


def faults(names: Sequence[str]) -> Iterator[str]:
    """Yields what is wrong with `config.writers`: unknown names, and packages that lack."""
    for name in names:
        kind = WRITERS.get(name)
        if kind is None:
            yield f"config.writers names {name!r}; known are {', '.join(WRITERS)}"
        elif kind.package and importlib.util.find_spec(kind.package) is None:
            how = f"pip install 'bertjax[{kind.extra}]'" if kind.extra else "install it"
            yield (
                f"config.writers names {name!r}, which needs the package {kind.package}: {how}, or "
                "leave it out"
            )


@contextlib.contextmanager
def closed_where_another_fails(opened: list[base.Writer]) -> Iterator[None]:
    """Closes the writers that are open already where the block fails."""
    try:
        yield
    except BaseException:
        for writer in opened:
            writer.close("failed")
        raise


def open_all(names: Sequence[str], run: base.Run, kept: told.Told | None) -> list[base.Writer]:
    """Returns the writers of a run, that of metrics.jsonl first, whatever the names.

    `kept` is what the others were told; needed where one of them cannot forget.

    Raises:
      ValueError: as `Kind.open`.
      OSError: if the workdir cannot be written to.
    """
    opened: list[base.Writer] = []
    with closed_where_another_fails(opened):
        for name in with_json_lines(names):
            writer = WRITERS[name].open(run)
            if kept is not None and not WRITERS[name].forgets:
                writer = told.Untold(writer, kept.last_steps[name])
            opened.append(writer)
    return opened


def with_json_lines(names: Sequence[str]) -> list[str]:
    """Returns the names of a run's writers: metrics.jsonl always, and each of the others once."""
    return [*dict.fromkeys((JSON_LINES, *names))]


def unforgetting(names: Sequence[str]) -> list[str]:
    """Returns those of the names whose writers cannot forget."""
    return [name for name in names if not WRITERS[name].forgets]
