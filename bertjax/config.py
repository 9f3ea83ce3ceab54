"""Every option once, with default, unit and a short comment; and what makes a config wrong.

A recipe in `configs/` starts from `default_config()` and changes what differs. The config is
locked: a misspelt option is an error. `ConfigDict` stops at the entry points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

CHOICES: dict[str, tuple[str, ...]] = {
    "task": ("pretraining",),
    "pretraining.pair_loss": ("nsp", "sop", "none"),
    "pretraining.masking": ("static", "dynamic"),
    "pretraining.mask_strategy": ("token", "whole_word", "ngram", "span"),
    "data.source": ("records", "synthetic"),
    "optimizer.name": ("adamw", "lamb"),
    "schedule.name": ("linear", "bert"),
    "sharding": ("data_parallel", "fsdp", "tensor", "fsdp_tensor"),
    "model.dtype": ("auto", "float32", "bfloat16"),
    "model.remat": ("none", "full", "dots"),
    "model.hidden_act": ("gelu", "gelu_tanh", "relu"),
    "prng_impl": ("auto", "threefry2x32", "rbg"),
    "xla_preset": (
        "none",
        "async_all_reduce",
        "async_all_gather",
        "several_slices",
        "large_vmem",
        "rbg_unsafe",
    ),
}

# Options that a resumed run may change: they decide where and how fast the run goes and what is
# watched, not what is learnt (rounding and dropout masks may differ). Every other difference is
# refused. A moved train_dir is checked by its manifest.
CHANGEABLE = (
    r"(mesh|checkpoint|evaluation|plateau)\..*",
    r"sharding|log_every_steps|max_skipped_steps|compilation_cache_dir|xla_preset",
    r"gradient_accumulation_steps|model\.(remat|dtype)|data\.(train|eval)_dir",
)


def phase_config() -> ml_collections.ConfigDict:
    """Returns the options of one phase of training."""
    phase = ml_collections.ConfigDict()
    phase.num_steps = 1_000_000  # optimizer updates in this phase
    phase.max_seq_length = 128  # tokens per sequence
    phase.global_batch_size = 0  # sequences per update; 0: config.global_batch_size
    return phase


def default_config() -> ml_collections.ConfigDict:
    """Returns every option with its default: BERT-base by the paper, one phase."""
    config = ml_collections.ConfigDict()
    config.task = "pretraining"  # a key of bertjax.jobs.JOBS
    config.seed = 0  # of initialization, data order, masks and dropout
    config.init_from = ""  # a workdir, Hugging Face or TF1 checkpoint to start from; "": none
    config.resize_vocabulary = False  # fresh rows for entries that init_from's vocabulary lacks
    config.global_batch_size = 256  # sequences per update, over all devices and micro-batches
    config.gradient_accumulation_steps = 1  # micro-batches per update
    config.phases = ml_collections.ConfigDict(
        {"phase1": phase_config()}
    )  # run in order: phase1, phase2
    config.model = _model()
    config.pretraining = _pretraining()
    config.data = _data()
    config.optimizer = _optimizer()
    config.schedule = _schedule()
    config.mesh = _mesh()
    config.sharding = "data_parallel"  # data_parallel | fsdp | tensor | fsdp_tensor
    config.prng_impl = "auto"  # of dropout; auto: threefry2x32 on CPU, rbg elsewhere
    config.checkpoint = _checkpoint()
    config.evaluation = _evaluation()
    config.log_every_steps = 100  # between two lines of metrics.jsonl
    config.max_skipped_steps = 20  # non-finite steps in a row that stop the run
    config.plateau = _plateau()
    config.xla_preset = "none"  # options of the TPU compiler: a key of xla_presets.PRESETS
    config.compilation_cache_dir = ""  # of XLA programs; "": JAX's own setting
    return config.lock()


def _model() -> ml_collections.ConfigDict:
    model = ml_collections.ConfigDict()
    model.vocab_size = 0  # entries; 0: the vocabulary of the records
    model.hidden_size = 768
    model.num_hidden_layers = 12
    model.num_attention_heads = 12
    model.intermediate_size = 3072
    model.hidden_act = "gelu"  # gelu (erf) | gelu_tanh | relu
    model.hidden_dropout_prob = 0.1
    model.attention_probs_dropout_prob = 0.1
    model.max_position_embeddings = 512  # longest sequence the model can read, in tokens
    model.type_vocab_size = 2
    model.initializer_range = 0.02  # sigma of the truncated normal
    model.layer_norm_eps = 1e-12
    model.dtype = "auto"  # of matrix products; auto: float32 on CPU, bfloat16 elsewhere
    model.remat = "none"  # recompute activations in the backward pass: none | dots | full
    return model


def _pretraining() -> ml_collections.ConfigDict:
    pretraining = ml_collections.ConfigDict()
    pretraining.pair_loss = "nsp"  # nsp | sop (sentence order, ALBERT) | none
    pretraining.masking = "static"  # static: from the records | dynamic: drawn at load time
    pretraining.mask_strategy = "token"  # dynamic masks: token | whole_word | ngram | span
    pretraining.masked_lm_prob = 0.15  # share of tokens to predict (dynamic masks)
    pretraining.max_predictions_per_seq = 0  # dynamic masks; 0: masked_lm_prob x length, rounded up
    return pretraining


def _data() -> ml_collections.ConfigDict:
    data = ml_collections.ConfigDict()
    data.source = "records"  # records | synthetic (random tokens, to measure speed)
    data.train_dir = ""  # record directory; {max_seq_length} in it becomes the phase's length
    data.eval_dir = ""  # record directory of held-out documents; "": no evaluation
    data.max_streams = 32  # streams of records per global batch, at most
    data.shuffle_buffer_size = 4096  # records per stream; a shard up to this size shuffles whole
    return data


def _optimizer() -> ml_collections.ConfigDict:
    optimizer = ml_collections.ConfigDict()
    optimizer.name = "adamw"  # adamw | lamb
    optimizer.beta1 = 0.9
    optimizer.beta2 = 0.999
    optimizer.eps = 1e-6
    optimizer.weight_decay = 0.01  # off LayerNorm and biases
    optimizer.clip_norm = 1.0  # global gradient norm; 0: no clipping
    optimizer.bias_correction = True  # False: as the released BERT optimizer
    return optimizer


def _schedule() -> ml_collections.ConfigDict:
    schedule = ml_collections.ConfigDict()
    schedule.name = "linear"  # linear | bert (decay counted from step 0, as released)
    schedule.peak_learning_rate = 1e-4
    schedule.warmup_steps = 10_000
    return schedule


def _mesh() -> ml_collections.ConfigDict:
    mesh = ml_collections.ConfigDict()
    mesh.data = -1  # devices that split the batch; -1: all that there are
    mesh.tensor = 1  # devices that split heads and intermediate units
    return mesh


def _checkpoint() -> ml_collections.ConfigDict:
    checkpoint = ml_collections.ConfigDict()
    checkpoint.save_every_steps = 1_000
    checkpoint.keep_last = 3  # newest checkpoints
    checkpoint.keep_every_steps = 0  # and for good, those at multiples of this; 0: none
    checkpoint.keep_best = 1  # and the best by best_metric; 0: none
    checkpoint.best_metric = "mlm_loss"  # of the evaluation; lower is better
    return checkpoint


def _evaluation() -> ml_collections.ConfigDict:
    evaluation = ml_collections.ConfigDict()
    evaluation.every_steps = 10_000  # and after the last step
    evaluation.global_batch_size = 256  # sequences
    evaluation.max_batches = 0  # at most, during training; 0: the whole held-out set
    return evaluation


def _plateau() -> ml_collections.ConfigDict:
    plateau = ml_collections.ConfigDict()
    plateau.check_step = 20_000  # from here on a loss at the unigram entropy is reported; 0: never
    plateau.margin = 0.3  # nats below the unigram entropy that count as having learnt
    return plateau


def paper_config() -> ml_collections.ConfigDict:
    """Returns the paper's recipe for BERT-base: 128 tokens for 90% of the steps, then 512.

    One run, so that the optimizer's state and the learning-rate schedule go on.
    Source: Devlin et al. 2019, appendix A.2.
    """
    config = default_config()
    config.model.vocab_size = 30522  # bert-base-uncased; 0 takes that of the records
    config.phases.phase1.update(num_steps=900_000, max_seq_length=128)
    with config.phases.unlocked():
        config.phases.phase2 = phase_config()
    config.phases.phase2.update(num_steps=100_000, max_seq_length=512)
    return config


def phase_names(config: ml_collections.ConfigDict) -> list[str]:
    """Returns the phases' names in the order in which they run: phase2 before phase10."""
    return sorted(config.phases, key=lambda name: (len(name), name))


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) of every option, in order of name."""
    for name in sorted(config):
        if isinstance(config[name], Mapping | ml_collections.ConfigDict):
            yield from flatten(config[name], f"{prefix}{name}.")
        else:
            yield prefix + name, config[name]


def completed(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a saved config with the defaults of the options that have been added since."""

    def over(defaults: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
        return {**defaults, **found} | {
            name: over(value, found.get(name, {}))
            for name, value in defaults.items()
            if isinstance(value, Mapping)
        }

    whole = over({**default_config().to_dict(), "phases": {}}, saved)
    phases = {name: over(phase_config().to_dict(), it) for name, it in saved["phases"].items()}
    return whole | {"phases": phases}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the changes between two configs: those that a resumed run may make, and others."""
    before, after = dict(flatten(old)), dict(flatten(new))
    allowed, refused = [], []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name, "not set"), after.get(name, "not set")
        if was != now:
            is_allowed = any(re.fullmatch(pattern, name) for pattern in CHANGEABLE)
            (allowed if is_allowed else refused).append(f"config.{name}: was {was!r}, is {now!r}")
    return allowed, refused


def validate(config: ml_collections.ConfigDict) -> None:
    """Raises a ValueError that lists every fault which needs no data and no device to be seen."""
    options = dict(flatten(config))
    faults = [
        f"config.{name} is {options[name]!r}; known are {', '.join(known)}"
        for name, known in CHOICES.items()
        if options[name] not in known
    ]
    faults += _range_faults(options)
    faults += _batch_faults(config)
    faults += _mask_faults(options)
    if config.data.source == "records" and not config.data.train_dir:
        faults.append(
            "config.data.train_dir is empty; give the record directory that "
            "`python -m data_pipelines.build` wrote: --config.data.train_dir=DIR"
        )
    if config.resize_vocabulary and not config.init_from:
        faults.append(
            "config.resize_vocabulary is True, but config.init_from is empty: there is no "
            "vocabulary to resize; give --config.init_from=PATH or leave it at False"
        )
    if config.data.source == "synthetic" and not config.model.vocab_size:
        faults.append("config.model.vocab_size is 0; with config.data.source=synthetic set it")
    if faults:
        raise ValueError("the config cannot be used:\n  " + "\n  ".join(faults))


def _range_faults(options: Mapping[str, Any]) -> Iterator[str]:
    at_least = {
        "global_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "schedule.warmup_steps": 0,
        "checkpoint.save_every_steps": 1,
        "checkpoint.keep_last": 1,
        "checkpoint.keep_every_steps": 0,
        "checkpoint.keep_best": 0,
        "evaluation.every_steps": 1,
        "evaluation.global_batch_size": 1,
        "evaluation.max_batches": 0,
        "log_every_steps": 1,
        "max_skipped_steps": 1,
        "data.max_streams": 1,
        "data.shuffle_buffer_size": 1,
        "optimizer.clip_norm": 0,
        "schedule.peak_learning_rate": 0,
        "model.vocab_size": 0,
        "model.hidden_size": 1,
        "model.num_hidden_layers": 1,
        "model.num_attention_heads": 1,
        "model.intermediate_size": 1,
    }
    for name, least in at_least.items():
        if options[name] < least:
            yield f"config.{name} is {options[name]}; it must be at least {least}"
    if not 0 < options["pretraining.masked_lm_prob"] < 1:
        value = options["pretraining.masked_lm_prob"]
        yield f"config.pretraining.masked_lm_prob is {value}; it must be between 0 and 1"
    for name in ("model.hidden_dropout_prob", "model.attention_probs_dropout_prob"):
        if not 0 <= options[name] < 1:
            yield f"config.{name} is {options[name]}; it must be in [0, 1)"
    hidden_size, num_heads = options["model.hidden_size"], options["model.num_attention_heads"]
    if hidden_size % max(num_heads, 1):
        yield (
            f"config.model.hidden_size is {hidden_size}; it must be a multiple of "
            f"config.model.num_attention_heads, {num_heads}"
        )


def _mask_faults(options: Mapping[str, Any]) -> Iterator[str]:
    strategy, masking = options["pretraining.mask_strategy"], options["pretraining.masking"]
    if masking == "static" and strategy in CHOICES["pretraining.mask_strategy"][1:]:
        yield (
            f"config.pretraining.mask_strategy is {strategy!r}, but with "
            "config.pretraining.masking 'static' masks are those of the records: set it to "
            "'dynamic' (records built so), or leave mask_strategy at 'token' and choose when "
            "the records are built"
        )


def _batch_faults(config: ml_collections.ConfigDict) -> Iterator[str]:
    if not config.phases:
        yield "config.phases is empty; it must hold at least one config.phase_config()"
    for name in phase_names(config):
        phase = config.phases[name]
        batch_size = phase.global_batch_size or config.global_batch_size
        for option in ("num_steps", "max_seq_length"):
            if phase[option] < 1:
                yield f"config.phases.{name}.{option} is {phase[option]}; it must be at least 1"
        if batch_size % max(config.gradient_accumulation_steps, 1):
            yield (
                f"the global_batch_size of config.phases.{name} is {batch_size}; it must be a "
                f"multiple of config.gradient_accumulation_steps, "
                f"{config.gradient_accumulation_steps}"
            )
        if phase.max_seq_length > config.model.max_position_embeddings:
            yield (
                f"config.phases.{name}.max_seq_length is {phase.max_seq_length}; "
                f"config.model.max_position_embeddings allows "
                f"{config.model.max_position_embeddings}"
            )
