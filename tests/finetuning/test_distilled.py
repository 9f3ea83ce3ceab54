"""Claims about finetuning with a teacher: its losses for every kind of task."""

import dataclasses

import jax
import numpy as np
import pytest

from bertjax import jobs
from bertjax.convert import formats
from bertjax.finetuning import texts, wrapped_tasks
from bertjax.models import parameters
from bertjax.tasks import distillation
from bertjax.training import config_faults
from tests import conftest, small_datasets, small_modules
from tests.convert import weights
from tests.finetuning import test_tasks

pytestmark = pytest.mark.usefixtures("quick_runs")

STUDENT = dataclasses.replace(conftest.TINY, num_hidden_layers=1, type_vocab_size=0)
TEACHER = dataclasses.replace(conftest.TINY, hidden_size=16, num_hidden_layers=1)
OPTIONS = distillation.Options(temperature=2.0, soft_weight=0.5, hard_weight=0.25)


def make_tasks(sizes):
    labels = texts.MultiLabel(sizes, test_tasks.CLASSES)
    return {**test_tasks.make_tasks(sizes), "several labels": labels}


def numpy_divergence(ours, theirs, temperature=OPTIONS.temperature):
    import scipy.special

    p = scipy.special.softmax(np.float64(theirs) / temperature, axis=-1)
    log_q = scipy.special.log_softmax(np.float64(ours) / temperature, axis=-1)
    return temperature**2 * (scipy.special.rel_entr(p, np.exp(log_q))).sum(-1)


def expected(name, ours, theirs):
    if name == "regression":
        return (np.float64(ours["predictions"]) - theirs["predictions"]) ** 2
    if name == "spans":
        return sum(numpy_divergence(ours[k], theirs[k]) for k in ours) / 2
    if name == "several labels":
        pairs = (np.stack([a["logits"], np.zeros_like(a["logits"])], -1) for a in (ours, theirs))
        return numpy_divergence(*pairs).mean(-1)
    return numpy_divergence(ours["logits"], theirs["logits"])


KINDS = ("regression", "several labels", "tags", "spans", "choices")


@pytest.mark.parametrize(
    "name", ["classification", *(pytest.param(it, marks=pytest.mark.slow) for it in KINDS)]
)
def test_soft_losses_are_those_of_numpy_beside_the_labels_own(name):
    student, teacher = (make_tasks(sizes)[name] for sizes in (STUDENT, TEACHER))
    task, batch = wrapped_tasks.Distilled(student, teacher, OPTIONS), test_tasks.make_batch(student)
    batch["example_weights"] = batch["example_weights"].at[-1].set(0)
    assert task.objectives == {"loss": 0.25, "soft_loss": 0.5}
    graphdef, params = parameters.split(small_modules.made(task.init))
    teacher_def, teacher_params = parameters.split(small_modules.made(teacher.init, seed=1))

    def objective(params, teacher_params):
        model = parameters.merge(graphdef, params)
        means = task.loss(model, {**batch, distillation.TEACHER: teacher_params}, key=None)
        loss = sum(x * means[name].total for name, x in task.objectives.items())
        asked = student.predict(model, batch), student.loss(model, batch, key=None)
        answers = teacher.predict(parameters.merge(teacher_def, teacher_params), batch)
        return loss, (means, *asked, answers)

    gradient = jax.jit(jax.grad(objective, argnums=(0, 1), has_aux=True))
    (_, of_teacher), (means, ours, own, theirs) = gradient(params, teacher_params)
    weight = np.asarray(task.scored(batch))
    found = expected(name, ours, theirs)
    # A divergence of distributions that are nearly equal is a small difference of logarithms.
    np.testing.assert_allclose(
        means["soft_loss"].value(), (found * weight).sum() / weight.sum(), rtol=2e-5, atol=1e-6
    )
    assert means["soft_loss"].value() > 1e-4
    np.testing.assert_allclose(means["loss"].value(), own["loss"].value(), rtol=1e-6)
    assert task.weights(batch)["soft_loss"] == means["soft_loss"].weight
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(of_teacher))


def test_a_teacher_with_other_labels_is_refused(tmp_path, source):
    formats.write(weights.make("sequence_classification"), tmp_path / "teacher", format="bertjax")
    config = small_datasets.make_config(tmp_path / "data", "table", source)
    config.distillation.teacher = str(tmp_path / "teacher")
    with pytest.raises(ValueError, match="its labels are no, yes, perhaps, .*class 0"):
        jobs.JOBS["finetuning"].open(config)
    config.distillation.only_masked = True
    with pytest.raises(ValueError, match="only_masked is True, but nothing reads it in finetuning"):
        config_faults.validate(config)
