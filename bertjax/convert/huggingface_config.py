"""Hugging Face's config.json and EncoderConfig, one to one.

A family knows each field by name: it maps to one of ours, has one supported value, or does not
change the encoder's results. Any other field is warned of.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from bertjax import models
from bertjax.convert import families, generation_config, sentence_transformers
from bertjax.convert.families import base
from bertjax.files import json_text
from bertjax.options import faults, schema

CONFIG_FILE = "config.json"
MOST_LABELS = 1_000_000  # a damaged file could ask for any number

# The field of a CrossEncoder's config.json before version 4 of sentence-transformers.
OLDER_ACTIVATION = "sbert_ce_default_activation_function"

# The problem_type of a single number, which pipelines otherwise take for a class's logit.
REGRESSION = "regression"
# Field -> the dropout here instead, and our field with its rate ("" for none). Only training uses
# them.
DROPOUTS = {
    "classifier_dropout": (
        "the dropout before a head is here hidden_dropout_prob",
        "hidden_dropout_prob",
    ),
    **dict.fromkeys(
        ("mlp_dropout", "activation_dropout"), ("within a feed-forward nothing is dropped here", "")
    ),
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), ("no layer is dropped here", "")),
}
# A field of ours: 1 if a masked token is predicted at the position before it (`tasks.mixed_rows`).
SHIFT = "masked_lm_shift"
# The first and last id of a target; transformers reads the first only from here.
START, END = "decoder_start_token_id", "eos_token_id"
PROBLEM_TYPES = (REGRESSION, "single_label_classification", "multi_label_classification")
MULTI_LABEL = "multi_label_classification"


Faults = list[ValueError | str]


@dataclasses.dataclass(frozen=True)
class Description:
    """The contents of a config.json: family, sizes, its architectures, the names of the labels.

    `is_regression`: a classifier's output is a number. `is_multi_label`: any number of its labels
    may be right. `pooling` is the classifier's. `languages` are the names of the languages with
    embeddings, in their order. `is_shifted`: masked tokens are predicted one position to the left.
    `decoder` are the sizes of a decoder, `start_id` and `end_id` the first and last id of its
    targets, None if unknown. `generation` are fields of generation_config.json. `objective` are
    options of config.pretraining.
    """

    family: base.Family
    encoder: models.EncoderConfig
    architectures: tuple[str, ...] = ()
    labels: Mapping[int, str] = dataclasses.field(default_factory=dict)
    is_regression: bool = False
    is_multi_label: bool = False
    pooling: str = "cls"
    languages: tuple[str, ...] = ()
    is_shifted: bool = False
    decoder: models.EncoderConfig | None = None
    start_id: int | None = None
    end_id: int | None = None
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    objective: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def head(self) -> str | None:
        """The head of the first architecture that is known here, None without one."""
        return self.family.head(self.architectures)


def read_config(path: epath.PathLike) -> Description:
    """Returns the contents of the config.json at `path`, or in that directory."""
    path = epath.Path(path)
    path = path / CONFIG_FILE if path.is_dir() else path
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; it has the model's sizes: copy it next to the weights"
        )
    fields = json_text.read_object(path)
    if activation := sentence_transformers.activation(path.parent):
        fields.setdefault(OLDER_ACTIVATION, activation)
    searched = generation_config.read(path.parent, fields)
    ends = {it: searched[it] for it in (START, END) if isinstance(searched.get(it), int)}
    description = parse_config(fields | ends, source=str(path))
    return dataclasses.replace(description, generation=searched)


def parse_config(fields: Mapping[str, Any], *, source: str) -> Description:
    """Returns the contents of a config.json; `source` is its name in messages.

    A missing field has the family's default.
    """
    try:
        family = families.describing(fields)
    except ValueError as error:
        raise ValueError(f"{source} describes no model that is known here: {error}") from error
    misfits: Faults = []
    try:
        fields = family.read(fields)
    except ValueError as error:
        misfits.append(error)
    if family.nested:
        misfits += _fixed_faults(fields, family)
        encoder, decoder = _nested(fields, family, misfits)
    else:
        encoder = _encoder(fields, family, misfits)
        decoder = _decoder(fields, family, encoder, misfits)
    start_id, end_id = _ends(fields, family, misfits)
    objective = _objective(fields, family, misfits)
    pooling = _pooling(fields, family, misfits)
    labels = _labels(fields, misfits)
    languages = _languages(fields, family, encoder.language_embeddings, misfits)
    architectures = fields.get("architectures") or ()
    is_list = isinstance(architectures, list | tuple)
    if not is_list or not all(isinstance(name, str) for name in architectures):
        misfits.append(faults.wrong("architectures", architectures, "a list of class names"))
    if (problem := fields.get("problem_type")) not in (None, *PROBLEM_TYPES):
        misfits.append(faults.unknown("problem_type", problem, PROBLEM_TYPES))
    if (shift := fields.get(SHIFT, 0)) not in (0, 1):
        misfits.append(faults.wrong(SHIFT, shift, "0 or 1"))
    faults.check(f"{source} describes no model that is known here", misfits)
    _warn(fields, family, encoder, source)
    for name, part in family.nested.items():
        _warn(fields[name], part, encoder, f"{name} of {source}")
    has_sigmoid = len(labels) == 1 and _activation(fields, source) == "Sigmoid"
    is_multi_label = fields.get("problem_type") == MULTI_LABEL or has_sigmoid
    # A single number, as rerankers give; it is the only one, so it is the logit of no class.
    is_number = len(labels) == 1 or fields.get("problem_type") == REGRESSION
    is_regression = is_number and not is_multi_label
    return Description(
        family,
        encoder,
        tuple(architectures),
        labels,
        is_regression,
        is_multi_label,
        pooling,
        languages,
        shift == 1,
        decoder,
        start_id,
        end_id,
        objective=objective,
    )


def to_json(
    config: models.EncoderConfig,
    family: base.Family,
    *,
    head: str,
    labels: Mapping[int, str] | None = None,
    pooling: str = "cls",
    languages: Sequence[str] = (),
    is_shifted: bool = False,
    decoder: models.EncoderConfig | None = None,
) -> dict[str, Any]:
    """Returns the fields of the config.json of a model with this head; undoes `parse_config`.

    Fields that only we have (`dtype`, `remat`) are not written.
    """
    if head not in family.architectures:
        raise faults.unknown(f"the head of {family.title}", head, family.architectures)
    fields: dict[str, Any] = {}
    if decoder is not None and family.nested:
        of_parts = zip(family.nested.items(), (config, decoder), strict=True)
        fields = {name: _fields_of(sizes, part) for (name, part), sizes in of_parts}
        fields |= family.stated
    else:
        fields = _fields_of(config, family)
    if decoder is not None:
        fields |= {name: getattr(decoder, ours) for name, (ours, _) in family.decoder.items()}
    theirs = {ours: name for name, ours in family.poolings.items()} if family.pooling else {}
    if theirs and head != "sequence_classification":
        fields[family.pooling] = next(iter(family.poolings))
    elif pooling in theirs:
        fields[family.pooling] = theirs[pooling]
    elif theirs or pooling != "cls":
        must = f"{' or '.join(map(repr, theirs or ('cls',)))} in classifiers of {family.title}"
        raise faults.wrong("pooling", pooling, must, "--format=bertjax keeps it")
    fields |= {
        **_language_fields(family, languages),
        "architectures": [family.architectures[head]],
        "model_type": family.model_type,
    }
    if is_shifted:
        fields[SHIFT] = 1
    if labels:
        fields["id2label"] = {str(number): labels[number] for number in sorted(labels)}
        fields["label2id"] = {labels[number]: number for number in sorted(labels)}
    return dict(sorted(fields.items()))


def _fields_of(config: models.EncoderConfig, family: base.Family) -> dict[str, Any]:
    """Returns the fields of an encoder's config.json for its family and sizes."""
    fields = {name: field.written(config) for name, field in family.fields.items() if field.stated}
    return {
        **fields,
        **family.stated,
        **family.restated(config),
        "model_type": family.model_type,
    }


def _fixed_faults(fields: Mapping[str, Any], family: base.Family) -> list[str]:
    reasons = {name: f": {reason}" for name, reason in family.reasons.items()}
    return [
        f"{name} is {fields[name]!r}; only {value!r} is supported{reasons.get(name, '')}"
        for name, value in family.fixed.items()
        if fields.get(name, value) not in (value, None) and (fields[name] or value)
    ]


def _pooling(fields: Mapping[str, Any], family: base.Family, misfits: Faults) -> str:
    """Returns the pooling of a classifier of sequences; a fault is added to `misfits`."""
    if not family.pooling:
        return "cls"
    pooling = fields.get(family.pooling) or next(iter(family.poolings))
    if isinstance(pooling, str) and pooling in family.poolings:
        return family.poolings[pooling]
    misfits.append(faults.unknown(family.pooling, pooling, family.poolings))
    return "cls"


def _objective(fields: Mapping[str, Any], family: base.Family, misfits: Faults) -> dict[str, Any]:
    """Returns the options of config.pretraining that fields name, and adds the misfits."""
    objective = {}
    for name, (ours, default) in family.objective.items():
        objective[ours] = value = fields.get(name, default)
        if others := [*_type_faults(value, type(default), name)]:
            misfits += others
        elif not 0 <= value <= 1:
            misfits.append(faults.wrong(name, value, "a share from 0 to 1"))
    return objective


def _encoder(
    fields: Mapping[str, Any], family: base.Family, misfits: Faults
) -> models.EncoderConfig:
    """Returns the sizes of an encoder; faults are added to `misfits`."""
    misfits += _fixed_faults(fields, family)
    sizes = _sizes(fields, family, misfits)
    try:
        return models.EncoderConfig(**sizes)
    except ValueError as error:
        misfits.append(error)
        return models.EncoderConfig()


def _nested(
    fields: Mapping[str, Any], family: base.Family, misfits: Faults
) -> tuple[models.EncoderConfig, models.EncoderConfig]:
    """Returns the sizes of encoder and decoder, which have separate configs."""
    sizes = []
    for name, part in family.nested.items():
        of_part: Faults = []
        sizes.append(_encoder(part.read(fields[name]), part, of_part))
        misfits += [f"{name}.{fault}" for fault in of_part]
    encoder, decoder = sizes
    if decoder.hidden_size != encoder.hidden_size:
        must = f"{encoder.hidden_size}, as in the encoder"
        misfits.append(faults.wrong("decoder.hidden_size", decoder.hidden_size, must))
    return encoder, decoder


def _ends(
    fields: Mapping[str, Any], family: base.Family, misfits: Faults
) -> tuple[int | None, int | None]:
    """Returns the first and last id of targets, None for families without."""
    if START not in family.tokenizer.ids:
        return None, None
    start, end = fields.get(START), fields.get(END)
    if not isinstance(start, int) or isinstance(start, bool):
        misfits.append(
            faults.wrong(START, start, "the first id of a target, usually of [CLS]: write it in")
        )
    if end is not None and (not isinstance(end, int) or isinstance(end, bool)):
        misfits.append(faults.wrong(END, end, "the last id of a target"))
    return start, end


def _sizes(fields: Mapping[str, Any], family: base.Family, misfits: Faults) -> dict[str, Any]:
    """Returns the fields of EncoderConfig; faults are added to `misfits`."""
    sizes = dict(family.traits)
    for name, field in family.fields.items():
        value = fields.get(name, field.default)
        if value is None and name not in fields:
            continue
        if others := [*_type_faults(value, field.kind, name)]:
            misfits += others
        elif field.values and value not in field.values:
            misfits.append(faults.unknown(name, value, field.values))
        elif field.least is not None and (value is None or value < field.least):
            misfits.append(faults.wrong(name, value, f"at least {field.least}"))
        else:
            sizes[field.ours] = field.read(value)
    sizes |= family.derived(dataclasses.asdict(models.EncoderConfig()) | sizes)
    size = family.fields.get("embedding_size")
    if size and size.written_from and sizes.get("embedding_size") == sizes.get("hidden_size"):
        sizes["embedding_size"] = 0  # our value for embeddings as wide as the layers
    return sizes


def _decoder(
    fields: Mapping[str, Any],
    family: base.Family,
    encoder: models.EncoderConfig,
    misfits: Faults,
) -> models.EncoderConfig | None:
    """Returns the sizes of the decoder, None for a family without."""
    if not family.decoder:
        return None
    sizes = {}
    for name, (ours, default) in family.decoder.items():
        value = fields.get(name, default)
        if others := [*_type_faults(value, int, name)]:
            misfits += others
            continue
        sizes[ours] = value
    try:
        return dataclasses.replace(encoder, **sizes)
    except ValueError as error:
        misfits.append(f"its decoder: {error}")
        return None


def _type_faults(value: Any, kind: type, name: str) -> Iterator[ValueError]:
    yield from schema.faults(value, kind, name)
    if isinstance(value, float) and not math.isfinite(value):
        yield faults.wrong(name, value, "a finite number")


def _labels(fields: Mapping[str, Any], misfits: Faults) -> dict[int, str]:
    names, count = fields.get("id2label"), fields.get("num_labels")
    labels: dict[int, str] = {}
    if names is None and count is not None:
        if isinstance(count, int) and 1 <= count <= MOST_LABELS:
            return {number: f"LABEL_{number}" for number in range(count)}
        misfits.append(faults.wrong("num_labels", count, f"from 1 to {MOST_LABELS:,}"))
    elif names is not None:
        if isinstance(names, Mapping) and all(str(key).isdecimal() for key in names):
            labels = {int(number): str(name) for number, name in names.items()}
        if not isinstance(names, Mapping) or sorted(labels) != list(range(len(names))):
            rule = "a map of every number from 0 on to a name"
            misfits.append(faults.wrong("id2label", names, rule))
    return dict(sorted(labels.items()))


def _languages(
    fields: Mapping[str, Any], family: base.Family, embeddings: int, misfits: Faults
) -> tuple[str, ...]:
    """Returns the names of the languages with embeddings, by number; () without names."""
    given = {name: fields[name] for name in family.languages if fields.get(name)}
    if not given or not embeddings or not family.languages:
        return ()
    by_name, by_number = family.languages
    try:
        numbers = given.get(by_name) or {name: int(it) for it, name in given[by_number].items()}
        names = tuple(sorted(numbers, key=numbers.__getitem__))
        written = _language_fields(family, names)
        is_right = all(written[name] == table for name, table in given.items())
    except (AttributeError, TypeError, ValueError):
        names, is_right = (), False
    if is_right and len(names) <= embeddings and all(isinstance(name, str) for name in names):
        return names
    misfits.append(
        f"{' and '.join(f'{name} {table!r:.100}' for name, table in given.items())} must give each "
        f"of at most {embeddings} languages one number, from 0 on"
    )
    return ()


def _language_fields(family: base.Family, names: Sequence[str]) -> dict[str, Any]:
    if not names or not family.languages:
        return {}
    by_name, by_number = family.languages
    return {
        by_name: {name: number for number, name in enumerate(names)},
        by_number: {str(number): name for number, name in enumerate(names)},
    }


def _activation(fields: Mapping[str, Any], source: str) -> str:
    """Returns torch's class of a CrossEncoder's activation, "" without one.

    Source: sentence-transformers, CrossEncoder.get_default_activation_fn.
    """
    path, of_library = fields.get(OLDER_ACTIVATION), fields.get("sentence_transformers")
    if isinstance(of_library, Mapping):
        path = of_library.get("activation_fn", path)
    name = str(path or "").rpartition(".")[2]
    if name not in ("", "Identity", "Sigmoid"):
        raise ValueError(
            f"{source} has activation_fn {path!r}; supported are torch's Identity and Sigmoid"
        )
    return name


def _warn(
    fields: Mapping[str, Any], family: base.Family, encoder: models.EncoderConfig, source: str
) -> None:
    names = {
        *family.fields,
        *family.decoder,
        *family.objective,
        *family.fixed,
        *family.without_effect,
        *family.tokenizer.ids,
        *family.nested,
    }
    names |= {family.pooling, SHIFT}
    if fields.get("auto_map"):
        logging.warning(
            "%s names Python code (auto_map), which is never run: the weights are read as %s, and "
            "the outputs differ if the code computes something else",
            source, family.title,
        )  # fmt: skip
    for name in sorted(set(fields) - names):
        value = fields[name]
        if name in DROPOUTS:
            instead, ours = DROPOUTS[name]
            if value not in (None, getattr(encoder, ours) if ours else 0):
                logging.warning("%s has %s %s; %s", source, name, value, instead)
            continue
        logging.warning(
            "%s has the unknown field %s = %r, which is ignored: if it changes the encoder's "
            "results, the outputs differ", source, name, value,
        )  # fmt: skip
