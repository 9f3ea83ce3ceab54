"""Meshes and rule tables: eight fake devices compute what one does, and lie as declared."""

import dataclasses
import functools
import importlib
import math
import re

import jax
import numpy as np
import pytest

from bertjax import jobs, models
from bertjax.convert.families import eurobert, modernbert
from bertjax.data import masking
from bertjax.devices import sharding
from bertjax.finetuning import texts, wrapped_tasks
from bertjax.models import lora, parameters, placement
from bertjax.plan import compiled
from bertjax.tasks import base as tasks_base
from bertjax.tasks import pretraining, replaced_tokens
from bertjax.training import optim, program, schedules, state
from tests import conftest, marks, small_modules, small_packed

MESHES = {
    "data_parallel": {"data": 8},
    "fsdp": {"data": 8},
    "tensor": {"data": 2, "tensor": 4},
    "fsdp_tensor": {"data": 4, "tensor": 2},
}


BERT = dataclasses.replace(conftest.TINY, num_hidden_layers=1)
# Its masks must not depend on where the rows lie.
DROPPING = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
RELATIVE = {
    kind: dataclasses.replace(BERT, relative=kind, relative_buckets=8, relative_span=32)
    for kind in ("disentangled", "t5_bias")
}
DEBERTA = dataclasses.replace(
    RELATIVE["disentangled"],
    **{"position_embedding": "none", "type_vocab_size": 0, "num_hidden_layers": 2},
    **{"mask_decoder": True, "replaced_head": "with_first"},
)
# One head of keys, which no tensor axis divides, and an untied table.
EUROBERT = dataclasses.replace(BERT, **eurobert.FAMILY.traits, num_key_value_heads=1)
MODERN = dataclasses.replace(BERT, **modernbert.FAMILY.traits, window=2, global_every=0)


@dataclasses.dataclass(frozen=True)
class Case:
    """What is trained. A weight may be `off` by so much where another order of sums makes it."""

    encoder: models.EncoderConfig
    optimizer: optim.OptimizerOptions
    accumulation_steps: int = 1
    is_packed: bool = False
    off: float = 2e-5


# Adam divides by the root of tiny squares: where a gradient is zero but for rounding (biases of the
# keys), a weight may move by a share of the learning rate, unless epsilon is large.
CASES = {
    "adamw": Case(dataclasses.replace(BERT, **DROPPING), optim.OptimizerOptions(), 2, off=2e-3),
    "packed": Case(
        MODERN, optim.OptimizerOptions("stable_adamw", eps=1e-3, ema_decay=0.7), is_packed=True
    ),
    **{
        kind: Case(it, optim.OptimizerOptions(eps=1e-3))
        for kind, it in (RELATIVE | {"eurobert": EUROBERT}).items()
    },
    "muon": Case(BERT, optim.OptimizerOptions("muon", eps=1e-3, ema_decay=0.7)),
}


def packed_batch():
    """Sixteen rows of up to four sequences, each with its pair label, and masked tokens."""
    lengths = [[7, 9, 4], [20], [5, 3, 6, 5], [12, 3]] * 4
    rows, _ = small_packed.rows(lengths, 20, most=4)
    rows |= masking.mask_tokens(
        *(rows["input_ids"], rows["sequence_ids"]),
        options=masking.MaskingOptions(max_predictions_per_seq=5),
        vocab_size=96, mask_id=4, special_ids=range(5), rng=np.random.default_rng(0),
    )  # fmt: skip
    rows["input_mask"] = (rows["sequence_ids"] != 0).astype(np.int32)
    return rows | {"example_weights": np.ones(16, np.float32)}


def make_learner(config, accumulation_steps=1, optimizer=None):
    return state.make_learner(
        pretraining.Pretraining(config),
        optimizer=optimizer or optim.OptimizerOptions(),
        schedule=schedules.ScheduleOptions("linear", 1e-2, 0, 100),
        seed=0,
        accumulation_steps=accumulation_steps,
    )


def placed_step(learner, mesh, rule_table, *, split_kernels=False):
    """Returns the learner on a mesh: its jitted step, where its state and its rows lie."""
    shapes = jax.eval_shape(learner.init)
    placed = sharding.shardings(
        mesh, shapes.params, shapes, rule_table=rule_table, split_kernels=split_kernels
    )
    learner = dataclasses.replace(learner, gradients_where=placed.params)
    rows = sharding.batch_sharding(mesh)
    step = jax.jit(
        learner.train_step,
        in_shardings=(placed, rows),
        out_shardings=(placed, jax.sharding.NamedSharding(mesh, sharding.P())),
        donate_argnums=0,
        compiler_options=conftest.QUICK_COMPILER,
    )
    return step, placed, rows


def three_steps(learner, batch, mesh, rule_table, *, split_kernels=False):
    step, placed, rows = placed_step(learner, mesh, rule_table, split_kernels=split_kernels)
    with jax.set_mesh(mesh):
        train_state = jax.jit(
            learner.init, out_shardings=placed, compiler_options=conftest.QUICK_COMPILER
        )()
        losses = []
        for _ in range(3):
            train_state, report = step(train_state, jax.device_put(batch, rows))
            losses.append([mean.value() for mean in report.means.values()])
    return losses, jax.device_get((train_state.params, train_state.ema))


@functools.cache
def on_one_device(name):
    """Three steps."""
    case = CASES[name]
    learner = make_learner(case.encoder, case.accumulation_steps, case.optimizer)
    batch = packed_batch() if case.is_packed else conftest.make_batch()
    mesh = sharding.make_mesh(jax.devices()[:1], data=1)
    return case, learner, batch, three_steps(learner, batch, mesh, "data_parallel")


SLOW = [
    ("adamw", "data_parallel", True),
    ("packed", "fsdp_tensor", True),
    ("muon", "fsdp_tensor", True),
    ("disentangled", "fsdp_tensor", True),
    ("eurobert", "fsdp_tensor", True),
]
WEEKLY = [
    ("adamw", "data_parallel", False),
    ("adamw", "tensor", True),
    ("adamw", "fsdp_tensor", True),
    ("packed", "fsdp", True),
    ("muon", "data_parallel", True),
    ("t5_bias", "fsdp", True),
    ("t5_bias", "tensor", True),
    ("eurobert", "data_parallel", False),
]


@pytest.mark.parametrize(
    ("name", "rule_table", "split_kernels"), marks.cases(SLOW + WEEKLY, slow=SLOW)
)
def test_eight_devices_equal_one(name, rule_table, split_kernels):
    case, learner, batch, (expected_losses, expected) = on_one_device(name)
    mesh = sharding.make_mesh(jax.devices()[:8], **MESHES[rule_table])
    losses, found = three_steps(learner, batch, mesh, rule_table, split_kernels=split_kernels)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    assert (found[1] is not None) == bool(case.optimizer.ema_decay)
    close = functools.partial(np.testing.assert_allclose, atol=case.off)
    jax.tree.map(close, found, expected)


@pytest.mark.parametrize(
    "rule_table", marks.cases(("data_parallel", "fsdp_tensor"), slow=("fsdp_tensor",))
)
def test_a_table_that_is_added_to_the_generators_trains_on_eight_devices_as_on_one(rule_table):
    generator = dataclasses.replace(DEBERTA, num_hidden_layers=1)
    learner = state.make_learner(
        replaced_tokens.ReplacedTokens(DEBERTA, generator, "gradient_disentangled"),
        optimizer=optim.OptimizerOptions(eps=1e-3, clip_apart="generator"),
        schedule=schedules.ScheduleOptions("linear", 1e-2, 0, 100),
        seed=0,
    )
    one = sharding.make_mesh(jax.devices()[:1], data=1)
    mesh = sharding.make_mesh(jax.devices()[:8], **MESHES[rule_table])
    batch = conftest.make_batch()
    expected_losses, expected = three_steps(learner, batch, one, "data_parallel")
    losses, found = three_steps(learner, batch, mesh, rule_table, split_kernels=True)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [BERT, EUROBERT], ids=["tied", "untied"])
@pytest.mark.parametrize("entries", [96, 512])  # fewer and more than the tokens of a batch
def test_a_large_table_split_by_entries_trains_as_a_whole_one(monkeypatch, entries, sizes):
    encoder = dataclasses.replace(sizes, vocab_size=entries)
    learner = make_learner(encoder, optimizer=optim.OptimizerOptions(eps=1e-3))
    batch = conftest.make_batch()
    one, eight = (sharding.make_mesh(jax.devices()[:count], data=count) for count in (1, 8))
    expected_losses, expected = three_steps(learner, batch, one, "data_parallel")
    monkeypatch.setattr(placement, "LARGE_TABLE", 96)
    losses, found = three_steps(learner, batch, eight, "data_parallel", split_kernels=True)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), found, expected)


@pytest.mark.slow
def test_no_device_is_sent_a_large_table_or_its_gradient(monkeypatch):
    monkeypatch.setattr(placement, "LARGE_TABLE", 512)
    encoder = dataclasses.replace(BERT, vocab_size=512)
    learner, mesh = make_learner(encoder), sharding.make_mesh(jax.devices()[:8], data=8)
    step, placed, _ = placed_step(learner, mesh, "data_parallel", split_kernels=True)
    assert placed.params["encoder"]["embeddings"]["word"]["embedding"].spec == sharding.P("data")
    batch = conftest.make_batch()
    with jax.set_mesh(mesh):
        lowered = step.lower(jax.eval_shape(learner.init), batch)
    assert f"[512,{BERT.hidden_size}]" not in str(lowered.compile().as_text())


@pytest.mark.slow
@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_the_gradient_of_the_tied_table_goes_over_the_devices_once(accumulation_steps):
    learner = make_learner(BERT, accumulation_steps)
    mesh = sharding.make_mesh(jax.devices()[:8], data=8)
    step, *_ = placed_step(learner, mesh, "data_parallel")  # whole parameters on each device
    batch = conftest.make_batch()
    with jax.set_mesh(mesh):
        lowered = step.lower(jax.eval_shape(learner.init), batch)
    text = lowered.compile().as_text()
    table = rf"f32\[(1,)?{BERT.vocab_size},{BERT.hidden_size}\]"
    entry = text[text.index("\nENTRY") :]  # outside of the loop over micro-batches
    for part in (text, entry):
        lines = [line for line in part.splitlines() if " all-reduce(" in line]
        # Over the tensor axis, of one device, a sum sends nothing.
        sums = [line.split(" all-reduce(")[0] for line in lines if "{{0},{1}," not in line]
        assert len(re.findall(table, "".join(sums))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "devices", "rule_table"),
    [("bert_base", 4, "data_parallel"), ("bert_large", 16, "fsdp")],
)
def test_recipes_lower_on_their_own_mesh_and_shard_as_declared(recipe, devices, rule_table):
    config = importlib.import_module(f"configs.{recipe}").get_config()
    config.update(sharding=rule_table, split_kernels=False)
    config.model.num_hidden_layers = 2  # the others repeat them
    assert config.mesh.data * config.mesh.tensor == devices
    mesh = sharding.make_mesh(jax.devices()[:devices], **config.mesh)
    job = jobs.JOBS[config.task].abstract(program.resolve(config, "tpu"))
    built = program.build(job, mesh)
    shapes = built.abstract_state
    placed = jax.tree.map(lambda leaf: leaf.sharding, shapes)
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    share = sharding.bytes_per_device(shapes, placed) / whole
    assert share == 1.0 if rule_table == "data_parallel" else share < 1.05 / devices
    with jax.set_mesh(mesh):
        batch = compiled.abstract_batch(built, job.phases[-1])
        lowered = built.train_step.lower(shapes, batch, built.abstract_step_inputs)
    new_state, _ = lowered.out_info
    assert jax.tree.structure(new_state) == jax.tree.structure(shapes)
    kernel = placed.params["encoder"]["layers"]["1"]["attention"]["query"]["kernel"]
    moment = next(leaf for leaf in placed.opt_state if hasattr(leaf, "mu")).mu
    moment = moment["encoder"]["layers"]["1"]["attention"]["query"]["kernel"]
    expected = sharding.P() if rule_table == "data_parallel" else sharding.P("data", None)
    assert kernel.spec == moment.spec == expected
    assert f'"{"data"}"' in lowered.as_text()


def test_kernels_that_data_devices_all_hold_are_split_where_they_divide_them():
    mesh = sharding.make_mesh(jax.devices()[:8], **MESHES["data_parallel"])
    expected = {
        "dense.kernel": ((16, 6), ("data", None)),
        "dense.bias": ((16,), ()),
        "wide.kernel": ((6, 16), (None, "data")),
        "odd.kernel": ((6, 6), ()),  # eight devices divide neither
        "word.embedding": ((16, 8), ()),
        "lstm.kernel": ((16, 8), ()),  # would be gathered for every token
    }
    tree = {}
    for name, (shape, _) in expected.items():
        part, leaf = name.split(".")
        tree.setdefault(part, {})[leaf] = jax.ShapeDtypeStruct(shape, np.float32)
    placed = sharding.shardings(mesh, tree, tree, rule_table="data_parallel", split_kernels=True)
    found = {name: where.spec for name, where in parameters.flat(placed).items()}
    assert found == {name: sharding.P(*spec) for name, (_, spec) in expected.items()}


@pytest.mark.parametrize(
    ("rule_table", "kernel"), [("fsdp", ("data", None)), ("tensor", ("data", "tensor"))]
)
def test_what_a_table_splits_stays_as_it_says(tiny, rule_table, kernel):
    mesh = sharding.make_mesh(jax.devices()[:8], **MESHES[rule_table])
    _, params = tasks_base.abstract_model(pretraining.Pretraining(tiny))

    def specs(**options):
        placed = sharding.shardings(mesh, params, params, rule_table=rule_table, **options)
        return {name: where.spec for name, where in parameters.flat(placed).items()}

    before, after = specs(), specs(split_kernels=True)
    if rule_table == "fsdp":
        assert after == before
    query = "encoder.layers.0.attention.query"
    assert before[f"{query}.bias"] == after[f"{query}.bias"]
    assert tuple(after[f"{query}.kernel"]) == kernel


@pytest.mark.parametrize("kind", RELATIVE)
def test_the_table_of_distances_is_whole_on_meshes_that_divide_no_heads(kind):
    mesh = sharding.make_mesh(jax.devices()[:8], **MESHES["fsdp"])
    _, params = tasks_base.abstract_model(pretraining.Pretraining(RELATIVE[kind]))
    placed = parameters.flat(sharding.shardings(mesh, params, params, rule_table="fsdp"))
    assert placed["encoder.relative.table.embedding"].spec == sharding.P()
    assert placed["encoder.embeddings.word.embedding"].spec == sharding.P(None, "data")


def test_by_default_kernels_and_their_moments_are_split():
    config = program.resolve(importlib.import_module("configs.smoke").get_config(), "cpu")
    config.model.vocab_size, config.mesh.data = 1000, 8
    mesh = sharding.make_mesh(jax.devices()[:8], data=8)
    built = program.build(jobs.JOBS[config.task].abstract(config), mesh)
    moments = next(leaf for leaf in built.abstract_state.opt_state if hasattr(leaf, "mu"))

    def share(tree):
        placed = jax.tree.map(lambda leaf: leaf.sharding, tree)
        whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
        return sharding.bytes_per_device(tree, placed) / whole

    assert share(built.abstract_state.params["encoder"]["layers"]) < 1.2 / 8
    assert share(built.abstract_state.params["encoder"]["embeddings"]) == 1
    assert share(moments.nu["encoder"]["layers"]) < 1.2 / 8  # vectors are whole


def test_a_dimension_that_does_not_divide_and_a_mesh_that_is_not_filled_are_errors(tiny):
    params = jax.eval_shape(make_learner(tiny).init).params
    mesh = sharding.make_mesh(jax.devices()[:5], data=5)
    with pytest.raises(ValueError, match=r"embeddings\.word\.embedding has a dimension of 32.* 5 "):
        sharding.shardings(mesh, params, params, rule_table="fsdp")
    with pytest.raises(ValueError, match=r"data=4 x tensor=1 = 4 devices, but there are 3"):
        sharding.make_mesh(jax.devices()[:3], data=4)
    with pytest.raises(ValueError, match="at least 1"):
        sharding.make_mesh(jax.devices(), data=0)


def foreign_mesh():
    auto = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((2,), ("rows",), axis_types=auto, devices=jax.devices()[:2])


def test_models_run_under_a_mesh_of_other_axis_names(tiny, batch):
    task = pretraining.Pretraining(tiny)
    graphdef, params = parameters.split(small_modules.made(task.init))
    with jax.set_mesh(foreign_mesh()):
        means = jax.jit(lambda p: task.loss(parameters.merge(graphdef, p), batch, key=None))(params)
    assert np.isfinite(means["mlm_loss"].value())


@pytest.mark.parametrize(
    "rows, heads, slices", [(8, 4, (2, 2)), (6, 4, (6, 2)), (8, 3, (2, 3)), (1, 1, (1, 1))]
)
def test_each_device_works_on_its_slices_of_the_axes_that_divide(rows, heads, slices):
    seen = []

    def double(x, row):
        seen.append((x.shape, row.shape))
        return [2 * x + row[:, None]]

    x, row = np.arange(rows * heads).reshape(rows, heads), np.arange(rows)
    specs = [sharding.P(sharding.DATA, sharding.TENSOR), sharding.P(sharding.DATA)]

    def run(x, row):
        return placement.per_device(double, (x, row), specs, specs[:1])

    with jax.set_mesh(sharding.make_mesh(jax.devices()[:8], data=4, tensor=2)):
        (y,) = jax.jit(run)(x, row)
    assert set(seen) == {(slices, slices[:1])}
    np.testing.assert_array_equal(y, 2 * x + row[:, None])


def test_without_a_mesh_or_with_a_foreign_one_a_function_gets_everything():
    seen = []

    def shape_of(x):
        seen.append(x.shape)
        return [x]

    def run(x):
        return placement.per_device(shape_of, (x,), [sharding.P(sharding.DATA)], [sharding.P()])

    jax.jit(run)(np.zeros(4))
    with jax.set_mesh(foreign_mesh()):
        jax.jit(lambda x: run(x))(np.zeros(4))
    assert seen == [(4,), (4,)]


@pytest.mark.parametrize("rule_table", MESHES)
def test_the_factors_of_lora_lie_on_every_device_whatever_their_rank(tiny, rule_table):
    task = wrapped_tasks.LowRank(texts.Classification(tiny, 3), lora.LoraOptions(rank=3))
    _, params = tasks_base.abstract_model(task)
    count = math.prod(MESHES[rule_table].values())
    mesh = sharding.make_mesh(jax.devices()[:count], **MESHES[rule_table])
    placed = sharding.shardings(mesh, params, params, rule_table=rule_table)
    assert {where.spec for where in jax.tree.leaves(placed["lora"])} == {sharding.P()}
    # The rest lies as it does without factors.
    plain = {name: value for name, value in params.items() if name != "lora"}
    rest = {name: value for name, value in placed.items() if name != "lora"}
    assert rest == sharding.shardings(mesh, plain, plain, rule_table=rule_table)
