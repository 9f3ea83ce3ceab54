"""The losses of distillation against float64 numpy; gradients; the student's beginning."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax.jobs import teachers
from bertjax.models import parameters
from bertjax.tasks import base, distillation, pretraining
from tests import conftest, small_modules
from tests.models import test_encoder

pytestmark = pytest.mark.usefixtures("quick_runs")
LENGTH = 12


def wide(task, seed):
    """A task's model and parameters far from zero."""
    graphdef, params = parameters.split(small_modules.made(task.init))
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda p: p + jnp.asarray(rng.normal(0, 0.2, p.shape), p.dtype), params)
    return graphdef, params


def numpy_logits(params, hidden):
    head = params["mlm_head"]
    transformed = test_encoder.numpy_gelu(test_encoder.numpy_dense(hidden, head["dense"]))
    transformed = test_encoder.numpy_layer_norm(transformed, head["norm"])
    return transformed @ params["encoder"]["embeddings"]["word"]["embedding"].T + head["bias"]


@pytest.fixture(scope="module")
def tasks():
    student = dataclasses.replace(conftest.TINY, num_hidden_layers=1, intermediate_size=48)
    return (
        pretraining.Pretraining(student, pair_loss="none"),
        pretraining.Pretraining(conftest.TINY, pair_loss="none"),
    )


@pytest.fixture(scope="module")
def reference(tasks):
    """Student, teacher, a batch with padding, and both models' numbers in float64."""
    rng = np.random.default_rng(5)
    mask = (np.arange(LENGTH) < np.array([[12], [7], [9]])).astype(np.int32)
    batch = {
        "input_ids": rng.integers(5, 96, mask.shape) * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(LENGTH) > 5) * mask,
        "masked_lm_positions": np.array([[1, 4, 6], [2, 3, 0], [5, 0, 0]]),
        "masked_lm_ids": rng.integers(5, 96, (3, 3)),
        "masked_lm_weights": np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]], np.float32),
        "example_weights": np.ones(3, np.float32),
    }
    made = [wide(task, seed) for seed, task in enumerate(tasks)]
    numbers = []
    for task, (_, params) in zip(tasks, made, strict=True):
        exact = jax.tree.map(np.float64, params)
        hidden = test_encoder.numpy_hidden_states(batch, exact["encoder"], task.encoder)[-1]
        numbers.append((hidden, numpy_logits(exact, hidden)))
    return made, {name: jnp.asarray(rows) for name, rows in batch.items()}, numbers


def numpy_losses(batch, numbers, temperature, only_masked):
    (ours, our_logits), (theirs, their_logits) = numbers
    real = np.asarray(batch["input_mask"]) != 0
    positions = np.asarray(batch["masked_lm_positions"])
    is_masked = np.asarray(batch["masked_lm_weights"]) > 0
    rows = np.arange(3)[:, None]
    log_q = scipy.special.log_softmax(our_logits, axis=-1)
    mlm = -log_q[rows, positions, np.asarray(batch["masked_lm_ids"])][is_masked].mean()
    p, log_p, log_q = (
        f(logits / temperature, axis=-1)
        for f, logits in (
            (scipy.special.softmax, their_logits),
            (scipy.special.log_softmax, their_logits),
            (scipy.special.log_softmax, our_logits),
        )
    )
    soft = temperature**2 * (p * (log_p - log_q)).sum(-1)
    soft = soft[rows, positions][is_masked] if only_masked else soft[real]
    cosines = (ours * theirs).sum(-1) / np.linalg.norm(ours, axis=-1)
    cosines = cosines / np.linalg.norm(theirs, axis=-1)
    return {"mlm_loss": mlm, "soft_loss": soft.mean(), "cosine_loss": (1 - cosines[real]).mean()}


@pytest.mark.parametrize(("temperature", "only_masked"), [(2.0, False), (1.5, True)])
def test_losses_are_those_of_the_numpy_reference(tasks, reference, temperature, only_masked):
    made, batch, numbers = reference
    options = distillation.Options(temperature, 5.0, 2.0, 1.0, only_masked)
    task = distillation.Distillation(*tasks, options)
    assert task.objectives == {"mlm_loss": 2.0, "soft_loss": 5.0, "cosine_loss": 1.0}
    (graphdef, params), (_, teacher) = made

    @jax.jit
    def loss(params, teacher):
        model = parameters.merge(graphdef, params)
        return task.loss(model, {**batch, distillation.TEACHER: teacher}, key=None)

    means = loss(params, teacher)
    expected = numpy_losses(batch, numbers, temperature, only_masked)
    weights = task.weights(batch)
    for name, value in expected.items():
        np.testing.assert_allclose(means[name].value(), value, rtol=2e-5, err_msg=name)
        assert weights[name] == means[name].weight
    scores = jax.eval_shape(lambda p: task.evaluate(parameters.merge(graphdef, p), batch), params)
    assert scores.keys() == {"mlm_loss", "mlm_accuracy"}


def test_a_teacher_gets_no_gradient_and_one_like_its_student_asks_for_no_change(tasks, reference):
    made, batch, _ = reference
    graphdef, params = made[0]
    options = distillation.Options(soft_weight=1.0, hard_weight=0.0, cosine_weight=1.0)
    task = distillation.Distillation(tasks[0], tasks[0], options)
    assert "mlm_loss" not in task.objectives

    def objective(student, teacher):
        model = parameters.merge(graphdef, student)
        means = task.loss(model, {**batch, distillation.TEACHER: teacher}, key=None)
        return sum(means[name].total for name in task.objectives)

    other = jax.tree.map(lambda p: p * 1.1, params)
    gradient = jax.jit(jax.grad(objective, argnums=(0, 1)))
    of_student, of_teacher = gradient(other, params)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(of_teacher))
    assert np.abs(of_student["mlm_head"]["dense"]["kernel"]).max() > 1e-3
    same, _ = gradient(params, params)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(same)) < 1e-4


def test_positions_without_a_share_count_for_nothing():
    lowest = np.finfo(np.float32).min
    logits = jnp.array([[1.0, 2.0, lowest], [0.0, lowest, lowest]])
    other = jnp.array([[2.0, 0.5, lowest], [3.0, lowest, lowest]])

    def losses(logits, temperature):
        expected = distillation.divergence(logits[:1, :2], other[:1, :2], temperature).sum()
        found = jax.value_and_grad(lambda x: distillation.divergence(x, other, temperature).sum())
        return expected, *found(logits)

    compiled = jax.jit(losses, static_argnums=1)
    for temperature in (0.5, 1.0, 2.0):
        expected, found, gradient = compiled(logits, temperature)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert np.isfinite(gradient).all()


def test_layers_are_spread_as_distilberts():
    assert teachers.spread(12, 6) == (0, 2, 4, 7, 9, 11)
    assert teachers.spread(4, 2) == (0, 3)
    assert teachers.spread(3, 3) == (0, 1, 2)
    assert teachers.spread(12, 1) == (0,)


def as_teacher(task, params):
    return teachers.Teacher(task, task.encoder, jax.tree.map(np.asarray, params), "a test", "x")


@pytest.mark.slow
def test_a_student_of_all_layers_without_segments_computes_what_its_teacher_does(tasks, reference):
    made, batch, _ = reference
    graphdef, params = made[1]
    sizes = dataclasses.replace(tasks[1].encoder, type_vocab_size=0, pooler_act="relu")
    values = teachers.student_values(as_teacher(tasks[1], params), sizes, ())
    student = pretraining.Pretraining(sizes, pair_loss="none")
    student_def, shapes = base.abstract_model(student)
    assert values.keys() == parameters.flat(shapes).keys()
    of_one_segment = batch | {"segment_ids": jnp.zeros_like(batch["segment_ids"])}
    wanted = parameters.merge(graphdef, params)
    got = parameters.merge(student_def, jax.tree.map(jnp.asarray, parameters.nested(values)))
    real = np.asarray(batch["input_mask"]) != 0
    np.testing.assert_allclose(
        np.asarray(got.encoder(batch))[real],
        np.asarray(wanted.encoder(of_one_segment))[real],
        atol=1e-5,
    )


def test_a_student_of_a_deberta_has_its_table_of_distances_and_loses_no_segments(tiny):
    relative = {"relative": "disentangled", "relative_buckets": 8, "relative_span": 32}
    sizes = dataclasses.replace(tiny, position_embedding="none", **relative)
    task = pretraining.Pretraining(sizes, pair_loss="none")
    params = jax.tree.map(lambda it: np.ones(it.shape), base.abstract_model(task)[1])
    one = dataclasses.replace(sizes, num_hidden_layers=1)
    values = teachers.student_values(as_teacher(task, params), one, ())
    student = base.abstract_model(pretraining.Pretraining(one, pair_loss="none"))[1]
    assert values.keys() == parameters.flat(student).keys()
    assert values["encoder.relative.table.embedding"].shape == (16, tiny.hidden_size)
    with pytest.raises(
        ValueError, match=r"config.model.type_vocab_size is 0; it must be the teacher's 2"
    ):
        without = dataclasses.replace(one, type_vocab_size=0)
        teachers.student_values(as_teacher(task, params), without, ())


def test_chosen_layers_are_those_of_the_teacher_and_what_does_not_fit_is_named(tasks, reference):
    teacher = as_teacher(tasks[1], reference[0][1][1])
    one = dataclasses.replace(tasks[1].encoder, num_hidden_layers=1)
    for layer in (0, 1):
        values = teachers.student_values(teacher, one, (layer,))
        name = "attention.query.kernel"
        expected = parameters.flat(teacher.params)[f"encoder.layers.{layer}.{name}"]
        np.testing.assert_array_equal(values[f"encoder.layers.0.{name}"], expected)
        assert not any(path.startswith("encoder.layers.1") for path in values)
    with pytest.raises(
        ValueError, match=r"(?s)starts_student=False.*size is 48, the teacher has 64"
    ):
        teachers.student_values(teacher, tasks[0].encoder, ())
    with pytest.raises(ValueError, match=r"layers is \(5,\); the teacher's are 0 to 1"):
        teachers.student_values(teacher, one, (5,))
    with pytest.raises(ValueError, match="layers has 2 numbers; the student has 1"):
        teachers.student_values(teacher, one, (0, 1))


def test_flops_are_the_students_step_and_the_teachers_forward_pass(tasks):
    student, teacher = tasks
    task = distillation.Distillation(student, teacher, distillation.Options(soft_weight=0.0))
    own = student.train_flops(4, LENGTH, 3)
    assert task.train_flops(4, LENGTH, 3) == own + 4 * teacher.encoder.forward_flops(LENGTH)
    soft = dataclasses.replace(task, options=distillation.Options())
    heads = 4 * (teacher.encoder.head_flops(LENGTH) + 3 * student.encoder.head_flops(LENGTH))
    assert soft.train_flops(4, LENGTH, 3) == task.train_flops(4, LENGTH, 3) + heads
