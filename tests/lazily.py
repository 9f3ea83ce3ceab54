"""Packages that take seconds to import: when a test uses them, not when its file is collected."""

import importlib
import importlib.util
from typing import Any

import pytest


class _Module:
    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # asked by pytest while it collects
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def imported(name: str) -> Any:
    """Stands for a module that is imported once something of it is used.

    What belongs to a package that is not installed skips the file, as `pytest.importorskip` does.
    """
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
    return _Module(name)
