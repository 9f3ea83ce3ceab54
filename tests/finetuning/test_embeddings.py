"""Embeddings as a kind: what its options ask for, how its rows are made, what its task learns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import finetuning, recipes
from bertjax.finetuning import embeddings
from bertjax.models import parameters, sentence_vectors
from bertjax.tasks import base as tasks
from bertjax.training import config_faults
from tests import conftest, small_embeddings, small_records

ONE_LAYER = dataclasses.replace(conftest.TINY, num_hidden_layers=1)


@pytest.fixture
def config(tmp_path):
    def made(loss="ranking", **changes):
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        return small_embeddings.make_config(directory, "no weights", loss=loss, **changes)

    return made


@pytest.fixture
def open_scorer(config):
    def opened(loss="ranking", **changes):
        own = {f"finetuning.{name}": value for name, value in changes.items()}
        options = config(loss, **own).finetuning
        return finetuning.KINDS["embeddings"].open(options, small_records.vocabulary())

    return opened


OF_ANOTHER_KIND = {
    **{"finetuning.dataset": "table", "finetuning.pooling": "cls"},
    "finetuning.query_prompt": "q: ",
}
# Loss, changes of its config, and what is said before anything is read.
FAULTS = [
    ("simcse", {"model.hidden_dropout_prob": 0.0}, "tells a text from itself by two dropout"),
    ("distillation", {}, "'distillation', but there is no teacher: give"),
    ("ranking", {"distillation.teacher": "there"}, "which the loss 'ranking' does not read"),
    ("ranking", {"finetuning.matryoshka_dims": (8, 8)}, r"matryoshka_dims is \(8, 8\); it must"),
    ("ranking", {"finetuning.projections": (8, "tanh", True)}, "projections is .* must hold rows"),
    (
        *("ranking", {"finetuning.projections": ((8, "tanh", True), (0, "elu", True))}),
        "(?s)size is 0; .*activation is 'elu'; known are identity, tanh",
    ),
    ("cosine", {"finetuning.score_range": (1.0, 1.0)}, r"score_range is \(1.0, 1.0\)"),
    ("cosine", {"finetuning.labels": ("a", "b")}, "only the loss 'softmax' learns classes"),
    ("ranking", {"finetuning.eval_file": "a=2"}, "eval_file is 'a=2'; weights are for files"),
    ("ranking", {"finetuning.test_file": "a,b"}, "test_file is 'a,b'; it must be one file"),
    ("nothing", {}, "finetuning.loss is 'nothing'; known are ranking, simcse, cosine"),
    ("ranking", OF_ANOTHER_KIND, "query_prompt is 'q: ', but .* only 'embeddings' read"),
]


def test_options_that_cannot_be_used_are_refused_and_each_recipe_can(config):
    for loss, changes, fault in FAULTS:
        made = config("ranking")
        made.finetuning.loss = loss
        made.update_from_flattened_dict(changes)
        with pytest.raises(ValueError, match=fault):
            config_faults.validate(made)
    # Dropout of attention is dropout, too.
    config_faults.validate(config("simcse", **{"model.attention_probs_dropout_prob": 0.1}))
    for loss in embeddings.LOSSES:
        made = recipes.load(f"configs/embeddings.py:{loss}")
        made.init_from, made.finetuning.train_file = "weights", "pairs.jsonl"
        if loss == "distillation":
            made.distillation.teacher = "teacher"
        config_faults.validate(made)
        assert made.finetuning.loss == loss


def test_a_teacher_is_as_wide_as_its_student_and_a_prefix_no_longer_than_a_vector(config):
    teacher = embeddings.SentenceEmbedding(ONE_LAYER)
    wider = dataclasses.replace(ONE_LAYER, hidden_size=64)
    options = config("distillation").finetuning
    with pytest.raises(ValueError, match="teacher have 32 numbers, .* config.init_from 64"):
        embeddings.embedding_task(wider, options).taught_by(teacher)
    assert embeddings.embedding_task(ONE_LAYER, options).taught_by(teacher).teacher == teacher
    with pytest.raises(ValueError, match="matryoshka_dims has 33; the vectors .* have 32 numbers"):
        embeddings.SentenceEmbedding(ONE_LAYER, matryoshka_dims=(33,))
    options.projections = ((32, "identity", False),)
    assert embeddings.embedding_task(wider, options).taught_by(teacher).size == 32
    with pytest.raises(ValueError, match="matryoshka_dims has 9; the vectors .* have 8 numbers"):
        projections = (sentence_vectors.Projection(8),)
        embeddings.SentenceEmbedding(ONE_LAYER, matryoshka_dims=(9,), projections=projections)


def test_prompts_stand_before_texts_by_their_roles(open_scorer):
    made = open_scorer(query_prompt="w1 w2 ", document_prompt="w3 ")
    vocabulary = small_records.vocabulary()
    query, document = (vocabulary.encode(text) for text in ("w1 w2", "w3"))

    def starts(features):
        return [row[1:3].tolist() for row in features.tokens["input_ids"]]

    training = starts(made.reader.features("train"))
    assert all(row == query for row in training[::2])
    assert all(row[:1] == document for row in training[1::2])
    assert all(row == query for row in starts(made.reader.features("sts")))  # texts without a role
    corpus = starts(made.reader.features("beir"))
    assert all(row == query for row in corpus[: small_embeddings.TOPICS])
    assert all(row[:1] == document for row in corpus[small_embeddings.TOPICS :])
    asked = [made.reader.example(it, "") for it in ({"text": "w9"}, {"document": "w9"})]
    assert asked[0].texts == ("w1 w2 w9",) and asked[1].texts == ("w3 w9",)


def test_a_text_has_one_number_whatever_its_prompt_and_is_read_once_in_a_set(open_scorer, tmp_path):
    rows = [{"anchor": "w1", "positive": "w2"}, {"anchor": "w3", "positive": "w1"}]
    path = small_embeddings.write_lines(tmp_path / "same.jsonl", rows)
    made = open_scorer(query_prompt="w5 ", train_file=str(path))
    numbers = made.reader.features("train").apart
    assert numbers[0, 0] == numbers[1, 1] and len(set(numbers.reshape(-1))) == 3
    rows = [{"sentence1": "w1", "sentence2": f"w{2 + n % 2}", "score": n} for n in range(4)]
    made = open_scorer(eval_file=str(small_embeddings.write_lines(tmp_path / "sts.jsonl", rows)))
    assert made.reader.evaluation_sets == ("dev",)
    assert len(made.reader.features("dev")) == 3 and len(made.reader.examples("dev")) == 4
    vectors = np.array([[1.0, 0], [1, 1], [1, 0.1]])  # of w1, w2, w3
    spearman = made.scores("dev", {"embeddings": vectors})["spearman"]
    assert spearman == pytest.approx(0.4472, abs=1e-4)


def test_several_files_are_mixed_by_their_weights(open_scorer, tmp_path):
    made = open_scorer()
    more = small_embeddings.write_lines(tmp_path / "more.jsonl", small_embeddings.pairs(8, 9))
    made.reader.options.train_file += f"=0.5,{more}=2"
    features = made.reader.features("train")
    assert [part.shown for part in features.parts] == [16, 16]
    assert len(features) == 40 and features.epoch_size == 32


def test_classes_are_those_of_the_training_files_in_their_order(open_scorer):
    made = open_scorer("softmax")
    assert made.reader.labels == ("other", "same")
    assert (
        made.reader.decided["labels"] == ("other", "same") and made.reader.decided["num_texts"] == 2
    )
    assert made.reader.features("train").columns["labels"][:4].tolist() == [0, 1, 0, 1]
    given = open_scorer("softmax", labels=("same", "unlike"))
    with pytest.raises(ValueError, match=r"train\.jsonl:1: the class is 'other'; known are same"):
        given.reader.features("train")


# Set -> its scores; vectors by topic are what a perfect model answers.
SCORES = {
    "sts": {"pearson", "spearman"},
    "triplets": {"accuracy"},
    "topics": {"accuracy", "macro_f1"},
    **dict.fromkeys(
        ("pairs", "beir"),
        {"ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10", "recall_at_100"},
    ),
}


def test_vectors_that_know_the_topic_have_the_best_score_and_others_a_lower_one(open_scorer):
    made = open_scorer()
    for name, scores in SCORES.items():
        texts = [it.text for it in made.reader.sets[name].texts]
        topics = np.array([int(text.split()[0].removeprefix("w")) for text in texts])
        vectors = np.eye(small_embeddings.TOPICS)[topics].astype(np.float32)
        found = made.scores(name, {"embeddings": vectors})
        assert set(found) == scores
        best = made.reader.sets[name].best_score
        if name != "pairs":  # where a topic has several positives, of which one alone is right
            assert found[best] == pytest.approx(1)
        shuffled = np.random.default_rng(0).permutation(vectors)
        assert made.scores(name, {"embeddings": shuffled})[best] < found[best]


def test_labelled_pairs_are_told_apart_by_a_probe_of_how_their_vectors_differ(
    open_scorer, tmp_path
):
    rng = np.random.default_rng(0)
    topics = rng.integers(0, small_embeddings.TOPICS, (60, 2))
    topics[::2, 1] = topics[::2, 0]
    rows = [
        {
            "sentence1": f"w{first} a{place}",
            "sentence2": f"w{second} b{place}",
            "label": "same" if first == second else "other",
        }
        for place, (first, second) in enumerate(topics.tolist())
    ]
    made = open_scorer(eval_file=str(small_embeddings.write_lines(tmp_path / "nli.jsonl", rows)))
    assert made.best_score == "accuracy"
    texts = [it.text for it in made.reader.sets["dev"].texts]
    numbers = [int(text.split()[0].removeprefix("w")) for text in texts]
    vectors = np.eye(small_embeddings.TOPICS, dtype=np.float32)[numbers]
    assert made.scores("dev", {"embeddings": vectors}) == {"accuracy": 1.0, "macro_f1": 1.0}
    # Vectors that do not know the topic, and those of one text alone, tell nothing.
    shuffled = made.scores("dev", {"embeddings": rng.permutation(vectors)})
    assert shuffled["accuracy"] < 0.8


def test_the_first_set_decides_and_sets_of_a_name_are_told_apart(open_scorer, tmp_path):
    made = open_scorer()
    assert made.best_score == "spearman"
    beir = made.reader.options.eval_file.split(",")[-1]
    assert open_scorer(eval_file=beir).best_score == "ndcg_at_10"
    paths = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        rows = small_embeddings.scored(4, 0)
        paths.append(str(small_embeddings.write_lines(tmp_path / name / "dev.jsonl", rows)))
    assert open_scorer(eval_file=",".join(paths)).reader.evaluation_sets == ("one_dev", "two_dev")
    row = {"sentence1": "a", "sentence2": "b", "other": "x"}
    path = small_embeddings.write_lines(tmp_path / "two.jsonl", [row])
    with pytest.raises(ValueError, match="two.jsonl holds two_texts, of which vectors have no sc"):
        open_scorer(eval_file=str(path)).reader.features("dev")


def test_lines_that_predict_cannot_use_are_refused(open_scorer):
    reader = open_scorer().reader
    for fields, fault in (
        ({"sentence": "a"}, "the key 'text' is missing"),
        ({"second_text": "a"}, "it must have 'text' or 'document'"),
        ({"text": "a", "second_text": "b", "document": "c"}, "or 'text' with 'second_text' or"),
        ({"text": " "}, "'text' is empty; it must be a text"),
    ):
        with pytest.raises(ValueError, match=fault):
            reader.example(fields, "line 1")


def make_batch(shape=(8, 2, 6), seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, shape[-1] + 1, shape[:-1])
    return {
        "input_ids": jnp.asarray(rng.integers(5, ONE_LAYER.vocab_size, shape), jnp.int32),
        "input_mask": jnp.asarray(np.arange(shape[-1]) < lengths[..., None], jnp.int32),
        "segment_ids": jnp.zeros(shape, jnp.int32),
        "example_weights": jnp.ones(shape[0]),
    }


def make_model(task):
    graphdef, shapes = tasks.abstract_model(task)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), jnp.float32), shapes)
    return parameters.merge(graphdef, params)


def test_each_text_has_the_vector_that_it_has_alone():
    task = embeddings.SentenceEmbedding(ONE_LAYER)
    model, batch = make_model(task), make_batch((4, 2, 6))
    together = jax.jit(lambda rows: task.outputs(model, rows, key=None))(batch)
    pooled, answer = jax.jit(model.pooled), jax.jit(lambda rows: task.predict(model, rows))
    for place in range(2):
        alone = {name: x[:, place] if x.ndim > 1 else x for name, x in batch.items()}
        np.testing.assert_allclose(together[:, place], pooled(alone), atol=1e-5)
    vectors, answered = np.asarray(pooled(alone)), answer(alone)["embeddings"]
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    np.testing.assert_allclose(answered, vectors / lengths, atol=1e-6)


def test_dense_layers_stand_behind_the_pooling_and_are_trained_by_every_loss():
    projections = sentence_vectors.projections_of([(12, "tanh", True), (8, "identity", False)])
    for loss in embeddings.LOSSES:
        task = embeddings.SentenceEmbedding(
            *(ONE_LAYER, loss),
            num_labels=3 * (loss == "softmax"),
            projections=projections,
            matryoshka_dims=(4, 8),
        )
        model, batch = make_model(task), make_batch() | {"labels": jnp.arange(8) % 3}
        batch |= {"scores": jnp.ones(8), embeddings.TEACHER_VECTORS: jnp.ones((8, 2, 8))}
        graphdef, params = parameters.split(model)

        def total(trained, params=params, graphdef=graphdef, task=task, batch=batch):
            merged = parameters.merge(graphdef, {**params, "projections": trained})
            return task.loss(merged, batch, key=None)["loss"].total

        slopes = jax.jit(jax.grad(total))(params["projections"])
        assert [set(slopes[place]) for place in "01"] == [{"kernel", "bias"}, {"kernel"}]
        assert all(np.abs(slope).max() > 0 for slope in jax.tree.leaves(slopes))
    plain = embeddings.SentenceEmbedding(ONE_LAYER)
    batch, of_encoder = make_batch((4, 6)), {"encoder": params["encoder"]}
    encoder_alone = parameters.merge(tasks.abstract_model(plain)[0], of_encoder)
    pooled, projected = jax.jit(lambda rows: (encoder_alone.pooled(rows), model.pooled(rows)))(
        batch
    )
    of_dense = jax.tree.map(np.asarray, params["projections"])
    sums = np.asarray(pooled) @ of_dense["0"]["kernel"] + of_dense["0"]["bias"]
    expected = np.tanh(sums) @ of_dense["1"]["kernel"]
    np.testing.assert_allclose(projected, expected, atol=1e-5)
    flops = task.train_flops(8, 6, 0) - plain.train_flops(8, 6, 0)
    assert flops == 3 * 2 * 8 * 2 * (32 * 12 + 12 * 8)


def test_the_two_views_of_a_text_differ_by_dropout_alone():
    config = dataclasses.replace(ONE_LAYER, hidden_dropout_prob=0.3)
    task = embeddings.SentenceEmbedding(config, loss_name="simcse", num_texts=1)
    model, batch = make_model(task), make_batch((8, 6))
    of = jax.jit(lambda rows, key: task.outputs(model, rows, key=key))
    views = of(batch, jax.random.key(0))
    assert views.shape == (8, 2, 32) and jnp.abs(views[:, 0] - views[:, 1]).min(axis=1).max() > 0
    same = jax.jit(lambda rows: task.outputs(model, rows, key=None))(batch)
    np.testing.assert_array_equal(same[:, 0], same[:, 1])


def test_a_classifier_of_pairs_reads_both_vectors_and_their_absolute_difference():
    rng = np.random.default_rng(0)
    vectors, weights = rng.normal(size=(6, 2, 4)), rng.normal(size=(12, 3))
    head = embeddings.LossHead(classifier=lambda it: it.reshape(6, 12) @ jnp.asarray(weights))
    batch = {"labels": jnp.arange(6) % 3}
    losses, _ = embeddings.LOSSES["softmax"].of(jnp.asarray(vectors), batch, head)
    u, v = vectors.transpose(1, 0, 2)
    logits = np.concatenate([u, v, np.abs(u - v)], axis=1) @ weights
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        losses, -np.log(shares[range(6), batch["labels"]]), rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.usefixtures("quick_runs")
def test_losses_are_those_of_prefixes_where_they_are_asked_for():
    batch = make_batch() | {"labels": jnp.arange(8) % 3}
    for loss in ("ranking", "softmax"):
        totals = []
        for dims in [(8,), (32,), (8, 32)]:
            task = embeddings.SentenceEmbedding(
                ONE_LAYER, loss_name=loss, num_labels=3 * (loss == "softmax"), matryoshka_dims=dims
            )
            totals.append(float(task.loss(make_model(task), batch, key=None)["loss"].total))
        assert totals[0] + totals[1] == pytest.approx(totals[2], rel=1e-5) and totals[0] > 0
