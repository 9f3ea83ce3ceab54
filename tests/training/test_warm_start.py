"""Claims about config.init_from: what a fresh run takes over, and what it refuses to start from."""

import dataclasses
import functools
import logging
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from bertjax import config as config_lib
from bertjax import jobs, recipes, train
from bertjax.convert import pretrained
from bertjax.devices import sharding
from bertjax.finetuning import texts
from bertjax.models import embedding_sharing, parameters
from bertjax.tasks import base as tasks_base
from bertjax.tasks import next_token, pretraining, replaced_tokens, span_boundary
from bertjax.tokenization import tokenizer
from bertjax.training import starting, state, warm_start
from bertjax.workdirs import checkpoint, reader
from configs import smoke
from tests import conftest, small_byte_bpe, small_modules, small_records
from tests.convert import weights

pytestmark = pytest.mark.usefixtures("quick_runs")
ENTRIES = small_records.vocabulary().vocab_size
SIZES = dataclasses.replace(conftest.TINY, vocab_size=ENTRIES)
MORE_WORDS = [*small_records.WORDS, "n0", "n1", "n2"]
WORD = "encoder.embeddings.word.embedding"
BIAS = "mlm_head.bias"


def cold(sizes=SIZES, seed=0, pair_loss="nsp"):
    """A fresh state; the parameters stand for the optimizer."""
    return state_of(pretraining.Pretraining(sizes, pair_loss=pair_loss), seed)


def state_of(task, seed=0):
    params = parameters.split(small_modules.made(task.init, seed=seed))[1]
    return state.TrainState(jnp.zeros((), jnp.int32), params, opt_state=())


def flat(params):
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {parameters.path_name(path): np.asarray(leaf) for path, leaf in leaves}


@functools.cache
def shapes_of(sizes=SIZES, pair_loss="nsp"):
    return tasks_base.abstract_model(pretraining.Pretraining(sizes, pair_loss=pair_loss))[1]


def make_source(sizes=SIZES, pair_loss="nsp", **changes):
    """Weights that no run of these tests begins with."""
    rng = np.random.default_rng(1)
    params = {
        name: rng.normal(size=leaf.shape).astype(np.float32)
        for name, leaf in parameters.flat(shapes_of(sizes, pair_loss)).items()
    }
    source = pretrained.Pretrained(
        config=sizes,
        params=params,
        vocabulary=small_records.vocabulary(),
        head="pretraining" if pair_loss == "nsp" else "masked_lm",
        labels={},
        source="the weights",
        unused=(),
    )
    return dataclasses.replace(source, **changes)


def make_target(sizes=SIZES, pair_loss="nsp", **changes):
    target = warm_start.Target(
        encoder=sizes,
        params=shapes_of(sizes, pair_loss),
        vocabulary=small_records.vocabulary(),
        max_seq_length=16,
    )
    return dataclasses.replace(target, **changes)


def resized_target(words=MORE_WORDS, **changes):
    vocabulary = small_records.vocabulary(words)
    sizes = dataclasses.replace(SIZES, vocab_size=vocabulary.vocab_size)
    return make_target(sizes, vocabulary=vocabulary, **changes)


def fault_lines(source, target):
    with pytest.raises(ValueError, match="the weights, does not fit this run") as caught:
        warm_start.match(source, target)
    return str(caught.value).splitlines()[1:]


def test_what_the_source_has_replaces_what_the_seed_drew_and_training_leaves_it_alone():
    source = make_source()
    before = jax.tree.map(np.copy, dict(source.params))
    made = warm_start.apply(warm_start.match(source, make_target()), cold())
    assert not made.opt_state
    jax.tree.map(np.testing.assert_array_equal, flat(made.params), source.params)
    table = made.params["encoder"]["embeddings"]["word"]["embedding"]
    jax.jit(lambda x: x + 1, donate_argnums=0)(table)
    jax.tree.map(np.testing.assert_array_equal, dict(source.params), before)


def test_heads_that_the_source_lacks_are_those_of_a_cold_start_and_others_are_unused():
    source = make_source(pair_loss="none", unused=("cls.seq_relationship.weight",))
    matched = warm_start.match(source, make_target())
    parts, leaves = ("pooler", "nsp_head"), ("kernel", "bias")
    heads = {f"{part}.dense.{leaf}" for part in parts for leaf in leaves}
    assert set(matched.fresh) == heads
    assert matched.unused == ("cls.seq_relationship.weight",)
    made, fresh = flat(warm_start.apply(matched, cold()).params), flat(cold().params)
    for name in made:
        expected = fresh[name] if name in heads else source.params[name]
        np.testing.assert_array_equal(made[name], expected, err_msg=name)
    target = make_target(pair_loss="none")
    matched = warm_start.match(make_source(), target)
    assert not matched.fresh and set(matched.unused) == heads


LARGER = {"hidden_size": 48, "num_hidden_layers": 3}
LARGER |= {"num_attention_heads": 6, "intermediate_size": 80}
LARGE = dataclasses.replace(SIZES, **LARGER)


def test_a_larger_model_begins_as_a_smaller_one_repeated():
    source, target = make_source(), make_target(LARGE, may_grow=True)
    matched = warm_start.match(source, target)
    assert not matched.fresh and set(matched.values) == set(parameters.flat(target.params))
    for part in (
        "hidden_size 32 to 48",
        "num_hidden_layers 2 to 3",
        "layers 0, 1, 1 in this order",
    ):
        assert part in " ".join(matched.notes)
    # 32 values of width stand at 8 to 39 of 48, heads of 8 at 1 to 4 of 6, 64 units at 8 of 80.
    width = (np.arange(48) - 8) % 32
    heads = np.concatenate([8 * ((head - 1) % 4) + np.arange(8) for head in range(6)])
    units = (np.arange(80) - 8) % 64
    for ours, theirs in ((0, 0), (1, 1), (2, 1)):
        for name, axes in {
            "attention.query.kernel": (width, heads),
            "attention.key.bias": (heads,),
            "attention.output.kernel": (heads, width),
            "output_norm.scale": (width,),
            "intermediate.kernel": (width, units),
            "output.kernel": (units, width),
        }.items():
            expected = source.params[f"encoder.layers.{theirs}.{name}"][np.ix_(*axes)]
            found = matched.values[f"encoder.layers.{ours}.{name}"]
            np.testing.assert_array_equal(found, expected, err_msg=name)
    np.testing.assert_array_equal(matched.values[WORD], source.params[WORD][:, width])
    np.testing.assert_array_equal(matched.values[BIAS], source.params[BIAS])


@pytest.mark.parametrize("kind", ["disentangled", "t5_bias"])
def test_the_layers_of_a_larger_model_share_its_repeated_table_of_distances(kind):
    relative = {"relative": kind, "relative_buckets": 4, "relative_span": 16}
    source = make_source(dataclasses.replace(SIZES, **relative))
    large = dataclasses.replace(LARGE, **relative)
    matched = warm_start.match(source, make_target(large, may_grow=True))
    assert not matched.fresh
    # Width and heads are repeated as in the layers.
    places = (np.arange(6) - 1) % 4 if kind == "t5_bias" else (np.arange(48) - 8) % 32
    for name, value in source.params.items():
        if name.startswith("encoder.relative."):
            np.testing.assert_array_equal(matched.values[name], value[..., places], err_msg=name)
    other = dataclasses.replace(large, relative_buckets=6)
    if kind == "disentangled":
        lines = fault_lines(source, make_target(other, may_grow=True))
        assert any("relative_buckets is 6" in line for line in lines), lines


def test_the_norm_that_a_first_layer_lacks_is_fresh_in_its_repetitions():
    one = dataclasses.replace(MODERN, num_hidden_layers=1)
    three = dataclasses.replace(MODERN, num_hidden_layers=3)
    matched = warm_start.match(make_source(one), make_target(three, may_grow=True))
    assert matched.fresh and {re.sub(r"\d", "N", name) for name in matched.fresh} == {
        f"encoder.layers.N.attention_norm.{leaf}" for leaf in ("scale", "bias")
    }


MODERN = dataclasses.replace(
    SIZES, layer="pre_norm", pooler="normed", position_embedding="rotary", type_vocab_size=0
)


def test_a_normed_pooler_goes_on_from_the_masked_token_head():
    params = tasks_base.abstract_model(texts.Classification(MODERN, 2))[1]
    source = make_source(MODERN, pair_loss="none")
    matched = warm_start.match(source, make_target(MODERN, params=params, has_own_heads=True))
    assert {name.split(".")[0] for name in matched.fresh} == {"classifier"}
    assert matched.unused == ("mlm_head.bias",)
    for leaf in ("dense.kernel", "dense.bias", "norm.scale", "norm.bias"):
        taken, head = matched.values[f"pooler.{leaf}"], source.params[f"mlm_head.{leaf}"]
        np.testing.assert_array_equal(taken, head)


WINDOW, BASE = {"window": 4, "global_every": 0}, {"rotary_base": 160_000.0}


@pytest.mark.parametrize(
    ("theirs", "ours", "phase", "told"),
    [
        ({}, BASE, "", ["model.rotary_base=10000"]),
        ({}, BASE, "phase1", ["phases.phase1.rotary_base=10000"]),
        # Layers with a window turn by 10,000 in both.
        (WINDOW | BASE | {"local_rotary_base": 1e4}, WINDOW, "", ["model.rotary_base=160000"]),
        (WINDOW, WINDOW | BASE, "", ["model.rotary_base=10000", "model.local_rotary_base=10000"]),
    ],
)
def test_another_rotary_base_is_told_of(theirs, ours, phase, told, caplog):
    source = make_source(dataclasses.replace(MODERN, **theirs), pair_loss="none")
    target = make_target(dataclasses.replace(MODERN, **ours), "none", phase=phase)
    warm_start.match(source, target)
    assert re.findall(r"--config\.(\S+) keeps it", caplog.text) == told


def test_a_head_that_predicts_elsewhere_is_warned_of(caplog):
    for theirs, said in (
        (False, "at its own position, and this run at the position before it"),
        (True, "at the position before it, and this run at its own position"),
    ):
        caplog.clear()
        warm_start.match(make_source(is_shifted=theirs), make_target(is_shifted=theirs))
        assert "predicts a masked token at" not in caplog.text
        warm_start.match(make_source(is_shifted=theirs), make_target(is_shifted=not theirs))
        assert f"predicts a masked token {said}" in caplog.text


def test_a_run_begins_with_the_rotary_bases_of_its_first_phase(tmp_path, monkeypatch):
    config = smoke.get_config()
    config.model.update(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=4, position_embedding="rotary", dtype="float32",
    )  # fmt: skip
    config.phases.phase1.update(num_steps=1, max_seq_length=16, rotary_base=500.0)
    config.init_from = "weights"
    job = jobs.JOBS["pretraining"].abstract(config)
    targets = []
    monkeypatch.setattr(warm_start, "read", lambda path, target: targets.append(target))
    monkeypatch.setattr(warm_start, "_warn_of_untrained_positions", lambda path, length: None)
    warm_start.of_job(job, {})
    assert [(it.encoder.rotary_base, it.phase) for it in targets] == [(500.0, "phase1")]


def test_every_size_that_differs_is_named_at_once_with_the_flags_to_copy():
    changes = {
        "hidden_size": (32, 16), "num_hidden_layers": (2, 1), "num_attention_heads": (4, 2),
        "intermediate_size": (64, 48), "hidden_act": ("gelu", "gelu_tanh"),
        "max_position_embeddings": (24, 12), "type_vocab_size": (2, 3),
        "layer_norm_eps": (1e-12, 1e-5),
    }  # fmt: skip
    theirs = {name: there for name, (_, there) in changes.items()}
    source = make_source(dataclasses.replace(SIZES, **theirs))
    *lines, together = fault_lines(source, make_target())
    for name, (ours, there) in changes.items():
        (line,) = (line for line in lines if f"config.model.{name} is" in line)
        assert f"is {ours!r}, the source has {there!r}" in line
        assert f"--config.model.{name}={there}" in line and line.split()[-1] in together
    assert "max_seq_length 16, the source reads at most 12 positions" in lines[-1]
    assert len(lines) == len(changes) + 1


def test_what_a_run_may_choose_anew_is_no_fault():
    changes = {
        "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2,
        "initializer_range": 0.1, "dtype": "bfloat16", "remat": "full",
    }  # fmt: skip
    warm_start.match(make_source(dataclasses.replace(SIZES, **changes)), make_target())


@pytest.mark.parametrize("rounded", [0, 128])  # a table that was rounded up has rows to spare
def test_a_larger_vocabulary_keeps_the_sources_rows_and_adds_those_of_a_cold_start(rounded):
    source = make_source(dataclasses.replace(SIZES, vocab_size=rounded or ENTRIES))
    vocabulary = small_records.vocabulary(MORE_WORDS)
    sizes = dataclasses.replace(SIZES, vocab_size=rounded or vocabulary.vocab_size)
    target = make_target(sizes, vocabulary=vocabulary, resize_vocabulary=True)
    made = flat(warm_start.apply(warm_start.match(source, target), cold(sizes)).params)
    fresh = flat(cold(sizes).params)
    for name in (WORD, BIAS):
        np.testing.assert_array_equal(made[name][:ENTRIES], source.params[name][:ENTRIES])
        np.testing.assert_array_equal(made[name][ENTRIES:], fresh[name][ENTRIES:])


def of_words(words, **changes):
    made = small_records.vocabulary(words)
    return {"sizes": of_rows(made.vocab_size), "vocabulary": made, **changes}


def of_rows(rows):
    return dataclasses.replace(SIZES, vocab_size=rows)


ALL_SIZES = [*(f"config.model.{name} is .*, the source has" for name in LARGER), "All flags togeth"]
WITHOUT, X_FOR_W0 = {"vocabulary": None}, ["x", *small_records.WORDS[1:]]
WIDER = dataclasses.replace(SIZES, hidden_size=64)
RESIZED = of_words(["x", *MORE_WORDS], resize_vocabulary=True)
CASED = small_records.vocabulary(lowercase=False, strip_accents=True)


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        ({}, {"sizes": LARGE}, ALL_SIZES),
        ({"sizes": LARGE}, {"may_grow": True}, ALL_SIZES),
        ({}, {"sizes": WIDER, "may_grow": True}, ["heads are repeated whole"]),
        ({}, of_words(MORE_WORDS), ["98 entries, .* 95, .*: --config.resize_vocabulary"]),
        ({}, of_words(small_records.WORDS[:-1]), ["94 entries, the source's goes on to 95"]),
        ({}, of_words(X_FOR_W0), ["1 of 95 .*: entry 5 is 'x'.* 'w0'.*--config.exchange_vocab"]),
        ({}, RESIZED, ["90 of 95 entries differ: entry 5 .*; entry 6 .*; entry 7 [^;]*; new"]),
        ({}, {"vocabulary": CASED}, ["the data has lowercase False, the source's has True"]),
        (WITHOUT, {"sizes": of_rows(64)}, ["is 64, .* 95 rows: --config.model.vocab_size=95"]),
        (WITHOUT, {"sizes": of_rows(128)}, ["is 128, .* 95 rows: --config.resize_vocabulary"]),
        ({}, WITHOUT | {"exchanges": True}, ["the data has no .*config.exchange_vocabulary"]),
        (WITHOUT, {"exchanges": True}, ["the weights has no .*config.exchange_vocabulary"]),
    ],
)
def test_sizes_and_vocabularies_that_do_not_fit_are_named(theirs, ours, expected):
    lines = fault_lines(make_source(**theirs), make_target(**ours))
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.search(pattern, line)


def test_the_same_entries_merged_otherwise_are_refused():
    made, prefixed = (small_byte_bpe.vocabulary(add_prefix_space=it) for it in (False, True))
    sizes = of_rows(made.vocab_size)
    source = make_source(sizes, vocabulary=made)
    warm_start.match(source, make_target(sizes, vocabulary=made))
    (line,) = fault_lines(source, make_target(sizes, vocabulary=prefixed))
    assert "merges bytes otherwise than the source's" in line


def test_parameters_that_are_missing_misshapen_or_not_numbers_are_faults():
    params = make_source().params
    del params["encoder.layers.1.output.bias"]
    params["encoder.layers.0.output.bias"] = np.zeros(31, np.float32)
    params[BIAS][7] = np.nan
    lacking, misshapen, no_number = fault_lines(make_source(params=params), make_target())
    assert "lacks the parameter encoder.layers.1.output.bias" in lacking
    assert "encoder.layers.0.output.bias has shape (31,)" in misshapen and "(32,)" in misshapen
    assert f"{BIAS} holds NaN" in no_number


def test_a_source_or_data_without_a_vocabulary_is_warned_of(caplog):
    warm_start.match(make_source(vocabulary=None), make_target())
    warm_start.match(make_source(), make_target(vocabulary=None))
    assert "the weights has no vocabulary" in caplog.messages[0]
    assert "The data has no vocabulary" in caplog.messages[1]


def test_names_are_logged_with_all_layers_as_one():
    names = [f"encoder.layers.{layer}.output.{leaf}" for layer in range(24) for leaf in "ab"]
    shown = warm_start.grouped([*names, "pooler.dense.bias", "mlm_head.bias"])
    assert shown == "encoder.layers.0-23.* (48), mlm_head.bias, pooler.dense.bias"
    assert warm_start.grouped([f"bert/layer_{n}/kernel/adam_m" for n in (0, 2)]) == (
        "bert/layer_0,2.* (2)"
    )
    assert warm_start.grouped([]) == "none"


@pytest.mark.parametrize(("table", "is_exchanged"), [("tensor", True), ("fsdp", False)])
def test_a_sharded_start_equals_a_replicated_one_and_lies_as_declared(table, is_exchanged):
    mesh = sharding.make_mesh(jax.local_devices()[:4], data=2, tensor=2)
    source, target = make_source(), resized_target(resize_vocabulary=True)
    if is_exchanged:
        source, target, _ = exchanged(rounded=64)
    fresh = cold(target.encoder)
    matched = warm_start.match(source, target)
    placed = sharding.shardings(mesh, fresh.params, fresh.params, rule_table=table)
    on_mesh = dataclasses.replace(fresh, params=jax.device_put(fresh.params, placed))
    made = warm_start.apply(matched, on_mesh).params
    assert jax.tree.map(lambda leaf: leaf.sharding, made) == placed
    replicated = warm_start.apply(matched, fresh).params
    jax.tree.map(np.testing.assert_array_equal, flat(made), flat(replicated))


def make_config(record_dir, **changes):
    """One layer of 32 on small records: 4 steps of 8 sequences on one device."""
    made = smoke.get_config()
    made.data.update(source="records", train_dir=str(record_dir))
    made.model.update(vocab_size=0, hidden_size=32, num_hidden_layers=1, intermediate_size=64)
    made.global_batch_size = 8
    made.phases.phase1.update(num_steps=4, max_seq_length=16)
    made.schedule.update(peak_learning_rate=1e-2, warmup_steps=1)
    made.checkpoint.save_every_steps = 2
    made.update_from_flattened_dict(changes)
    return made


@pytest.fixture(autouse=True, scope="module")
def one_device():
    """Whole runs here are about the loop; the sharded test asks for its devices by itself."""
    devices = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.jax, "devices", lambda: devices)
        yield


# Words, each of which has a row to itself in the records.
PARTS = [*(f"w{n}" for n in range(8)), *(f"##x{n}" for n in range(8))]
JOINED = [f"w{n}x{m}" for n in range(8) for m in range(0, 8, 2)]


@pytest.fixture(scope="module")
def record_dir(tmp_path_factory):
    known = small_records.vocabulary(PARTS)
    directory = tmp_path_factory.mktemp("records") / "train"
    return small_records.write(directory, known=known, is_alike=True)


LONG = {"phases.phase1.num_steps": 120, "checkpoint.save_every_steps": 120}


@pytest.fixture(scope="module")
def first(record_dir, tmp_path_factory):
    """The workdir of a run to start from, which has learnt that the words of a row are alike."""
    workdir = tmp_path_factory.mktemp("first") / "run"
    train.train(make_config(record_dir, **LONG), workdir)
    return workdir


def started(made, workdir):
    """The state with which training would go on, and the loss of one batch at it."""
    run = train.prepare(made, workdir)
    retention = checkpoint.RetentionOptions()
    with jax.set_mesh(run.mesh), checkpoint.Checkpointer(workdir, retention) as checkpointer:
        train_state, *_ = starting.start(run, epath.Path(workdir), checkpointer)
        batch = next(run.job.data.train_batches(run.job.phases[0], start_step=0, rows=None))
        batch.pop("record_positions")
        return train_state, jax.device_get(run.evaluate_step(train_state.params, batch))


def test_a_run_starts_from_the_weights_of_a_workdir_with_its_loss(record_dir, first, tmp_path):
    there, loss = started(make_config(record_dir, **LONG), first)
    made, same_loss = started(make_config(record_dir, init_from=str(first)), tmp_path)
    jax.tree.map(np.testing.assert_array_equal, made.params, there.params)
    jax.tree.map(np.testing.assert_array_equal, same_loss, loss)
    assert (int(there.step), int(made.step)) == (120, 0)
    assert not any(leaf.any() for leaf in jax.tree.leaves(made.opt_state))


@pytest.mark.slow
def test_a_whole_run_starts_from_what_others_have_trained(tmp_path, caplog):
    record_dir = small_records.write(tmp_path / "records")
    source = weights.make("sequence_classification")
    weights.write(source, tmp_path / "source", "huggingface")  # convert/test_formats.py reads all
    made = make_config(record_dir, init_from=str(tmp_path / "source"))
    made.model.update(num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=40)
    made.phases.phase1.num_steps = 2
    made.schedule.peak_learning_rate = 1e-30  # so small that the values stay
    with caplog.at_level(logging.INFO, logger="absl"):
        params = flat(train.train(made, tmp_path / "run").params)
    for name in source.params.keys() & params.keys():
        np.testing.assert_allclose(params[name], source.params[name], rtol=0, atol=1e-20)
    said = caplog.text
    assert "loaded (39): encoder.embeddings.* (5), encoder.layers.0-1.* (32), pooler." in said
    assert "fresh, not in the source (7): mlm_head.bias, mlm_head.dense.* (2), mlm_h" in said
    assert "left unused (2): classifier.bias, classifier.kernel" in said
    assert "no vocabulary" not in said  # the source's is that of the records


@pytest.mark.slow
def test_a_resumed_run_needs_no_source_and_keeps_telling_where_it_began(
    record_dir, first, tmp_path, caplog
):
    source, whole, parts = (tmp_path / name for name in ("source", "whole", "parts"))
    shutil.copytree(first, source)
    expected = train.train(make_config(record_dir, init_from=str(source)), whole)
    shutil.copytree(whole, parts)
    shutil.rmtree(parts / checkpoint.DIRECTORY / "4")
    shutil.rmtree(source)
    made = train.train(make_config(record_dir, init_from="elsewhere"), parts)
    jax.tree.map(np.testing.assert_array_equal, made, expected)
    assert "config.init_from, elsewhere, is not read" in caplog.text
    assert "began from " + str(source) in caplog.text
    assert checkpoint.load_params(parts)[1]["config"]["init_from"] == str(source)


def test_a_source_that_does_not_fit_or_is_not_there_stops_the_run_before_it_writes(
    record_dir, first, tmp_path
):
    other = small_records.write(tmp_path / "other", words=["x", *PARTS[1:]])
    made = make_config(other, **{"init_from": str(first), "model.hidden_size": 16})
    with pytest.raises(ValueError, match="does not fit this run") as caught:
        train.train(made, tmp_path / "warm")
    assert "--config.model.hidden_size=32" in str(caught.value)
    assert "entry 5 is 'x'" in str(caught.value)
    made = make_config(record_dir, init_from=str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match="init_from is .*nothing.*give a w"):
        train.train(made, tmp_path / "warm")
    assert not (tmp_path / "warm" / reader.CONFIG_FILE).exists()


OTHER_WORDS = ["n0", *small_records.WORDS[:40], "w5w1", "##w1", "w91", "☃", "##☃"]


def exchanged(sizes=SIZES, *, rounded=0, task=pretraining.Pretraining, **changes):
    """A source, a target with OTHER_WORDS in another order, and a state of the target."""
    old = small_records.vocabulary([*small_records.WORDS, "n", "##0", "##1", "##w"])
    entries = ["☂", *OTHER_WORDS[::-1], *small_records.SPECIALS[::-1], "[unused1]"]
    new = tokenizer.WordPieceTokenizer(entries)
    sizes = dataclasses.replace(sizes, vocab_size=old.vocab_size)
    rng = np.random.default_rng(1)
    whole = embedding_sharing.apart(state_of(task(sizes)).params)
    params = {
        name: rng.normal(size=value.shape).astype(np.float32) for name, value in flat(whole).items()
    }
    source = make_source(sizes, vocabulary=old, params=params)
    sizes = dataclasses.replace(sizes, vocab_size=rounded or new.vocab_size)
    fresh = state_of(task(sizes))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), fresh.params)
    given = {"params": shapes, "vocabulary": new, "exchanges": True} | changes
    return source, make_target(sizes, **given), fresh


def electra(sharing):
    options = recipes.load("electra").pretraining
    options.generator.update(embeddings=sharing, hidden_size=16, num_attention_heads=2)
    return {"task": lambda sizes: replaced_tokens.of_options(sizes, options)}


FAMILIES = {
    "bert": {},
    "albert": {"sizes": dataclasses.replace(SIZES, embedding_size=8, num_hidden_groups=1)},
    "spanbert": {"task": lambda sizes: span_boundary.SpanBoundary(sizes, "none")},
    "left_to_right": {"task": next_token.NextToken},
    "untied": {"sizes": dataclasses.replace(SIZES, tie_word_embeddings=False)},
    **{it: electra(it) for it in ("shared", "separate", "gradient_disentangled")},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exchanged_vocabulary_changes_the_rows_of_entries_and_nothing_else(family):
    source, target, fresh = exchanged(rounded=63, **FAMILIES[family])
    old, new = source.vocabulary, target.vocabulary
    matched = warm_start.match(source, target)
    made, cold_params = flat(warm_start.apply(matched, fresh).params), flat(fresh.params)
    others = flat(warm_start.with_random_rows(matched, parameters.nested(made), fresh.params))
    stored, tables = embedding_sharing.as_stored(source.params, made), 0
    for name, value in made.items():
        theirs = stored[name]
        if value.shape == theirs.shape:
            np.testing.assert_array_equal(value, theirs, err_msg=name)
            np.testing.assert_array_equal(others[name], theirs, err_msg=name)
            continue
        tables += 1
        for token_id, entry in enumerate(new.vocabulary):
            row, random = value[token_id], cold_params[name][token_id]
            if entry in old.vocabulary:
                np.testing.assert_array_equal(row, theirs[old.vocabulary.index(entry)])
                np.testing.assert_array_equal(others[name][token_id], row)
                continue
            np.testing.assert_array_equal(others[name][token_id], random)
            pieces = PIECES.get(entry, ())
            rows = theirs[[old.vocabulary.index(it) for it in pieces]] if pieces else theirs
            mean = rows.astype(np.float64).mean(axis=0).astype(np.float32)
            np.testing.assert_array_equal(row, mean if pieces else mean + random, err_msg=entry)
        for table in (value, others[name]):  # rounded up
            first = new.vocab_size
            np.testing.assert_array_equal(table[first:], cold_params[name][first:])
    assert tables == sum(value.shape[:1] == (63,) for value in made.values()) >= 2


# New entry -> the old ones that it is cut into.
PIECES = {
    "n0": ["n", "##0"],
    "w5w1": ["w5", "##w", "##1"],
    "##w1": ["##w", "##1"],
    "w91": ["w9", "##1"],
}


def test_an_exchange_for_the_same_vocabulary_is_bit_equal_and_keeps_rows_that_no_entry_has():
    for rows in (ENTRIES, 128):
        sizes = dataclasses.replace(SIZES, vocab_size=rows)
        source, target = make_source(sizes), make_target(sizes, exchanges=True)
        matched = warm_start.match(source, target)
        assert matched.exchange is None
        made = flat(warm_start.apply(matched, cold(sizes)).params)
        assert all(made[name].tobytes() == source.params[name].tobytes() for name in made)


def two_phases(made, only_embeddings=True):
    """Two steps in which only embeddings learn, and one in which all do, each saved."""
    with made.unlocked():
        made.phases.phase2 = config_lib.phase_config()
    made.phases.phase1.update(num_steps=2, only_embeddings=only_embeddings)
    made.phases.phase2.update(num_steps=1, max_seq_length=16)
    made.checkpoint.update(save_every_steps=1, keep_last=9)
    return made


@pytest.mark.slow
def test_embeddings_alone_learn_in_their_phase_and_the_run_resumes_within_it(
    first, tmp_path, caplog
):
    """Before training, the means of old pieces are better than random rows."""
    known = tokenizer.WordPieceTokenizer([JOINED[0], *small_records.SPECIALS[::-1], *JOINED[1:]])
    new, heldout = (
        small_records.write(tmp_path / name, known=known, is_alike=True, seed=seed)
        for seed, name in enumerate(("new", "heldout"), start=1)
    )
    changes = {"init_from": str(first), "exchange_vocabulary": True, "data.eval_dir": str(heldout)}
    changes |= {"data.eval_may_overlap": True, "evaluation.every_steps": 4}
    changes |= {"evaluation.global_batch_size": 8}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    with caplog.at_level(logging.INFO, logger="absl"):
        expected = train.train(two_phases(make_config(new, **changes)), whole)
    (losses,) = re.findall(
        r"Vocabulary exchanged: mlm_loss on heldout before training is (\d\.\d+) nats; with random "
        r"rows for the new entries it would be (\d\.\d+)",
        caplog.text,
    )
    means, random = map(float, losses)
    assert means < random - 0.5
    assert "only embeddings learn" in caplog.text
    source, *params = (
        flat(checkpoint.load_params(path, step)[0])
        for path, step in [(first, "newest"), (whole, 1), (whole, 2), (whole, 3)]
    )
    for name, value in source.items():
        is_row = name in (WORD, BIAS)
        assert [np.array_equal(it[name], value) for it in params[:2]] == [not is_row] * 2, name
    assert sum(np.array_equal(params[2][name], value) for name, value in source.items()) == 0
    shutil.copytree(whole, parts)
    for step in (2, 3):
        shutil.rmtree(parts / checkpoint.DIRECTORY / str(step))
    made = train.train(two_phases(make_config(new, **changes)), parts)
    jax.tree.map(np.testing.assert_array_equal, made, expected)
    for step in (2, 3):
        shutil.rmtree(parts / checkpoint.DIRECTORY / str(step))
    with pytest.raises(ValueError, match="phases.phase1.only_embeddings"):
        train.train(two_phases(make_config(new, **changes), only_embeddings=False), parts)
    changes["optimizer.frozen"] = (re.escape(WORD), re.escape(BIAS))
    with pytest.raises(ValueError, match="only_embeddings is True, but config.optimizer.frozen"):
        train.prepare(two_phases(make_config(new, **changes)), tmp_path / "frozen")
