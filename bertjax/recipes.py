"""Recipes from any folder: `bert_base`, `configs/bert_base.py`, `glue:rte`, or a file of yours.

They live in `configs/` of a checkout, which an installed bertjax holds as `bertjax/configs`.
"""

from __future__ import annotations

import importlib.util
import inspect
import pathlib

import ml_collections
from absl import flags
from ml_collections import config_flags

PACKAGE = pathlib.Path(__file__).parent
# The first that exists: of what is installed, of a checkout.
DIRECTORIES = (PACKAGE / "configs", PACKAGE.parent / "configs")

flags.disclaim_key_flags()  # --config is a flag of the program that defines it

HELP = "A recipe: a name (bert_base, glue:rte) or the path of a file, configs/bert_base.py."


def directory() -> pathlib.Path:
    """Returns the folder of the recipes that belong to this bertjax."""
    return next(path for path in DIRECTORIES if path.is_dir())


def names() -> list[str]:
    """Returns the names of the recipes that belong to this bertjax."""
    return sorted(path.stem for path in directory().glob("[!_]*.py"))


def find(recipe: str) -> pathlib.Path:
    """Returns the file of a recipe: the path if there is one, else the recipe of that name.

    Raises:
      FileNotFoundError: if it is neither, with the names that are known.
    """
    path = pathlib.Path(recipe)
    if path.suffix == ".py" and path.is_file():
        return path
    is_ours = path.parent in (pathlib.Path("."), pathlib.Path("configs"))
    name = path.name.removesuffix(".py")
    if is_ours and name in names():
        return directory() / f"{name}.py"
    raise FileNotFoundError(
        f"there is no recipe {recipe}: neither a file nor a known name ({', '.join(names())})"
    )


def load(recipe: str) -> ml_collections.ConfigDict:
    """Returns the locked config of a recipe; what follows a colon in its name is its argument.

    Raises:
      FileNotFoundError: as `find`.
      ValueError: if the recipe does not take the argument.
    """
    name, *arguments = recipe.split(":", 1)
    path = find(name)
    spec = importlib.util.spec_from_file_location(f"bertjax_recipe_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if arguments and not inspect.signature(module.get_config).parameters:
        raise ValueError(f"the recipe {name} takes no argument, but {arguments[0]!r} follows it")
    return module.get_config(*arguments).lock()


class _Parser(flags.ArgumentParser):
    """Of a flag whose value is a recipe, in place of ml_collections' parser, which knows paths."""

    def parse(self, argument: str) -> ml_collections.ConfigDict:
        return load(argument)

    def flag_type(self) -> str:
        return "recipe"


def define_flag(default: str | None = None, flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines --config, with the options that follow it: --config.OPTION=VALUE."""
    config_flags.DEFINE_config_file("config", None, HELP, flag_values=flag_values)
    flag_values["config"].parser = _Parser()
    if default is not None:
        flag_values.set_default("config", default)
