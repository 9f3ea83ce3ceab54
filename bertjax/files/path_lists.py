"""Lists of paths with commas between them, where a name may hold a comma, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

MOST_COMMAS = 8  # in one name


def rejoined(parts: Sequence[str], is_there: Callable[[str], bool]) -> list[str]:
    """Returns what was split at commas, with the names put together again that hold commas.

    A comma separates unless nothing is there by the name before it, and something is by a name
    that goes on behind it; the shortest such name counts.
    """
    if len(parts) == 1:
        return list(parts)
    paths, start = [], 0
    while start < len(parts):
        longest = min(len(parts), start + MOST_COMMAS + 1)
        joins = ((end, ",".join(parts[start:end])) for end in range(start + 1, longest + 1))
        end, path = next(
            ((end, path) for end, path in joins if is_there(path)), (start + 1, parts[start])
        )
        longer = (",".join(parts[start:it]) for it in range(end + 1, longest + 1))
        if ambiguous := [it for it in longer if os.path.isfile(it)]:
            raise ValueError(
                f"{ambiguous[0]!r} may mean the file of that name or, as one of several, {path!r}, "
                "and both are there: rename one of them"
            )
        paths.append(path)
        start = end
    return paths
