"""A text from a text: an encoder and a decoder, trained on pairs of source and target.

The decoder begins as the encoder does (Rothe et al. 2020), as the decoder of the weights, or as
another encoder. It reads [CLS] and the target, and predicts the target and [SEP]. Files are tables
with two columns of texts, or two files of lines. How targets are searched for belongs to
`models.generation`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from absl import logging
from etils import epath
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.files import delimiters, tables, text_encodings
from bertjax.finetuning import base, batches, example_files, feature_sets, table_files
from bertjax.models import decoder, generation
from bertjax.models import encoder as encoders
from bertjax.options import finetuning as options_lib
from bertjax.scores import generated
from bertjax.tasks import base as tasks
from bertjax.tokenization import tokenizer as tokenizers

# Part of a decoder -> the part of the weights that it starts from if these have no decoder.
BEGINS = {
    "decoder.embeddings.": "encoder.embeddings.",
    "decoder.layers.": "encoder.layers.",
    "decoder.final_norm.": "encoder.final_norm.",
    "decoder.cross.": "decoder.cross.",
    "mlm_head.": "mlm_head.",
}
# Options of config.finetuning that `generation.Search` has by the same names.
SEARCHED = ("beams", "length_penalty", "no_repeat_ngram", "min_new_tokens")


@dataclasses.dataclass(frozen=True)
class Sequences(base.FinetuningTask):
    """Predicts each token of a target from those before it and from a source.

    `input_ids` are a source, `target_ids` [batch, length] [CLS] and its target, `labels` the token
    after each of these, -1 behind the end. The loss is the mean cross-entropy over tokens, of which
    `label_smoothing` is the share of the uniform distribution (Szegedy et al. 2016, section 7); an
    evaluation's has none.
    """

    head: ClassVar[str] = "sequence_to_sequence"

    encoder: encoders.EncoderConfig
    search: generation.Search
    shares: str = "embeddings"
    label_smoothing: float = 0.0

    @property
    def begins(self) -> Mapping[str, str]:
        """The parts that begin as others of the weights, by the beginnings of their paths."""
        return BEGINS

    @property
    def export_fields(self) -> Mapping[str, Any]:
        return {"start_id": self.search.start_id, "end_id": self.search.end_id}

    def label_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        shape = (batch_size, self.search.max_length)
        return dict.fromkeys(("target_ids", "labels"), jax.ShapeDtypeStruct(shape, np.int32))

    def init(self, rngs: nnx.Rngs) -> decoder.EncoderDecoder:
        return decoder.EncoderDecoder(self.encoder, shares=self.shares, rngs=rngs)

    def scored(self, batch: tasks.Batch) -> Float[Array, "batch length"]:
        """Returns the weight of every token of a target."""
        is_token = (batch["labels"] != batches.NOT_SCORED).astype(jnp.float32)
        return is_token * batch["example_weights"][:, None]

    def loss(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> tasks.Means:
        """Returns the mean loss over tokens, and the share of those that are predicted best."""
        return self._losses(model, batch, self.label_smoothing, key)

    def evaluate(self, model: Any, batch: tasks.Batch) -> tasks.Means:
        """Returns the loss without smoothing, and the accuracy, with the true tokens before."""
        return self._losses(model, batch, 0.0, None)

    def _losses(
        self, model: Any, batch: tasks.Batch, smoothing: float, key: PRNGKeyArray | None
    ) -> tasks.Means:
        weights = self.scored(batch)
        is_token = batch["labels"] != batches.NOT_SCORED
        logits = model({**batch, "target_mask": is_token.astype(jnp.int32)}, key=key)
        labels = jnp.maximum(batch["labels"], 0)
        losses = tasks.cross_entropy(logits, labels)
        if smoothing:
            uniform = tasks.log_sum_exp(logits) - logits.mean(axis=-1)
            losses = (1 - smoothing) * losses + smoothing * uniform
        return {
            "loss": tasks.weighted(losses, weights),
            "accuracy": tasks.accuracy(logits, labels, weights),
        }

    def predict(self, model: Any, batch: tasks.Batch) -> dict[str, Array]:
        """Returns the best targets: `predictions` [batch, length], and their `scores`."""
        found = generation.generate(model, batch, self.search)
        return {"predictions": found.ids[:, 0], "scores": found.scores[:, 0]}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Three times the forward pass: the encoder, the decoder, and the head at every token."""
        del predictions
        most = self.search.max_length
        forward = self.encoder.forward_flops(length) + self.encoder.head_flops(most)
        return 3.0 * batch_size * (forward + decoder.forward_flops(self.encoder, most, length))


class SequenceReader(base.Reader):
    """Reads pairs of texts: a table's two columns, or the lines of two files, SOURCES,TARGETS."""

    @classmethod
    def paths(cls, value: str) -> list[str]:
        return [path.strip() for path in value.split(",") if path.strip()]

    @property
    def decided(self) -> Mapping[str, Any]:
        """The vocabulary's ids that start, end and pad a target."""
        known = self.tokenizer
        return {**super().decided, "target_specials": (known.cls_id, known.sep_id, known.pad_id)}

    @property
    def columns(self) -> tuple[str, str]:
        return self.options.text_column, self.options.target_column

    def _examples(self, name: str) -> Sequence[feature_sets.TextExample]:
        paths, options = self.paths(self.file(name)), self.options
        rules = tables.Rules(
            delimiter=options.delimiter,
            encoding=options.encoding,
            encoding_option="--config.finetuning.encoding",
        )
        if len(paths) > 2:
            raise ValueError(
                f"{self.file(name)} names {len(paths)} files; give a table, or a file of sources "
                "and one of targets"
            )
        if len(paths) == 2:
            return _of_lines(paths[0], paths[1], rules)
        columns = table_files.Columns(self.columns if name != base.TEST else self.columns[:1])
        return table_files.read_table(paths[0], columns, rules=rules).examples

    @property
    def text_keys(self) -> Sequence[str]:
        return delimiters.column_names([self.options.text_column])

    def texts(self, example: feature_sets.TextExample) -> Sequence[str]:
        return example.texts[:1]

    def rows(self, examples: Sequence[feature_sets.TextExample]) -> feature_sets.FeatureSet:
        first = [dataclasses.replace(it, texts=it.texts[:1]) for it in examples]
        length = self.options.max_seq_length
        rows = feature_sets.text_rows(first, self.tokenizer, max_seq_length=length)
        if not examples or len(examples[0].texts) == 1:
            return rows
        columns = self._targets([it.texts[1] for it in examples], examples[0].source)
        return dataclasses.replace(rows, columns=columns)

    def _targets(self, texts: Sequence[str], place: str) -> dict[str, np.ndarray]:
        """Returns [CLS] and the targets, and the tokens after each of these.

        `place` is the line of the first one.
        """
        most, known = self.options.max_target_length, self.tokenizer
        ids, lengths = known.encode_flat(texts)
        kept = np.minimum(lengths, most - 1)
        if cut := int((kept < lengths).sum()):
            logging.warning(
                "%d of %d targets have more than %d tokens, and lose the rest and their end: "
                "config.finetuning.max_target_length", cut, len(texts), most - 1,
            )  # fmt: skip
        inputs = np.full((len(texts), most), known.pad_id, np.int32)
        labels = np.full((len(texts), most), batches.NOT_SCORED, np.int32)
        inputs[:, 0] = known.cls_id
        starts = np.cumsum(lengths) - lengths
        is_unknown = np.array(ids) == known.unk_id
        unknown = [
            row
            for row, (start, size) in enumerate(zip(starts, lengths, strict=True))
            if is_unknown[start : start + size].any()
        ]
        if unknown:
            logging.warning(
                "%d of %d targets (%.1f%%; the first row is %s) have words that the vocabulary "
                "cannot spell, such as %r: no prediction can equal them. Train a vocabulary on "
                "such texts", len(unknown), len(texts), 100 * len(unknown) / len(texts), place,
                texts[unknown[0]],
            )  # fmt: skip
        for row, (start, whole, size) in enumerate(zip(starts, lengths, kept, strict=True)):
            inputs[row, 1 : size + 1] = labels[row, :size] = ids[start : start + size]
            # A target that is cut does not end there: nothing says what follows.
            labels[row, size] = known.sep_id if size == whole else ids[start + size]
        return {"target_ids": inputs, "labels": labels}


class SequenceScorer(base.Scorer):
    """Scores of texts that were searched for, by `generated.SCORES`."""

    def __init__(self, reader: SequenceReader):
        super().__init__(reader)
        self.references = functools.cache(self._references)
        self.baselines = functools.cache(self._baselines)

    @functools.cached_property
    def by_name(self) -> dict[str, generated.Score]:
        return generated.chosen(self.options.text_scores, self.options.bleu_tokenizer)

    @property
    def best_score(self) -> str:
        return next(iter(self.by_name))

    @property
    def notes(self) -> Mapping[str, str]:
        is_scored = "bleu" in self.by_name
        tokenizer = self.options.bleu_tokenizer
        return {"bleu_signature": generated.signature(tokenizer)} if is_scored else {}

    def texts(self, outputs: base.Outputs) -> list[str]:
        """Returns the targets as texts, without the ids that end and fill up."""
        return [self.text(ids) for ids in outputs["predictions"].tolist()]

    def text(self, ids: Sequence[int]) -> str:
        """Returns the text of a target's ids up to its end."""
        known = self.reader.tokenizer
        places = [at for at, it in enumerate(ids) if it in (known.sep_id, known.pad_id, -1)]
        return known.decode(ids[: places[0]] if places else ids)

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        """Returns the scores of the texts, and of texts that a rule makes.

        A reference is read as the vocabulary spells it.
        """
        return {**self._scores(self.texts(outputs), name), **self.baselines(name)}

    def _scores(self, texts: Sequence[str], name: str) -> dict[str, float]:
        references = self.references(name)
        return {score: it.compute(texts, references) for score, it in self.by_name.items()}

    def _baselines(self, name: str) -> dict[str, float]:
        """Returns the scores of the most frequent target, and of sources: whole, and cut.

        The first words are as many as a target has on average.
        """
        references = self.references(name)
        words = sum(len(it.split()) for it in references) / max(len(references), 1)
        longest = max(map(len, references), default=0)  # the words of some scripts have no spaces
        sources = [it.texts[0] for it in self.reader.examples(name)]
        first = [" ".join(it.split()[: max(round(words), 1)])[:longest] for it in sources]
        (most_frequent, _), *_ = collections.Counter(references).most_common(1) or [("", 0)]
        by_rule = {
            "most_frequent": [most_frequent] * len(references),
            "first_words": self._spelled(first),
            "source": self._spelled(sources),
        }
        return {
            f"{rule}_{score}": value
            for rule, texts in by_rule.items()
            for score, value in self._scores(texts, name).items()
        }

    def _references(self, name: str) -> list[str]:
        """Returns the targets of a set as the vocabulary spells them.

        What it cannot spell stays as in the file, so that no prediction equals it.
        """
        texts, path = [it.texts[1] for it in self.reader.examples(name)], self.reader.file(name)
        spelled = self._spelled(texts)
        for sentence in dict.fromkeys(it.unread(spelled) for it in self.by_name.values()):
            if sentence:
                logging.warning("%s: %s", path, sentence)
        for note, value in self.notes.items():
            logging.info("%s: %s", note, value)
        return spelled

    def _spelled(self, texts: Sequence[str]) -> list[str]:
        """Returns texts as the vocabulary spells them, but for words that it cannot spell."""
        known = self.reader.tokenizer
        return [
            _with_unknown_words(known, text) if known.unk_id in ids else known.decode(ids)
            for text, ids in zip(texts, known.encode_batch(texts), strict=True)
        ]

    def predictions(self, predicted: base.Predicted) -> list[base.Prediction]:
        texts, scores = self.texts(predicted.outputs), predicted.outputs["scores"].tolist()
        return [{"text": text, "score": score} for text, score in zip(texts, scores, strict=True)]

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        """Writes a text in each line."""
        lines = [" ".join(text.splitlines()) for text in self.texts(outputs)]
        (directory / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def _with_unknown_words(known: tokenizers.Tokenizer, text: str) -> str:
    """Returns a text as a vocabulary spells it, but for words that it cannot spell."""
    ids, starts, ends = known.encode_with_offsets(text)
    words = [
        text[start:end]
        for token, start, end in zip(ids, starts, ends, strict=True)
        if token == known.unk_id
    ]
    spelled, *others = known.decode(ids.tolist()).split(known.surface(known.unk_id))
    if len(others) != len(words):
        return text
    return spelled + "".join(word + it for word, it in zip(words, others, strict=True))


def _of_lines(sources: str, targets: str, rules: tables.Rules) -> list[feature_sets.TextExample]:
    """Returns the pairs of the lines of two files."""
    by_file = [[*tables.text_lines(path, rules.encoding)] for path in (sources, targets)]
    if len(by_file[0]) != len(by_file[1]):
        raise ValueError(
            f"{sources} has {len(by_file[0])} lines and {targets} {len(by_file[1])}; line by line "
            "one is the target of the other, so they must have the same number"
        )
    faults, examples = example_files.Faults(), []
    for number, pair in enumerate(zip(*by_file, strict=True), start=1):
        for path, line in zip((sources, targets), pair, strict=True):
            if not line.strip():
                faults.add(f"{path}:{number}", "the line is empty; each must hold a text")
        examples.append(feature_sets.TextExample(pair, None, f"{sources}:{number}"))
    faults.check()
    return examples


def _task(encoder: encoders.EncoderConfig, options: base.Options) -> Sequences:
    start, end, padding = options.target_specials or (1, 2, 0)
    search = generation.Search(start, end, padding, **_searched(options))
    return Sequences(encoder, search, options.shares, options.label_smoothing)


def _searched(options: base.Options) -> dict[str, Any]:
    stops = options.early_stopping
    return {
        "max_length": options.max_target_length,
        "early_stopping": generation.EARLY_STOPPING.get(stops, stops),
        **{name: options[name] for name in SEARCHED},
    }


def _faults(config: ml_collections.ConfigDict) -> Iterator[str]:
    options = config.finetuning
    if options.shares not in decoder.SHARED:
        yield (
            f"config.finetuning.shares is {options.shares!r}; known are {', '.join(decoder.SHARED)}"
        )
    if options.decoder_from and options.shares != "none":
        yield (
            f"config.finetuning.decoder_from is {options.decoder_from!r}, and the decoder has its "
            f"encoder's {options.shares}: say --config.finetuning.shares=none"
        )
    try:
        generation.Search(1, 2, **_searched(options))
    except ValueError as error:
        yield f"config.finetuning: {error}"
    if not options.text_scores:
        yield (
            "config.finetuning.text_scores is empty; the first of its scores selects the best "
            f"model: give some of {', '.join(generated.SCORES)}"
        )
    try:
        generated.chosen(options.text_scores, options.bleu_tokenizer)
    except (ValueError, ImportError) as error:
        yield str(error)
    if fault := delimiters.fault(options.delimiter):
        yield f"config.finetuning.delimiter {fault}"
    if fault := text_encodings.fault(options.encoding):
        yield f"config.finetuning.encoding {fault}"


SEQUENCES = base.FinetuningKind(
    SequenceReader,
    _task,
    SequenceScorer,
    options_lib.owned(
        "target_column",
        "max_target_length",
        "shares",
        "label_smoothing",
        "text_scores",
        "bleu_tokenizer",
        "beams",
        "length_penalty",
        "early_stopping",
        "no_repeat_ngram",
        "min_new_tokens",
        "target_specials",
        "decoder_from",
        "delimiter",
        "encoding",
    ),
    _faults,
)
