"""The writers of a run's scalars: a table of them, and how a run opens its own.

A writer has three methods (`base.Writer`) and a row in `WRITERS`, which `config.writers` names.
Values and steps belong to the loop; the progress line and curves.png to `training.writers`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Sequence

from bertjax.options import faults as faults_lib
from bertjax.training.run_writers import base, files, services
from bertjax.training.run_writers.base import Run, Writer

__all__ = ["WRITERS", "Run", "Writer", "WriterKind"]

JSON_LINES = "json_lines"


@dataclasses.dataclass(frozen=True)
class WriterKind:
    """A row of WRITERS.

    `open` starts or continues the writing of a run; its ValueError says what to do.
    `forgets` says whether the writer drops the scalars after the step that a run resumes from; one
    that does not is sent no scalar twice. `package` must be installed, `extra` is the extra of
    setup.py that brings it; both are "" for packages that bertjax requires.
    """

    open: Callable[[base.Run], base.Writer]
    forgets: bool = False
    package: str = ""
    extra: str = ""


WRITERS: dict[str, WriterKind] = {
    JSON_LINES: WriterKind(files.JsonLines, forgets=True),
    "tensorboard": WriterKind(files.TensorBoard, forgets=True),
    "wandb": WriterKind(services.WeightsAndBiases, package="wandb", extra="wandb"),
    "mlflow": WriterKind(services.MLflow, package="mlflow", extra="mlflow"),
}
"""The writers, by the names that `config.writers` takes."""


def faults(names: Sequence[str]) -> Iterator[str]:
    """Yields the faults of `config.writers`: unknown names, packages that are missing."""
    for name in names:
        kind = WRITERS.get(name)
        if kind is None:
            yield str(faults_lib.unknown("a name in config.writers", name, WRITERS))
        elif kind.package and importlib.util.find_spec(kind.package) is None:
            how = f"pip install 'bertjax[{kind.extra}]'" if kind.extra else "install it"
            yield (
                f"config.writers names {name!r}, which needs the package {kind.package}: {how}, "
                "or leave it out"
            )


def open_all(
    names: Sequence[str], run: base.Run, sent: base.SentScalars | None
) -> list[base.Writer]:
    """Returns the writers of a run; the first is always the one of metrics.jsonl.

    `sent` are the scalars sent before; needed for writers that do not forget.
    """
    opened: list[base.Writer] = []
    try:
        for name in dict.fromkeys((JSON_LINES, *names)):
            writer = WRITERS[name].open(run)
            if sent is not None and not WRITERS[name].forgets:
                writer = base.UnsentScalars(writer, sent.last_steps[name])
            opened.append(writer)
    except BaseException:
        for writer in opened:
            writer.close("failed")
        raise
    return opened


def keeping(names: Sequence[str]) -> list[str]:
    """Returns the names of the writers that keep all scalars that were ever sent."""
    return [name for name in names if not WRITERS[name].forgets]
