"""Modules that hold others, and a walk through them: Flax's, or replacements for flax 0.11.

Colab and Kaggle bring flax 0.11, which has none of these: its modules hold plain lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax import nnx


class _Dict(nnx.Module):
    """Attributes by name: the part of flax 0.12's `nnx.Dict` that is used here."""

    def __init__(self, items: Mapping[str, Any] | None = None, /, **others: Any):
        for name, value in {**(items or {}), **others}.items():
            setattr(self, name, value)


List: Any = getattr(nnx, "List", list)
Dict: Any = getattr(nnx, "Dict", _Dict)
# Yields (path, module) for a module and all that it holds; flax 0.11 also yields variables.
iter_modules: Any = nnx.iter_modules if hasattr(nnx, "iter_modules") else nnx.iter_graph
