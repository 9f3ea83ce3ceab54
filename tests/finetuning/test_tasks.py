"""Losses equal float64 NumPy; frozen parameters, padding and filler rows; FLOPs.

tests/test_finetuning_run.py learns each kind by heart.
"""

import dataclasses
import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.finetuning import base, choices, spans, tags, texts, wrapped_tasks
from bertjax.models import lora, parameters
from bertjax.tasks import base as tasks_base
from bertjax.training import optim, schedules, state
from tests import conftest, marks

LENGTH, ROWS, CHOICES, CLASSES = 12, 16, 3, 4
CHOICES_BIAS = "classifier.bias"
FROZEN = ("tags, feature-based", "classification, LoRA")
LORA = lora.LoraOptions(rank=4, alpha=8.0)
BILSTM = 12


pytestmark = pytest.mark.usefixtures("quick_runs")

# One layer learns these in fewer seconds.
TINY = dataclasses.replace(conftest.TINY, num_hidden_layers=1)


def make_inputs(shape=(ROWS,), *, seed=0):
    """Rows of random tokens behind [CLS], of unequal lengths; zeros at padding."""
    rng = np.random.default_rng(seed)
    mask = np.arange(LENGTH) < rng.integers(5, LENGTH + 1, (*shape, 1))
    ids = rng.integers(5, 96, (*shape, LENGTH)) * mask
    ids[..., 0] = 2
    segments = (np.arange(LENGTH) >= 4) & mask
    named = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    return {name: jnp.asarray(values, jnp.int32) for name, values in named.items()}


def make_batch(task, *, seed=0):
    """Random answers, so that nothing but the rows themselves can tell them."""
    rng = np.random.default_rng(seed + 1)
    shape = (ROWS, CHOICES) if isinstance(task, choices.MultipleChoice) else (ROWS,)
    batch = make_inputs(shape, seed=seed) | {"example_weights": jnp.ones(ROWS)}
    mask = np.asarray(batch["input_mask"])
    lengths = mask.sum(axis=-1)
    task = task.task if isinstance(task, wrapped_tasks.LowRank) else task
    match task:
        case texts.Regression():
            labels = {"labels": rng.uniform(0, 5, ROWS).astype(np.float32)}
        case texts.MultiLabel():
            labels = {"labels": rng.integers(0, 2, (ROWS, CLASSES))}
        case texts.Classification():
            labels = {"labels": rng.integers(0, CLASSES, ROWS)}
        case choices.MultipleChoice():
            labels = {"labels": rng.integers(0, CHOICES, ROWS)}
        case spans.SpanExtraction():
            starts = rng.integers(0, lengths)
            labels = {"start_positions": starts, "end_positions": rng.integers(starts, lengths)}
        case tags.TokenClassification():
            is_scored = (mask != 0) & (rng.random(mask.shape) < 0.7)
            labels = {"labels": np.where(is_scored, rng.integers(0, CLASSES, mask.shape), -1)}
    dtype = np.float32 if isinstance(task, (texts.Regression, texts.MultiLabel)) else np.int32
    return batch | {name: jnp.asarray(values, dtype) for name, values in labels.items()}


def make_tasks(config):
    classes = texts.Classification(config, CLASSES)
    return {
        "classification": classes,
        "mean pooling": texts.Classification(config, CLASSES, pooling="mean"),
        "regression": texts.Regression(config),
        "tags": tags.TokenClassification(config, CLASSES),
        "tags, feature-based": tags.TokenClassification(
            config, CLASSES, is_feature_based=True, lstm_size=24
        ),
        "tags, BiLSTM": tags.TokenClassification(config, CLASSES, bilstm_size=BILSTM),
        "spans": spans.SpanExtraction(config),
        "choices": choices.MultipleChoice(config, CHOICES),
        "classification, BiLSTM": texts.Classification(config, CLASSES, bilstm_size=BILSTM),
        "spans, BiLSTM": spans.SpanExtraction(config, BILSTM),
        "choices, BiLSTM": choices.MultipleChoice(config, CHOICES, BILSTM),
        "classification, LoRA": wrapped_tasks.LowRank(classes, LORA),
    }


TASKS = make_tasks(TINY)
# One head with a BiLSTM is enough for every day.
QUICK = [name for name in TASKS if "BiLSTM" not in name or name == "classification, BiLSTM"]
EVERY_TASK = marks.cases(TASKS, quick=QUICK)
every_task = pytest.mark.parametrize("name", EVERY_TASK)
# tests/models/test_classification.py pools real tokens alone by their mean.
every_head = pytest.mark.parametrize(
    "name", [it for it in EVERY_TASK if "mean" not in it.values[0]]
)


def make_learner(task, *, accumulation_steps=1):
    optimizer = optim.OptimizerOptions(weight_decay=0.0)
    schedule = schedules.ScheduleOptions("linear", 1e-2, 0, 100_000)
    parts = {"seed": 0, "accumulation_steps": accumulation_steps}
    return state.make_learner(task, optimizer=optimizer, schedule=schedule, **parts)


@dataclasses.dataclass(frozen=True)
class Made:
    """A task with its compiled functions, which the tests share: compiling is what takes time.

    `run` returns predictions, means and gradients of a batch, `evaluate` only the means.
    """

    task: base.FinetuningTask
    params: parameters.Params
    predict: Callable
    evaluate: Callable
    run: Callable


@functools.cache
def make(name):
    task = TASKS[name]
    learner = make_learner(task)

    def predict(params, batch):
        return task.predict(parameters.merge(learner.graphdef, params), batch)

    def evaluated(params, batch):
        return task.evaluate(parameters.merge(learner.graphdef, params), batch)

    def run(params, batch):
        unlabelled = {key: batch[key] for key in ("input_ids", "input_mask", "segment_ids")}
        gradient = learner._gradients(params, batch, jax.random.key(0))[0]
        return predict(params, unlabelled), evaluated(params, batch), gradient

    # Away from the start, where all logits are nearly equal, B is 0, and no fault would show.
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        mean = 4.0 if path[-1].key == "scale" else 0.01
        return jnp.asarray(rng.normal(mean, 0.08, leaf.shape), jnp.float32)

    params = jax.tree_util.tree_map_with_path(draw, jax.eval_shape(learner.init).params)
    return Made(task, params, predict, *map(jax.jit, (evaluated, run)))


def logits_of(predicted):
    """The logits in float64: two of them for spans, the numbers for a regression."""
    # Named, because jit sorts the keys of a dict.
    names = [name for name in ("logits", "start_logits", "end_logits") if name in predicted]
    names = names or ["predictions"]
    return [np.asarray(predicted[name], np.float64) for name in names]


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def reference_loss(task, logits, batch):
    """The mean loss, row by row in float64."""
    losses, batch = [], {name: np.asarray(values) for name, values in batch.items()}
    for row in range(ROWS):
        match task:
            case texts.Regression():
                losses.append((logits[0][row] - batch["labels"][row]) ** 2)
            case tags.TokenClassification():
                for place, label in enumerate(batch["labels"][row]):
                    if label >= 0:
                        losses.append(-log_softmax(logits[0][row, place])[label])
            case spans.SpanExtraction():
                length = batch["input_mask"][row].sum()
                positions = batch["start_positions"][row], batch["end_positions"][row]
                both = zip(logits, positions, strict=True)
                ends = [-log_softmax(part[row, :length])[place] for part, place in both]
                losses.append(np.mean(ends))
            case _:
                losses.append(-log_softmax(logits[0][row])[batch["labels"][row]])
    return np.mean(losses)


@every_head
def test_the_loss_is_the_formula_of_the_paper(name):
    """Predictions need no labels, and padding gets none."""
    made = make(name)
    task = made.task.task if isinstance(made.task, wrapped_tasks.LowRank) else made.task
    batch = make_batch(task)
    predicted, means, _ = made.run(made.params, batch)
    assert {rows.shape[0] for rows in predicted.values()} == {ROWS}
    if "start_logits" in predicted:
        for logits in predicted.values():
            assert (logits[batch["input_mask"] == 0] == jnp.finfo(jnp.float32).min).all()
            assert (logits[batch["input_mask"] != 0] > -1000).all()
    wanted = reference_loss(task, logits_of(predicted), batch)
    np.testing.assert_allclose(means["loss"].value(), wanted, rtol=1e-5)


def assert_same_means(left, right):
    for key, mean in left.items():
        np.testing.assert_allclose(right[key].value(), mean.value(), rtol=1e-5)


@every_head
def test_padding_changes_nothing(name):
    made = make(name)
    batch = make_batch(made.task)
    is_real = batch["input_mask"] != 0
    longer = batch | {
        "input_ids": jnp.where(is_real, batch["input_ids"], 7),
        "segment_ids": jnp.where(is_real, batch["segment_ids"], 1),
    }
    for key, values in longer.items():
        if values.shape[-1] == LENGTH:
            wider = [(0, 0)] * (values.ndim - 1) + [(0, 5)]
            longer[key] = jnp.pad(values, wider, constant_values=-1 if key == "labels" else 0)
    _, means, _ = made.run(made.params, batch)
    assert_same_means(means, made.evaluate(made.params, longer))


@every_head
def test_rows_of_weight_zero_count_for_nothing(name):
    made = make(name)
    batch, filler = make_batch(made.task), make_batch(made.task, seed=5)
    batch["example_weights"] = (jnp.arange(ROWS) < 10).astype(jnp.float32)
    filler["input_mask"] = filler["input_mask"].at[-1].set(0)  # not even [CLS] is there
    mixed = {key: jnp.concatenate([batch[key][:10], filler[key][10:]]) for key in batch}
    mixed["example_weights"] = batch["example_weights"]
    _, means, gradient = made.run(made.params, batch)
    _, of_mixed, mixed_gradient = made.run(made.params, mixed)
    assert_same_means(means, of_mixed)
    weights = made.task.weights({key: batch[key] for key in batch if key != "input_ids"})
    assert weights == {key: mean.weight for key, mean in means.items()}  # from the batch alone
    assert_close(gradient, mixed_gradient)


def assert_close(left, right):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), left, right)


@pytest.mark.parametrize("name", ["tags", "spans"])
def test_unequal_micro_batches_equal_one_batch(name):
    made = make(name)
    batch = make_batch(made.task)
    batch["example_weights"] = (jnp.arange(ROWS) < 10).astype(jnp.float32)
    parts = make_learner(made.task, accumulation_steps=4)
    gradient, _ = jax.jit(parts._gradients)(made.params, batch, jax.random.key(0))
    assert_close(gradient, made.run(made.params, batch)[2])


@every_head
def test_what_is_frozen_gets_no_gradient_and_all_else_does(name):
    made = make(name)
    _, _, gradient = made.run(made.params, make_batch(made.task))
    for path, leaf in parameters.flat(gradient).items():
        is_frozen = any(re.fullmatch(pattern, path) for pattern in made.task.frozen)
        # A key's bias adds the same to all scores of a query, and the softmax does not see it; nor
        # does the one over choices see the bias of what scores each.
        is_of_choices = name.startswith("choices") and path == CHOICES_BIAS
        if not path.endswith("attention.key.bias") and not is_of_choices:
            assert bool((leaf == 0).all()) == is_frozen, path
    assert bool(made.task.frozen) == (name in FROZEN)


def matrix_flops(jaxpr):
    """The FLOPs of all matrix products of a jaxpr, those of loops by their trips."""
    total = 0.0
    for equation in jaxpr.eqns:
        trips = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")
        ):
            if inner := getattr(inner, "jaxpr", inner if hasattr(inner, "eqns") else None):
                total += trips * matrix_flops(inner)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            sizes = [shape[axis] for axis in contracted]
            total += 2.0 * equation.outvars[0].aval.size * np.prod(sizes)
    return total


@every_task
def test_flops_are_those_of_the_matrix_products(name):
    made = make(name)
    batch = make_batch(made.task)
    products = matrix_flops(jax.make_jaxpr(made.predict)(made.params, batch).jaxpr)
    tokens = batch["input_ids"].size
    products -= 2.0 * tokens * TINY.type_vocab_size * TINY.hidden_size  # a lookup by other means
    if name == "classification, LoRA":
        products -= 2 * 2.0 * TINY.hidden_size**2 * LORA.rank  # A B of query and value
    counted = made.task.train_flops(ROWS, LENGTH, 0)
    if name == "tags, feature-based":
        assert counted == 3 * products - 2 * ROWS * TINY.forward_flops(LENGTH)
    else:
        assert counted == 3 * products


@pytest.mark.parametrize("name", ["tags, feature-based", "choices"])
def test_dropout_is_in_training_and_not_in_evaluation(name):
    dropping = make_tasks(dataclasses.replace(TINY, hidden_dropout_prob=0.5))[name]
    made, batch = make(name), make_batch(dropping)

    graphdef, _ = tasks_base.abstract_model(dropping)

    @jax.jit
    def loss(params, key):
        return dropping.loss(parameters.merge(graphdef, params), batch, key=key)["loss"].total

    first, again, other = (loss(made.params, jax.random.key(seed)) for seed in (0, 0, 1))
    assert first == again != other
