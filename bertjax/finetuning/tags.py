"""Words with a tag each: named entities, parts of speech; `conll_files` reads the columns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import ml_collections
import numpy as np
from absl import logging
from etils import epath
from flax import nnx
from jaxtyping import Array

from bertjax.finetuning import base, batches, conll_files, example_files, tag_schemes
from bertjax.models import classification as classifiers
from bertjax.models import encoder as encoders
from bertjax.models import feature_based, lstm
from bertjax.options import faults
from bertjax.options import finetuning as options_lib
from bertjax.scores import classification, entities
from bertjax.tasks import base as tasks

_LEARNT = "iob2"  # the scheme of the labels, as `conll_files` reads all others


@dataclasses.dataclass(frozen=True)
class TokenClassification(base.FinetuningTask):
    """One of `num_labels` tags for every token; `labels` [batch, length], NOT_SCORED where none.

    With `is_feature_based` the encoder stays as it is and a BiLSTM, `lstm_size` wide each way,
    reads its last four layers. Source: Devlin et al. 2019, section 5.3.
    """

    head: ClassVar[str] = "token_classification"

    encoder: encoders.EncoderConfig
    num_labels: int
    is_feature_based: bool = False
    lstm_size: int = feature_based.LSTM_SIZE
    bilstm_size: int = 0  # of one on an encoder that is trained

    @property
    def frozen(self) -> tuple[str, ...]:
        return (r"encoder\..*",) if self.is_feature_based else ()

    @property
    def export_fault(self) -> str:
        if not self.is_feature_based:
            return super().export_fault
        return (
            "its tags come from a BiLSTM on the last layers (config.finetuning.feature_based), and "
            "the other formats have no model of that kind"
        )

    def label_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {"labels": jax.ShapeDtypeStruct((batch_size, length), np.int32)}

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


@dataclasses.dataclass(frozen=True)
class Document:
    """The sentences of a line of JSON; one of "words" is a sentence alone."""

    sentences: tuple[conll_files.Sentence, ...]
    is_document: bool = False


class TagReader(base.Reader):
    """Reads words with a tag each, and the "words" or "sentences" of JSON.

    The option `name` is the scheme of the tags in files, "" where it is recognized.
    """

    def missing(self) -> Iterator[str]:
        yield from super().missing()
        names = ("", *tag_schemes.SCHEMES, tag_schemes.PLAIN)
        if self.options.name not in names:
            of_tags = "the scheme of the tags, or '' to recognize it"
            yield str(
                faults.unknown("config.finetuning.name", self.options.name, names[1:], of_tags)
            )

    @property
    def is_plain(self) -> bool:
        """Whether tags name no entities."""
        return self.options.name == tag_schemes.PLAIN

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        scheme = tag_schemes.PLAIN if self.is_plain else _LEARNT
        named = tuple(map(example_files.normalized, self.options.labels))
        return named or conll_files.labels(self.examples(base.TRAIN), scheme=scheme)

    @property
    def decided(self) -> Mapping[str, Any]:
        """The labels, and the scheme of predictions: the scheme of the training file."""
        if self.tag_scheme not in ("", _LEARNT):
            logging.info(
                "The model learns %s; its predictions have the tags of %s, as %s",
                _LEARNT.upper(), self.tag_scheme.upper(), "config.finetuning.tag_scheme says"
                if self.options.tag_scheme else f"{self.file(base.TRAIN)} has them",
            )  # fmt: skip
        return {**super().decided, "tag_scheme": self.tag_scheme}

    @functools.cached_property
    def tag_scheme(self) -> str:
        """The scheme of predictions, "" for plain tags."""
        if self.is_plain or self.options.tag_scheme:
            return self.options.tag_scheme
        if self.options.name:
            return self.options.name
        raw = conll_files.read_sentences(self.file(base.TRAIN), scheme=tag_schemes.PLAIN)
        return tag_schemes.recognize([sentence.tags for sentence in raw]) or _LEARNT

    def _examples(self, name: str) -> Sequence[conll_files.Sentence]:
        return conll_files.read_sentences(self.file(name), scheme=self.options.name or None)

    def _features(self, name: str) -> conll_files.TaggedRows:
        return self._tagged_rows(self.examples(name))

    def _tagged_rows(self, sentences: Sequence[conll_files.Sentence]) -> conll_files.TaggedRows:
        return conll_files.tagged_rows(
            sentences,
            self.tokenizer,
            labels=self.labels,
            max_seq_length=self.options.max_seq_length,
            context=self.options.context,
        )

    def texts(self, example: Document) -> tuple[str, ...]:
        return tuple(word for sentence in example.sentences for word in sentence.words)

    def example(self, fields: base.Fields, source: str) -> Document:
        """Returns the sentence of "words", or the "sentences" of a document."""
        if "sentences" in fields:
            words = example_files.json_lists(fields, "sentences")
            return Document(tuple(_sentence(it, source) for it in words), is_document=True)
        if self.options.context == "document":
            logging.log_first_n(
                logging.WARNING,
                "%s has words alone: the model was trained on whole documents and reads these as "
                "one; give a document as {\"sentences\": [[word, ...], ...]}", 1, source,
            )  # fmt: skip
        return Document((_sentence(example_files.json_texts(fields, "words"), source),))

    def rows(self, examples: Sequence[Document]) -> conll_files.TaggedRows:
        """Returns the rows of documents, whose sentences the option `context` reads together."""
        return self._tagged_rows([it for example in examples for it in example.sentences])


class TagScorer(base.Scorer):
    """Scores entities as conlleval does, or plain tags; predicts a tag for each word."""

    @property
    def best_score(self) -> str:
        return "accuracy" if self.reader.is_plain else "f1"

    def _tags(self, rows: conll_files.TaggedRows, outputs: base.Outputs) -> list[tuple[str, ...]]:
        return rows.tags(list(outputs["predictions"]), self.reader.labels)

    def _gold(self, name: str) -> list[tuple[str, ...]]:
        return [sentence.tags for sentence in self.reader.examples(name)]

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        """Returns conlleval's scores of entities, in percent; for plain tags the accuracy.

        Accuracies are fractions; the accuracy of words is the task's own, as in training.
        """
        gold, predicted = self._gold(name), self._tags(self.reader.features(name), outputs)
        if self.reader.is_plain:
            of_words = (np.concatenate([*map(np.array, it)]) for it in (gold, predicted))
            return {"accuracy": classification.accuracy(*of_words)}
        overall = entities.score(gold, predicted).overall
        return {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}

    def classes(self, name: str, outputs: base.Outputs | None = None) -> Sequence[str]:
        """Returns the tag of every word."""
        features = self.reader.features
        by_sentence = self._gold(name) if outputs is None else self._tags(features(name), outputs)
        return [tag for tags in by_sentence for tag in tags]

    def predictions(self, predicted: base.Predicted) -> list[base.Prediction]:
        tags = iter(self._tags(predicted.rows, predicted.outputs))
        predictions: list[base.Prediction] = []
        for document in predicted.examples:
            of_sentences = [self._prediction(it.words, next(tags)) for it in document.sentences]
            is_whole = document.is_document
            predictions.append({"sentences": of_sentences} if is_whole else of_sentences[0])
        return predictions

    def _prediction(self, words: Sequence[str], tags: Sequence[str]) -> base.Prediction:
        """Returns the tags and, unless they are plain, the entities of a sentence."""
        prediction: base.Prediction = {"tags": list(self._spelt(tags))}
        if not self.reader.is_plain:
            prediction["entities"] = [
                {"type": it.type, "start": it.start, "end": it.end}
                | {"text": " ".join(words[it.start : it.end])}
                for it in entities.extract(tags)
            ]
        return prediction

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        """Writes the columns that conlleval reads."""
        tags = [self._spelt(it) for it in self._tags(self.reader.features(name), outputs)]
        sentences = [
            dataclasses.replace(sentence, tags=self._spelt(sentence.tags))
            for sentence in self.reader.examples(name)
        ]
        conll_files.write_predictions(directory / f"{name}.conll", sentences, tags)

    def _spelt(self, tags: Sequence[str]) -> tuple[str, ...]:
        """Returns tags of IOB2, which is learnt, in the scheme of predictions."""
        if self.options.tag_scheme in ("", _LEARNT) or self.reader.is_plain:
            return tuple(tags)
        return tag_schemes.convert(tags, self.options.tag_scheme)


def _faults(config: ml_collections.ConfigDict) -> Iterator[str]:
    options = config.finetuning
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


def _sentence(words: tuple[str, ...], source: str) -> conll_files.Sentence:
    # The lines of the input are documents: its first is 1, as after a -DOCSTART-.
    return conll_files.Sentence(words, (), (), 1, source, 1)


def tag_task(encoder: encoders.EncoderConfig, options: base.Options) -> TokenClassification:
    """Returns the task of tagged words."""
    return TokenClassification(
        encoder, len(options.labels), options.feature_based, bilstm_size=options.bilstm_size
    )


CONLL = base.FinetuningKind(
    TagReader,
    tag_task,
    TagScorer,
    options_lib.owned("feature_based", "bilstm_size", "context", "tag_scheme"),
    _faults,
)
