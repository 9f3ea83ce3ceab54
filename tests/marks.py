"""Marks of the cases of a test that has many: some of each kind are in the gate."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def cases(
    names: Iterable[Any], *, slow: Collection[Any] = (), quick: Collection[Any] = ()
) -> list[Any]:
    """The cases for `parametrize`; those that are neither quick nor slow are weekly."""
    unknown = {*quick, *slow} - {*(names := list(names))}
    assert not unknown, f"no case is named {unknown}"

    def marks(name: Any) -> Any:
        return () if name in quick else pytest.mark.slow if name in slow else pytest.mark.weekly

    return [
        pytest.param(*(it if isinstance(it, tuple) else (it,)), marks=marks(it)) for it in names
    ]
