"""The faults of a config that can be found without data and devices.

A row of `options` says what its option may be and when it is read. Here belong the options that do
not go together, and the tables whose keys are the names that an option may have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import ml_collections

from bertjax import config as config_lib
from bertjax import finetuning, jobs, tasks
from bertjax.data import masking, mixtures, pair_objectives, sequence_rows
from bertjax.devices import sharding, xla_presets
from bertjax.finetuning import embeddings
from bertjax.jobs import finetuning_rates
from bertjax.jobs import lengths as lengths_lib
from bertjax.models import classification, embedding_sharing, encoder_config
from bertjax.options import faults, pretraining, table
from bertjax.tasks import masked_values
from bertjax.training import optim, profiling, protocols, run_writers, schedules, state
from bertjax.workdirs import word_marks

_SHARES = {"mask_share": masking.MASK_SHARE, "keep_share": masking.KEEP_SHARE}

# Option -> the names that it may have, by the rows or by the tables that it chooses from.
CHOICES: dict[str, Collection[str]] = {
    **{name: row.choices for name, row in table.rows().items() if row.choices},
    "task": tuple(jobs.JOBS),
    "pretraining.objective": tasks.OBJECTIVES.keys(),
    "pretraining.pair_loss": pair_objectives.LABELS.keys(),
    "pretraining.value_error": masked_values.ERRORS.keys(),
    "pretraining.sequence_rows": sequence_rows.SEQUENCE_ROWS.keys(),
    "pretraining.generator.embeddings": embedding_sharing.SHARINGS.keys(),
    "pretraining.mask_strategy": masking.MASKERS.keys(),
    "finetuning.dataset": finetuning.KINDS.keys(),
    "finetuning.protocol": protocols.PROTOCOLS.keys(),
    "finetuning.pooling": classification.POOLINGS,
    "finetuning.loss": embeddings.LOSSES.keys(),
    "optimizer.name": tuple(optim.OPTIMIZERS),
    "optimizer.moment_dtype": tuple(optim.MOMENT_DTYPES),
    "schedule.name": tuple(schedules.SCHEDULES),
    "schedule.decay_shape": tuple(schedules.SHAPES),
    "sharding": tuple(sharding.RULES),
    **{f"model.{name}": known for name, known in encoder_config.CHOICES.items() if name != "dtype"},
    "prng_impl": ("auto", *state.PRNG_IMPLS),
    "xla_preset": tuple(xla_presets.PRESETS),
}


def validate(config: ml_collections.ConfigDict) -> None:
    """Raises a ValueError that lists every fault which needs no data and no device to be seen."""
    faults.check("the config cannot be used", _faults(finetuning_rates.as_of_base(config)))


def _faults(config: ml_collections.ConfigDict) -> Iterator[ValueError | str]:
    options = dict(config_lib.flatten(config))
    is_finetuning = options["task"] == "finetuning"
    yield from _model_faults(config)
    yield from _row_faults(config, options)
    yield from _owned_faults(
        "pretraining.objective", {it: row.options for it, row in tasks.OBJECTIVES.items()}, options
    )
    yield from _owned_faults(
        "schedule.name", {it: row.reads for it, row in schedules.SCHEDULES.items()}, options
    )
    yield from (_finetuning_faults if is_finetuning else _pretraining_faults)(config)
    yield from _schedule_faults(options)
    yield from _mask_faults(options)
    yield from _distillation_faults(config.distillation, is_finetuning)
    yield from run_writers.faults(options["writers"])
    yield from profiling.faults(options["profile_steps"])
    yield from word_marks.faults(options["checkpoint.save_at_words"])
    if config.exchange_vocabulary and config.resize_vocabulary:
        yield (
            "config.exchange_vocabulary and config.resize_vocabulary are True; the first takes new "
            "entries at any place: leave config.resize_vocabulary at False"
        )


def _model_faults(config: ml_collections.ConfigDict) -> Iterator[str]:
    sizes = {**config.model, "dtype": "float32"}
    # The records may decide these.
    for name, size in (("vocab_size", 30522), ("value_width", 1), ("columns", (0,))):
        sizes[name] = sizes[name] or size
    try:
        encoder_config.EncoderConfig(**sizes)
    except encoder_config.FaultyConfigError as error:
        yield from (f"config.model.{fault}" for fault in error.faults)


def _row_faults(
    config: ml_collections.ConfigDict, options: Mapping[str, Any]
) -> Iterator[ValueError]:
    """Yields the options that nothing reads, and the values that their rows do not allow."""
    rows = table.rows()
    # The encoder's config has checked its fields, but for what the records or the device decide.
    elsewhere = {f"model.{name}" for name in config.model} - {"model.dtype", "model.vocab_size"}
    running = {f"phases.{name}." for name in config_lib.phase_names(config)}
    for name, value in options.items():
        row = rows[table.row_name(name)]
        if unread := list(row.unread(f"config.{name}", value, options)):
            yield from unread
        elif name not in elsewhere and _is_in(name, running):
            yield from row.wrong(f"config.{name}", value, CHOICES.get(name))


def _is_in(name: str, running: Collection[str]) -> bool:
    """Returns whether an option is one of a phase that runs, or of none."""
    return not name.startswith("phases.") or name.startswith(tuple(running))


def _owned_faults(
    chooser: str, owned: Mapping[str, Collection[str]], options: Mapping[str, Any]
) -> Iterator[ValueError]:
    """Yields the options that are set, but that the chosen row of a table does not read.

    `owned` are the names that each row reads, of options or of groups of them, in the group of
    the option that chooses.
    """
    chosen, (group, _, _) = options[chooser], chooser.rpartition(".")
    if chosen not in owned:
        return
    for name, row in table.rows().items():
        part = name.removeprefix(f"{group}.").partition(".")[0]
        readers = [repr(it) for it, names in owned.items() if part in names]
        is_read = not name.startswith(f"{group}.") or not readers or part in owned[chosen]
        if not is_read and options[name] != row.default:
            read = "reads" if len(readers) == 1 else "read"
            why = f"config.{chooser} is {chosen!r}, and only {' and '.join(readers)} {read} it"
            yield faults.unread(f"config.{name}", options[name], why, row.default)


def _pretraining_faults(config: ml_collections.ConfigDict) -> Iterator[ValueError | str]:
    yield from _batch_faults(config)
    names = config_lib.phase_names(config)
    lengths = sorted({config.phases[name].max_seq_length for name in names})
    is_one = config.data.train_dir and "{max_seq_length}" not in config.data.train_dir
    if config.data.source == "records" and is_one and len(lengths) > 1:
        yield (
            f"config.data.train_dir is {config.data.train_dir!r}, one directory, but the phases "
            f"have {' and '.join(map(str, lengths))} tokens: write {{max_seq_length}} where the "
            f"length stands in the names ('train_{{max_seq_length}}'), or leave phases out with "
            f"--config.phases.{names[-1]}.num_steps=0"
        )
    if config.data.source == "records" and not config.data.train_dir:
        yield (
            "config.data.train_dir is empty; give the record directory that "
            "`python -m data_pipelines.build` wrote: --config.data.train_dir=DIR"
        )
    growing = [name for name in names if config.phases[name].ramp_from]
    if config.data.length_buckets and growing:
        yield (
            f"config.data.length_buckets is True, and config.phases.{growing[0]}.ramp_from is "
            f"{config.phases[growing[0]].ramp_from}: rows are dealt by length among batches of one "
            "size, so leave one of them out"
        )
    reads_values = config.model.embeddings not in encoder_config.OF_TOKENS
    if config.data.source == "synthetic" and not config.model.vocab_size and not reads_values:
        yield "config.model.vocab_size is 0; with config.data.source=synthetic set it"
    if not config.evaluation.every_steps:
        yield faults.wrong("config.evaluation.every_steps", 0, "at least 1 in pretraining")
    if objective := tasks.OBJECTIVES.get(config.pretraining.objective):
        yield from objective.faults(config)


def _distillation_faults(options: ml_collections.ConfigDict, is_finetuning: bool) -> Iterator[str]:
    weights = ["soft_weight", "hard_weight", *([] if is_finetuning else ["cosine_weight"])]
    if options.teacher and not any(options[name] for name in weights):
        yield f"config.distillation.{', '.join(weights)} are all 0: there is nothing to learn"


def _schedule_faults(options: Mapping[str, Any]) -> Iterator[str]:
    if options["optimizer.fully_decoupled_decay"] and not options["schedule.peak_learning_rate"]:
        yield (
            "config.optimizer.fully_decoupled_decay is True, but the peak learning rate that it "
            "goes by, config.schedule.peak_learning_rate, is 0"
        )
    lengths = [f"schedule.{name}" for name in schedules.DECAY_LENGTHS]
    if options["schedule.name"] == "wsd" and not any(options[name] for name in lengths):
        yield (
            "config.schedule.name is 'wsd', which decays at the end of the run: give the length of "
            f"the decay, one of {', '.join(f'config.{name}' for name in lengths)}, or 'constant'"
        )


def _finetuning_faults(config: ml_collections.ConfigDict) -> Iterator[ValueError | str]:
    if not config.init_from:
        yield (
            "config.init_from is empty; finetuning starts from pretrained weights: give "
            "--config.init_from=PATH, a workdir of bertjax or a checkpoint that conversion reads"
        )
    if kind := finetuning.KINDS.get(config.finetuning.dataset):
        yield from kind.reader(config.finetuning, None).missing()
        yield from kind.faults(config)
    owned = {name: kind.options for name, kind in finetuning.KINDS.items()}
    yield from _owned_faults("finetuning.dataset", owned, dict(config_lib.flatten(config)))


def _mask_faults(options: Mapping[str, Any]) -> Iterator[ValueError | str]:
    shares = {name: options[f"pretraining.{name}"] for name in _SHARES}
    shown = " and ".join(f"config.pretraining.{name} is {share}" for name, share in shares.items())
    if min(shares.values()) < 0 or sum(shares.values()) > 1 + 1e-9:
        yield f"{shown}; both must be at least 0, and their sum at most 1"
    if options["pretraining.masking"] == "static" and shares != _SHARES:
        yield (
            f"{shown}, but with config.pretraining.masking 'static' masks are those of the "
            "records: set it to 'dynamic' (records built so), or leave the shares at "
            f"{' and '.join(map(str, _SHARES.values()))}"
        )
    strategy, masking = options["pretraining.mask_strategy"], options["pretraining.masking"]
    name = options["pretraining.objective"]
    objective = tasks.OBJECTIVES.get(name)
    if objective and not objective.reads_masks and masking != "none":
        rows = table.rows()
        for option, value in options.items():
            default = rows[table.row_name(option)].default
            is_of_masks = option.rpartition(".")[2].removeprefix("final_") in pretraining.MASKS
            if is_of_masks and value != default:
                why = f"the objective {name!r} reads no masks"
                yield faults.unread(f"config.{option}", value, why, default)
    if masking == "none" and objective and objective.reads_masks:
        yield (
            f"config.pretraining.masking is 'none', but the objective {name!r} predicts "
            "masked tokens: set it to 'static' or 'dynamic', as the records were built"
        )
    if masking == "static" and strategy in ("whole_word", "ngram", "span"):
        yield (
            f"config.pretraining.mask_strategy is {strategy!r}, but with "
            "config.pretraining.masking 'static' masks are those of the records: set it to "
            "'dynamic' (records built so), or leave mask_strategy at 'token' and choose when "
            "the records are built"
        )


def _batch_faults(config: ml_collections.ConfigDict) -> Iterator[str]:
    names = config_lib.phase_names(config)
    if not config.phases:
        yield "config.phases is empty; it must hold at least one config.phase_config()"
    elif not names:
        yield (
            f"config.phases.{min(config.phases)}.num_steps is 0, which leaves the phase out, and "
            "no other phase has steps: give one of them num_steps or num_epochs"
        )
    for name in names:
        phase = config.phases[name]
        batch_size = phase.global_batch_size or config.global_batch_size
        yield from _phase_faults(name, phase, config)
        if phase.num_epochs and config.data.source == "synthetic":
            yield (
                f"config.phases.{name}.num_epochs is {phase.num_epochs}; with config.data.source "
                "synthetic there are no records to count: give num_steps"
            )
        smallest, of = batch_size, f"the global_batch_size of config.phases.{name}"
        if phase.ramp_from > 0:
            smallest, of = phase.ramp_from, f"config.phases.{name}.ramp_from"
        if smallest % max(config.gradient_accumulation_steps, 1):
            yield (
                f"{of} is {smallest}; it must be a multiple of config.gradient_accumulation_steps, "
                f"{config.gradient_accumulation_steps}"
            )
        if phase.max_seq_length > config.model.max_position_embeddings:
            yield (
                f"config.phases.{name}.max_seq_length is {phase.max_seq_length}; "
                f"config.model.max_position_embeddings allows "
                f"{config.model.max_position_embeddings}"
            )


def _phase_faults(
    name: str, phase: ml_collections.ConfigDict, config: ml_collections.ConfigDict
) -> Iterator[str]:
    """Yields what is wrong with the length, the languages and the growing batch of one phase."""
    try:
        mixtures.parse(phase.languages)
    except ValueError as error:
        yield f"config.phases.{name}.{error}"
    if phase.num_epochs > 0 and phase.num_tokens > 0:
        yield (
            f"config.phases.{name}.num_epochs is {phase.num_epochs} and num_tokens "
            f"{phase.num_tokens}; one is enough"
        )
    batch_size = phase.global_batch_size or config.global_batch_size
    if bool(phase.ramp_from) != bool(phase.ramp_tokens):
        yield (
            f"config.phases.{name}.ramp_from is {phase.ramp_from} and ramp_tokens "
            f"{phase.ramp_tokens}; a batch that grows needs both, one that does not neither"
        )
    if fault := lengths_lib.ramp_fault(name, phase.ramp_from, batch_size):
        yield fault
