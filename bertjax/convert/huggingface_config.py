"""Hugging Face's config.json and EncoderConfig, one to one.

Every field is known by name: it maps, or it must have the one value that this encoder is made for,
or it does not change what the encoder computes. Any other is warned of.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from absl import logging
from etils import epath

from bertjax import models

CONFIG_FILE = "config.json"

# Head -> the class of transformers; `transformers.Auto*` find it by this name.
ARCHITECTURES: dict[str, str] = {
    "pretraining": "BertForPreTraining",
    "masked_lm": "BertForMaskedLM",
    "none": "BertModel",
    "sequence_classification": "BertForSequenceClassification",
    "token_classification": "BertForTokenClassification",
    "question_answering": "BertForQuestionAnswering",
    "multiple_choice": "BertForMultipleChoice",
}

# Their activation -> ours. Source: transformers, activations.py. "gelu_fast" is the tanh form with
# its constant written to ten digits.
ACTIVATIONS: dict[str, str] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}
# Ours -> the name among theirs that the oldest versions know.
_THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}

# The problem_type of a single number; without it their pipelines take it for a class's logit.
REGRESSION = "regression"

# Field -> type, the same name on both sides.
FIELDS: dict[str, type] = {
    "vocab_size": int,
    "hidden_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "intermediate_size": int,
    "hidden_act": str,
    "hidden_dropout_prob": float,
    "attention_probs_dropout_prob": float,
    "max_position_embeddings": int,
    "type_vocab_size": int,
    "initializer_range": float,
    "layer_norm_eps": float,
}

# Field -> the one value that is supported; it is also the value of a config without the field.
FIXED: dict[str, Any] = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "pruned_heads": {},
    "quantization_config": None,
}

# Fields that do not change what the encoder computes: bookkeeping, the reader's own, generation,
# and the pooler_* of a few of the released checkpoints, which no program ever read.
WITHOUT_EFFECT = frozenset(
    """
    _attn_implementation_autoset _commit_hash _name_or_path architectures attn_implementation
    auto_map bos_token_id chunk_size_feed_forward cls_token_id directionality dtype eos_token_id
    finetuning_task gradient_checkpointing id2label label2id language mask_token_id name num_labels
    output_attentions output_hidden_states output_past pad_token_id pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type prefix
    problem_type return_dict sep_token_id task_specific_params tf_legacy_loss tokenizer_class
    torch_dtype torchscript transformers_version use_bfloat16 use_cache use_return_dict
    bad_words_ids begin_suppress_tokens cross_attention_hidden_size decoder_start_token_id
    diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty
    max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    output_scores remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens
    temperature tie_encoder_decoder top_k top_p typical_p
    """.split()  # noqa: SIM905  sixty names, one a line, would fill a page
)


@dataclasses.dataclass(frozen=True)
class Description:
    """What a config.json tells: sizes, the classes that wrote it, the names of the labels.

    `is_regression` says that a classifier of one label gives a number, not a class.
    """

    encoder: models.EncoderConfig
    architectures: tuple[str, ...] = ()
    labels: Mapping[int, str] = dataclasses.field(default_factory=dict)
    is_regression: bool = False

    @property
    def head(self) -> str | None:
        """The head of the first architecture that is known here, None without one."""
        heads = {architecture: head for head, architecture in ARCHITECTURES.items()}
        return next((heads[name] for name in self.architectures if name in heads), None)


def read(path: epath.PathLike) -> Description:
    """Returns what the config.json at `path` (or in that directory) tells.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if it is no JSON object, or as `parse`.
    """
    path = epath.Path(path)
    path = path / CONFIG_FILE if path.is_dir() else path
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; it tells the model's sizes and must lie beside the weights"
        )
    try:
        fields = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); fetch it again") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{path} holds a {type(fields).__name__}; a config is a JSON object")
    return parse(fields, source=str(path))


def parse(fields: Mapping[str, Any], *, source: str) -> Description:
    """Returns what the fields of a config.json tell; `source` names it in messages.

    A field that is not there has transformers' default, which is EncoderConfig's.

    Raises:
      ValueError: listing every field with a value that is not supported.
    """
    faults = [
        f"{name} is {fields[name]!r}; only {value!r} is supported"
        for name, value in FIXED.items()
        if fields.get(name, value) not in (value, None) and (fields[name] or value)
    ]
    sizes = {}
    for name, kind in FIELDS.items():
        if name not in fields:
            continue
        if fault := _type_fault(fields[name], kind):
            faults.append(f"{name} is {fields[name]!r}; {fault}")
        else:
            sizes[name] = kind(fields[name])
    if sizes.get("hidden_act", "gelu") in ACTIVATIONS:
        sizes["hidden_act"] = ACTIVATIONS[sizes.get("hidden_act", "gelu")]
    else:
        faults.append(
            f"hidden_act is {sizes.pop('hidden_act')!r}; known are {', '.join(ACTIVATIONS)}"
        )
    labels, label_faults = _labels(fields)
    architectures, architecture_faults = _architectures(fields)
    try:
        encoder = models.EncoderConfig(**sizes)
    except ValueError as error:
        encoder, faults = models.EncoderConfig(), [*faults, str(error)]
    if faults := [*faults, *label_faults, *architecture_faults]:
        raise ValueError(f"{source} describes no model that is known here: " + "; ".join(faults))
    _warn(fields, source)
    is_regression = fields.get("problem_type") == REGRESSION and len(labels) == 1
    return Description(encoder, architectures, labels, is_regression)


def to_json(
    config: models.EncoderConfig, *, head: str, labels: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """Returns the fields of the config.json of a model with this head; the inverse of `parse`.

    Ours alone (`dtype`, `remat`) are not written: weights are float32 whatever computed them.

    Raises:
      ValueError: if the head is not known.
    """
    if head not in ARCHITECTURES:
        raise ValueError(f"head is {head!r}; known are {', '.join(ARCHITECTURES)}")
    fields = {name: getattr(config, name) for name in FIELDS}
    fields["hidden_act"] = _THEIR_ACTIVATIONS[config.hidden_act]
    fields |= {
        "architectures": [ARCHITECTURES[head]],
        "model_type": "bert",
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    }
    if labels:
        fields["id2label"] = {str(number): labels[number] for number in sorted(labels)}
        fields["label2id"] = {labels[number]: number for number in sorted(labels)}
    return dict(sorted(fields.items()))


def _type_fault(value: Any, kind: type) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        return f"it must be {'a number' if kind is float else f'of type {kind.__name__}'}"
    return None


def _labels(fields: Mapping[str, Any]) -> tuple[dict[int, str], list[str]]:
    given = fields.get("id2label")
    if given is None:
        count = fields.get("num_labels")
        if count is None:
            return {}, []
        if not isinstance(count, int) or count < 1:
            return {}, [f"num_labels is {count!r}; it must be a positive number"]
        return {number: f"LABEL_{number}" for number in range(count)}, []
    wanted = "it must map every number from 0 on to a name"
    if not isinstance(given, Mapping) or not all(str(key).isdecimal() for key in given):
        return {}, [f"id2label is {given!r}; {wanted}"]
    labels = {int(number): str(name) for number, name in given.items()}
    if sorted(labels) != list(range(len(given))):
        return {}, [f"id2label has the numbers {sorted(labels)}; {wanted}"]
    return dict(sorted(labels.items())), []


def _architectures(fields: Mapping[str, Any]) -> tuple[tuple[str, ...], list[str]]:
    given = fields.get("architectures") or ()
    if isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
        return tuple(given), []
    return (), [f"architectures is {given!r}; it must be a list of class names"]


def _warn(fields: Mapping[str, Any], source: str) -> None:
    for name in sorted(set(fields) - set(FIELDS) - set(FIXED) - WITHOUT_EFFECT):
        value = fields[name]
        if name == "classifier_dropout":
            if value is not None:
                logging.warning(
                    "%s has classifier_dropout %s; the dropout before a head is here "
                    "hidden_dropout_prob",
                    source,
                    value,
                )
            continue
        logging.warning(
            "%s has the field %s = %r, which is not known here and is passed over: if it changes "
            "what the encoder computes, the outputs differ",
            source,
            name,
            value,
        )
