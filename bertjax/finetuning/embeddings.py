"""A vector for each text: its losses, its reader, and how vectors are scored.

A loss is a function of vectors, the batch and a `LossHead`, and returns a loss for every example.
Vectors come from the pooling; a loss that compares directions normalizes them itself. Files and
evaluation sets belong to `embedding_files`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from etils import epath
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from bertjax.finetuning import base, embedding_files, example_files, feature_sets, glue_submission
from bertjax.models import encoder as encoders
from bertjax.models import sentence_encoder, sentence_vectors
from bertjax.options import finetuning as options_lib
from bertjax.tasks import base as tasks
from bertjax.tasks import distillation

Vectors = Float[Array, "batch texts hidden"]
# The loss of each example, and whether it is answered rightly (None: there is no right answer).
Losses = tuple[Float[Array, " batch"], Float[Array, " batch"] | None]

TEACHER_VECTORS = "teacher_vectors"  # in a batch [batch, texts, hidden], as the teacher answers


@dataclasses.dataclass(frozen=True)
class LossHead:
    """The inputs of losses besides vectors.

    `scale` is the factor on cosines, `normalize` whether the model returns unit vectors, and
    `classifier` makes logits [batch, classes] of u, v and |u - v| [batch, 3, prefix].
    """

    scale: float = 20.0
    normalize: bool = True
    classifier: Callable[[Array], Array] | None = None


@dataclasses.dataclass(frozen=True)
class Loss:
    """A way to train: what its files hold (a key of `embedding_files.ROWS`), and its formula.

    `joins_rows` says that the loss of an example reads other examples of its batch; then no text
    may stand in a batch twice. `views` is how often the model reads each text, `has_answers`
    whether one answer is right.
    """

    rows: str
    of: Callable[[Vectors, tasks.Batch, LossHead], Losses]
    joins_rows: bool = False
    views: int = 1
    has_answers: bool = False


def of_prefixes(
    loss: Loss, vectors: Vectors, batch: tasks.Batch, head: LossHead, dims: Sequence[int]
) -> Losses:
    """Returns the sum of the losses of the prefixes of the vectors, each made a unit vector.

    Without `dims` it is the loss of whole vectors. Predictions come from the longest prefix.
    Source: Kusupati et al. 2022, equation 1, with weights of 1; sentence-transformers'
    MatryoshkaLoss, which normalizes each prefix.
    """
    if not dims:
        return loss.of(vectors, batch, head)
    parts = {}
    for dim in dims:
        short = dict(batch)
        if TEACHER_VECTORS in batch:
            short[TEACHER_VECTORS] = sentence_encoder.unit(batch[TEACHER_VECTORS][..., :dim])
        parts[dim] = loss.of(sentence_encoder.unit(vectors[..., :dim]), short, head)
    losses = jnp.stack([losses for losses, _ in parts.values()])
    return losses.sum(axis=0), parts[max(dims)][1]


def _softmax(vectors: Vectors, batch: tasks.Batch, head: LossHead) -> Losses:
    """Cross-entropy of a classifier over (u, v, |u - v|); `labels` [batch] are classes.

    The classifier reads zeros behind a prefix.
    Source: Reimers and Gurevych 2019, section 3 ("classification objective function").
    """
    assert head.classifier is not None
    first, second = vectors[:, 0], vectors[:, 1]
    features = jnp.stack([first, second, jnp.abs(first - second)], axis=1)
    logits = head.classifier(features)
    labels = batch["labels"]
    return tasks.cross_entropy(logits, labels), _hits(logits, labels)


def _cosine(vectors: Vectors, batch: tasks.Batch, head: LossHead) -> Losses:
    """The squared difference of the cosine and `scores` [batch], which lie from 0 to 1.

    Source: Reimers and Gurevych 2019, section 3 ("regression objective function").
    """
    del head
    units = sentence_encoder.unit(vectors)
    cosines = (units[:, 0] * units[:, 1]).sum(axis=-1)
    return (cosines - batch["scores"]) ** 2, None


def _ranking(vectors: Vectors, batch: tasks.Batch, head: LossHead) -> Losses:
    """Cross-entropy of an anchor's own positive among the positives and negatives of all rows.

    Texts are anchor, positive, negatives; logits are `scale` times the cosines. Rows of weight 0
    are left out. The order of candidates: all positives, all first negatives, and so on.
    Source: Henderson et al. 2017, section 4.4 (in-batch negatives); sentence-transformers'
    MultipleNegativesRankingLoss (cosine, scale 20, negatives as columns).
    """
    units, weights = sentence_encoder.unit(vectors), batch["example_weights"]
    candidates = jnp.swapaxes(units[:, 1:], 0, 1).reshape(-1, units.shape[-1])
    logits = head.scale * units[:, 0] @ candidates.T
    is_real = jnp.tile(weights > 0, units.shape[1] - 1)
    rows = jnp.arange(len(units))
    # An anchor of weight 0 keeps its own positive: the mean leaves it out, and must not meet NaN.
    is_own = rows[:, None] == jnp.arange(len(candidates))[None, :]
    logits = jnp.where(is_real[None, :] | is_own, logits, jnp.finfo(logits.dtype).min)
    return tasks.cross_entropy(logits, rows), _hits(logits, rows)


def _distances(vectors: Vectors, batch: tasks.Batch, head: LossHead) -> Losses:
    """The mean squared difference to the teacher's vectors, of vectors as both answer them.

    Source: Reimers and Gurevych 2020, section 3, equation 1; sentence-transformers' MSELoss.
    """
    student = sentence_encoder.unit(vectors) if head.normalize else vectors
    return ((student - batch[TEACHER_VECTORS]) ** 2).mean(axis=(1, 2)), None


def _hits(logits: Float[Array, "batch classes"], labels: Array) -> Float[Array, " batch"]:
    right = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return (right >= logits.max(axis=-1)).astype(jnp.float32)


# config.finetuning.loss -> what it reads, and its formula.
LOSSES: Mapping[str, Loss] = {
    "ranking": Loss("pairs", _ranking, joins_rows=True, has_answers=True),
    "simcse": Loss("texts", _ranking, joins_rows=True, views=2, has_answers=True),
    "cosine": Loss("scored", _cosine),
    "softmax": Loss("labelled", _softmax, has_answers=True),
    "distillation": Loss("texts", _distances),
}


# The keys of `predict`: one text, or two of which the cosine is wanted.
TEXT, SECOND_TEXT, DOCUMENT = "text", "second_text", "document"

_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


@dataclasses.dataclass(frozen=True)
class SentenceEmbedding(base.FinetuningTask):
    """Vectors of texts by one of `LOSSES`; a `tasks.WholeBatch`.

    Inputs are [batch, texts, length], of examples of one text [batch, length].
    """

    head: ClassVar[str] = "none"

    encoder: encoders.EncoderConfig
    loss_name: str = "ranking"
    pooling: str = "mean"
    normalize: bool = True
    num_labels: int = 0
    num_texts: int = 2
    scale: float = 20.0
    matryoshka_dims: tuple[int, ...] = ()
    projections: tuple[sentence_vectors.Projection, ...] = ()

    def __post_init__(self):
        for dim in self.matryoshka_dims:
            if dim > self.size:
                raise ValueError(
                    f"config.finetuning.matryoshka_dims has {dim}; the vectors of these weights "
                    f"have {self.size} numbers"
                )

    @property
    def size(self) -> int:
        """The size of a vector."""
        return sentence_vectors.size_of(self.projections, self.encoder.hidden_size)

    @property
    def trained_by(self) -> Loss:
        return LOSSES[self.loss_name]

    @property
    def joins_rows(self) -> bool:
        return self.trained_by.joins_rows

    @property
    def sequences(self) -> int:
        return self.num_texts

    @property
    def reads_only_first(self) -> bool:
        return self.pooling == "cls"

    def label_shapes(self, batch_size: int, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        column = _COLUMNS.get(self.trained_by.rows)
        return {column[0]: jax.ShapeDtypeStruct((batch_size,), column[1])} if column else {}

    def taught_by(self, teacher: base.FinetuningTask) -> TaughtEmbedding:
        """Returns the task that learns the teacher's vectors."""
        assert isinstance(teacher, SentenceEmbedding)
        if teacher.size != self.size:
            raise ValueError(
                f"the vectors of config.distillation.teacher have {teacher.size} numbers, the "
                f"vectors of config.init_from {self.size}; a projection makes them alike:"
                f" --config.finetuning.projections=\"(({teacher.size}, 'identity', True),)\""
            )
        return TaughtEmbedding(**vars(self), teacher=teacher)

    def init(self, rngs: nnx.Rngs) -> sentence_encoder.SentenceEncoder:
        return sentence_encoder.SentenceEncoder(
            self.encoder,
            pooling=self.pooling,
            normalize=self.normalize,
            num_labels=self.num_labels,
            projections=self.projections,
            rngs=rngs,
        )

    def weights(self, batch: tasks.Batch) -> dict[str, Array]:
        names = ("loss", "accuracy") if self.trained_by.has_answers else ("loss",)
        return dict.fromkeys(names, self.scored(batch).sum())

    def outputs(
        self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None
    ) -> Float[Array, "batch texts hidden"]:
        """Returns the pooled vectors; where a loss takes several views, each text's together."""
        views, mask = self.trained_by.views, batch["input_mask"]
        texts = views * (1 if mask.ndim == 2 else mask.shape[1])
        vectors = model.pooled(_flat(batch, views), key=key)
        return vectors.reshape(len(mask), texts, -1)

    def joint_loss(
        self, model: Any, vectors: Float[Array, "batch texts hidden"], batch: tasks.Batch
    ) -> tasks.Means:
        """Returns the mean loss of the examples, and the number of right predictions."""
        weights = self.scored(batch)
        head = self._head(model)
        with jax.named_scope("loss"):
            losses, hits = of_prefixes(self.trained_by, vectors, batch, head, self.matryoshka_dims)
            means = {"loss": tasks.weighted(losses, weights)}
            if hits is not None:
                means["accuracy"] = tasks.weighted(hits, weights)
        return means

    def loss(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> tasks.Means:
        return self.joint_loss(model, self.outputs(model, batch, key=key), batch)

    def evaluate(self, model: Any, batch: tasks.Batch) -> tasks.Means:
        """Returns nothing: sets are scored by their vectors alone."""
        del model, batch
        return {}

    def predict(self, model: base.Model, batch: tasks.Batch) -> dict[str, Array]:
        """Returns `embeddings` [batch, hidden] of examples of one text."""
        return {"embeddings": model(batch)}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Three forward passes of each text and view; cached vectors cost one more, not counted."""
        del predictions
        rows = batch_size * self.num_texts * self.trained_by.views
        sizes = [self.encoder.hidden_size, *(projection.size for projection in self.projections)]
        projections = 2.0 * sum(one * other for one, other in itertools.pairwise(sizes))
        return 3.0 * rows * (self.encoder.forward_flops(length) + projections)

    def _head(self, model: Any) -> LossHead:
        def classify(features: Float[Array, "batch 3 width"]) -> Float[Array, "batch classes"]:
            # A prefix is as wide as the whole vector with zeros behind it.
            missing = self.size - features.shape[-1]
            whole = jnp.pad(features, ((0, 0), (0, 0), (0, missing)))
            return model.classifier(whole.reshape(len(whole), -1))

        return LossHead(self.scale, self.normalize, classify)


@dataclasses.dataclass(frozen=True)
class TaughtEmbedding(SentenceEmbedding):
    """Learns the vectors of a `teacher`, which reads the same rows without dropout."""

    teacher: SentenceEmbedding | None = None

    def loss(self, model: Any, batch: tasks.Batch, *, key: PRNGKeyArray | None) -> tasks.Means:
        """Returns the mean loss; `batch` has the teacher's parameters."""
        assert self.teacher is not None
        teacher, batch = distillation.apart(self.teacher, batch)
        vectors = self.outputs(model, batch, key=key)
        taught = teacher(_flat(batch)).reshape(vectors.shape)
        return self.joint_loss(model, vectors, {**batch, TEACHER_VECTORS: taught})


def _flat(batch: tasks.Batch, views: int = 1) -> dict[str, Array]:
    """Returns the features of each text as rows [batch x texts x views, length]."""
    mask = batch["input_mask"]
    return {
        name: jnp.repeat(x.reshape(-1, *x.shape[mask.ndim - 1 :]), views, axis=0)
        for name, x in batch.items()
        if getattr(x, "shape", ())[: mask.ndim] == mask.shape
    }


class EmbeddingReader(base.Reader):
    """Reads texts alone, pairs, triplets, scored and labelled pairs, and corpora.

    The training set may be several files; every evaluation set is a file or directory of its own.
    In JSON there is a "text", a "document", or a "text" with another.
    """

    reads_directories: ClassVar[bool] = True

    @classmethod
    def paths(cls, value: str) -> list[str]:
        return [file.path for file in embedding_files.files(value)]

    @functools.cached_property
    def _training(self) -> list[list[embedding_files.Example]]:
        """The examples of each file."""
        options = self.options
        rows = LOSSES[options.loss].rows
        by_file = [
            embedding_files.read(file.path, rows, score_range=tuple(options.score_range))
            for file in embedding_files.files(options.train_file)
        ]
        embedding_files.check_alike(by_file)
        return by_file

    @property
    def labels(self) -> tuple[str, ...]:
        """Those of the option, or what the training files hold; () but for classes of pairs."""
        if self.options.loss != "softmax":
            return ()
        if self.options.labels:
            return tuple(self.options.labels)
        return tuple(sorted({str(it.value) for file in self._training for it in file}))

    @property
    def decided(self) -> Mapping[str, Any]:
        return {**super().decided, "num_texts": len(self._training[0][0].texts)}

    @functools.cached_property
    def sets(self) -> dict[str, embedding_files.EvaluationSet]:
        return {
            name: embedding_files.read_set(path, tuple(self.options.score_range))
            for name, path in self.evaluation_paths.items()
        }

    def _examples(self, name: str) -> Sequence[Any]:
        if name == base.TRAIN:
            return [example for file in self._training for example in file]
        if name == base.TEST:
            path = self.file(name)
            return embedding_files.read(path, embedding_files.unlabelled(path))
        return self.sets[name].examples

    def _features(self, name: str) -> feature_sets.FeatureSet:
        if name == base.TRAIN:
            return self._training_rows()
        if name == base.TEST:
            return self.rows([self._with_prompts(example) for example in self.examples(name)])
        return self._rows_of([self._prompt(it.role) + it.text for it in self.sets[name].texts])

    def _prompt(self, role: str) -> str:
        return getattr(self.options, f"{role}_prompt")

    def _with_prompts(self, example: embedding_files.Example) -> embedding_files.Example:
        pairs = zip(example.roles, example.texts, strict=True)
        texts = tuple(self._prompt(role) + text for role, text in pairs)
        return dataclasses.replace(example, texts=texts)

    def _training_rows(self) -> feature_sets.FeatureSet:
        loss = LOSSES[self.options.loss]
        examples = self.examples(base.TRAIN)
        texts = [text for example in examples for text in example.texts]
        prompted = [text for it in examples for text in self._with_prompts(it).texts]
        columns = {}
        if loss.rows in _COLUMNS:
            column, dtype = _COLUMNS[loss.rows]
            columns[column] = np.array(self._values(examples), dtype)
        count = len(examples[0].texts)
        weights = [it.weight for it in embedding_files.files(self.options.train_file)]
        return dataclasses.replace(
            self._rows_of(prompted),
            columns=columns,
            choices=count,
            parts=tuple(map(feature_sets.Part, map(len, self._training), weights)),
            apart=feature_sets.numbers(texts).reshape(-1, count) if loss.joins_rows else None,
        )

    def _values(self, examples: Sequence[embedding_files.Example]) -> list[Any]:
        """Returns the target of each example: its score, or the number of its class."""
        if self.options.loss != "softmax":
            return [example.value for example in examples]
        places = {label: place for place, label in enumerate(self.labels)}
        for example in examples:
            if example.value not in places:
                raise ValueError(
                    f"{example.source}: the class is {example.value!r}; known are "
                    f"{', '.join(places)}"
                )
        return [places[str(example.value)] for example in examples]

    def _rows_of(self, texts: Sequence[str]) -> feature_sets.FeatureSet:
        input_ids, segment_ids = feature_sets.sequence_pairs(
            self.tokenizer, texts, max_seq_length=self.options.max_seq_length
        )
        tokens = {"input_ids": input_ids, "segment_ids": segment_ids}
        return feature_sets.FeatureSet(tokens, {}, pad_id=self.tokenizer.pad_id)

    def example(self, fields: base.Fields, source: str) -> embedding_files.Example:
        keys = [key for key in (TEXT, SECOND_TEXT, DOCUMENT) if key in fields]
        if len(keys) > 2 or keys == [SECOND_TEXT]:
            raise ValueError(
                f"its keys are {', '.join(map(repr, fields))}; it must have {TEXT!r} or "
                f"{DOCUMENT!r}, for a vector, or {TEXT!r} with {SECOND_TEXT!r} or {DOCUMENT!r}, "
                "for their cosine"
            )
        keys = keys or [TEXT]  # reported as missing
        texts = tuple(example_files.json_text(fields, key) for key in keys)
        query, document = embedding_files.QUERY, embedding_files.DOCUMENT
        roles = tuple(document if key == DOCUMENT else query for key in keys)
        return self._with_prompts(embedding_files.Example(texts, None, source, roles))

    def rows(self, examples: Sequence[embedding_files.Example]) -> feature_sets.FeatureSet:
        """Returns a row for each text; some examples may have one text and others two."""
        return self._rows_of([text for example in examples for text in example.texts])


class EmbeddingScorer(base.Scorer):
    """Scores the vectors of texts, and predicts the vector of a text or the cosine of a pair."""

    @property
    def best_score(self) -> str:
        """The score of the first evaluation set, such as nDCG@10 for a corpus."""
        return next((it.best_score for it in self.reader.sets.values()), "")

    def scores(self, name: str, outputs: base.Outputs) -> dict[str, float]:
        return self.reader.sets[name].scores(outputs["embeddings"])

    def predictions(self, predicted: base.Predicted) -> list[base.Prediction]:
        counts = [len(example.texts) for example in predicted.examples]
        vectors = np.split(predicted.outputs["embeddings"], np.cumsum(counts)[:-1])
        return [
            {"embedding": each[0].tolist()}
            if len(each) == 1
            else {"cosine": float(embedding_files.cosines(each[:1], each[1:])[0])}
            for each in vectors
        ]

    def write_predictions(
        self, name: str, outputs: base.Outputs, directory: epath.Path, tuned: base.Tuned
    ) -> None:
        """Writes the vectors of texts as NAME.npy, the cosines of pairs as NAME.tsv."""
        vectors = outputs["embeddings"]
        if len(self.reader.examples(name)[0].texts) == 1:
            with (directory / f"{name}.npy").open("wb") as file:
                np.save(file, vectors)
            return
        cosines = embedding_files.cosines(vectors[::2], vectors[1::2])
        words = [f"{cosine:.6g}" for cosine in cosines.tolist()]
        (directory / f"{name}.tsv").write_text(glue_submission.column(words))


# Value of a row -> its column in a batch, and its type.
_COLUMNS: dict[str, tuple[str, Any]] = {
    "scored": ("scores", np.float32),
    "labelled": ("labels", np.int32),
}


def embedding_task(encoder: encoders.EncoderConfig, options: base.Options) -> SentenceEmbedding:
    """Returns the task; without `num_texts`, examples have the fewest texts that a loss reads."""
    rows = LOSSES[options.loss].rows
    return SentenceEmbedding(
        encoder,
        loss_name=options.loss,
        pooling=options.pooling,
        normalize=options.normalize,
        num_labels=len(options.labels) if options.loss == "softmax" else 0,
        num_texts=options.num_texts or (1 if rows == "texts" else 2),
        scale=options.similarity_scale,
        matryoshka_dims=tuple(options.matryoshka_dims),
        projections=sentence_vectors.projections_of(options.projections),
    )


def _faults(config: ml_collections.ConfigDict) -> Iterator[str]:
    options, teacher = config.finetuning, config.distillation.teacher
    if options.loss not in LOSSES:
        return
    yield from _value_faults(options)
    if options.labels and options.loss != "softmax":
        yield (
            f"config.finetuning.labels is {tuple(options.labels)}; only the loss 'softmax' learns "
            f"classes, not {options.loss!r}: leave it out"
        )
    if options.loss == "simcse" and not any(config.model[name] for name in _DROPOUTS):
        yield (
            "config.finetuning.loss is 'simcse', which tells a text from itself by two dropout "
            "masks, but the model has no dropout: both vectors would be the same and nothing would "
            "be learnt. Set --config.model.hidden_dropout_prob=0.1, or take pairs and the loss "
            "'ranking'"
        )
    if options.loss == "distillation" and not teacher:
        yield (
            "config.finetuning.loss is 'distillation', but there is no teacher: give "
            "--config.distillation.teacher=PATH"
        )
    if teacher and options.loss != "distillation":
        yield (
            f"config.distillation.teacher is {teacher!r}, which the loss {options.loss!r} does not "
            "read: set --config.finetuning.loss=distillation or leave it out"
        )


def _value_faults(options: base.Options) -> Iterator[str]:
    dims = tuple(options.matryoshka_dims)
    if len(set(dims)) != len(dims) or any(not isinstance(it, int) or it < 1 for it in dims):
        yield (
            f"config.finetuning.matryoshka_dims is {dims}; it must be different whole numbers "
            "above 0, such as (384, 128, 64)"
        )
    try:
        sentence_vectors.projections_of(options.projections)
    except ValueError as error:
        yield f"config.finetuning.projections is {options.projections!r:.100}; {error}"
    score_range = tuple(options.score_range)
    if len(score_range) != 2 or not score_range[0] < score_range[1]:
        yield (
            f"config.finetuning.score_range is {score_range}; it must be the lowest and the "
            "highest score, such as (0.0, 5.0)"
        )
    for name in ("train_file", "eval_file", "test_file"):
        try:
            files = embedding_files.files(options[name])
        except ValueError as error:
            yield f"config.finetuning.{name} is {options[name]!r}: {error}"
            continue
        if name != "train_file" and any(file.weight != 1 for file in files):
            yield (
                f"config.finetuning.{name} is {options[name]!r}; weights are for files to train "
                "on: leave them out"
            )
        if name == "test_file" and len(files) > 1:
            yield f"config.finetuning.test_file is {options[name]!r}; it must be one file"


EMBEDDINGS = base.FinetuningKind(
    EmbeddingReader,
    embedding_task,
    EmbeddingScorer,
    options_lib.owned(
        "pooling",
        "loss",
        "normalize",
        "projections",
        "query_prompt",
        "document_prompt",
        "matryoshka_dims",
        "similarity_scale",
        "score_range",
        "num_texts",
    ),
    _faults,
)
