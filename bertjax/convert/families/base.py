"""A family of weights: the names and fields of its models in other programs.

A family has one file in this folder, which makes one `Family`, and one row in FAMILIES. The formats
get a family and know none by name. Computation belongs to `models`: a new part goes there, and the
family's file has the fields that choose it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import models
from bertjax.convert import names
from bertjax.tokenization import sentence_piece, token_ids

# Fields of EncoderConfig that do not change the results; no file has them.
HOW = (
    *("dtype", "gradient_reduction_dtype", "remat", "attention"),
    *("initializer", "depth_scaled_init"),
)

# Fields of every config.json of transformers that do not change an encoder's results: bookkeeping,
# the reader's fields, and the search, which `generation_config` reads. `auto_map` has a separate
# warning.
BOOKKEEPING = frozenset(
    """
    _attn_implementation_autoset _commit_hash _name_or_path architectures attn_implementation
    auto_map bos_token_id chunk_size_feed_forward cls_token_id dtype eos_token_id finetuning_task
    gradient_checkpointing id2label label2id language mask_token_id model_type name num_labels
    output_attentions output_hidden_states output_past pad_token_id prefix problem_type return_dict
    sep_token_id task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript
    sbert_ce_default_activation_function sentence_transformers
    transformers_version use_bfloat16 use_cache use_return_dict
    bad_words_ids begin_suppress_tokens cross_attention_hidden_size decoder_start_token_id
    diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty
    max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    output_scores remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens
    temperature tie_encoder_decoder top_k top_p typical_p
    """.split()  # noqa: SIM905  sixty names, one a line, would fill a page
)


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of config.json: our field of EncoderConfig, and its type.

    `values` maps each of their values to ours, empty if they are the same; among equals the first
    is written. `default` is the value in a file without the field; None: EncoderConfig's.
    `written_from` is the attribute to write, by default the field. A field that is not `stated` is
    made by the family's `read` and never written. The family's numbers are at least `least`, in our
    units. Their number is ours times `times` plus `more`.
    """

    ours: str
    kind: type
    values: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
    default: Any = None
    least: int | None = None
    more: int = 0
    times: int = 1
    written_from: str = ""
    stated: bool = True

    def has(self, value: Any) -> bool:
        """Returns whether a member of the family may have this value of ours."""
        is_named = not self.values or value in self.values.values()
        return is_named and (self.least is None or value >= self.least)

    def read(self, value: Any) -> Any:
        """Returns our value for a value in a config.json."""
        if self.values:
            return self.values[value]
        if self.kind is not int:
            return self.kind(value)
        return (value - self.more) // self.times

    def written(self, config: models.EncoderConfig) -> Any:
        """Returns the value to write into a config.json."""
        value = getattr(config, self.written_from or self.ours)
        if self.values:
            return next(theirs for theirs, ours in self.values.items() if ours == value)
        return value * self.times + self.more if self.kind is int else value


# The field of tokenizer_config.json with the features that a tokenizer makes, and one of them.
INPUTS, SEGMENTS = "model_input_names", "token_type_ids"
WITH_SEGMENTS = ["input_ids", SEGMENTS, "attention_mask"]


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer in a directory of weights, as transformers reads them.

    `vocabularies` are files for our tokenizers; the first that exists is read, or else
    tokenizer.json. `fields` go into tokenizer_config.json. `single` and `pair` are the templates of
    an input, with {cls}, {sep}, and {between} for the separators between two texts, whose number
    the vocabulary has. `ids` maps fields of config.json to properties of the vocabulary. `pieces`
    are the ids of a sentencepiece.bpe.model, which is read before all others; a new model belongs
    to the family if its vocabulary has these ids. `unread` is the family's class of tokenizers if
    its rules are unknown here: files that name no other class are ignored.
    """

    vocabularies: tuple[str, ...]
    fields: Mapping[str, Any]
    single: str
    pair: str
    ids: Mapping[str, str]
    pieces: sentence_piece.Pieces | None = None
    unread: str = ""

    def with_segments(self) -> TokenizerFiles:
        """Returns the same files, but with segment 1 for the second text of a pair."""
        if SEGMENTS in self.fields[INPUTS]:
            return self
        # The tokenizer classes of families without segments make none.
        fields = {"tokenizer_class": token_ids.LIBRARY_CLASS, INPUTS: WITH_SEGMENTS}
        pair = self.pair.replace("$B:0 {sep}:0", "$B:1 {sep}:1")
        return dataclasses.replace(self, fields={**self.fields, **fields}, pair=pair)


@dataclasses.dataclass(frozen=True)
class Released:
    """The TensorFlow 1 checkpoints of a family's released code.

    `names`: the names of the variables.
    `config`, `checkpoint`: the file name of the config, and the prefix of the weights' files.
    `example`: a released folder.
    `defaults`: fields of the config, under our names, with their defaults (vocab_size has none).
    `unread`: fields that the code ignores.
    `computed_with`: our fields without an option in the code, with the values that it uses.
    `means`: names of activations that mean another one in this code, and ours.
    `casing`: regexes of folder names -> whether the text is lowercase; the first match counts.
    `model`: the name of the file of a sentencepiece model.
    `head_size`: the size of every attention head, for code without a config file; the variables
    give
      the other sizes.
    """

    names: tuple[names.Name, ...]
    config: str
    checkpoint: str
    example: str
    defaults: Mapping[str, Any]
    unread: tuple[str, ...] = ()
    computed_with: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    means: Mapping[str, str] = dataclasses.field(default_factory=dict)
    casing: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    model: str = ""
    head_size: int = 0


@dataclasses.dataclass(frozen=True)
class Family:
    """A family in the files of transformers and of its released code.

    `model_type`, `title`: its name in config.json, and in messages.
    `fields`: fields of config.json that map to ours.
    `fixed`: fields of config.json with one supported value, which is also the default.
    `stated`: fields of config.json that are always written.
    `without_effect`: fields of config.json that do not change the encoder.
    `architectures`: our heads -> the classes of transformers.
    `tensors`: the names of the weights.
    `prefix`: the prefix of these names that models without a head leave out.
    `older`: regexes of earlier spellings of names -> the present ones.
    `ignored`: regexes of tensors that are not parameters.
    `tied`: names of copies -> their originals.
    `fused`: a concatenated tensor -> the names of its parts in `tensors`.
    `traits`: fields of EncoderConfig that differ from its defaults in all members.
    `derived`: fields of EncoderConfig that follow from the others in all members.
    `completed`: fields of EncoderConfig that may differ -> the parameters that make an encoder with
      another value a member of the family that computes the same.
    `reasons`: fields in `fixed` -> the reason why no other value is supported.
    `read`: maps the fields of other versions of config.json to `fields`.
    `restated`: fields to write in addition to `fields`, or instead of them.
    `pooling`: the field with the pooling of a classifier of sequences; "": it reads [CLS].
    `poolings`: the values of this field -> ours; a file without the field has the first.
    `constants`: tensors that are not parameters, by name, and values of parameters that a model or
      a file may lack; it takes the sizes of the encoder, and of the decoder if there is one.
    `decoder`: fields of config.json with the sizes of a decoder -> ours, and the defaults.
    `objective`: fields of config.json -> the option of config.pretraining, and the default.
    `nested`: fields of config.json with the config of a part, encoder and decoder in this order ->
      the part's family; empty if one config has all sizes.
    `shares`: the parts that the files' decoder shares with the encoder, a key of
      `decoder_sharing.LACKING`.
    `of_weights`: fields of EncoderConfig that no config.json has -> a function of the tensors.
    `languages`: the field with the numbers of languages by name, and the one with names by number.
    """

    model_type: str
    title: str
    fields: Mapping[str, Field]
    fixed: Mapping[str, Any]
    stated: Mapping[str, Any]
    without_effect: frozenset[str]
    architectures: Mapping[str, str]
    tensors: tuple[names.Name, ...]
    prefix: str
    tokenizer: TokenizerFiles
    older: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fused: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    traits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    derived: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda sizes: {}
    completed: Mapping[str, Callable[[models.EncoderConfig], Mapping[str, np.ndarray]]] = (
        dataclasses.field(default_factory=dict)
    )
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    released: Released | None = None
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    restated: Callable[[models.EncoderConfig], Mapping[str, Any]] = lambda config: {}
    pooling: str = ""
    poolings: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"cls": "cls", "mean": "mean"}
    )
    constants: Callable[
        [models.EncoderConfig, models.EncoderConfig | None], Mapping[str, np.ndarray]
    ] = lambda config, decoder: {}
    decoder: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    objective: Mapping[str, tuple[str, Any]] = dataclasses.field(default_factory=dict)
    nested: Mapping[str, Family] = dataclasses.field(default_factory=dict)
    shares: str = "none"
    of_weights: Mapping[str, Callable[[models.EncoderConfig, Mapping[str, np.ndarray]], Any]] = (
        dataclasses.field(default_factory=dict)
    )
    languages: tuple[str, str] | tuple[()] = ()

    @property
    def name(self) -> str:
        """Its model_type; if configs are nested, after the model_type of its parts."""
        parts = [part.model_type for part in self.nested.values()]
        return "-".join([*parts[:1], self.model_type])

    def completion(self, config: models.EncoderConfig) -> dict[str, np.ndarray]:
        """Returns the parameters that an encoder lacks to be a member, by our path."""
        return {
            path: array
            for field, make in self.completed.items()
            if getattr(config, field) != getattr(self._alike(config), field)
            for path, array in make(config).items()
        }

    def spelling(self, name: str) -> str:
        """Returns a name in today's spelling, with its prefix in a model with a head."""
        for older, today in self.older:
            name = re.sub(older, today, name)
        headless = (
            entry.theirs.removeprefix(self.prefix).split(".")[0]
            for entry in self.tensors
            if entry.theirs.startswith(self.prefix)
        )
        return f"{self.prefix}{name}" if name.split(".")[0] in {*headless} else name

    def head(self, architectures: tuple[str, ...]) -> str | None:
        """Returns the head of the first class that is known here, None without one."""
        heads = {name: head for head, name in self.architectures.items()}
        return next((heads[name] for name in architectures if name in heads), None)

    def lacks(self, config: models.EncoderConfig) -> list[str]:
        """Returns the fields in which a config is not of this family ([] if it is)."""
        by_our_name = {field.ours: field for field in self.fields.values()}

        def has(field: dataclasses.Field[Any], value: Any) -> bool:
            if field.name in by_our_name:
                return by_our_name[field.name].has(value)
            is_free = field.name in {*HOW, *self.completed, *self.of_weights}
            return is_free or value == getattr(alike, field.name)

        alike = self._alike(config)

        return [
            f"{field.name} {getattr(config, field.name)!r}"
            for field in dataclasses.fields(config)
            if not has(field, getattr(config, field.name))
        ]

    def _alike(self, config: models.EncoderConfig) -> models.EncoderConfig:
        """Returns the family's encoder with the same sizes and rates."""
        our_names = {
            field.ours for field in self.fields.values() if field.has(getattr(config, field.ours))
        }
        shared = {
            field.name: field.default
            for field in dataclasses.fields(config)
            if field.name not in our_names and field.name not in HOW
        }
        derived = self.derived(dataclasses.asdict(config))
        # A model of values has no words, and a model of tokens no values; others need these sizes.
        sizes = {"vocab_size": config.vocab_size or 1_000, "value_width": config.value_width or 1}
        return dataclasses.replace(config, **{**shared, **sizes, **self.traits, **derived})
