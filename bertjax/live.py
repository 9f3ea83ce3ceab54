"""A run shown inside a notebook: one line of how far it is, and its curves, replaced in place.

The line is the newest one of the run's log. The curves are drawn anew when the log says something,
at most so often that drawing takes a small share of the time. Outside of a notebook nothing here
is used.
"""

from __future__ import annotations

import contextlib
import io
import logging as std_logging
import sys
import time
from collections.abc import Iterator
from typing import Any

from absl import logging
from etils import epath

from bertjax.training import writers
from bertjax.workdirs import scalars

DRAWING_SHARE = 0.05  # of the time, at most
DPI = 60


def is_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook, which replaces what it showed."""
    ipython = sys.modules.get("IPython")
    return getattr(ipython and ipython.get_ipython(), "kernel", None) is not None


@contextlib.contextmanager
def shown(workdir: epath.Path) -> Iterator[None]:
    """Shows a run in the cell that runs it; of its log, warnings alone are kept."""
    logger, verbosity = logging.get_absl_logger(), logging.get_verbosity()
    handler, propagates = _Display(workdir), logger.propagate
    logging.set_verbosity(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        logging.set_verbosity(verbosity)
        handler.draw()


class _Display(std_logging.Handler):
    """Takes the log of a run: the newest line in place, warnings for good, and draws the curves."""

    def __init__(self, workdir: epath.Path):
        super().__init__()
        self._workdir = workdir
        self._line, self._picture = _Place(), _Place()
        self._draw_at, self._drawn = 0.0, ("", 0)

    def emit(self, record: std_logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= std_logging.WARNING:
            print(f"{record.levelname.capitalize()}: {text}", file=sys.stderr)
            return
        self._line.show({"text/plain": text.splitlines()[0] if text else ""})
        if time.monotonic() >= self._draw_at:
            self.draw()

    def draw(self) -> None:
        """Draws the curves anew, if there is something new in them."""
        path = _newest_metrics(self._workdir)
        if path is None or (drawn := (str(path), path.stat().length)) == self._drawn:
            return
        begun = time.monotonic()
        content = io.BytesIO()
        writers.draw_curves(scalars.read(path)).savefig(content, format="png", dpi=DPI)
        self._picture.show({"image/png": content.getvalue()})
        self._drawn = drawn
        self._draw_at = time.monotonic() + (time.monotonic() - begun) / DRAWING_SHARE


class _Place:
    """A place in the output of the cell whose content is replaced."""

    def __init__(self):
        self._handle: Any = None

    def show(self, content: dict[str, Any]) -> None:
        # Of the kernel that runs; a program without a notebook does not have it.
        from IPython import display  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

        if self._handle is None:
            self._handle = display.DisplayHandle()
            self._handle.display(content, raw=True)
        else:
            self._handle.update(content, raw=True)


def _newest_metrics(workdir: epath.Path) -> epath.Path | None:
    """Returns the metrics of the run, or of that training of several which wrote last."""
    found = [workdir / scalars.FILE, *workdir.glob(f"*/{scalars.FILE}")]
    there = [path for path in found if path.exists()]
    return max(there, key=lambda path: path.stat().mtime, default=None)
