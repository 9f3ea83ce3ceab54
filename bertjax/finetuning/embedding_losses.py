"""What embeddings are trained by: losses over the vectors of the texts of a batch.

Each is a function of vectors, the batch and a `Head`, and gives a loss for every example. Vectors
are those of the pooling; a loss that compares directions normalizes them itself. Here belong
formulas; the reading of files and the model belong to `embedding_files` and `embeddings`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from bertjax.models import sentence_encoder
from bertjax.tasks import base as tasks

Vectors = Float[Array, "batch texts hidden"]
# The loss of each example, and whether it is answered rightly (None: there is no right answer).
Losses = tuple[Float[Array, " batch"], Float[Array, " batch"] | None]

TEACHER_VECTORS = "teacher_vectors"  # in a batch [batch, texts, hidden], as the teacher answers


@dataclasses.dataclass(frozen=True)
class Head:
    """What losses read beside vectors.

    `scale` is the factor on cosines, `normalize` whether the model answers unit vectors, and
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
    of: Callable[[Vectors, tasks.Batch, Head], Losses]
    joins_rows: bool = False
    views: int = 1
    has_answers: bool = False


def of_prefixes(
    loss: Loss, vectors: Vectors, batch: tasks.Batch, head: Head, dims: Sequence[int]
) -> Losses:
    """Returns the sum of the losses of the prefixes of the vectors, each made a unit vector.

    Without `dims` it is the loss of whole vectors. Right answers are those of the longest prefix.
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


def _softmax(vectors: Vectors, batch: tasks.Batch, head: Head) -> Losses:
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


def _cosine(vectors: Vectors, batch: tasks.Batch, head: Head) -> Losses:
    """The squared difference of the cosine and `scores` [batch], which lie from 0 to 1.

    Source: Reimers and Gurevych 2019, section 3 ("regression objective function").
    """
    del head
    units = sentence_encoder.unit(vectors)
    cosines = (units[:, 0] * units[:, 1]).sum(axis=-1)
    return (cosines - batch["scores"]) ** 2, None


def _ranking(vectors: Vectors, batch: tasks.Batch, head: Head) -> Losses:
    """Cross-entropy of an anchor's own positive among the positives and negatives of all rows.

    Texts are anchor, positive, negatives; logits are `scale` times the cosines. Rows of weight 0
    are no candidates. The order of candidates: all positives, all first negatives, and so on.
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


def _distances(vectors: Vectors, batch: tasks.Batch, head: Head) -> Losses:
    """The mean squared difference to the teacher's vectors, of vectors as both answer them.

    Source: Reimers and Gurevych 2020, section 3, equation 1; sentence-transformers' MSELoss.
    """
    own = sentence_encoder.unit(vectors) if head.normalize else vectors
    return ((own - batch[TEACHER_VECTORS]) ** 2).mean(axis=(1, 2)), None


def _hits(logits: Float[Array, "batch classes"], labels: Array) -> Float[Array, " batch"]:
    own = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return (own >= logits.max(axis=-1)).astype(jnp.float32)


# config.finetuning.loss -> what it reads, and its formula.
LOSSES: Mapping[str, Loss] = {
    "ranking": Loss("pairs", _ranking, joins_rows=True, has_answers=True),
    "simcse": Loss("texts", _ranking, joins_rows=True, views=2, has_answers=True),
    "cosine": Loss("scored", _cosine),
    "softmax": Loss("labelled", _softmax, has_answers=True),
    "distillation": Loss("texts", _distances),
}
