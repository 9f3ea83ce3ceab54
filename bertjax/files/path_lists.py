"""Lists of paths with commas between them, where a name may also hold a comma."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

MOST_COMMAS = 8  # in one name


def rejoined(parts: Sequence[str], is_there: Callable[[str], bool]) -> list[str]:
    """Returns the paths of a list that was split at commas.

    A comma separates two paths unless the part before it does not exist and a longer name, with
    the comma in it, does; the shortest such name counts.
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
