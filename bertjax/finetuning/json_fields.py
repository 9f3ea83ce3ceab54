"""Texts under the keys of a JSON object, as `predict` is given them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text(fields: Mapping[str, Any], key: str) -> str:
    """Returns the text under a key.

    Raises:
      ValueError: if there is none, or nothing stands in it.
    """
    value = _field(fields, key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key!r} is {value!r:.60}; it must be a text")
    return value


def texts(fields: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Returns the texts of the list under a key, at least one.

    Raises:
      ValueError: if there is no such list, or a text in it is empty.
    """
    value = _field(fields, key)
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if not is_list or not all(isinstance(text, str) and text.strip() for text in value):
        raise ValueError(
            f"{key!r} is {value!r:.60}; it must be a list of texts, none of them empty"
        )
    return tuple(value)


def lists_of_texts(fields: Mapping[str, Any], key: str) -> tuple[tuple[str, ...], ...]:
    """Returns the lists of texts in the list under a key, at least one, none of them empty.

    Raises:
      ValueError: if there is no such list.
    """
    value = _field(fields, key)
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{key!r} is {value!r:.60}; it must be a list of lists of texts")
    return tuple(
        texts({f"{key}[{place}]": it}, f"{key}[{place}]") for place, it in enumerate(value)
    )


def _field(fields: Mapping[str, Any], key: str) -> Any:
    if key not in fields:
        known = ", ".join(map(repr, fields)) or "none"
        raise ValueError(f"the key {key!r} is missing; its keys are {known}")
    return fields[key]
