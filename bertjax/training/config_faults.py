"""The faults of a config that can be found without data and devices.

Here belong ranges and options that do not go together. The names that an option may have are the
keys of the table that it chooses from.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import ml_collections

from bertjax import config as config_lib
from bertjax import finetuning, jobs, tasks
from bertjax.data import masking, mixtures, pair_objectives, sequence_rows
from bertjax.devices import sharding, xla_presets
from bertjax.finetuning import embeddings
from bertjax.jobs import lengths as lengths_lib
from bertjax.models import classification, embedding_sharing, encoder_config
from bertjax.tasks import masked_values
from bertjax.training import optim, profiling, protocols, run_writers, schedules, state
from bertjax.workdirs import word_marks

_SHARES = {"mask_share": masking.MASK_SHARE, "keep_share": masking.KEEP_SHARE}
# Option of a phase of pretraining -> that of config.finetuning which says it there, "" where none.
_OF_PRETRAINING = {
    **dict.fromkeys(("num_steps", "num_epochs", "num_tokens"), "num_epochs"),
    "max_seq_length": "max_seq_length",
    **dict.fromkeys(("ramp_from", "ramp_tokens", "rotary_base", "local_rotary_base"), ""),
    "only_embeddings": "",
    **dict.fromkeys(("language_alpha", "languages"), ""),
}

# Option -> what it may be.
CHOICES: dict[str, Collection[str]] = {
    "task": tuple(jobs.JOBS),
    "pretraining.objective": tasks.OBJECTIVES.keys(),
    "pretraining.pair_loss": pair_objectives.LABELS.keys(),
    "pretraining.masking": ("static", "dynamic", "none"),  # of the records, drawn as they are read
    "pretraining.value_error": masked_values.ERRORS.keys(),
    "pretraining.sequence_rows": sequence_rows.SEQUENCE_ROWS.keys(),
    "pretraining.predicts": masked_values.TARGETS,
    "pretraining.generator.embeddings": embedding_sharing.SHARINGS.keys(),
    "pretraining.mask_strategy": masking.MASKERS.keys(),
    "finetuning.dataset": finetuning.KINDS.keys(),
    "finetuning.protocol": protocols.PROTOCOLS.keys(),
    "finetuning.pooling": classification.POOLINGS,
    "finetuning.loss": embeddings.LOSSES.keys(),
    "finetuning.context": ("sentence", "document"),
    "data.source": ("records", "synthetic"),
    "optimizer.name": tuple(optim.OPTIMIZERS),
    "optimizer.moment_dtype": tuple(optim.MOMENT_DTYPES),
    "schedule.name": tuple(schedules.SCHEDULES),
    "schedule.decay_shape": tuple(schedules.SHAPES),
    "sharding": tuple(sharding.RULES),
    **{f"model.{name}": known for name, known in encoder_config.CHOICES.items()},
    "model.dtype": ("auto", *encoder_config.DTYPES),
    "prng_impl": ("auto", *state.PRNG_IMPLS),
    "xla_preset": tuple(xla_presets.PRESETS),
}


# The requirement in words, as a condition, and the options that must meet it.
RANGES: tuple[tuple[str, Callable[[float], bool], tuple[str, ...]], ...] = (
    ("at least 0", lambda value: value >= 0, (
        *("schedule.warmup_steps", "schedule.warmup_tokens", "schedule.peak_learning_rate"),
        *("schedule.decay_steps", "schedule.decay_tokens"),
        *("finetuning.bilstm_size", "finetuning.lora_rank", "finetuning.num_texts"),
        *("optimizer.head_multiplier", "optimizer.clip_norm", "optimizer.muon_update_rms"),
        *("checkpoint.keep_every_steps", "checkpoint.keep_best", "evaluation.max_batches"),
        *("evaluation.pairs_per_paradigm", "model.vocab_size", "budget.hours"),
        "budget.extend_to",
        *(f"pretraining.generator.{size}" for size in (
            "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")),
    )),
    ("at least 1", lambda value: value >= 1, (
        *(f"pretraining.decoder.{size}" for size in (
            "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")),
        *("global_batch_size", "gradient_accumulation_steps", "seeds"),
        *("finetuning.doc_stride", "finetuning.max_query_length"),
        *("finetuning.max_answer_length", "finetuning.n_best_size"),
        *("checkpoint.save_every_steps", "checkpoint.keep_last", "log_every_steps"),
        *("evaluation.global_batch_size", "max_skipped_steps", "data.max_streams"),
        *("data.shuffle_buffer_size", "model.intermediate_size"),
    )),
    ("at least 5", lambda value: value >= 5, ("finetuning.max_seq_length",)),
    ("at most 16,777,216", lambda value: value <= 1 << 24, (
        "global_batch_size", "evaluation.global_batch_size")),
    ("between 0 and 1", lambda value: 0 < value < 1, ("pretraining.masked_lm_prob",)),
    ("in (0, 1]", lambda value: 0 < value <= 1, (
        "optimizer.layer_decay", "pretraining.least_crop")),
    ("in [0, 1)", lambda value: 0 <= value < 1, (
        *("evaluation.masked_lm_prob", "optimizer.muon_momentum", "optimizer.ema_decay"),
        *("schedule.warmup_share", "schedule.decay_share"),
    )),
    ("in [0, 1]", lambda value: 0 <= value <= 1, ("schedule.start_share", "schedule.end_share")),
)  # fmt: skip
_MASK_OPTIONS = "mask_strategy|masked_lm_prob|max_predictions_per_seq|mask_share|keep_share"
# Which options, whether anything reads them, and where nothing does.
READ_WITH: tuple[tuple[str, Callable[[Mapping[str, Any]], bool], str], ...] = (
    (r"pretraining\.(discriminator_weight|generator\..*)",
     lambda options: options["pretraining.objective"] == "replaced_tokens",
     "with an objective other than 'replaced_tokens'"),
    (r"pretraining\.(causal_share|hybrid_mean)",
     lambda options: options["pretraining.objective"] == "hybrid",
     "with an objective other than 'hybrid'"),
    (r"pretraining\.prefix_share",
     lambda options: options["pretraining.objective"] == "prefix_rows",
     "with an objective other than 'prefix_rows'"),
    (r"pretraining\.sequence_rows",
     lambda options: options["pretraining.objective"] == "masked_spans_to_sequence",
     "with an objective other than 'masked_spans_to_sequence'"),
    (rf"(pretraining\.({_MASK_OPTIONS})|(phases\.\w+\.(final_)?|evaluation\.)masked_lm_prob)",
     lambda options: options["pretraining.objective"] != "masked_spans_to_sequence",
     "with the objective 'masked_spans_to_sequence', whose rows have shares of their own"),
    (r"pretraining\.(value_error|normalized_patches|least_crop|flips)",
     lambda options: options["pretraining.objective"] in ("masked_values", "masked_autoencoder"),
     "with an objective other than 'masked_values' and 'masked_autoencoder'"),
    (r"pretraining\.(predicts|exchanged_cells)",
     lambda options: options["pretraining.objective"] == "masked_values",
     "with an objective other than 'masked_values'"),
    (r"pretraining\.decoder\..*",
     lambda options: options["pretraining.objective"] == "masked_autoencoder",
     "with an objective other than 'masked_autoencoder'"),
    (rf"pretraining\.({_MASK_OPTIONS})",
     lambda options: options["pretraining.masking"] != "none",
     "with config.pretraining.masking='none'"),
    *((rf"schedule\.{option}",
       lambda options, option=option: (
           options["schedule.name"] not in schedules.SCHEDULES
           or option in schedules.SCHEDULES[options["schedule.name"]].reads
       ),
       "with a schedule other than "
       + ", ".join(name for name, kind in schedules.SCHEDULES.items() if option in kind.reads))
      for option in (*schedules.DECAY_LENGTHS, "decay_shape", "start_share", "end_share")),
    (r"(model|phases\.\w+)\.(local_)?rotary_base",
     lambda options: options["model.position_embedding"] == "rotary",
     "with config.model.position_embedding='learnt'"),
    (r"((model|phases\.\w+)\.local_rotary_base|model\.global_every)",
     lambda options: bool(options["model.window"]),
     "with config.model.window 0"),
    (r"evaluation\.ema",
     lambda options: options["optimizer.ema_decay"] != 0,
     "with config.optimizer.ema_decay 0"),
    (r"optimizer\.muon_.*",
     lambda options: options["optimizer.name"] == "muon",
     "with an optimizer other than 'muon'"),
    (r"optimizer\.fully_decoupled_decay",
     lambda options: options["optimizer.name"] != "lamb",
     "with 'lamb', whose trust ratio takes the decay in"),
    (r"(phases\.\w+\.(final_)?|evaluation\.)masked_lm_prob",
     lambda options: options["pretraining.masking"] == "dynamic",
     "with a config.pretraining.masking other than 'dynamic'"),
    (r"data\.languages",
     lambda options: options["model.language_embeddings"] > 0,
     "with config.model.language_embeddings 0"),
    (r"evaluation\.pairs_(per_paradigm|language)",
     lambda options: bool(options["evaluation.pairs_file"]),
     "without config.evaluation.pairs_file"),
)  # fmt: skip


def validate(config: ml_collections.ConfigDict) -> None:
    """Raises a ValueError that lists every fault which needs no data and no device to be seen."""
    options = dict(config_lib.flatten(config))
    faults = [
        f"config.{name} is {options[name]!r}; known are {', '.join(names)}"
        for name, names in CHOICES.items()
        if options[name] not in names and (name == "model.dtype" or not name.startswith("model."))
    ]
    # The records may decide the size of the vocabulary.
    defaults = {"dtype": "float32", "vocab_size": max(config.model.vocab_size, 0) or 30522}
    # The records have them.
    defaults |= {"value_width": config.model.value_width or 1}
    defaults |= {"columns": config.model.columns or (0,)}
    try:
        encoder_config.EncoderConfig(**{**config.model, **defaults})
    except encoder_config.FaultyConfigError as error:
        faults += [f"config.model.{fault}" for fault in error.faults]
    is_finetuning = options["task"] == "finetuning"
    of_task = _finetuning_faults if is_finetuning else _pretraining_faults
    faults += [*_range_faults(options), *of_task(config), *_mask_faults(options)]
    faults += _unread_faults(options, config_lib.defaults_of(config))
    faults += _distillation_faults(config.distillation, is_finetuning)
    faults += run_writers.faults(options["writers"])
    faults += profiling.faults(options["profile_steps"])
    faults += word_marks.faults(options["checkpoint.save_at_words"])
    if options["checkpoint.save_at_words"] and (is_finetuning or config.data.source != "records"):
        faults.append(
            f"config.checkpoint.save_at_words is {options['checkpoint.save_at_words']}, but only "
            "the records of a pretraining count words: leave it at ()"
        )
    if config.finetuning.dataset in finetuning.KINDS and is_finetuning:
        faults += _kind_faults(config)
    if config.init_from_smaller and (is_finetuning or not config.init_from):
        why = "finetuning has the sizes of its weights" if is_finetuning else "there is no source"
        faults.append(
            f"config.init_from_smaller is True, but {why}: leave it at False, or pretrain with "
            "--config.init_from=PATH"
        )
    if config.resize_vocabulary and not config.init_from:
        faults.append(
            "config.resize_vocabulary is True, but config.init_from is empty: there is no "
            "vocabulary to resize; give --config.init_from=PATH or leave it at False"
        )
    if config.exchange_vocabulary and (is_finetuning or not config.init_from):
        why = "finetuning has the vocabulary of its weights" if is_finetuning else "there is none"
        faults.append(
            f"config.exchange_vocabulary is True, but {why}: leave it at False, or pretrain with "
            "--config.init_from=PATH"
        )
    if config.exchange_vocabulary and config.resize_vocabulary:
        faults.append(
            "config.exchange_vocabulary and config.resize_vocabulary are True; the first takes new "
            "entries at any place: leave config.resize_vocabulary at False"
        )
    if faults:
        raise ValueError("the config cannot be used:\n  " + "\n  ".join(faults))


def _pretraining_faults(config: ml_collections.ConfigDict) -> Iterator[str]:
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
    if objective := tasks.OBJECTIVES.get(config.pretraining.objective):
        yield from objective.faults(config)
    if config.seeds > 1 or config.search:
        yield "config.seeds and config.search are for finetuning; leave them at 1 and False"


def _distillation_faults(options: ml_collections.ConfigDict, is_finetuning: bool) -> Iterator[str]:
    defaults = config_lib.default_config().distillation
    if not options.teacher:
        changed = [name for name in defaults if options[name] != defaults[name]]
        if changed:
            yield (
                f"config.distillation.{changed[0]} is {options[changed[0]]!r}, but there is no "
                "teacher: give --config.distillation.teacher=PATH"
            )
        return
    if options.temperature <= 0:
        yield f"config.distillation.temperature is {options.temperature}; it must be above 0"
    weights = ["soft_weight", "hard_weight", *([] if is_finetuning else ["cosine_weight"])]
    for name in weights:
        if options[name] < 0:
            yield f"config.distillation.{name} is {options[name]}; it must be at least 0"
    if not any(options[name] for name in weights):
        yield f"config.distillation.{', '.join(weights)} are all 0: there is nothing to learn"
    for name in ("cosine_weight", "only_masked", "layers", "starts_student"):
        if is_finetuning and options[name] != defaults[name]:
            yield (
                f"config.distillation.{name} is {options[name]!r}; it is for pretraining: leave it "
                f"at {defaults[name]!r}"
            )


def _range_faults(options: Mapping[str, Any]) -> Iterator[str]:
    for words, is_in, names in RANGES:
        for name in names:
            if not is_in(options[name]):
                yield f"config.{name} is {options[name]}; it must be {words}"
    every, least = options["evaluation.every_steps"], int(options["task"] != "finetuning")
    if every < least:
        yield f"config.evaluation.every_steps is {every}; it must be at least {least}"
    if options["optimizer.fully_decoupled_decay"] and not options["schedule.peak_learning_rate"]:
        yield (
            "config.optimizer.fully_decoupled_decay is True, but the peak rate that it goes by, "
            "config.schedule.peak_learning_rate, is 0"
        )
    lengths = [f"schedule.{name}" for name in schedules.DECAY_LENGTHS]
    if options["schedule.name"] == "wsd" and not any(options[name] for name in lengths):
        yield (
            "config.schedule.name is 'wsd', which decays at the end of the run, but not how long: "
            f"give one of {', '.join(f'config.{name}' for name in lengths)}, or 'constant'"
        )


def _unread_faults(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    for pattern, is_read, where in READ_WITH:
        if is_read(options):
            continue
        for name, value in options.items():
            if re.fullmatch(pattern, name) and value != defaults[name]:
                yield (
                    f"config.{name} is {value!r}, which nothing reads {where}: leave it at "
                    f"{defaults[name]!r}"
                )


def _finetuning_faults(config: ml_collections.ConfigDict) -> Iterator[str]:
    if not config.init_from:
        yield (
            "config.init_from is empty; finetuning starts from pretrained weights: give "
            "--config.init_from=PATH, a workdir of bertjax or a checkpoint that conversion reads"
        )
    defaults = config_lib.phase_config()
    for name, (option, instead) in itertools.product(
        sorted(config.phases), _OF_PRETRAINING.items()
    ):
        if config.phases[name][option] != defaults[option]:
            yield (
                f"config.phases.{name}.{option} is {config.phases[name][option]}; finetuning does "
                f"not read it: leave it at {defaults[option]}"
                + (f", and set config.finetuning.{instead}" if instead else "")
            )
    if config.finetuning.num_epochs <= 0:
        yield f"config.finetuning.num_epochs is {config.finetuning.num_epochs}; it must be above 0"
    for option, value in config.budget.items():
        if value:
            yield f"config.budget.{option} is {value}; it is for pretraining: leave it at 0"
    if config.data.source != "records":
        yield f"config.data.source is {config.data.source!r}; finetuning has texts of its own"
    if config.evaluation.pairs_file:
        yield (
            f"config.evaluation.pairs_file is {config.evaluation.pairs_file!r}; finetuned models "
            "give sentences no likelihood: leave it empty"
        )


def _kind_faults(config: ml_collections.ConfigDict) -> Iterator[str]:
    """Yields the faults that the kind sees, and the options of other kinds that it would ignore."""
    options = config.finetuning
    kind = finetuning.KINDS[options.dataset]
    yield from kind.reader(options, None).missing()
    yield from kind.faults(config)
    defaults: dict[str, Any] = {}
    for other in finetuning.KINDS.values():
        defaults |= other.options
    for name, default in defaults.items():
        if options[name] != default and name not in kind.options:
            having = [repr(key) for key, it in finetuning.KINDS.items() if name in it.options]
            yield (
                f"config.finetuning.{name} is {options[name]!r}; it is for the dataset "
                f"{' or '.join(having)}, not for {options.dataset!r}: leave it at {default!r}"
            )


def _mask_faults(options: Mapping[str, Any]) -> Iterator[str]:
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
    """Yields what is wrong with the length, the masks and the growing batch of one phase."""
    at_least_0 = ("num_steps", "num_epochs", "num_tokens", "ramp_from", "ramp_tokens")
    least = dict.fromkeys((*at_least_0, "rotary_base", "local_rotary_base"), 0)
    for option, value in (least | {"max_seq_length": 1}).items():
        if phase[option] < value:
            yield f"config.phases.{name}.{option} is {phase[option]}; it must be at least {value}"
    for option in ("masked_lm_prob", "final_masked_lm_prob"):
        if not 0 <= phase[option] < 1:
            yield f"config.phases.{name}.{option} is {phase[option]}; it must be in [0, 1)"
    if phase.language_alpha < 0:
        yield (
            f"config.phases.{name}.language_alpha is {phase.language_alpha}; it must be at least 0"
        )
    try:
        mixtures.parse(phase.languages)
    except ValueError as error:
        yield f"config.phases.{name}.{error}"
    if phase.rate_share <= 0:
        yield f"config.phases.{name}.rate_share is {phase.rate_share}; it must be above 0"
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
