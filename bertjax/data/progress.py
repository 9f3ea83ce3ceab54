"""How far a long job is: a bar on a terminal, elsewhere a line in the log every few seconds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable

import tqdm
from absl import logging

BAR_INTERVAL_SECONDS = 1.0


class Progress:
    """A context that shows a count on its way to `total` (0: unknown), and the time left.

    `unit` is written after the counts, which are shortened (1.20M) with `is_scaled`. The time left
    follows from the counts since the last line, so that a compilation before it does not count.
    """

    def __init__(
        self,
        label: str,
        total: int,
        *,
        start: int = 0,
        unit: str = "",
        is_scaled: bool = False,
        log_every_seconds: float = 30.0,
    ):
        self._label, self._total, self._unit = label, total, unit
        self._written = tqdm.tqdm.format_sizeof if is_scaled else str
        self._log_every_seconds = log_every_seconds
        self._shown_count = start
        self._shown_time: float | None = None
        self._bar = tqdm.tqdm(
            total=total or None,
            initial=start,
            unit_scale=is_scaled,
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
            bar_format=f"{{percentage:3.0f}}%|{{bar}}| {label} {{n_fmt}}/{{total_fmt}}{unit}"
            " [{elapsed}, {remaining} left{postfix}]",
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def show(self, count: int, describe: Callable[[], str]) -> None:
        """Moves to `count`, and shows what `describe` returns where the last line is old enough."""
        now, left = time.monotonic(), ""
        interval = self._log_every_seconds if self._bar.disable else BAR_INTERVAL_SECONDS
        if self._shown_time is not None:
            seconds = now - self._shown_time
            if seconds < interval and (count < self._total or not self._total):
                return
            if self._total:
                rate = max(count - self._shown_count, 1) / seconds if seconds else float("inf")
                left = tqdm.tqdm.format_interval((self._total - count) / rate)
                left = f" [{left} left]"
        self._shown_count, self._shown_time = count, now
        if not self._bar.disable:
            with _lost_terminal():
                self._bar.set_postfix_str(describe(), refresh=False)
                self._bar.update(count - self._bar.n)
            return
        total = f"/{self._written(self._total)}" if self._total else ""
        counts = f"{self._written(count)}{total}{self._unit}"
        logging.info("%s %s%s: %s", self._label, counts, left, describe())

    def set_total(self, total: int) -> None:
        """Takes another end of the count."""
        self._total = self._bar.total = total

    def note(self, text: str) -> None:
        """Shows what is done where there is no count yet; "" takes it off the bar."""
        if not self._bar.disable:
            with _lost_terminal():
                self._bar.set_postfix_str(text, refresh=True)
        elif text:
            logging.info("%s", text)

    def close(self) -> None:
        """Finishes the bar."""
        with _lost_terminal():
            self._bar.close()


def _lost_terminal() -> contextlib.AbstractContextManager[None]:
    """Lets the work go on where the terminal is gone, as after a lost connection."""
    return contextlib.suppress(OSError)
