"""How far a long job is: a bar on a terminal, a line in the log every half minute elsewhere."""

from __future__ import annotations

import sys
import time

import psutil
import tqdm
from absl import logging

LOG_INTERVAL_SECONDS = 30


class Progress:
    """A context that shows a count, its speed, the time left, and the memory of all processes."""

    def __init__(self, label: str, total: int, unit: str):
        self._bar = tqdm.tqdm(
            desc=label,
            total=total or None,  # The size of some sources is unknown.
            unit=unit,
            unit_scale=True,
            dynamic_ncols=True,
            mininterval=0.5,
            disable=not sys.stderr.isatty(),
        )
        self._label, self._total, self._unit = label, total, unit
        self._start = self._last_shown = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def at(self, count: int, **shown: str) -> None:
        """Moves to `count` and shows more figures."""
        now = time.monotonic()
        interval = 1 if not self._bar.disable else LOG_INTERVAL_SECONDS
        if now - self._last_shown < interval and (count < self._total or not self._total):
            return
        self._last_shown = now
        figures = [f"{text} {name}" for name, text in shown.items()]
        figures.append(f"{memory_in_use() / 1e9:.1f} GB memory")
        if not self._bar.disable:
            self._bar.set_postfix_str(", ".join(figures), refresh=False)
            self._bar.update(count - self._bar.n)
            return
        done = tqdm.tqdm.format_sizeof(count)
        if self._total:
            left = (now - self._start) * (self._total - count) / max(count, 1)
            done += f" of {tqdm.tqdm.format_sizeof(self._total)}"
            figures.append(f"{tqdm.tqdm.format_interval(left)} left")
        logging.info("%s: %s%s, %s", self._label, done, self._unit, ", ".join(figures))


def memory_in_use() -> int:
    """Returns the bytes that this process and its children hold in memory of their own.

    Pages of mapped files do not count: the system takes them back when it needs them.
    """
    total = 0
    parent = psutil.Process()
    for one in (parent, *parent.children(recursive=True)):
        try:
            used = one.memory_info()
        except psutil.NoSuchProcess:
            continue
        total += used.rss - getattr(used, "shared", 0)
    return total
