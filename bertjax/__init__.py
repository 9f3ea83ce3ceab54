"""bertjax: pretrain BERT-family encoders on your own text with JAX and Flax.

`bertjax.run(config, workdir)` trains, `bertjax.load(workdir)` uses a model. Modules are imported
when they are first used, so `import bertjax` costs nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

# pyright: reportUnsupportedDunderAll=false
# They come from `__getattr__`. The table of all public names is in docs/python.md.
__all__ = [
    "Model",
    "inference",
    "load",
    "models",
    "pictures",
    "recipes",
    "run",
]

__version__ = "0.1.0"

# Names that belong to a module but are used without it.
_FROM_INTERACTIVE = ("run", "load", "Model", "pictures")


def __getattr__(name: str) -> Any:
    # By name: who imports the version must not import everything, as import-linter would see it.
    if name == "pictures":
        return importlib.import_module("bertjax.interactive.pictures")
    if name in _FROM_INTERACTIVE:
        return getattr(importlib.import_module("bertjax.interactive"), name)
    if name in _modules():
        return importlib.import_module(f"bertjax.{name}")
    raise AttributeError(f"module 'bertjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FROM_INTERACTIVE, *_modules()})


def _modules() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__)]
