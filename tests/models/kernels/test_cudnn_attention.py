"""Claims about cuDNN's attention: it is asked for what plain JAX computes, where it can be.

There is no GPU here. What is asked is computed by JAX's own implementation of the same function,
and the program for a GPU is made and read, not run.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as of_jax

from bertjax.devices import sharding
from bertjax.models import attention, visibility
from bertjax.models.kernels import cudnn_attention
from bertjax.training import attention_trial
from tests import marks
from tests.training.test_attention_trial import job_of

BATCH, LENGTH, HEADS, SIZE = 4, 64, 2, 16


@pytest.fixture
def asked_of_jax(monkeypatch):
    """Lets a CPU take what a GPU would, computed by JAX; returns the ones that were asked."""
    asked = []

    def context(*arguments, **options):
        asked.append("context")
        return original[0](*arguments, **options, implementation="xla")

    def gradients(*arguments, **options):
        asked.append("gradients")
        return original[1](*arguments, **options, implementation="xla")

    original = cudnn_attention.context, cudnn_attention.gradients
    monkeypatch.setattr(cudnn_attention, "context", context)
    monkeypatch.setattr(cudnn_attention, "gradients", gradients)
    monkeypatch.setattr(cudnn_attention, "is_there", lambda: True)

    def as_on_a_gpu(*arguments, default, cuda=None, tpu=None):
        return (cuda or default)(*arguments)

    monkeypatch.setattr(jax.lax, "platform_dependent", as_on_a_gpu)
    return asked


def inputs(is_packed):
    numbers = np.ones((BATCH, LENGTH), np.int32)
    numbers[1, 40:] = 0
    if not is_packed:
        return {"input_mask": jnp.asarray(numbers)}
    numbers[:, 20:40] *= 2
    numbers[2, 40:] = 3
    return {"sequence_ids": jnp.asarray(numbers)}


def drawn(dtype):
    shape = (BATCH, LENGTH, HEADS, SIZE)
    draws = jax.random.split(jax.random.key(0), 4)
    return [jax.random.normal(it, shape, jnp.float32).astype(dtype) for it in draws]


def both(visible, dtype, implementation, rotary_base):
    """Returns the context and the gradients of query, keys and values."""
    *tensors, grad = drawn(dtype)
    attend = functools.partial(
        *(attention.attend,), visible=visible, dropout_rate=0.1, key=None,
        implementation=implementation, rotary_base=rotary_base,
    )  # fmt: skip
    context, backward = jax.vjp(attend, *tensors)
    return [np.asarray(x, np.float32) for x in (context, *backward(grad))]


@pytest.mark.parametrize(
    ("is_packed", "narrow", "rotary_base"),
    [
        *((False, {}, None), (False, {"window": 8}, 1e4), (False, {"left_to_right": True}, None)),
        *((True, {}, 1e4), (True, {"window": 8}, None), (True, {"left_to_right": True}, 1e4)),
    ],
    ids=str,
)
def test_it_computes_what_plain_jax_does(asked_of_jax, is_packed, narrow, rotary_base):
    visible = visibility.of(inputs(is_packed))
    visible = visible.narrowed(**{"window": None, "left_to_right": False} | narrow)
    found = both(visible, jnp.bfloat16, "cudnn", rotary_base)
    assert asked_of_jax == ["context", "gradients"]
    expected = both(visible, jnp.float32, "xla", rotary_base)
    for x, y in zip(found, expected, strict=True):
        assert np.abs(x - y).max() < 0.03 * np.abs(y).max()  # rounding to bfloat16
    if is_packed or narrow:
        assert not found[0][1, 40:].any()  # padding sees nothing


def test_the_rows_of_a_mesh_are_computed_where_they_are(asked_of_jax):
    mesh = sharding.make_mesh(jax.devices()[:8], data=4, tensor=2)
    visible = visibility.of(inputs(True))
    context, *_ = both(visible, jnp.bfloat16, "cudnn", None)
    *tensors, _ = drawn(jnp.bfloat16)
    options = {"dropout_rate": 0.0, "key": None, "implementation": "cudnn"}
    with jax.set_mesh(mesh):
        spread = jax.jit(lambda: attention.attend(*tensors, visible, **options))()
        np.testing.assert_allclose(np.asarray(spread, np.float32), context, atol=2e-2)


def test_what_the_kernels_do_not_take_is_left_to_plain_jax(asked_of_jax):
    for length, size, dtype, rate, platforms in [
        *((128, 64, "bfloat16", 0.0, ("cuda",)), (63, 64, "bfloat16", 0.0, ())),
        *((32, 64, "bfloat16", 0.0, ()), (8192, 64, "bfloat16", 0.0, ())),
        *((64, 12, "bfloat16", 0.0, ()), (64, 64, "float32", 0.0, ())),
        (64, 64, "bfloat16", 0.1, ()),
    ]:
        found = attention.kernel_platforms("cudnn", length, size, jnp.dtype(dtype), rate)
        assert found == platforms


@marks.MULTIPLIES_BFLOAT16
def test_without_cudnn_it_is_plain_jax_and_says_so(caplog):
    visible = visibility.of(inputs(False))
    cudnn_attention.is_there.cache_clear()
    attention._warn.cache_clear()
    found = both(visible, jnp.bfloat16, "cudnn", None)
    expected = both(visible, jnp.bfloat16, "xla", None)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert "attention='cudnn'" in caplog.text and "cuDNN" in caplog.text


@pytest.fixture
def as_if_cudnn_were_here(monkeypatch):
    monkeypatch.setattr(of_jax, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(of_jax, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(of_jax, "is_cuda_compute_capability_equal", lambda capability: False)
    cudnn_attention.is_there.cache_clear()
    yield
    cudnn_attention.is_there.cache_clear()


@pytest.mark.parametrize("implementation", ["auto", "cudnn"])
def test_the_program_for_a_gpu_calls_cudnn_and_that_for_others_does_not(
    as_if_cudnn_were_here, implementation
):
    visible = visibility.of({"input_mask": jnp.ones((BATCH, 128), jnp.int32)})
    tensor = jax.ShapeDtypeStruct((BATCH, 128, HEADS, 64), jnp.bfloat16)

    def loss(query, keys, values):
        return attention.attend(
            query, keys, values, visible, dropout_rate=0.0, key=None, implementation=implementation
        ).sum(dtype=jnp.float32)

    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(tensor, tensor, tensor)
    of_gpu = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmha" in of_gpu and "Backward" in of_gpu
    assert "cudnn" not in traced.lower(lowering_platforms=("cpu",)).as_text()


@marks.MULTIPLIES_BFLOAT16
def test_the_trial_on_a_gpu_is_of_rows_without_dropout(asked_of_jax, monkeypatch, caplog):
    mesh = sharding.make_mesh(jax.devices()[:1], data=1, tensor=1)
    monkeypatch.setattr(attention_trial, "_platform", lambda mesh: attention.CUDA)
    job = job_of(attention_probs_dropout_prob=0.1)
    assert attention_trial.agrees(job, mesh) and not asked_of_jax  # in float32 there are no kernels
    narrow = dataclasses.replace(job.task.encoder, dtype="bfloat16")
    job = dataclasses.replace(job, task=dataclasses.replace(job.task, encoder=narrow))
    with caplog.at_level("INFO", logger="absl"):
        assert attention_trial.agrees(job, mesh)
    assert set(asked_of_jax) == {"context", "gradients"} and "agrees with plain JAX" in caplog.text
