"""Marks of tests: the cases of one that has many, some of each kind in the gate; old versions."""

from collections.abc import Collection, Iterable
from typing import Any

import jax
import pytest

# With older versions a CPU has no product of bfloat16 numbers in float32 (docs/python.md).
MULTIPLIES_BFLOAT16 = pytest.mark.skipif(
    jax.__version_info__ < (0, 8, 1), reason=f"not on a CPU with jax {jax.__version__}"
)


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
