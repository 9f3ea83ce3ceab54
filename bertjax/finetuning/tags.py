"""Words with a tag each: named entities, parts of speech; `conll_files` reads the columns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

from bertjax.data import tokenizer as tokenizers
from bertjax.finetuning import base, batches, conll_files, feature_sets, json_fields, tag_schemes
from bertjax.models import classification as classifiers
from bertjax.models import encoder as encoders
from bertjax.models import feature_based, lstm
from bertjax.scores import classification, entities
from bertjax.tasks import base as tasks

_LEARNT = "iob2"  # the scheme of the labels, as `conll_files` reads all others


@dataclasses.dataclass(frozen=True)
class TokenClassification(base.FinetuningTask):
    """One of `num_labels` tags for every token; `labels` [batch, length], NOT_SCORED where none.

    With `is_feature_based` the encoder stays as it is and a BiLSTM, `lstm_size` wide each way,
    reads its last four layers. Source: Devlin et al. 2019, section 5.3.
    """

    encoder: encoders.EncoderConfig
    num_labels: int
    is_feature_based: bool = False
    lstm_size: int = feature_based.LSTM_SIZE
    bilstm_size: int = 0  # of one on an encoder that is trained

    @property
    def frozen(self) -> tuple[str, ...]:
        return (r"encoder\..*",) if self.is_feature_based else ()

    def init(
        self, rngs: nnx.Rngs
    ) -> classifiers.TokenClassifier | feature_based.FeatureBasedTagger:
        if self.is_feature_based:
            return feature_based.FeatureBasedTagger(
                self.encoder, num_labels=self.num_labels, lstm_size=self.lstm_size, rngs=rngs
            )
        return classifiers.TokenClassifier(
            self.encoder, num_labels=self.num_labels, bilstm_size=self.bilstm_size, rngs=rngs
        )

    def scored(self, batch: tasks.Batch) -> Array:
        """Returns the weight of each token: 0 at those that have no label."""
        return (batch["labels"] != batches.NOT_SCORED) * batch["example_weights"][:, None]

    def loss(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> tasks.Means:
        """Returns the mean cross-entropy and the accuracy over the batch's scored tokens."""
        return base.of_classes(model(batch, key=key), batch["labels"], self.scored(batch))

    def predict(self, model: Any, batch: tasks.Batch) -> dict[str, Array]:
        """Returns `logits` and `predictions` of every token, at padding too."""
        return base.best(model(batch))

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Three times the forward pass; a frozen encoder has no backward pass."""
        if not self.is_feature_based:
            states, width = base.states_flops(self.encoder, length, self.bilstm_size)
            return 3.0 * batch_size * (states + 2.0 * length * width * self.num_labels)
        layers = min(feature_based.NUM_FEATURE_LAYERS, self.encoder.num_hidden_layers)
        width = 2 * self.lstm_size
        sizes = [layers * self.encoder.hidden_size]
        sizes += [width] * (feature_based.NUM_LSTM_LAYERS - 1)
        products = sum(lstm.forward_flops(size, self.lstm_size) for size in sizes)
        head = length * (products + 2.0 * width * self.num_labels)
        return batch_size * (self.encoder.forward_flops(length) + 3.0 * head)


class Tags(base.Kind):
    """A list of "words"; a tag for each, and the entities that the tags name.

    The option `name` is the scheme of the tags, "" where it is to be found out.
    """

    own_options = {
        "feature_based": False,
        "bilstm_size": 0,
        "context": "sentence",
        "tag_scheme": "",
    }

    def __init__(self, options: base.Options, tokenizer: tokenizers.Tokenizer | None):
        super().__init__(options, tokenizer)
        self.tagged_rows = functools.cache(self._tagged_rows)

    @classmethod
    def task(cls, encoder: encoders.EncoderConfig, options: base.Options) -> TokenClassification:
        return TokenClassification(
            encoder, len(options.labels), options.feature_based, bilstm_size=options.bilstm_size
        )

    @classmethod
    def head(cls, options: base.Options) -> str:
        return "token_classification"

    @classmethod
    def only_here(cls, options: base.Options, pooler: str = "dense") -> str:
        if not options.feature_based:
            return super().only_here(options, pooler)
        return (
            "its tags come from a BiLSTM on the last layers (config.finetuning.feature_based), and "
            "the other formats have no model of that kind"
        )

    @classmethod
    def faults(cls, options: base.Options) -> Iterator[str]:
        if options.feature_based and options.lora_rank:
            yield (
                f"config.finetuning.lora_rank is {options.lora_rank}, but with "
                "config.finetuning.feature_based the encoder stays as it is: leave one of them out"
            )
        if options.feature_based and options.bilstm_size:
            yield (
                f"config.finetuning.bilstm_size is {options.bilstm_size}, but "
                "config.finetuning.feature_based has a BiLSTM of its own: leave one of them out"
            )
        if options.tag_scheme not in ("", *tag_schemes.SCHEMES):
            yield (
                f"config.finetuning.tag_scheme is {options.tag_scheme!r}; known are "
                f"{', '.join(tag_schemes.SCHEMES)}"
            )

    @classmethod
    def label_shapes(
        cls, options: base.Options, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        return {"labels": jax.ShapeDtypeStruct((batch_size, length), np.int32)}

    def missing(self) -> Iterator[str]:
        yield from super().missing()
        known = ("", *tag_schemes.SCHEMES, tag_schemes.PLAIN)
        if self.options.name not in known:
            yield (
                f"config.finetuning.name is {self.options.name!r}; for dataset 'conll' it is the "
                f"scheme of the tags, one of {', '.join(known[1:])}, or '' to find it out"
            )

    @property
    def is_plain(self) -> bool:
        """Whether tags name no entities."""
        return self.options.name == tag_schemes.PLAIN

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        scheme = tag_schemes.PLAIN if self.is_plain else _LEARNT
        return tuple(self.options.labels) or conll_files.labels(
            self.examples(base.TRAIN), scheme=scheme
        )

    @property
    def found(self) -> Mapping[str, Any]:
        """Beside the labels the scheme of answers, which is that of the training file."""
        if self.tag_scheme not in ("", _LEARNT):
            logging.info(
                "The model learns %s; its answers have the tags of %s, as %s",
                _LEARNT.upper(), self.tag_scheme.upper(), "config.finetuning.tag_scheme says"
                if self.options.tag_scheme else f"{self.file(base.TRAIN)} has them",
            )  # fmt: skip
        return {**super().found, "tag_scheme": self.tag_scheme}

    @functools.cached_property
    def tag_scheme(self) -> str:
        """The scheme that answers are given in, "" for plain tags."""
        if self.is_plain or self.options.tag_scheme:
            return self.options.tag_scheme
        if self.options.name:
            return self.options.name
        raw = conll_files.read_sentences(self.file(base.TRAIN), scheme=tag_schemes.PLAIN)
        return tag_schemes.recognize([sentence.tags for sentence in raw]) or _LEARNT

    @property
    def best_score(self) -> str:
        return "accuracy" if self.is_plain else "f1"

    def _examples(self, name: str) -> Sequence[conll_files.Sentence]:
        return conll_files.read_sentences(self.file(name), scheme=self.options.name or None)

    def _tagged_rows(self, name: str) -> conll_files.TaggedRows:
        sentences = [self._learnt(sentence) for sentence in self.examples(name)]
        return self._rows_of(sentences, self.options.context)

    def _learnt(self, sentence: conll_files.Sentence) -> conll_files.Sentence:
        """Returns a sentence with its tags as the model's labels have them."""
        return sentence

    def _rows_of(
        self, sentences: Sequence[conll_files.Sentence], context: str
    ) -> conll_files.TaggedRows:
        return conll_files.tagged_rows(
            sentences,
            self.tokenizer,
            labels=self.labels,
            max_seq_length=self.options.max_seq_length,
            context=context,
        )

    def _features(self, name: str) -> feature_sets.FeatureSet:
        return self.tagged_rows(name).features

    def _tags(self, rows: conll_files.TaggedRows, outputs: base.Outputs) -> list[tuple[str, ...]]:
        return rows.tags(list(outputs["predictions"]), self.labels)

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        """Returns conlleval's scores of entities, in percent; for plain tags the accuracy.

        Accuracies are fractions: that of the words is the task's own, in training too.
        """
        gold = [sentence.tags for sentence in self.examples(name)]
        predicted = self._tags(self.tagged_rows(name), outputs)
        if self.is_plain:
            words = (
                np.concatenate([np.array(tags) for tags in each]) for each in (gold, predicted)
            )
            return {"accuracy": classification.accuracy(*words)}
        overall = entities.score(gold, predicted).overall
        return {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}

    def classes(self, name: str, outputs: base.Outputs | None = None) -> Sequence[str]:
        """Returns the tag of every word."""
        if outputs is None:
            return [tag for sentence in self.examples(name) for tag in sentence.tags]
        return [tag for tags in self._tags(self.tagged_rows(name), outputs) for tag in tags]

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        """Writes the columns that conlleval reads."""
        tags = [self._answered(found) for found in self._tags(self.tagged_rows(name), outputs)]
        sentences = [
            dataclasses.replace(sentence, tags=self._answered(sentence.tags))
            for sentence in self.examples(name)
        ]
        conll_files.write_predictions(directory / f"{name}.conll", sentences, tags)

    def _answered(self, tags: Sequence[str]) -> tuple[str, ...]:
        """Returns tags in the scheme of answers; those of IOB2, which is learnt, as they are."""
        if self.options.tag_scheme in ("", _LEARNT) or self.is_plain:
            return tuple(tags)
        return tag_schemes.convert(tags, self.options.tag_scheme)

    def example(self, fields: base.Fields, source: str) -> Document:
        """Returns the sentence of "words", or the "sentences" of a document."""
        if "sentences" in fields:
            words = json_fields.lists_of_texts(fields, "sentences")
            return Document(tuple(_sentence(it, source) for it in words), is_document=True)
        if self.options.context == "document":
            logging.log_first_n(
                logging.WARNING,
                "%s has words alone: the model was trained on whole documents and reads these as "
                "one; give a document as {\"sentences\": [[word, ...], ...]}", 1, source,
            )  # fmt: skip
        return Document((_sentence(json_fields.texts(fields, "words"), source),))

    def rows(self, examples: Sequence[Document]) -> tuple[feature_sets.FeatureSet, base.Decode]:
        """Returns the rows of documents, whose sentences the option `context` reads together."""
        sentences = [sentence for example in examples for sentence in example.sentences]
        made = self._rows_of(sentences, self.options.context)

        def answers(outputs: base.Outputs, tuned: base.Tuned) -> list[base.Answer]:
            tags = self._tags(made, outputs)
            told = iter(
                [self._answer(it.words, own) for it, own in zip(sentences, tags, strict=True)]
            )
            return [
                {"sentences": [next(told) for _ in example.sentences]}
                if example.is_document
                else next(told)
                for example in examples
            ]

        return made.features, answers

    def _answer(self, words: Sequence[str], tags: Sequence[str]) -> base.Answer:
        answer: base.Answer = {"tags": list(self._answered(tags))}
        return answer if self.is_plain else answer | {"entities": _entities(words, tags)}


@dataclasses.dataclass(frozen=True)
class Document:
    """The sentences of a line of JSON; one of "words" is a sentence alone."""

    sentences: tuple[conll_files.Sentence, ...]
    is_document: bool = False


def _sentence(words: tuple[str, ...], source: str) -> conll_files.Sentence:
    # The lines of the input are documents: its first is 1, as after a -DOCSTART-.
    return conll_files.Sentence(words, (), (), 1, source, 1)


def _entities(words: Sequence[str], tags: Sequence[str]) -> list[base.Answer]:
    return [
        {
            "type": entity.type,
            "start": entity.start,
            "end": entity.end,
            "text": " ".join(words[entity.start : entity.end]),
        }
        for entity in entities.extract(tags)
    ]
