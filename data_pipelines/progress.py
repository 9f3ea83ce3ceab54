"""How far a build is: the progress of bertjax, with the memory of all processes."""

from __future__ import annotations

import psutil

from bertjax.data import progress


class Progress(progress.Progress):
    """A context that shows a count, the time left, and the memory of all processes."""

    def __init__(self, label: str, total: int, unit: str):
        super().__init__(label, total, unit=unit, is_scaled=True)

    def __enter__(self) -> Progress:
        return self

    def at(self, count: int, **shown: str) -> None:
        """Moves to `count` and shows more figures."""

        def describe() -> str:
            figures = [f"{text} {name}" for name, text in shown.items()]
            return ", ".join([*figures, f"{memory_in_use() / 1e9:.1f} GB memory"])

        self.show(count, describe)


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
