"""JSON that somebody else wrote: every fault is a ValueError."""

from __future__ import annotations

import json
from typing import Any

from etils import epath

from bertjax.files import opening


def loads(text: str | bytes) -> Any:
    """Returns the value of a JSON text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(path: epath.PathLike) -> dict[str, Any]:
    """Returns the object in a JSON file."""
    path = epath.Path(path)
    content = opening.read(path)
    try:
        fields = loads(content)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); fetch it again") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} holds a {type(fields).__name__}; it must be a JSON object")
    return fields
