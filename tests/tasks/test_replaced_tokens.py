"""Claims about ELECTRA's objective: its losses, its samples, its labels, and what is shared."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax import config as config_lib
from bertjax.devices import sharding
from bertjax.models import embedding_sharing, layers, parameters
from bertjax.tasks import base, replaced_tokens
from bertjax.training import optim
from tests import conftest

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")

SIZES = dataclasses.replace(conftest.TINY, num_hidden_layers=1, embedding_size=16)
MESH_SIZES = dataclasses.replace(SIZES, hidden_size=64)
ALL_DEVICES = jax.devices()
HALVING = optim.OptimizerOptions(layer_decay=0.5)
SHARED, THEIRS = "encoder.embeddings", "generator.encoder.embeddings"


def make_task(sharing="shared", sizes=SIZES, **options):
    small = {"hidden_size": 12, "num_attention_heads": 2, "intermediate_size": 20}
    generator = dataclasses.replace(sizes, **small)
    return replaced_tokens.ReplacedTokens(sizes, generator, sharing=sharing, **options)


def filled(task):
    """Parameters of which none is as it began."""
    rng = np.random.default_rng(0)
    return {
        path: np.float32(path.endswith("scale") + 0.1 * rng.standard_normal(leaf.shape))
        for path, leaf in parameters.flat(base.abstract_model(task)[1]).items()
    }


@functools.cache
def small(sharing="shared"):
    task = make_task(sharing)
    return task, base.abstract_model(task)[0], parameters.nested(filled(task))


@pytest.fixture(scope="module")
def answered():
    """What the two parts say of the batch, one after the other, and the samples between them."""
    task, graphdef, params = small("shared")
    batch = conftest.make_batch()

    @jax.jit
    def run(params):
        discriminator, generator = task.parts(parameters.merge(graphdef, params))
        logits = generator.mlm_logits(generator.encoder(batch), batch["masked_lm_positions"])
        seeds = replaced_tokens.row_seeds(None, batch["input_ids"])
        sampled = replaced_tokens.sample(logits, seeds)
        corrupted, is_replaced = replaced_tokens.replaced(batch, sampled)
        found = discriminator.replaced_logits({**batch, "input_ids": corrupted})
        means = task.evaluate(parameters.merge(graphdef, params), batch)
        return logits, sampled, corrupted, is_replaced, found, means

    return {name: np.asarray(values) for name, values in batch.items()}, *run(params)


def test_both_losses_and_all_scores_equal_a_reference_in_float64(answered):
    batch, logits, sampled, corrupted, is_replaced, found, means = answered
    logits, found = np.float64(logits), np.float64(found)
    losses, hits, count = 0.0, 0, 0
    rows, places = batch["masked_lm_positions"].shape
    wanted_ids, wanted_labels = batch["input_ids"].copy(), np.zeros_like(corrupted)
    for row in range(rows):
        for place in range(places):
            if not batch["masked_lm_weights"][row, place]:
                continue
            label, position = (
                batch[f"masked_lm_{name}"][row, place] for name in ("ids", "positions")
            )
            losses += np.log(np.exp(logits[row, place]).sum()) - logits[row, place, label]
            hits, count = hits + (logits[row, place].argmax() == label), count + 1
            wanted_ids[row, position] = sampled[row, place]
            wanted_labels[row, position] = sampled[row, place] != label
    np.testing.assert_array_equal(corrupted, wanted_ids)
    np.testing.assert_array_equal(is_replaced, wanted_labels)
    real = batch["input_mask"] == 1
    y, x = wanted_labels[real], found[real]
    probability = 1 / (1 + np.exp(-x))
    binary = -(y * np.log(probability) + (1 - y) * np.log(1 - probability))
    pairs = [
        (found[row, i] > found[row, j]) + 0.5 * (found[row, i] == found[row, j])
        for row in range(rows)
        for i in np.flatnonzero(real[row] & (wanted_labels[row] == 1))
        for j in np.flatnonzero(real[row] & (wanted_labels[row] == 0))
    ]
    assert 0 < (x > 0).sum() < x.size and 0 < y.sum() < y.size
    wanted = {
        "mlm_loss": losses / count,
        "mlm_accuracy": hits / count,
        "discriminator_loss": binary.mean(),
        "replaced_share": y.mean(),
        "discriminator_precision": y[x > 0].mean(),
        "discriminator_recall": (x[y == 1] > 0).mean(),
        "discriminator_auc": np.mean(pairs),
    }
    assert {name: mean.value() for name, mean in means.items()} == pytest.approx(wanted, rel=1e-5)


def test_a_sample_that_is_the_original_is_no_replacement():
    batch = {name: np.asarray(values) for name, values in conftest.make_batch().items()}
    corrupted, is_replaced = replaced_tokens.replaced(batch, jnp.asarray(batch["masked_lm_ids"]))
    assert not is_replaced.any()
    rows, places = np.nonzero(batch["masked_lm_weights"])
    positions = batch["masked_lm_positions"][rows, places]
    np.testing.assert_array_equal(corrupted[rows, positions], batch["masked_lm_ids"][rows, places])
    # Places of weight 0 point at the first position, and change nothing there.
    batch["masked_lm_positions"] = batch["masked_lm_positions"] * (batch["masked_lm_weights"] > 0)
    sampled = jnp.full(batch["masked_lm_ids"].shape, 7)
    rest = np.ones(corrupted.shape, bool)
    rest[rows, batch["masked_lm_positions"][rows, places]] = False
    corrupted, is_replaced = replaced_tokens.replaced(batch, sampled)
    np.testing.assert_array_equal(np.asarray(corrupted)[rest], batch["input_ids"][rest])
    assert not np.asarray(is_replaced)[rest].any()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_have_the_generators_distribution(temperature):
    logits = jnp.asarray([0.0, 1.0, -1.0, 2.0, 0.5, -4.0, -0.5]) / temperature
    rows, places = 400, 50
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 60, (rows, 12)))
    seeds = replaced_tokens.row_seeds(jax.random.key(1), ids)
    spread = jnp.broadcast_to(logits, (rows, places, len(logits)))
    drawn = np.asarray(jax.jit(replaced_tokens.sample)(spread, seeds))
    expected = np.asarray(jax.nn.softmax(logits), np.float64) * drawn.size
    counts = np.bincount(drawn.ravel(), minlength=len(logits))
    # Chi-square of 6 degrees of freedom: above 22.5 once in a thousand.
    assert ((counts - expected) ** 2 / expected).sum() < 22.5
    # What is drawn in one row tells nothing of the next, nor in one place of the next.
    for left, right in ((drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1])):
        both = (left == 3).mean() * (right == 3).mean()
        assert ((left == 3) & (right == 3)).mean() == pytest.approx(both, abs=0.015)


def test_the_noise_has_gumbels_mean_spread_and_tail():
    seeds = layers.mask_seeds(jax.random.key(0), (8,))
    noise = np.asarray(layers.gumbel_noise(seeds, (8, 100, 500)), np.float64).ravel()
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.01)
    assert noise.std() == pytest.approx(math.pi / math.sqrt(6), rel=0.01)
    for height in (3.0, 8.0):
        above = -math.expm1(-math.exp(-height))
        error = 4 / math.sqrt(above * noise.size)
        assert (noise > height).mean() == pytest.approx(above, rel=error)


def test_a_rows_samples_depend_on_key_and_row_alone():
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 60, (8, 12)))
    key = jax.random.key(3)
    row_seeds = jax.jit(replaced_tokens.row_seeds)
    first, second = row_seeds(key, ids)
    np.testing.assert_array_equal([first[5:], second[5:]], row_seeds(key, ids[5:]))
    assert len(set(np.asarray(first).tolist())) == len(set(np.asarray(second).tolist())) == 8
    other = row_seeds(jax.random.fold_in(key, 1), ids)
    assert not np.any(np.asarray(first) == other[0])
    swapped = ids[:, ::-1]
    assert not np.any(np.asarray(first) == row_seeds(key, swapped)[0])


@functools.cache
def gradients(sharing):
    """The gradients of the generator's objective and of the discriminator's, by path."""
    task, graphdef, params = small(sharing)
    batch = conftest.make_batch()

    @jax.jit
    def run(params):
        def total(params, name):
            means = task.loss(parameters.merge(graphdef, params), batch, key=jax.random.key(0))
            return means[name].total

        return [jax.grad(total)(params, name) for name in ("mlm_loss", "discriminator_loss")]

    return [parameters.flat(tree) for tree in jax.device_get(run(params))]


def is_zero(array):
    return not np.any(array)


def test_shared_embeddings_get_both_gradients_and_everything_else_one():
    of_generator, of_discriminator = gradients("shared")
    shared = {f"{SHARED}.{name}" for name in ("word", "position", "segment", "norm")}
    for path in of_generator:
        is_shared = path.rpartition(".")[0] in shared
        is_generators = path.startswith("generator.")
        assert is_zero(of_generator[path]) == (not is_shared and not is_generators), path
        if not path.endswith("key.bias"):  # which has no gradient but rounding
            assert is_zero(of_discriminator[path]) == is_generators, path
    assert not any(path.startswith(f"{THEIRS}.word") for path in of_generator)


@pytest.mark.slow
def test_the_sum_is_that_of_two_models_which_are_separate():
    task, graphdef, params = small("shared")
    batch = conftest.make_batch()
    whole = embedding_sharing.apart(params)
    separate = make_task("separate")
    separate_graph = base.abstract_model(separate)[0]

    def total(params, task, graphdef):
        means = task.loss(parameters.merge(graphdef, params), batch, key=None)
        return means["mlm_loss"].total + 50 * means["discriminator_loss"].total

    gradient = jax.jit(jax.grad(total), static_argnums=(1, 2))
    ours = parameters.flat(gradient(params, task, graphdef))
    theirs = parameters.flat(gradient(whole, separate, separate_graph))
    for name in ("word.embedding", "position.embedding", "segment.embedding", "norm.scale"):
        both = theirs[f"{SHARED}.{name}"] + theirs[f"{THEIRS}.{name}"]
        np.testing.assert_allclose(ours[f"{SHARED}.{name}"], both, rtol=1e-4, atol=1e-5)
        assert not is_zero(theirs[f"{SHARED}.{name}"]) and not is_zero(theirs[f"{THEIRS}.{name}"])


@pytest.mark.slow
def test_disentangled_tables_get_no_gradient_from_the_discriminator():
    of_generator, of_discriminator = gradients("gradient_disentangled")
    for table in ("word", "position"):
        assert is_zero(of_discriminator[f"{THEIRS}.{table}.embedding"])
        assert not is_zero(of_generator[f"{THEIRS}.{table}.embedding"])
        assert not is_zero(of_discriminator[f"{SHARED}.{table}_delta.embedding"])
        assert is_zero(of_generator[f"{SHARED}.{table}_delta.embedding"])
        assert f"{SHARED}.{table}.embedding" not in of_generator


def test_the_rows_of_both_tables_equal_those_of_their_sum():
    task, graphdef, params = small("gradient_disentangled")
    batch, params = conftest.make_batch(), jax.tree.map(jnp.asarray, params)
    of_both = task.parts(parameters.merge(graphdef, params))[0].encoder.embeddings
    whole = {"encoder": embedding_sharing.apart(params)["encoder"]}
    whole["rtd_head"] = params["rtd_head"]
    of_sum = parameters.merge(replaced_tokens.discriminator_graph(task.encoder), whole)
    assert isinstance(of_both.word, embedding_sharing.WordsOfBoth)
    np.testing.assert_array_equal(of_both(batch), of_sum.encoder.embeddings(batch))


@pytest.mark.parametrize("sharing", embedding_sharing.SHARINGS)
def test_what_is_made_whole_and_stored_again_is_as_before_and_in_every_rule_table(sharing):
    sizes = dataclasses.replace(SIZES, language_embeddings=2)
    nested = parameters.nested(filled(make_task(sharing, sizes)))
    stored, whole = parameters.flat(nested), embedding_sharing.apart(nested)
    assert embedding_sharing.apart(whole).keys() == whole.keys()
    for encoder in (whole["encoder"], whole["generator"]["encoder"]):
        assert set(encoder["embeddings"]) - {"projection"} == set(embedding_sharing.SHARED)
    again = embedding_sharing.as_stored(parameters.flat(whole), stored)
    for path, value in stored.items():
        np.testing.assert_allclose(again[path], value, atol=1e-7, err_msg=path)
    params = base.abstract_model(make_task(sharing, MESH_SIZES))[1]
    mesh = sharding.make_mesh(ALL_DEVICES[:4], data=2, tensor=2)
    for table in sharding.RULES:
        sharding.shardings(mesh, params, params, rule_table=table)
    assert len(set(jax.tree.leaves(optim.rate_multipliers(HALVING, params)))) == 3


@pytest.mark.slow
def test_projections_and_the_last_layer_begin_uniform_and_tables_as_one():
    task = make_task("gradient_disentangled", dataclasses.replace(SIZES, hidden_size=128))
    params = jax.device_get(jax.jit(lambda: parameters.split(task.init(nnx.Rngs(0)))[1])())
    found = set()
    for path, value in parameters.flat(params).items():
        if path.endswith("kernel") and np.abs(value).max() > 0.04:  # two sigmas
            found.add(path)
            limit = math.sqrt(6 / sum(value.shape))
            assert np.abs(value).max() == pytest.approx(limit, rel=0.05)
            assert np.std(value) == pytest.approx(limit / math.sqrt(3), rel=0.2)
    assert found == {
        *(f"{path}.projection.kernel" for path in (SHARED, THEIRS)),
        "rtd_head.output.kernel",
    }
    whole = parameters.flat(embedding_sharing.apart(params))
    for table in ("word", "position"):
        ours, theirs = (whole[f"{path}.{table}.embedding"] for path in (SHARED, THEIRS))
        np.testing.assert_array_equal(ours, theirs)


def test_the_level_of_chance_is_the_entropy_of_what_is_replaced():
    found = replaced_tokens.chance({"replaced_share": 0.1, "discriminator_loss": 0.3})
    assert found == {"share_loss": pytest.approx(0.325083, rel=1e-5)}
    assert replaced_tokens.chance({"replaced_share": 0.0}) == {}
    assert replaced_tokens.chance({"mlm_loss": 1.0}) == {}


def test_the_generator_is_the_model_but_for_its_own_options():
    config = config_lib.default_config()
    config.model.update(vocab_size=60, hidden_size=128, num_attention_heads=2)
    config.pretraining.update(objective="replaced_tokens", pair_loss="none")
    config.pretraining.generator.num_hidden_layers = 3
    config.model.dtype = "float32"
    sizes = dataclasses.replace(SIZES, **dict(config.model))
    task = replaced_tokens.of_options(sizes, config.pretraining)
    options = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 1}
    options |= {"intermediate_size": 128, "embedding_size": 128}
    assert task.generator == dataclasses.replace(sizes, **options)
    config.pretraining.generator.embeddings = "separate"
    assert replaced_tokens.of_options(sizes, config.pretraining).generator.embedding_width == 32
