"""Claims about the losses of embeddings: they, and their gradients, are sentence-transformers'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.finetuning import embeddings
from bertjax.tasks import base as tasks
from tests import lazily

torch = lazily.imported("torch")
theirs = lazily.imported("sentence_transformers.sentence_transformer.losses")

BATCH, WIDTH, CLASSES = 6, 16, 3


def given():
    """A model whose features are its vectors already."""

    class Given(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, features):
            return {"sentence_embedding": features["given"]}

        def get_embedding_dimension(self):
            return WIDTH

    return Given()


def make_vectors(texts, seed=0):
    """Vectors of different lengths, as they come from a pooling."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(BATCH, texts, WIDTH)) * rng.uniform(0.5, 3, (BATCH, texts, 1))
    return vectors.astype(np.float32)


def their_values(loss, vectors, labels, parameters=()):
    """Returns the loss, and its gradients by vectors and parameters."""
    columns = [
        torch.tensor(vectors[:, place], requires_grad=True) for place in range(vectors.shape[1])
    ]
    value = loss([{"given": column} for column in columns], labels)
    value.backward()
    gradient = np.stack([column.grad.numpy() for column in columns], axis=1)
    return value.item(), gradient, [parameter.grad.numpy() for parameter in parameters]


def our_values(name, vectors, batch, dims=(), normalize=True, classifier=None):
    loss = embeddings.LOSSES[name]
    weights = jnp.ones(BATCH)
    batch = {**batch, "example_weights": weights}

    def mean(vectors, classifier):
        def classify(features):
            whole = jnp.pad(features, ((0, 0), (0, 0), (0, WIDTH - features.shape[-1])))
            return whole.reshape(BATCH, -1) @ classifier[0] + classifier[1][None, :]

        head = embeddings.LossHead(20.0, normalize, classify)
        losses, _ = embeddings.of_prefixes(loss, vectors, batch, head, dims)
        return tasks.weighted(losses, weights).total / BATCH

    value, (gradient, of_classifier) = jax.value_and_grad(mean, argnums=(0, 1))(vectors, classifier)
    return float(value), np.asarray(gradient), of_classifier


def check(ours, expected):
    assert ours[0] == pytest.approx(expected[0], rel=2e-6)
    np.testing.assert_allclose(ours[1], expected[1], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(("texts", "dims"), [(2, ()), (5, ()), (3, (WIDTH, 8, 4))])
def test_ranking_is_theirs_with_any_number_of_hard_negatives(texts, dims):
    vectors, model = make_vectors(texts), given()
    loss = theirs.MultipleNegativesRankingLoss(model)
    if dims:
        loss = theirs.MatryoshkaLoss(model, loss, list(dims))
    expected = their_values(loss, vectors, None)
    for name in ("ranking", "simcse"):  # of two views
        check(our_values(name, vectors, {}, dims), expected)


@pytest.mark.parametrize("dims", [(), (WIDTH, 8)])
def test_cosine_is_theirs(dims):
    vectors, model = make_vectors(2), given()
    scores = np.linspace(0, 1, BATCH).astype(np.float32)
    loss = theirs.CosineSimilarityLoss(model)
    if dims:
        loss = theirs.MatryoshkaLoss(model, loss, list(dims))
    expected = their_values(loss, vectors, torch.tensor(scores))
    check(our_values("cosine", vectors, {"scores": scores}, dims), expected)


def test_softmax_and_its_classifier_are_theirs():
    vectors, labels = make_vectors(2), np.arange(BATCH) % CLASSES
    torch.manual_seed(0)
    loss = theirs.SoftmaxLoss(given(), embedding_dimension=WIDTH, num_labels=CLASSES)
    weight, bias = loss.classifier.weight, loss.classifier.bias
    expected = their_values(loss, vectors, torch.tensor(labels), (weight, bias))
    classifier = (weight.detach().numpy().T, bias.detach().numpy())
    ours = our_values("softmax", vectors, {"labels": jnp.asarray(labels)}, classifier=classifier)
    check(ours, expected)
    for own, wanted in zip(ours[2], expected[2], strict=True):
        np.testing.assert_allclose(own, wanted.T, rtol=1e-4, atol=2e-6)


def test_distillation_is_their_mean_squared_error():
    vectors, teacher = make_vectors(1), make_vectors(1, seed=1)
    expected = their_values(theirs.MSELoss(given()), vectors, torch.tensor(teacher[:, 0]))
    batch = {embeddings.TEACHER_VECTORS: teacher}
    check(our_values("distillation", vectors, batch, normalize=False), expected)
