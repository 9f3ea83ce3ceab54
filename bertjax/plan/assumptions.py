"""A config completed without its data, and a sentence for each assumption."""

from __future__ import annotations

import ml_collections

from bertjax import config as config_lib
from bertjax import jobs
from bertjax.jobs import finetuning, finetuning_rates, lengths, pretraining
from bertjax.models import encoder_config
from bertjax.training import program, protocols, trials

DEFAULT_VOCAB_SIZE = 30522  # of bert-base-uncased


def with_vocabulary(
    config: ml_collections.ConfigDict, vocab_size: int
) -> tuple[ml_collections.ConfigDict, list[str]]:
    """Returns the config with a vocabulary size, and the assumptions made without its records."""
    config = config.copy_and_resolve_references()
    assumptions = []
    if not config.model.vocab_size and config.model.embeddings in encoder_config.OF_TOKENS:
        config.model.vocab_size = vocab_size or DEFAULT_VOCAB_SIZE
        source = "--vocab_size" if vocab_size else "bert-base-uncased's; --vocab_size changes it"
        assumptions.append(f"a vocabulary of {config.model.vocab_size:,} ({source})")
    is_static = config.data.source == "records" and config.pretraining.masking == "static"
    if config.task == "pretraining" and is_static and not pretraining.known_manifests(config):
        assumptions.append(
            "as many masked tokens as config.pretraining says; records may hold another number"
        )
    if config.task == "pretraining" and config.data.length_buckets:
        assumptions.append("every batch as long as its phase; length buckets make many shorter")
    return config, assumptions


def with_length(
    config: ml_collections.ConfigDict, num_examples: int
) -> tuple[ml_collections.ConfigDict, list[str]]:
    """Returns the config with the number of steps for its examples, and the assumptions.

    If `num_examples` is 0, they are counted in the config's data.
    """
    if config.task == "finetuning":
        return _finetuning_with_length(config, num_examples)
    names = [name for name in config_lib.phase_names(config) if config.phases[name].num_epochs]
    if not names:
        return config, []
    if not num_examples and not config.data.train_dir:
        raise ValueError(
            f"config.phases.{names[0]}.num_epochs is {config.phases[names[0]].num_epochs}, which "
            "needs a number of examples: give --config.data.train_dir=DIR or --num_examples=N"
        )
    config = config.copy_and_resolve_references()
    if num_examples:
        lengths.set_steps(config, dict.fromkeys(names, num_examples))
    else:
        opened = _opened(config)
        for name in names:
            config.phases[name].num_steps = opened.config.phases[name].num_steps
    for name in names:
        config.phases[name].num_epochs = 0.0  # the outline has no records
    source = "--num_examples" if num_examples else "the manifests"
    shown = ", ".join(f"{name} of {config.phases[name].num_steps:,} steps" for name in names)
    return config, [f"{shown}, by the number of examples ({source})"]


def _finetuning_with_length(
    config: ml_collections.ConfigDict, num_examples: int
) -> tuple[ml_collections.ConfigDict, list[str]]:
    config = protocols.applied(config)
    options = config.finetuning
    has_data = bool(config.init_from and (options.train_file or options.data_dir))
    if not num_examples and not has_data:
        raise ValueError(
            "the time of finetuning depends on its examples: give --num_examples=N, or the "
            "weights and the files as for training (--config.init_from=PATH and "
            "--config.finetuning.train_file=FILE or --config.finetuning.data_dir=DIR)"
        )
    assumptions = []
    if num_examples:
        config = config.copy_and_resolve_references()
        finetuning_rates.decide(config, num_examples)
        config.phases.phase1.num_steps = finetuning.num_steps(config, num_examples)
        source = "--num_examples"
        depth, width = config.model.num_hidden_layers, config.model.hidden_size
        sizes = f"{depth} layers, {width} wide (config.model; config.init_from is not read)"
        assumptions.append(f"a model of {sizes}")
    else:
        opened = _opened(config)
        dtype, prng_impl = config.model.dtype, config.prng_impl
        config = jobs.unfrozen(opened.config)
        config.model.dtype, config.prng_impl = dtype, prng_impl  # as on the target
        num_examples = opened.data.of_phase(opened.phases[0]).num_examples or 0
        source = "its files"
    epochs = f"{config.finetuning.num_epochs:g} epochs of them"
    assumptions.insert(0, f"{num_examples:,} examples ({source}), {epochs}")
    if config.finetuning.length_buckets:
        length = config.finetuning.max_seq_length
        assumptions.append(f"every batch {length} tokens long; length buckets make most shorter")
    if trials.are_configured(config):
        count = len(trials.list_trials(config))
        assumptions.append(f"one of {count} trainings: seeds and settings")
    return config, assumptions


def _opened(config: ml_collections.ConfigDict) -> jobs.Job:
    return jobs.JOBS[config.task].open(program.resolve(config, "cpu"))
