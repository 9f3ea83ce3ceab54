"""Hugging Face's config.json and EncoderConfig, one to one.

Every field is known to its family by name: it maps, or it must have the one value that the encoder
is made for, or it does not change what the encoder computes. Any other is warned of.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from bertjax import models
from bertjax.convert import families, sentence_transformers
from bertjax.convert.families import base
from bertjax.files import json_text

CONFIG_FILE = "config.json"
MOST_LABELS = 1_000_000  # that are believed: a file could ask for any number of names

# The field of a CrossEncoder's config.json before version 4 of sentence-transformers.
OLDER_ACTIVATION = "sbert_ce_default_activation_function"

# The problem_type of a single number; without it their pipelines take it for a class's logit.
REGRESSION = "regression"
# Field -> what is dropped here instead, and with which rate: a field of ours, "" none. They count
# while one trains.
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
# The ids with which a target begins and ends; transformers reads the first from here alone.
START, END = "decoder_start_token_id", "eos_token_id"
# The kinds of classifiers in transformers.
PROBLEM_TYPES = (REGRESSION, "single_label_classification", "multi_label_classification")
POOLINGS = ("cls", "mean")  # of classifiers that tell what they read
MULTI_LABEL = "multi_label_classification"  # that of labels of which there may be several


@dataclasses.dataclass(frozen=True)
class Description:
    """The contents of a config.json: family, sizes, its architectures, the names of the labels.

    `is_regression` says that a classifier gives numbers, not classes, as that of one label, and
    `is_multi_label` that any number of its labels may be right; `pooling` is what it reads.
    `languages` are the names of those that have embeddings, in their order. `is_shifted` says that
    masked tokens are predicted one position to the left. `decoder` are the sizes of a decoder,
    `start_id` and `end_id` the ids with which its targets begin and end, None if unknown.
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

    @property
    def head(self) -> str | None:
        """The head of the first architecture that is known here, None without one."""
        return self.family.head(self.architectures)


def read_config(path: epath.PathLike) -> Description:
    """Returns what the config.json at `path` (or in that directory) tells."""
    path = epath.Path(path)
    path = path / CONFIG_FILE if path.is_dir() else path
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; it tells the model's sizes and must lie beside the weights"
        )
    fields = json_text.read_object(path)
    if activation := sentence_transformers.activation(path.parent):
        fields.setdefault(OLDER_ACTIVATION, activation)
    return parse_config(fields, source=str(path))


def parse_config(fields: Mapping[str, Any], *, source: str) -> Description:
    """Returns what the fields of a config.json tell; `source` names it in messages.

    A field that is not there has the default of its family.
    """
    try:
        family = families.describing(fields)
    except ValueError as error:
        raise ValueError(f"{source} describes no model that is known here: {error}") from error
    faults = []
    try:
        fields = family.read(fields)
    except ValueError as error:
        faults.append(str(error))
    if family.nested:
        faults += _fixed_faults(fields, family)
        encoder, decoder = _nested(fields, family, faults)
    else:
        encoder = _encoder(fields, family, faults)
        decoder = _decoder(fields, family, encoder, faults)
    start_id, end_id = _ends(fields, family, faults)
    pooling = fields.get(family.pooling) or POOLINGS[0]
    if pooling not in POOLINGS:
        faults.append(f"{family.pooling} is {pooling!r}; known are {', '.join(POOLINGS)}")
    labels = _labels(fields, faults)
    languages = _languages(fields, family, encoder.language_embeddings, faults)
    architectures = fields.get("architectures") or ()
    is_list = isinstance(architectures, list | tuple)
    if not is_list or not all(isinstance(name, str) for name in architectures):
        faults.append(f"architectures is {architectures!r}; it must be a list of class names")
    if (problem := fields.get("problem_type")) not in (None, *PROBLEM_TYPES):
        faults.append(f"problem_type is {problem!r:.60}; known are {', '.join(PROBLEM_TYPES)}")
    if (shift := fields.get(SHIFT, 0)) not in (0, 1):
        faults.append(f"{SHIFT} is {shift!r}; it must be 0 or 1")
    if faults:
        raise ValueError(f"{source} describes no model that is known here: " + "; ".join(faults))
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

    Ours alone (`dtype`, `remat`) are not written: weights are float32 whatever computed them.
    """
    if head not in family.architectures:
        raise ValueError(
            f"head is {head!r}; known of {family.title} are {', '.join(family.architectures)}"
        )
    fields: dict[str, Any] = {}
    if decoder is not None and family.nested:
        of_parts = zip(family.nested.items(), (config, decoder), strict=True)
        fields = {name: _fields_of(sizes, part) for (name, part), sizes in of_parts}
        fields |= family.stated
    else:
        fields = _fields_of(config, family)
    if decoder is not None:
        fields |= {name: getattr(decoder, ours) for name, (ours, _) in family.decoder.items()}
    if family.pooling:
        fields[family.pooling] = pooling
    elif pooling != POOLINGS[0]:
        raise ValueError(
            f"pooling is {pooling!r}; classifiers of {family.title} read [CLS] alone. "
            "--format=bertjax keeps it"
        )
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
    """Returns the fields of an encoder's config.json that tell its family and its sizes."""
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


def _encoder(
    fields: Mapping[str, Any], family: base.Family, faults: list[str]
) -> models.EncoderConfig:
    """Returns the sizes of an encoder; what is wrong with them goes to `faults`."""
    faults += _fixed_faults(fields, family)
    sizes = _sizes(fields, family, faults)
    try:
        return models.EncoderConfig(**sizes)
    except ValueError as error:
        faults.append(str(error))
        return models.EncoderConfig()


def _nested(
    fields: Mapping[str, Any], family: base.Family, faults: list[str]
) -> tuple[models.EncoderConfig, models.EncoderConfig]:
    """Returns the sizes of encoder and decoder, each with a config of its own."""
    sizes = []
    for name, part in family.nested.items():
        of_part: list[str] = []
        sizes.append(_encoder(part.read(fields[name]), part, of_part))
        faults += [f"{name}.{fault}" for fault in of_part]
    encoder, decoder = sizes
    if decoder.hidden_size != encoder.hidden_size:
        faults.append(
            f"hidden_size is {decoder.hidden_size} in the decoder and {encoder.hidden_size} in the "
            "encoder; only equal ones are supported"
        )
    return encoder, decoder


def _ends(
    fields: Mapping[str, Any], family: base.Family, faults: list[str]
) -> tuple[int | None, int | None]:
    """Returns the ids with which a target begins and ends, of a family that has targets."""
    if START not in family.tokenizer.ids:
        return None, None
    start, end = fields.get(START), fields.get(END)
    if not isinstance(start, int) or isinstance(start, bool):
        faults.append(
            f"{START} is {start!r}; a decoder needs the id that it reads first, as a rule that of "
            "[CLS]: write it into the file"
        )
    if end is not None and (not isinstance(end, int) or isinstance(end, bool)):
        faults.append(f"{END} is {end!r}; it must be the id with which a target ends")
    return start, end


def _sizes(fields: Mapping[str, Any], family: base.Family, faults: list[str]) -> dict[str, Any]:
    """Returns the fields of EncoderConfig; what is wrong with others goes to `faults`."""
    sizes = dict(family.traits)
    for name, field in family.fields.items():
        value = fields.get(name, field.default)
        if value is None and name not in fields:
            continue
        if fault := _type_fault(value, field.kind):
            faults.append(f"{name} is {value!r}; {fault}")
        elif field.values and value not in field.values:
            faults.append(f"{name} is {value!r}; known are {', '.join(map(str, field.values))}")
        elif field.least is not None and (value is None or value < field.least):
            faults.append(f"{name} is {value!r}; it must be at least {field.least}")
        else:
            sizes[field.ours] = field.read(value)
    sizes |= family.derived(dataclasses.asdict(models.EncoderConfig()) | sizes)
    told = family.fields.get("embedding_size")
    if told and told.told_by and sizes.get("embedding_size") == sizes.get("hidden_size"):
        sizes["embedding_size"] = 0  # as we say that they are as wide as the layers
    return sizes


def _decoder(
    fields: Mapping[str, Any],
    family: base.Family,
    encoder: models.EncoderConfig,
    faults: list[str],
) -> models.EncoderConfig | None:
    """Returns the sizes of the decoder, None for a family without."""
    if not family.decoder:
        return None
    sizes = {}
    for name, (ours, default) in family.decoder.items():
        value = fields.get(name, default)
        if fault := _type_fault(value, int):
            faults.append(f"{name} is {value!r}; {fault}")
            continue
        sizes[ours] = value
    try:
        return dataclasses.replace(encoder, **sizes)
    except ValueError as error:
        faults.append(f"of its decoder, {error}")
        return None


def _type_fault(value: Any, kind: type) -> str | None:
    is_bool = isinstance(value, bool)
    if is_bool != (kind is bool) or not isinstance(value, (int, float) if kind is float else kind):
        return f"it must be {'a number' if kind is float else f'of type {kind.__name__}'}"
    if kind is float and not math.isfinite(value):
        return "it must be a finite number"
    return None


def _labels(fields: Mapping[str, Any], faults: list[str]) -> dict[int, str]:
    names, count = fields.get("id2label"), fields.get("num_labels")
    rule = "it must map every number from 0 on to a name"
    labels: dict[int, str] = {}
    if names is None and count is not None:
        if isinstance(count, int) and 1 <= count <= MOST_LABELS:
            return {number: f"LABEL_{number}" for number in range(count)}
        faults.append(f"num_labels is {count!r}; it must be from 1 to {MOST_LABELS:,}")
    elif names is not None:
        if isinstance(names, Mapping) and all(str(key).isdecimal() for key in names):
            labels = {int(number): str(name) for number, name in names.items()}
            if sorted(labels) != list(range(len(names))):
                faults.append(f"id2label has the numbers {sorted(labels)}; {rule}")
        else:
            faults.append(f"id2label is {names!r}; {rule}")
    return dict(sorted(labels.items()))


def _languages(
    fields: Mapping[str, Any], family: base.Family, embeddings: int, faults: list[str]
) -> tuple[str, ...]:
    """Returns the names of the languages with embeddings, in their order; () without names."""
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
    faults.append(
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
    """Returns the class of torch through which a CrossEncoder's number goes, "" without one.

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
        *family.fixed,
        *family.without_effect,
        *family.tokenizer.ids,
        *family.nested,
    }
    names |= {family.pooling, SHIFT}
    if fields.get("auto_map"):
        logging.warning(
            "%s names code of its own (auto_map), which is never run: the weights are read as "
            "those of %s, and the outputs differ if that code computes something else",
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
            "%s has the field %s = %r, which is not known here and is passed over: if it changes "
            "what the encoder computes, the outputs differ", source, name, value,
        )  # fmt: skip
