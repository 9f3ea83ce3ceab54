"""A fresh run's parameters from existing weights: config.init_from.

Here belong the checks that the source fits the run, made before anything is compiled, and the
replacement itself, under any sharding; `tiled` repeats a smaller source to fit. Reading the formats
belongs to `convert`, resuming a run to `starting`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import logging
from jaxtyping import Bool

from bertjax import jobs
from bertjax.convert import formats, pretrained
from bertjax.jobs import teachers
from bertjax.models import embedding_sharing, encoder, parameters
from bertjax.tasks import base
from bertjax.tokenization import token_ids, tokenizer, vocabulary_exchange
from bertjax.training import growth, state
from bertjax.workdirs import reader, trained_positions

# Fields of EncoderConfig that a run may choose anew; all others must be as in the source. The
# vocabulary's size has its own rules. Bases of rotary positions rise for longer texts.
_BASES = ("rotary_base", "local_rotary_base")
FREE_FIELDS = ("vocab_size", *jobs.OWN_MODEL_OPTIONS, *_BASES)
# Where a masked token is predicted, by objectives that shift and by others.
_PREDICTED_AT = ("the position before it", "its own position")
SHOWN_ENTRIES = 3  # of those that differ between two vocabularies


@dataclasses.dataclass(frozen=True)
class Target:
    """The model that a source must fit.

    `params` are shapes. `vocabulary` belongs to the data, None for random tokens; `max_seq_length`
    to the longest phase. With `has_own_heads`, as in finetuning, only encoders and their poolers
    are taken, whatever the source was trained for. With `may_grow` the source may be smaller in
    `growth.FIELDS`, with `exchanges` it may have another vocabulary. `phase` is the run's first
    phase if it changes the rotary bases of `encoder`. `is_shifted` is that of `Pretrained`.
    `begins` is that of a task (`tasks.base.BeginsWithParts`): these parts are taken, too, from the
    weights at `decoder_from` if there are such.
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
    begins: Mapping[str, str] = dataclasses.field(default_factory=dict)
    decoder_from: str = ""


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Values to take over, by parameter path; the other parameters stay as initialized.

    Parameters with a row per vocabulary entry take over the first `vocabulary_rows`. `growth`
    describes how a smaller source was repeated to fit. With `exchange` their values are those of
    the run's vocabulary already.
    """

    values: Mapping[str, np.ndarray]
    vocabulary_rows: int
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    growth: str = ""
    exchange: vocabulary_exchange.Exchange | None = None


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
        is_shifted=job.config.pretraining.objective == "hybrid",
        begins=job.task.begins if isinstance(job.task, base.BeginsWithParts) else {},
        decoder_from=job.config.finetuning.decoder_from,
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
    """Raises a ValueError if the source's embeddings of languages are those of other languages."""
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
            f"{', '.join(known)}, in this order; those of this run are {', '.join(own)}: say "
            f'--config.data.languages="{(*known, *(name for name in own if name not in known))}"'
        )


def _warn_of_untrained_positions(path: str, length: int) -> None:
    source = reader.describe(path) if formats.recognize(path) == "bertjax" else None
    if source is not None:
        trained = trained_positions.number(source)
        trained_positions.warn_beyond(trained, length, f"training at {length} tokens from {path}")


def read(path: str, target: Target) -> WarmStart:
    """Returns the warm start from `path`; logs which parameters are loaded and which are not."""
    try:
        source = formats.read(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"config.init_from is {path}, to start from: {error}; give a workdir, a Hugging Face "
            "directory or a TF1 checkpoint"
        ) from error
    if target.decoder_from:
        source = _with_decoder(source, target)
    start = match(source, target)
    size = sum(value.size for value in start.values.values())
    logging.info("Starting from %s: %s values taken over", source.source, f"{size:,}")
    if start.growth:
        logging.info("Grown from a smaller model: %s", start.growth)
    logging.info("Parameters loaded (%d): %s", len(start.values), grouped(start.values))
    logging.info(
        "Parameters fresh, not in the source (%d): %s", len(start.fresh), grouped(start.fresh)
    )
    logging.info(
        "Parameters of the source left unused (%d): %s", len(start.unused), grouped(start.unused)
    )
    if start.exchange is not None:
        logging.info("Vocabulary exchanged: %s", start.exchange)
    elif start.vocabulary_rows < target.encoder.vocab_size:
        logging.info(
            "Vocabulary resized: rows 0 to %d are the source's, %d to %d fresh",
            start.vocabulary_rows - 1, start.vocabulary_rows, target.encoder.vocab_size - 1,
        )  # fmt: skip
    return start


def _with_decoder(source: pretrained.Pretrained, target: Target) -> pretrained.Pretrained:
    """Returns the source with the decoder that begins as other weights: `target.decoder_from`."""
    path = target.decoder_from
    try:
        other = formats.read(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"config.finetuning.decoder_from is {path}: {error}") from error
    faults = [*_size_faults(other.config, target, []), *_vocabulary_faults(other, target)]
    faults += _row_faults(other.config.vocab_size, target, [])
    if faults:
        lines = "\n  ".join(faults)
        raise ValueError(
            f"config.finetuning.decoder_from, {other.source}, must have the sizes and the "
            f"vocabulary of config.init_from:\n  {lines}"
        )
    logging.info("The decoder starts from %s", other.source)
    parts = {name: value for name, value in other.params.items() if _is_part(name, target.begins)}
    for ours, theirs in target.begins.items():
        for name, value in other.params.items():
            if name.startswith(theirs):
                parts.setdefault(ours + name.removeprefix(theirs), value)
    kept = {name: it for name, it in source.params.items() if not _is_part(name, target.begins)}
    return dataclasses.replace(source, params=kept | parts)


def _is_part(name: str, begins: Mapping[str, str]) -> bool:
    return name.startswith((*begins,))


def match(source: pretrained.Pretrained, target: Target) -> WarmStart:
    """Returns what the source has for the target."""
    flags: list[str] = []
    faults = list(_size_faults(source.config, target, flags))
    if target.max_seq_length > source.config.max_position_embeddings:
        faults.append(
            f"the longest phase has max_seq_length {target.max_seq_length}, the source reads at "
            f"most {source.config.max_position_embeddings} positions: shorten the phase"
        )
    _warn_of_bases(source.config, target)
    vocabulary_faults = list(_vocabulary_faults(source, target))
    exchange = None if vocabulary_faults else _exchange(source, target)
    if exchange is None:
        faults += vocabulary_faults or _row_faults(source.config.vocab_size, target, flags)
    vocabulary_rows = len(exchange.counts) if exchange else _vocabulary_rows(source, target)
    shapes = {
        parameters.path_name(path): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(target.params)
    }
    bodies = parameters.bodies(target.params)
    begun, growth = _pooler_of_head(source), ""
    begun |= _parts(source.params, shapes, target.begins)
    values = {**source.params, **{name: source.params[it] for name, it in begun.items()}}
    if target.may_grow and not flags:
        values, growth = _grown(values, source.config, target, shapes)
    taken = {
        name: value
        for name, value in embedding_sharing.as_stored(values, shapes).items()
        if name in shapes
        and (
            not target.has_own_heads
            or parameters.is_within(name, bodies)
            or _is_part(name, target.begins)
        )
    }
    fresh = tuple(name for name in shapes if name not in taken)
    faults += _parameter_faults(taken, fresh, target, has_same_sizes=not flags)
    if faults:
        lines = "\n  ".join(faults)
        together = f"\nAll flags together: {' '.join(flags)}" if len(flags) > 1 else ""
        raise ValueError(
            f"config.init_from, {source.source}, does not fit this run:\n  {lines}{together}"
        )
    is_same = source.is_shifted == target.is_shifted or target.begins
    if not is_same and any(it.startswith("mlm_head.") for it in taken):
        logging.warning(
            "config.init_from, %s, predicts a masked token at %s, and this run at %s: its head is "
            "taken over, and has to learn that",
            source.source, *_PREDICTED_AT[:: 1 if source.is_shifted else -1],
        )  # fmt: skip
    used = {*taken, *(it for name, it in begun.items() if name in taken)}
    unused = (*(name for name in source.params if name not in used), *source.unused)
    if exchange is not None:
        rows = taken.keys() & embedding_sharing.vocabulary_parameters(target.params)
        taken |= {name: exchange.rows(taken[name]) for name in rows}
    return WarmStart(taken, vocabulary_rows, fresh, unused, growth, exchange)


def _parts(
    theirs: Collection[str], shapes: Collection[str], begins: Mapping[str, str]
) -> dict[str, str]:
    """Returns for each parameter that begins as another of the source the name of that."""
    return {
        name: other
        for name in shapes
        for ours, beginning in begins.items()
        if name.startswith(ours) and name not in theirs
        if (other := beginning + name.removeprefix(ours)) in theirs
    }


def _exchange(source: pretrained.Pretrained, target: Target) -> vocabulary_exchange.Exchange | None:
    """Returns the exchange of the source's vocabulary, None if the target's table is the same."""
    theirs, ours = source.vocabulary, target.vocabulary
    if not target.exchanges or theirs is None or ours is None:
        return None
    has_same_rows = source.config.vocab_size == target.encoder.vocab_size
    if has_same_rows and theirs.describe()["sha256"] == ours.describe()["sha256"]:
        logging.info("The vocabulary is that of %s: every row stays as it is", source.source)
        return None
    return vocabulary_exchange.between(theirs, ours)


def _grown(
    values: Mapping[str, np.ndarray],
    theirs: encoder.EncoderConfig,
    target: Target,
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[Mapping[str, np.ndarray], str]:
    """Returns the values repeated to fit, and a description of the repeats, "" without any."""
    ours = target.encoder
    larger = {
        name: (getattr(theirs, name), getattr(ours, name))
        for name in growth.FIELDS
        if getattr(theirs, name) != getattr(ours, name)
    }
    if not larger:
        return values, ""
    (path,) = parameters.encoder_paths(target.params)
    depths = _stored_layers(values, path), _stored_layers(shapes, path)
    grown = growth.tiled(
        values,
        shapes,
        path=path,
        depths=depths,
        head_size=ours.hidden_size // ours.num_attention_heads,
        rows=embedding_sharing.vocabulary_parameters(target.params),
    )
    grew = [f"{name} {was} to {now}" for name, (was, now) in larger.items()]
    grew.append(f"its layers {', '.join(map(str, growth.repeated_layers(*depths)))} in this order")
    return grown, "; ".join(grew)


def _stored_layers(names: Iterable[str], path: str) -> int:
    matches = (re.match(re.escape(f"{path}.layers.") + r"(\d+)\.", name) for name in names)
    return len({match[1] for match in matches if match})


def _warn_of_bases(theirs: encoder.EncoderConfig, target: Target) -> None:
    def bases(sizes: encoder.EncoderConfig) -> tuple[float, ...]:
        local = (sizes.local_rotary_base or sizes.rotary_base,) if sizes.window else ()
        return (sizes.rotary_base, *local)

    where = f"phases.{target.phase}" if target.phase else "model"
    for name, was, now in zip(_BASES, bases(theirs), bases(target.encoder), strict=False):
        if was != now:
            logging.warning(
                "config.%s.%s is %g, the source was trained with %g: positions turn otherwise, "
                "which the model has to learn. --config.%s.%s=%g keeps it",
                *(where, name, now, was, where, name, was),
            )


def _pooler_of_head(source: pretrained.Pretrained) -> dict[str, str]:
    """Returns the sources of a "normed" pooler that the weights lack, by the pooler's paths.

    They are the masked-token head without its vocabulary: transformers' classes of ModernBERT keep
    both under one name, so finetuning there starts from it.
    """
    params, head = source.params, "mlm_head."
    has_pooler = any(name.startswith("pooler.") for name in params)
    if source.config.pooler != "normed" or has_pooler:
        return {}
    shared = (name for name in params if name.startswith((f"{head}dense.", f"{head}norm.")))
    return {name.replace(head, "pooler.", 1): name for name in shared}


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
    """Returns `params`, as `apply` makes them, with those of `fresh` for new vocabulary entries.

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


def _size_faults(source: encoder.EncoderConfig, target: Target, flags: list[str]) -> Iterator[str]:
    """Yields a sentence for every field that differs, and adds the flag that changes it."""
    if target.may_grow:
        yield from _growth_faults(source, target)
    for field in dataclasses.fields(source):
        theirs, ours = getattr(source, field.name), getattr(target.encoder, field.name)
        if target.may_grow and field.name in growth.FIELDS and theirs <= ours:
            continue
        if field.name not in FREE_FIELDS and theirs != ours:
            flags.append(f"--config.model.{field.name}={theirs}")
            yield f"config.model.{field.name} is {ours!r}, the source has {theirs!r}: {flags[-1]}"


def _growth_faults(source: encoder.EncoderConfig, target: Target) -> Iterator[str]:
    sizes = [it.hidden_size // it.num_attention_heads for it in (source, target.encoder)]
    if sizes[0] != sizes[1]:
        yield (
            f"config.model.hidden_size / config.model.num_attention_heads is {sizes[1]}, the "
            f"source's heads have {sizes[0]}: with config.init_from_smaller heads are repeated "
            "whole, so choose another config.model.num_attention_heads"
        )
    if len(parameters.encoder_paths(target.params)) > 1:
        yield "config.init_from_smaller is for models with one encoder; this one has several"


def _row_faults(theirs: int, target: Target, flags: list[str]) -> Iterator[str]:
    ours = target.encoder.vocab_size
    if ours < theirs:
        flags.append(f"--config.model.vocab_size={theirs}")
        yield f"config.model.vocab_size is {ours}, the source has {theirs} rows: {flags[-1]}"
    if ours > theirs and not target.resize_vocabulary:
        yield (
            f"config.model.vocab_size is {ours}, the source has {theirs} rows: "
            "--config.resize_vocabulary=True adds fresh ones at the end"
        )


def _vocabulary_faults(source: pretrained.Pretrained, target: Target) -> Iterator[str]:
    theirs, ours = source.vocabulary, target.vocabulary
    if target.exchanges:
        yield from _exchange_faults(source, target)
        return
    if not target.encoder.vocab_size:
        return
    if theirs is None or ours is None:
        logging.warning(
            "%s no vocabulary: that ids mean the same in it and in the data is not checked, only "
            "that the sizes agree",
            "The data has" if ours is None else f"{source.source} has",
        )
        return
    if theirs.describe()["sha256"] == ours.describe()["sha256"]:
        return
    for name in token_ids.RULES:
        was, now = theirs.describe().get(name), ours.describe().get(name)
        if was != now:
            yield (
                f"the vocabulary of the data has {name} {now!r}, the source's has {was!r}: build "
                "the records with the source's vocabulary and casing"
            )
    if theirs.describe().get("merges_sha256") != ours.describe().get("merges_sha256"):
        yield (
            "the vocabulary of the data merges bytes otherwise than the source's (merges.txt, or "
            "add_prefix_space), so the same text has other ids: build the records with the "
            "source's vocabulary; tokens may be added to it as added tokens"
        )
    yield from _entry_faults(theirs, ours, target.resize_vocabulary)


def _exchange_faults(source: pretrained.Pretrained, target: Target) -> Iterator[str]:
    theirs, ours = source.vocabulary, target.vocabulary
    if theirs is None or ours is None:
        lacking = "the data has" if ours is None else f"{source.source} has"
        yield (
            f"{lacking} no vocabulary, so config.exchange_vocabulary has no strings to find rows "
            "by: put the vocabulary's files there, or leave it at False"
        )
    elif fault := vocabulary_exchange.fault(theirs, ours):
        yield f"{fault}; leave config.exchange_vocabulary at False"


def _entry_faults(
    theirs: tokenizer.Tokenizer, ours: tokenizer.Tokenizer, resize: bool
) -> Iterator[str]:
    shared = range(min(theirs.vocab_size, ours.vocab_size))
    differing = [index for index in shared if theirs.token(index) != ours.token(index)]
    if differing:
        examples = "; ".join(
            f"entry {index} is {ours.token(index)!r}, the source's is {theirs.token(index)!r}"
            for index in differing[:SHOWN_ENTRIES]
        )
        yield (
            f"the vocabulary of the data is not the source's; {len(differing)} of {len(shared)} "
            f"entries differ: {examples}. Build the records with the source's vocabulary; new "
            "entries may only follow at its end. Or --config.exchange_vocabulary=True gives each "
            "entry the row of its string, or the mean of those that the source cuts it into"
        )
    elif ours.vocab_size < theirs.vocab_size:
        yield (
            f"the vocabulary of the data has {ours.vocab_size} entries, the source's goes on to "
            f"{theirs.vocab_size}: build the records with the source's vocabulary"
        )
    elif ours.vocab_size > theirs.vocab_size and not resize:
        yield (
            f"the vocabulary of the data has {ours.vocab_size} entries, the source's "
            f"{theirs.vocab_size}, the first of them: --config.resize_vocabulary=True gives the "
            "others fresh rows"
        )


def _vocabulary_rows(source: pretrained.Pretrained, target: Target) -> int:
    theirs, ours = source.vocabulary, target.vocabulary
    rows = min(source.config.vocab_size, target.encoder.vocab_size)
    if theirs is not None and ours is not None and ours.vocab_size > theirs.vocab_size:
        # Rows beyond the source's entries, where a table was rounded up, were trained to be wrong.
        return min(rows, theirs.vocab_size)
    return rows


def _parameter_faults(
    taken: Mapping[str, np.ndarray],
    fresh: Iterable[str],
    target: Target,
    *,
    has_same_sizes: bool,
) -> Iterator[str]:
    encoders = parameters.encoder_paths(target.params)
    per_row = embedding_sharing.vocabulary_parameters(target.params)
    # Parts that begin as no other part, as the attention of a decoder to its source, start fresh.
    new = tuple(ours for ours, theirs in target.begins.items() if ours == theirs)
    # A generator of which the source has nothing starts fresh, as a head does.
    paths = [path for path in encoders if any(n.startswith(f"{path}.layers.") for n in taken)]
    encoders = paths or encoders
    shapes = {name: leaf.shape for name, leaf in parameters.flat(target.params).items()}
    for name in fresh:
        # The first layer of those with a norm before attention has none.
        is_norm_of_first = target.may_grow and ".attention_norm." in name
        may_lack = is_norm_of_first or name.startswith(new)
        if parameters.is_within(name, encoders) and has_same_sizes and not may_lack:
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
