"""--config, a flag whose value is a recipe, and the options that follow it."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
from absl import flags
from ml_collections import config_flags

from bertjax import recipes
from bertjax.cli import command_line

flags.disclaim_key_flags()  # --config is a flag of the program that defines it

HELP = "A recipe: a name (bert_base, albert:xlarge, glue:rte) or a file, configs/bert_base.py."


class UnknownOptionError(AttributeError):
    """An option of a command is none of the recipe's."""


def check_options(config: ml_collections.ConfigDict, arguments: Sequence[str]) -> None:
    """Checks the names of the options among a program's arguments, --config.OPTION=VALUE."""
    found = re.findall(r"^--?(?:no)?config\.([^=\s]+)(?:=(.*))?$", "\n".join(arguments), re.M)
    known = _names(config)
    unknown = [name for name, _ in found if name not in known]
    if unknown:
        raise UnknownOptionError("; ".join(_unknown(name, known) for name in unknown))
    given = dict(found)
    for name in given:
        for other in ("num_epochs", "num_tokens"):
            instead = f"{name.removesuffix('num_steps')}{other}"
            if name.endswith(".num_steps") and given.get(instead, "0") not in ("0", "0.0"):
                raise ValueError(
                    f"--config.{name} and --config.{instead} are both given; one is enough"
                )


def _unknown(name: str, known: Sequence[str]) -> str:
    """Returns in words that there is no such option, with those that may be meant."""
    last = name.rpartition(".")[2]
    meant = [each for each in known if each.rpartition(".")[2] == last]
    meant = meant or difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    near = f". Did you mean {' or '.join(f'config.{each}' for each in meant)}?" if meant else ""
    return f"config.{name} is not an option{near}"


def _names(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Returns the dotted names of all options of a config, and of its parts."""
    names = []
    for name in config:
        names.append(prefix + name)
        if isinstance(config[name], Mapping | ml_collections.ConfigDict):
            names += _names(config[name], f"{prefix}{name}.")
    return names


class _Parser(flags.ArgumentParser):
    """Parses a flag with a recipe's name; ml_collections' own parser takes only paths."""

    def __init__(self, takes_several: bool) -> None:
        self.takes_several = takes_several

    def parse(self, argument: str) -> ml_collections.ConfigDict:
        names = argument.split(",") if self.takes_several else [argument]
        configs = [recipes.load(name) for name in names]
        for config in configs:
            check_options(config, sys.argv[1:])
        return configs[0]

    def flag_type(self) -> str:
        return "recipe"


def define(
    default: str | None = None,
    flag_values: flags.FlagValues = flags.FLAGS,
    *,
    takes_several: bool = False,
    help_text: str = HELP,
) -> None:
    """Defines --config, with the options that follow it: --config.OPTION=VALUE.

    If it `takes_several` recipes, with commas between, its value is the first; `names` and
    `options` say the rest.
    """
    config_flags.register_flag_parser_for_type(int, command_line.WholeNumbers())
    config_flags.DEFINE_config_file("config", None, help_text, flag_values=flag_values)
    flag_values["config"].parser = _Parser(takes_several)
    if default is not None:
        flag_values.set_default("config", default)


def names() -> list[str]:
    """Returns the recipes that --config names, [] without it."""
    flag = flags.FLAGS["config"]
    return config_flags.get_config_filename(flag).split(",") if flag.present else []


def options() -> dict[str, Any]:
    """Returns the options that follow --config, by their dotted names."""
    flag = flags.FLAGS["config"]
    return dict(config_flags.get_override_values(flag)) if flag.present else {}
