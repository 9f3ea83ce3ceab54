"""Recipes from any folder: `bert_base`, `configs/bert_base.py`, `albert:xlarge`, or your own file.

They live in `configs/` of a checkout, which an installed bertjax holds as `bertjax/configs`. The
functions ending in `_config` return configs that several of them start from.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import pathlib
import types
from collections.abc import Mapping
from typing import Any

import ml_collections

from bertjax import config as config_lib
from bertjax.options import faults

__all__ = [
    "choose",
    "directory",
    "find",
    "finetuning_config",
    "leave_open",
    "load",
    "modern_config",
    "names",
    "of_family",
    "own_finetuning_config",
    "paper_config",
    "roberta_config",
    "sizes",
    "table",
]

PACKAGE = pathlib.Path(__file__).parent
# The folder of an installed bertjax, then of a checkout.
DIRECTORIES = (PACKAGE / "configs", PACKAGE.parent / "configs")


def directory() -> pathlib.Path:
    """Returns the folder of the recipes that belong to this bertjax."""
    return next(path for path in DIRECTORIES if path.is_dir())


def names() -> list[str]:
    """Returns the names of the recipes that belong to this bertjax."""
    return sorted(path.stem for path in directory().glob("[!_]*.py"))


def table() -> dict[str, str]:
    """Returns the first line of each recipe's docstring, by the recipe's name."""
    trees = {name: ast.parse((directory() / f"{name}.py").read_text("utf-8")) for name in names()}
    return {name: (ast.get_docstring(tree) or "").split("\n")[0] for name, tree in trees.items()}


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
        + faults.suggestion(name, names())
    )


def load(recipe: str) -> ml_collections.ConfigDict:
    """Returns the locked config of a recipe; what follows a colon in its name is its argument.

    Raises:
      FileNotFoundError: as `find`.
      ValueError: if the recipe does not take the argument.
    """
    name, *arguments = recipe.split(":", 1)
    module = _module(name)
    if arguments and not inspect.signature(module.get_config).parameters:
        raise ValueError(f"the recipe {name} takes no argument, but {arguments[0]!r} follows it")
    try:
        return module.get_config(*arguments).lock()
    except (AttributeError, KeyError) as error:
        if not any(isinstance(it, config_lib.MisspeltOptionError) for it in (error, *error.args)):
            raise
        raise AttributeError(f"the recipe {name}: {error}") from error


def of_family(recipe: str) -> list[str]:
    """Returns the names of a recipe's sizes, such as ettin:17m; a name with a size is its own.

    Raises:
      FileNotFoundError: as `find`.
    """
    sizes = [] if ":" in recipe else getattr(_module(recipe), "SIZES", [])
    return [f"{recipe}:{size}" for size in sizes] or [recipe]


def _module(name: str) -> types.ModuleType:
    path = find(name)
    spec = importlib.util.spec_from_file_location(f"bertjax_recipe_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def choose(choices: Mapping[str, Any], name: str, meaning: str) -> Any:
    """Returns what a recipe's argument chooses, such as the sizes of albert:xlarge.

    Raises:
      ValueError: if there is no such choice, with those that there are.
    """
    if name not in choices:
        raise faults.unknown(f"the {meaning}", name, choices)
    return choices[name]


def sizes(layers: int, hidden: int, heads: int, intermediate: int) -> dict[str, int]:
    """Returns the options of config.model for a number of layers, their widths and their heads."""
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    numbers = (layers, hidden, heads, intermediate)
    return {f"model.{name}": number for name, number in zip(names, numbers, strict=True)}


# Options of finetuning that a table decides by the encoder's width: `jobs.finetuning_rates`.
BY_WIDTH = ("schedule.peak_learning_rate", "finetuning.num_epochs", "schedule.warmup_share")


def leave_open(config: ml_collections.ConfigDict, *names: str) -> None:
    """Leaves options to the start of a run: `jobs.automatic`, of BY_WIDTH `finetuning_rates`."""
    for name in names:
        *path, last = name.split(".")
        part = functools.reduce(lambda part, each: part[each], path, config)
        kind = type(part[last])
        with part.ignore_type():
            part[last] = ml_collections.config_dict.placeholder(kind)


def paper_config() -> ml_collections.ConfigDict:
    """Returns the paper's recipe for BERT-base: 128 tokens for 90% of the steps, then 512.

    One run, so that the optimizer's state and the learning-rate schedule go on.
    Source: Devlin et al. 2019, appendix A.2.
    """
    config = config_lib.default_config()
    config.model.vocab_size = 30522  # bert-base-uncased; 0 takes that of the records
    config.phases.phase1.update(num_steps=900_000, max_seq_length=128)
    with config.phases.unlocked():
        config.phases.phase2 = config_lib.phase_config()
    config.phases.phase2.update(num_steps=100_000, max_seq_length=512)
    return config


def finetuning_config(dataset: str) -> ml_collections.ConfigDict:
    """Returns what the recipes of finetuning share: the paper's three epochs in batches of 32.

    A warm-up over a tenth of the steps, an evaluation every epoch, and the model of the last step.
    Source: Devlin et al. 2019, section 4.1; the warm-up: the released run_classifier.py.
    """
    config = config_lib.default_config()
    config.task = "finetuning"
    config.finetuning.dataset = dataset
    config.global_batch_size = 32
    config.schedule.peak_learning_rate = 2e-5
    config.schedule.warmup_share = 0.1
    config.evaluation.every_steps = 0  # every epoch
    config.evaluation.global_batch_size = 64
    config.checkpoint.keep_last = 1
    config.checkpoint.keep_best = 0
    config.log_every_steps = 20
    return config


def own_finetuning_config(dataset: str) -> ml_collections.ConfigDict:
    """Returns `finetuning_config` for a user's own tables, with the options of BY_WIDTH open."""
    config = finetuning_config(dataset)
    leave_open(config, *BY_WIDTH)
    return config


def roberta_config() -> ml_collections.ConfigDict:
    """Returns what the recipes of RoBERTa and its kin share, with the sizes of RoBERTa-base.

    One phase of 8192 sequences of 512 tokens, masks drawn anew at each visit, no pairs.
    Source: Liu et al. 2019, section 3.1 and appendix A, table 9. LayerNorm and biases are not
    decayed, as in BERT; fairseq decays them (config.optimizer.decay_biases).
    """
    config = config_lib.default_config()
    config.model.update(
        vocab_size=50_265,
        position_offset=2,
        type_vocab_size=1,
        initializer="normal",
        layer_norm_eps=1e-5,
    )
    config.pretraining.update(pair_loss="none", masking="dynamic")
    config.global_batch_size = 8192
    config.phases.phase1.update(num_steps=500_000, max_seq_length=512)
    config.optimizer.update(beta2=0.98, clip_norm=0.0)
    config.schedule.update(peak_learning_rate=6e-4, warmup_steps=24_000)
    return config


def modern_config() -> ml_collections.ConfigDict:
    """Returns what the recipes of ModernBERT and Ettin share, with the sizes of ModernBERT-base.

    Pre-norm layers without biases, gated feed-forwards, rotary positions, windows of 64 tokens to
    each side but in every third layer; masks of 30% drawn as records are read, no pairs;
    StableAdamW without clipping. Three phases: short texts in batches that grow, long ones, and
    long ones while the learning rate falls. Where texts get long, the rotary base of layers without
    a window rises to 160,000 (the released config.json has both bases), and the learning rate is
    3e-4 (section 2.2, from memory).
    Source: Warner et al. 2024 (ModernBERT), sections 2.1 and 2.2; AnswerDotAI/ModernBERT,
    yamls/modernbert/modernbert-base-pretrain.yaml.
    """
    config = config_lib.default_config()
    config.model.update(
        vocab_size=50_368,  # OLMo's byte-level BPE, rounded up; 0 takes that of the records
        num_hidden_layers=22,
        intermediate_size=1_152,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=8_192,
        type_vocab_size=0,
        layer="pre_norm",
        feed_forward="gated",
        norm="scale_only",
        layer_norm_eps=1e-5,
        use_bias=False,
        position_embedding="rotary",
        rotary_base=10_000.0,
        window=64,
        global_every=3,
        pooler="normed",
        pooler_act="gelu",
        depth_scaled_init=True,
    )
    config.pretraining.update(pair_loss="none", masking="dynamic", masked_lm_prob=0.3)
    config.evaluation.masked_lm_prob = 0.15
    config.global_batch_size = 576  # of 8,192 tokens: as many as 4,608 of 1,024
    with config.phases.unlocked():
        config.phases.phase2 = config_lib.phase_config()
        config.phases.phase3 = config_lib.phase_config()
    config.phases.phase1.update(num_tokens=1_719_000_000_000, max_seq_length=1_024)
    config.phases.phase1.update(global_batch_size=4_608, ramp_from=768, ramp_tokens=50_000_000_000)
    config.phases.phase2.update(num_tokens=250_000_000_000, max_seq_length=8_192)
    config.phases.phase3.update(num_tokens=50_000_000_000, max_seq_length=8_192)
    config.phases.phase2.rate_share = config.phases.phase3.rate_share = 3e-4 / 8e-4
    config.phases.phase2.rotary_base = config.phases.phase3.rotary_base = 160_000.0
    config.optimizer.update(name="stable_adamw", beta2=0.98, weight_decay=1e-5, clip_norm=0.0)
    config.optimizer.fully_decoupled_decay = True
    config.schedule.update(name="wsd", peak_learning_rate=8e-4, decay_shape="one_minus_sqrt")
    config.schedule.update(warmup_tokens=3_000_000_000, decay_tokens=50_000_000_000)
    return config
