"""SpanBERT's objective: what stands beside a span, its loss against float64, runs and exports."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from bertjax import config as config_lib
from bertjax import inference, train
from bertjax.convert import formats
from bertjax.devices import sharding
from bertjax.models import EncoderConfig, heads, parameters
from bertjax.tasks import base, span_boundary
from bertjax.workdirs import scalars
from tests import small_modules, small_records

pytestmark = pytest.mark.usefixtures("quick_runs")
LENGTH, PREDICTIONS, VOCABULARY = 24, 20, 40
SIZES = EncoderConfig(
    vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=24, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0, initializer_range=0.3,
)  # fmt: skip
TASK = span_boundary.SpanBoundary(SIZES, pair_loss="none")
# Masked positions of each row, its tokens, and of each position (left, right, number in the span);
# None: no target.
ROWS = [
    # Beside [CLS]; one alone; two that touch are one, as released; beside the last [SEP].
    ([1, 2, 5, 8, 9, 10, 22], 24,
     [None, None, (4, 6, 0), (7, 11, 0), (7, 11, 1), (7, 11, 2), None]),
    # A span of 17: the last two are too far in.
    (list(range(3, 20)), 24, [(2, 20, i) if i < 15 else None for i in range(17)]),
    # A shorter row: its last [SEP] is at 9.
    ([4, 8], 10, [(3, 5, 0), None]),
    ([], 3, []),
]  # fmt: skip


def batch(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    made = {
        "input_ids": rng.integers(5, VOCABULARY, (len(rows), LENGTH)),
        "input_mask": np.array([[1] * real + [0] * (LENGTH - real) for _, real, _ in rows]),
        "masked_lm_positions": np.zeros((len(rows), PREDICTIONS), np.int32),
        "masked_lm_ids": rng.integers(5, VOCABULARY, (len(rows), PREDICTIONS)),
        "masked_lm_weights": np.zeros((len(rows), PREDICTIONS), np.float32),
        "example_weights": np.ones(len(rows), np.float32),
    }
    for row, (positions, _, _) in enumerate(rows):
        made["masked_lm_positions"][row, : len(positions)] = positions
        made["masked_lm_weights"][row, : len(positions)] = 1
    made["segment_ids"] = np.zeros_like(made["input_ids"])
    return {name: jnp.asarray(array) for name, array in made.items()}


def test_a_span_is_what_is_masked_without_a_gap_and_has_two_neighbours():
    given = batch()
    found = jax.jit(span_boundary.targets)(
        given["masked_lm_positions"], given["masked_lm_weights"], given["input_mask"]
    )
    for row, (_, _, wanted) in enumerate(ROWS):
        got = [
            (int(left), int(right), int(offset)) if weight else None
            for left, right, offset, weight in zip(*(part[row] for part in found), strict=True)
        ]
        assert got == wanted + [None] * (PREDICTIONS - len(wanted))
    assert all(part.min() >= 0 for part in found)
    assert found.left.max() < LENGTH and found.right.max() < LENGTH
    assert float(TASK.weights(given)["sbo_loss"]) == 4 + 15 + 1


def reference(params, hidden, given):
    """The loss and accuracy of the boundary head in float64, a token at a time."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    head, table = p["sbo_head"], p["encoder"]["embeddings"]["word"]["embedding"]
    hidden, labels = np.asarray(hidden, np.float64), np.asarray(given["masked_lm_ids"])

    def layer(x, dense, norm):
        x = x @ head[dense]["kernel"] + head[dense]["bias"]
        x = x * 0.5 * (1 + scipy.special.erf(x / np.sqrt(2)))
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-12)
        return x * head[norm]["scale"] + head[norm]["bias"]

    losses, hits = [], []
    for row, (_, _, wanted) in enumerate(ROWS):
        for place, target in enumerate(wanted):
            if target is None:
                continue
            left, right, offset = target
            x = [hidden[row, left], hidden[row, right], head["offset"]["embedding"][offset]]
            x = layer(layer(np.concatenate(x), "dense", "norm"), "second_dense", "second_norm")
            logits = table @ x + head["bias"]
            label = labels[row, place]
            losses.append(scipy.special.logsumexp(logits) - logits[label])
            hits.append(logits[label] >= logits.max())
    return np.sum(losses), np.sum(hits), len(losses)


@pytest.fixture(scope="module")
def computed():
    """(parameters, means of the loss, the encoder's hidden states, gradient of the SBO loss)."""
    graphdef, params = parameters.split(small_modules.made(TASK.init))
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape).astype(np.float32), params
    )

    def loss(params):
        model = parameters.merge(graphdef, params)
        means = TASK.loss(model, batch(), key=None)
        return means["sbo_loss"].total, (means, model.encoder(batch()))

    (_, (means, hidden)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    return params, means, hidden, grads


def test_the_loss_equals_a_reference_in_float64(computed):
    params, means, hidden, _ = computed
    total, hits, count = reference(params, hidden, batch())
    np.testing.assert_allclose(means["sbo_loss"].total, total, rtol=1e-5)
    assert float(means["sbo_accuracy"].total) == hits
    assert float(means["sbo_loss"].weight) == count == float(TASK.weights(batch())["sbo_loss"])
    assert float(means["mlm_loss"].weight) == sum(len(row[0]) for row in ROWS)
    assert TASK.objectives == {"mlm_loss": 1.0, "sbo_loss": 1.0}


def test_what_is_beside_no_span_gets_no_gradient(computed):
    _, _, _, grads = computed
    offsets = np.abs(grads["sbo_head"]["offset"]["embedding"]).sum(axis=1)
    assert (offsets > 0).all() and len(offsets) == heads.MOST_OFFSETS
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(grads["mlm_head"]))
    # The position of padding, which no row reads.
    assert not np.any(grads["encoder"]["embeddings"]["segment"]["embedding"][1])


def test_the_head_has_its_flops_and_lies_whole_on_every_device():
    plain = super(span_boundary.SpanBoundary, TASK).train_flops(3, LENGTH, 2)
    products = (2 * 16 + 200) * 16 + 16 * 16 + 16 * VOCABULARY
    assert TASK.train_flops(3, LENGTH, 2) == plain + 3 * 3 * 2 * 2 * products
    params = base.abstract_model(TASK)[1]
    mesh = sharding.make_mesh(jax.devices()[:16], data=8, tensor=2)
    for rule_table in sharding.RULES:
        placed = sharding.shardings(mesh, params, params, rule_table=rule_table)
        assert all(leaf.spec == sharding.P() for leaf in jax.tree.leaves(placed["sbo_head"]))


def make_config(**options):
    config = config_lib.default_config()
    config.update_from_flattened_dict(
        {
            **{"model.hidden_size": 16, "model.num_hidden_layers": 1, "model.vocab_size": 0},
            **{"model.num_attention_heads": 2, "model.intermediate_size": 32},
            **{"global_batch_size": 8, "log_every_steps": 1, "schedule.warmup_steps": 2},
            **{"phases.phase1.max_seq_length": 16, "schedule.peak_learning_rate": 1e-2},
            **{"pretraining.objective": "span_boundary", "pretraining.pair_loss": "none"},
            **{"phases.phase1.num_steps": 6, "checkpoint.save_every_steps": 3},
            **options,
        }
    )
    return config


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_run_learns_and_is_written_as_a_bert(tmp_path):
    train_dir = str(small_records.write(tmp_path / "train", words=[f"w{i}" for i in range(8)]))
    train.train(make_config(**{"data.train_dir": train_dir}), tmp_path / "whole")
    names = {name for line in scalars.read(tmp_path / "whole" / scalars.FILE) for name in line}
    assert {"train/mlm_loss", "train/sbo_loss", "train/sbo_accuracy"} <= names

    found = formats.read(tmp_path / "whole")
    assert found.head == "masked_lm" and "sbo_head.bias" in found.params
    formats.write(found, tmp_path / "hf", format="huggingface")
    theirs = formats.read(tmp_path / "hf")
    assert (theirs.family.model_type, theirs.head) == ("bert", "masked_lm")
    assert {*found.params} - {*theirs.params} == {n for n in found.params if "sbo_head" in n}
    for path, array in theirs.params.items():
        np.testing.assert_array_equal(array, found.params[path])
    assert inference.load(tmp_path / "whole").fills_masks
    formats.write(found, tmp_path / "plain", format="bertjax")
    assert inference.load(tmp_path / "plain").fills_masks
    assert dataclasses.replace(found.config) == theirs.config
