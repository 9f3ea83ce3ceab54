"""A fresh run's parameters from existing weights: config.init_from.

STEPS make the run's parameters of the source's and check that they fit, before anything is
compiled; `apply` puts them into a fresh state, under any sharding. Reading the formats belongs
to `convert`, resuming a run to `starting`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import logging
from jaxtyping import Bool

from bertjax import jobs
from bertjax.convert import formats, heads, pretrained
from bertjax.data import value_masking
from bertjax.jobs import sources, teachers
from bertjax.models import embedding_sharing, encoder, parameters
from bertjax.options import faults as faults_lib
from bertjax.tasks import base
from bertjax.tokenization import tokenizer, vocabulary_exchange
from bertjax.training import growth, state
from bertjax.workdirs import reader, trained_positions

# Fields of EncoderConfig that a run may choose anew; all others must be as in the source. The
# vocabulary's size has its own rules. Bases of rotary positions rise for longer texts.
_BASES = ("rotary_base", "local_rotary_base")
FREE_FIELDS = ("vocab_size", *jobs.OWN_MODEL_OPTIONS, *_BASES)
# Where a masked token is predicted, by objectives that shift and by others.
_PREDICTED_AT = ("the position before it", "its own position")


@dataclasses.dataclass(frozen=True)
class Target:
    """The model that a source must fit.

    params: shapes of its parameters
    vocabulary: the tokenizer of the data, None for random tokens
    max_seq_length: length of the longest phase
    resize_vocabulary: the source may have fewer rows of entries
    has_own_heads: only encoders and their poolers are taken, as in finetuning
    may_grow: the source may be smaller in `growth.FIELDS`
    exchanges: the source may have another vocabulary
    phase: the run's first phase, if it changes the rotary bases of `encoder`
    is_shifted: as in `Pretrained`
    parts: as in `tasks.base.BeginsWithParts`; they are taken as well
    decoder_from: the weights of these parts; "": the source's
    learns: statistics of its records of values, and options of config.pretraining
    """

    encoder: encoder.EncoderConfig
    params: parameters.Params
    vocabulary: tokenizer.Tokenizer | None
    max_seq_length: int
    resize_vocabulary: bool = False
    has_own_heads: bool = False
    may_grow: bool = False
    exchanges: bool = False
    phase: str = ""
    is_shifted: bool = False
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    decoder_from: str = ""
    learns: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: leaf.shape for name, leaf in parameters.flat(self.params).items()}

    def is_of_part(self, name: str) -> bool:
        return name.startswith((*self.parts,))


@dataclasses.dataclass(frozen=True)
class Source:
    """Weights, and what the steps so far have made of them.

    values: by the names of the run
    names: the names in the weights, where the run has others
    notes: sentences for the log
    faults: reasons why the weights do not fit
    """

    weights: pretrained.Pretrained
    values: Mapping[str, np.ndarray]
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exchange: vocabulary_exchange.Exchange | None = None
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def flags(self) -> list[str]:
        """The flags that would make the model's sizes the source's."""
        found = (re.search(r": (--config\.model\..*)$", fault) for fault in self.faults)
        return [flag[1] for flag in found if flag]

    def but(self, *, notes: Iterable[str] = (), faults: Iterable[str] = (), **changes) -> Source:
        """Returns the source after a step, with its notes and faults added."""
        added = {"notes": (*self.notes, *notes), "faults": (*self.faults, *faults)}
        return dataclasses.replace(self, **changes, **added)


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Values to take over, by parameter path; the other parameters stay as initialized.

    Parameters with a row per vocabulary entry take over the first `vocabulary_rows`. With
    `exchange` their rows are the run's vocabulary already. `notes` are for the log.
    """

    values: Mapping[str, np.ndarray]
    vocabulary_rows: int
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    exchange: vocabulary_exchange.Exchange | None = None
    notes: tuple[str, ...] = ()


def of_job(job: jobs.Job, params: parameters.Params) -> WarmStart | None:
    """Returns the warm start of config.init_from for `params` (shapes), None without one.

    Without one, a student that is pretrained starts with layers of its teacher.
    """
    if not job.config.init_from:
        return _of_teacher(job, params)
    first = jobs.in_phase(job, job.phases[0])
    target = Target(
        encoder=encoder.EncoderConfig(**first.config.model),
        params=params,
        vocabulary=job.data.vocabulary,
        max_seq_length=max(phase.max_seq_length for phase in job.phases),
        resize_vocabulary=job.config.resize_vocabulary,
        has_own_heads=job.config.task == "finetuning",
        may_grow=job.config.init_from_smaller,
        exchanges=job.config.exchange_vocabulary,
        phase="" if first is job else job.phases[0].name,
        is_shifted=heads.HEADS["masked_lm"].shifted_objective == job.config.pretraining.objective,
        parts=job.task.begins if isinstance(job.task, base.BeginsWithParts) else {},
        decoder_from=job.config.finetuning.decoder_from,
        learns={
            **(job.config.pretraining if job.config.task == "pretraining" else {}),
            **(job.data.manifest.statistics if job.data.manifest else {}),
        },
    )
    warm_start = read(job.config.init_from, target)
    _warn_of_untrained_positions(job.config.init_from, target.max_seq_length)
    _check_languages(job.config)
    return warm_start


def _of_teacher(job: jobs.Job, params: parameters.Params) -> WarmStart | None:
    options = job.config.distillation
    if job.teacher is None or not options.starts_student:
        return None
    sizes = encoder.EncoderConfig(**jobs.in_phase(job, job.phases[0]).config.model)
    values = teachers.student_values(job.teacher, sizes, tuple(options.layers))
    fresh = tuple(name for name in parameters.flat(params) if name not in values)
    logging.info(
        "The student starts from %s, its layers %s; fresh (%d): %s",
        job.teacher.source, tuple(options.layers) or "evenly spread", len(fresh), grouped(fresh),
    )  # fmt: skip
    return WarmStart(values, sizes.vocab_size, fresh, ())


def _check_languages(config: ml_collections.ConfigDict) -> None:
    """Raises a ValueError if the source's embeddings are for other languages."""
    if not config.model.language_embeddings:
        return
    path, own = config.init_from, tuple(config.data.languages)
    known = formats.describe(path).languages
    if not known and own:
        logging.warning(
            "The languages of the embeddings in %s are not known; this run takes them for %s. If "
            "that is wrong, name them by --config.data.languages", path, ", ".join(own),
        )  # fmt: skip
    elif own[: len(known)] != known:
        raise ValueError(
            f"config.init_from is {path}, whose embeddings are of the languages "
            f"{', '.join(known)}, in this order; this run has {', '.join(own)}: say "
            f'--config.data.languages="{(*known, *(name for name in own if name not in known))}"'
        )


def _warn_of_untrained_positions(path: str, length: int) -> None:
    source = reader.describe(path) if formats.recognize(path) == "bertjax" else None
    if source is not None:
        trained = trained_positions.number(source)
        trained_positions.warn_beyond(trained, length, f"training at {length} tokens from {path}")


def read(path: str, target: Target) -> WarmStart:
    """Returns the warm start from `path`; logs which parameters are loaded and which are not."""
    weights = sources.read("config.init_from", path, formats.read)
    start = match(weights, target)
    size = sum(value.size for value in start.values.values())
    logging.info("Starting from %s: %s values taken over", weights.source, f"{size:,}")
    for title, names in {
        "loaded": start.values,
        "fresh, not in the source": start.fresh,
        "of the source left unused": start.unused,
    }.items():
        logging.info("Parameters %s (%d): %s", title, len(names), grouped(names))
    for note in start.notes:
        logging.info("%s", note)
    return start


def match(weights: pretrained.Pretrained, target: Target) -> WarmStart:
    """Returns what the weights have for the target."""
    source = Source(weights, weights.params)
    for step in STEPS:
        source = step(source, target)
    flags = source.flags
    together = [f"All flags together: {' '.join(flags)}"] if len(flags) > 1 else []
    title = f"config.init_from, {weights.source}, does not fit this run"
    faults_lib.check(title, [*source.faults, *together])
    _warn_of_predictions(source, target)
    _warn_of_values(weights, target)
    weights = source.weights
    used = {*source.values, *(it for ours, it in source.names.items() if ours in source.values)}
    return WarmStart(
        source.values,
        vocabulary_rows=_vocabulary_rows(source, target),
        fresh=tuple(name for name in target.shapes if name not in source.values),
        unused=(*(name for name in weights.params if name not in used), *weights.unused),
        exchange=source.exchange,
        notes=source.notes,
    )


def _with_decoder(source: Source, target: Target) -> Source:
    """Takes the parts of a decoder from the weights at `target.decoder_from`."""
    if not target.decoder_from:
        return source
    option = "config.finetuning.decoder_from"
    other = sources.read(option, target.decoder_from, formats.read)
    faults_lib.check(
        f"{option}, {other.source}, must have the sizes and the vocabulary of config.init_from",
        [
            *_size_faults(other.config, target),
            *_vocabulary_faults(other, target),
            *_row_faults(other.config.vocab_size, target),
        ],
    )
    parts = {name: value for name, value in other.params.items() if target.is_of_part(name)}
    for ours, theirs in target.parts.items():
        for name, value in other.params.items():
            if name.startswith(theirs):
                parts.setdefault(ours + name.removeprefix(theirs), value)
    own = source.weights.params.items()
    params = {name: value for name, value in own if not target.is_of_part(name)} | parts
    return source.but(
        weights=dataclasses.replace(source.weights, params=params),
        values=params,
        notes=[f"The decoder starts from {other.source}"],
    )


def _with_sizes_compared(source: Source, target: Target) -> Source:
    theirs = source.weights.config
    faults = list(_size_faults(theirs, target))
    if target.max_seq_length > theirs.max_position_embeddings:
        faults.append(
            f"the longest phase has max_seq_length {target.max_seq_length}, the source reads at "
            f"most {theirs.max_position_embeddings} positions: shorten the phase"
        )
    _warn_of_bases(theirs, target)
    return source.but(faults=faults)


def _with_vocabulary_compared(source: Source, target: Target) -> Source:
    """Finds the exchange of the vocabulary, or else checks that the entries are the same."""
    weights = source.weights
    if faults := list(_vocabulary_faults(weights, target)):
        return source.but(faults=faults)
    theirs, ours = weights.vocabulary, target.vocabulary
    if target.exchanges and theirs is not None and ours is not None:
        has_same_rows = weights.config.vocab_size == target.encoder.vocab_size
        if not has_same_rows or theirs.describe()["sha256"] != ours.describe()["sha256"]:
            exchange = vocabulary_exchange.between(theirs, ours)
            return source.but(exchange=exchange, notes=[f"Vocabulary exchanged: {exchange}"])
        logging.info(
            "The vocabulary is the same as in %s: every row stays as it is", weights.source
        )
    rows, size, notes = _vocabulary_rows(source, target), target.encoder.vocab_size, []
    if rows < size:
        notes.append(
            f"Vocabulary resized: rows 0 to {rows - 1} are the source's, {rows} to {size - 1} fresh"
        )
    return source.but(faults=_row_faults(weights.config.vocab_size, target), notes=notes)


def _renamed(source: Source, target: Target) -> Source:
    """Adds the parameters that start as another one of the source.

    A "normed" pooler that the weights lack starts as the masked-token head without its vocabulary:
    transformers' classes of ModernBERT keep both under one name.
    """
    params = source.weights.params
    parts = dict(target.parts)
    has_pooler = any(name.startswith("pooler.") for name in params)
    if source.weights.config.pooler == "normed" and not has_pooler:
        parts |= {f"pooler.{layer}.": f"mlm_head.{layer}." for layer in ("dense", "norm")}
    names = {
        ours + other.removeprefix(theirs): other
        for ours, theirs in parts.items()
        for other in params
        if other.startswith(theirs)
    }
    names = {ours: other for ours, other in names.items() if ours not in params}
    values = {ours: params[other] for ours, other in names.items()}
    return source.but(values={**source.values, **values}, names=names)


def _grown(source: Source, target: Target) -> Source:
    """Repeats the values of a smaller model to fit."""
    theirs, ours = source.weights.config, target.encoder
    larger = {
        name: (getattr(theirs, name), getattr(ours, name))
        for name in growth.FIELDS
        if getattr(theirs, name) != getattr(ours, name)
    }
    if not target.may_grow or source.flags or not larger:
        return source
    (path,) = parameters.encoder_paths(target.params)
    depths = _stored_layers(source.values, path), _stored_layers(target.shapes, path)
    values = growth.tiled(
        source.values,
        target.shapes,
        path=path,
        depths=depths,
        head_size=ours.hidden_size // ours.num_attention_heads,
        shared=_shared(ours),
        rows=embedding_sharing.vocabulary_parameters(target.params),
    )
    sizes = [f"{name} {was} to {now}" for name, (was, now) in larger.items()]
    layers = ", ".join(map(str, growth.repeated_layers(*depths)))
    note = f"Grown from a smaller model: {'; '.join(sizes)}; its layers {layers} in this order"
    return source.but(values=values, notes=[note])


def _shared(config: encoder.EncoderConfig) -> int:
    """Returns the number of heads of queries that read one head of keys."""
    return config.num_attention_heads // (config.num_key_value_heads or config.num_attention_heads)


def _stored_layers(names: Iterable[str], path: str) -> int:
    matches = (re.match(re.escape(f"{path}.layers.") + r"(\d+)\.", name) for name in names)
    return len({match[1] for match in matches if match})


def _taken(source: Source, target: Target) -> Source:
    """Leaves the parameters that the target has and takes, and checks them."""
    shapes, bodies = target.shapes, parameters.bodies(target.params)
    values = {
        name: value
        for name, value in embedding_sharing.as_stored(source.values, shapes).items()
        if name in shapes
        and (
            not target.has_own_heads
            or parameters.is_within(name, bodies)
            or target.is_of_part(name)
        )
    }
    faults = _parameter_faults(values, target, has_same_sizes=not source.flags)
    return source.but(values=values, faults=faults)


def _exchanged(source: Source, target: Target) -> Source:
    """Gives the tables of vocabulary entries the rows of the target's vocabulary."""
    exchange = source.exchange
    if exchange is None or source.faults:
        return source
    tables = source.values.keys() & embedding_sharing.vocabulary_parameters(target.params)
    rows = {name: exchange.rows(source.values[name]) for name in tables}
    return source.but(values={**source.values, **rows})


# In this order; a fault stops no step, so that all are reported.
STEPS: tuple[Callable[[Source, Target], Source], ...] = (
    _with_decoder,
    _with_sizes_compared,
    _with_vocabulary_compared,
    _renamed,
    _grown,
    _taken,
    _exchanged,
)


def _warn_of_predictions(source: Source, target: Target) -> None:
    is_shifted = source.weights.is_shifted
    is_same = is_shifted == target.is_shifted or target.parts
    if not is_same and any(name.startswith("mlm_head.") for name in source.values):
        logging.warning(
            "config.init_from, %s, predicts a masked token at %s, and this run at %s: its head is "
            "taken over, and has to learn that",
            source.weights.source, *_PREDICTED_AT[:: 1 if is_shifted else -1],
        )  # fmt: skip


def _warn_of_values(weights: pretrained.Pretrained, target: Target) -> None:
    """Warns of values with another meaning or scaling, and of another objective of pictures."""
    learnt = dict(weights.objective)
    if weights.manifest is not None:
        learnt |= {name: weights.manifest.statistics.get(name) for name in value_masking.MEANINGS}
    for name, was in learnt.items():
        if target.learns and was != (now := target.learns.get(name, was)):
            logging.warning(
                "%s is %s in this run, and was %s for %s", name, faults_lib.shown(now),
                faults_lib.shown(was), weights.source,
            )  # fmt: skip


def _warn_of_bases(theirs: encoder.EncoderConfig, target: Target) -> None:
    def bases(sizes: encoder.EncoderConfig) -> tuple[float, ...]:
        local = (sizes.local_rotary_base or sizes.rotary_base,) if sizes.window else ()
        return (sizes.rotary_base, *local)

    where = f"phases.{target.phase}" if target.phase else "model"
    for name, was, now in zip(_BASES, bases(theirs), bases(target.encoder), strict=False):
        if was != now:
            option = f"config.{where}.{name}"
            logging.warning(
                "%s is %g, the source was trained with %g: positions turn otherwise, which the "
                "model has to learn. --%s=%g keeps it", option, now, was, option, was,
            )  # fmt: skip


def apply(warm_start: WarmStart, train_state: state.TrainState) -> state.TrainState:
    """Returns a fresh state with the values taken over; every array keeps its sharding.

    Only parameters change: no optimizer's first state depends on their values.
    """
    per_row = embedding_sharing.vocabulary_parameters(train_state.params)
    exchange = warm_start.exchange

    def replaced(path: tuple, fresh: jax.Array) -> jax.Array:
        name = parameters.path_name(path)
        if name not in warm_start.values:
            return fresh
        value = warm_start.values[name].astype(fresh.dtype, copy=False)
        if name not in per_row:
            return _like(fresh, value)
        is_random = np.arange(len(fresh)) >= warm_start.vocabulary_rows
        value = value[: warm_start.vocabulary_rows]
        if exchange is not None:
            is_random[: len(value)] = exchange.counts == 0
        return _with_random_rows(fresh, value, is_random)

    params = jax.tree_util.tree_map_with_path(replaced, train_state.params)
    # The average starts as a copy of the parameters: both will be donated.
    ema = None if train_state.ema is None else jax.tree.map(jnp.copy, params)
    return dataclasses.replace(train_state, params=params, ema=ema)


def with_random_rows(
    warm_start: WarmStart, params: parameters.Params, fresh: parameters.Params
) -> parameters.Params:
    """Returns `params`, as `apply` makes them, with rows of `fresh` for new vocabulary entries.

    It is the start to compare an exchange of the vocabulary with.
    """
    exchange = warm_start.exchange
    if exchange is None:
        return params
    per_row = embedding_sharing.vocabulary_parameters(params) & warm_start.values.keys()
    kept = np.flatnonzero(exchange.is_kept)

    def replaced(path: tuple, value: jax.Array, fresh: jax.Array) -> jax.Array:
        name = parameters.path_name(path)
        if name not in per_row:
            return value
        rows = np.zeros(value.shape, value.dtype)
        rows[kept] = warm_start.values[name][kept]
        is_random = np.ones(len(rows), bool)
        is_random[kept] = False
        return _with_random_rows(fresh, rows, is_random)

    return jax.tree_util.tree_map_with_path(replaced, params, fresh)


def grouped(names: Iterable[str]) -> str:
    """Returns the names in one line: two leading parts each, with the layers as a range.

    For example "encoder.embeddings.* (5), encoder.layers.0-23.* (384), mlm_head.bias".
    """
    groups: dict[str, list[str]] = {}
    layers: dict[str, set[int]] = {}
    for name in sorted(names):
        if layer := re.fullmatch(r"(.*?\D)(\d+)[./].+", name):
            key = layer[1]
            layers.setdefault(key, set()).add(int(layer[2]))
        else:
            key = "".join(re.split(r"([./])", name)[:3])
        groups.setdefault(key, []).append(name)
    shown = []
    for key, members in groups.items():
        if key in layers:
            key += _range(sorted(layers[key]))
        shown.append(members[0] if len(members) == 1 else f"{key}.* ({len(members)})")
    return ", ".join(shown) or "none"


def _range(numbers: list[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if last - first >= len(numbers):
        return ",".join(map(str, numbers))
    return str(first) if first == last else f"{first}-{last}"


def _size_faults(theirs: encoder.EncoderConfig, target: Target) -> Iterator[str]:
    """Yields a sentence for every field that differs, with the flag that changes it."""
    if target.may_grow:
        yield from _growth_faults(theirs, target)
    for field in dataclasses.fields(theirs):
        was, now = getattr(theirs, field.name), getattr(target.encoder, field.name)
        may_differ = field.name in FREE_FIELDS or (
            target.may_grow and field.name in growth.FIELDS and was <= now
        )
        if was != now and not may_differ:
            option = f"config.model.{field.name}"
            yield f"{option} is {now!r}, the source has {was!r}: --{option}={was}"


def _growth_faults(source: encoder.EncoderConfig, target: Target) -> Iterator[str]:
    sizes = [it.hidden_size // it.num_attention_heads for it in (source, target.encoder)]
    if sizes[0] != sizes[1]:
        yield (
            f"config.model.hidden_size / config.model.num_attention_heads is {sizes[1]}, the "
            f"source's heads have {sizes[0]}: with config.init_from_smaller heads are repeated "
            "whole, so choose another config.model.num_attention_heads"
        )
    if (theirs := _shared(source)) != (ours := _shared(target.encoder)):
        yield (
            f"config.model.num_key_value_heads is {target.encoder.num_key_value_heads}, so {ours} "
            f"heads of queries share one of keys; in the source {theirs} do, and "
            f"config.init_from_smaller repeats them together: set it to num_attention_heads / "
            f"{theirs}"
        )
    if len(parameters.encoder_paths(target.params)) > 1:
        yield "config.init_from_smaller is for models with one encoder; this one has several"


def _row_faults(theirs: int, target: Target) -> Iterator[str]:
    ours = target.encoder.vocab_size
    differs = f"config.model.vocab_size is {ours}, the source has {theirs} rows"
    if ours < theirs:
        yield f"{differs}: --config.model.vocab_size={theirs}"
    if ours > theirs and not target.resize_vocabulary:
        yield f"{differs}: --config.resize_vocabulary=True adds fresh ones at the end"


def _vocabulary_faults(source: pretrained.Pretrained, target: Target) -> Iterator[str]:
    theirs, ours = source.vocabulary, target.vocabulary
    if not target.exchanges:
        if target.encoder.vocab_size:
            yield from sources.vocabulary_faults(
                theirs,
                ours,
                source.source,
                may_be_longer=target.resize_vocabulary,
                hints=(
                    "; new entries may only follow at its end. Or --config.exchange_vocabulary="
                    "True gives each entry the row of its string, or the mean of those that the "
                    "source cuts it into",
                    "--config.resize_vocabulary=True gives the others fresh rows",
                ),
            )
    elif theirs is None or ours is None:
        lacking = "the data has" if ours is None else f"{source.source} has"
        yield (
            f"{lacking} no vocabulary, so config.exchange_vocabulary has no strings to find rows "
            "by: put the vocabulary's files there, or leave it at False"
        )
    elif fault := vocabulary_exchange.fault(theirs, ours):
        yield f"{fault}; leave config.exchange_vocabulary at False"


def _vocabulary_rows(source: Source, target: Target) -> int:
    """Returns the number of rows of entries that are taken over."""
    if source.exchange is not None:
        return len(source.exchange.counts)
    theirs, ours = source.weights.vocabulary, target.vocabulary
    rows = min(source.weights.config.vocab_size, target.encoder.vocab_size)
    if theirs is not None and ours is not None and ours.vocab_size > theirs.vocab_size:
        # Rows beyond the source's entries, where a table was rounded up, were trained to be wrong.
        return min(rows, theirs.vocab_size)
    return rows


def _parameter_faults(
    taken: Mapping[str, np.ndarray], target: Target, *, has_same_sizes: bool
) -> Iterator[str]:
    encoders, shapes = parameters.encoder_paths(target.params), target.shapes
    per_row = embedding_sharing.vocabulary_parameters(target.params)
    # Parts that start as no other part, as the attention of a decoder to its source, start fresh.
    new = tuple(ours for ours, theirs in target.parts.items() if ours == theirs)
    # A generator of which the source has nothing starts fresh, as a head does.
    paths = [path for path in encoders if any(n.startswith(f"{path}.layers.") for n in taken)]
    encoders = paths or encoders
    for name in [it for it in shapes if it not in taken and has_same_sizes]:
        # The first layer of those with a norm before attention has none.
        is_norm_of_first = target.may_grow and ".attention_norm." in name
        may_lack = is_norm_of_first or name.startswith(new)
        if parameters.is_within(name, encoders) and not may_lack:
            yield f"the source lacks the parameter {name}"
    for name, value in taken.items():
        start = 1 if name in per_row else 0
        if has_same_sizes and value.shape[start:] != shapes[name][start:]:
            yield f"{name} has shape {value.shape} in the source; the run's has {shapes[name]}"
        if not np.isfinite(value).all():
            yield f"{name} holds NaN or infinite values in the source"


def _like(fresh: jax.Array, value: np.ndarray) -> jax.Array:
    # Every process holds the whole value and hands its devices their parts.
    return jax.make_array_from_callback(fresh.shape, fresh.sharding, lambda index: value[index])


def _with_random_rows(
    fresh: jax.Array, value: np.ndarray, is_random: Bool[np.ndarray, " rows"]
) -> jax.Array:
    """Returns the value, zeros behind its last row, with the fresh rows added where so marked."""
    padding = [(0, len(fresh) - len(value))] + [(0, 0)] * (value.ndim - 1)
    padded = _like(fresh, np.pad(value, padding))
    if not is_random.any():
        return padded

    def summed(fresh: jax.Array, value: jax.Array) -> jax.Array:
        rows = jnp.asarray(is_random).reshape(-1, *[1] * (fresh.ndim - 1))
        return jnp.where(rows, value + fresh, value)

    return jax.jit(summed, out_shardings=fresh.sharding)(fresh, padded)
