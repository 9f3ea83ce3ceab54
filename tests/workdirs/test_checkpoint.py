"""Claims about checkpoints: what is saved comes back bit for bit, or its fault is named."""

import asyncio
import contextlib
import dataclasses
import errno
import os
import pathlib
import resource
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from etils import epath

from bertjax.devices import sharding
from bertjax.models import parameters
from bertjax.training import optim, state
from bertjax.workdirs import checkpoint, checkpoint_storage

RETENTION = checkpoint.RetentionOptions()
KEEP_ALL = checkpoint.RetentionOptions(keep_last=1000)
# When orbax cannot read an array or write a file, it leaves coroutines of a closed loop behind.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """What cannot be read is read again at once, then when what orbax removes behind it is gone."""
    monkeypatch.setattr(checkpoint_storage, "RETRY_SECONDS", (0.0, 0.3))


META = {"config": {"seed": 3}, "skipped": {"in_a_row": 0, "total": 1}}


@pytest.fixture(scope="module")
def trained():
    """A state of few parameters of a model, in which no leaf is zero or like another."""
    rng = np.random.default_rng(0)
    shapes = {
        "encoder.embeddings.word.embedding": (96, 32),
        "encoder.layers.0.attention.query.kernel": (32, 32),
        "encoder.layers.0.intermediate.kernel": (32, 64),
        "encoder.layers.0.output.kernel": (64, 32),
        "mlm_head.dense.kernel": (32, 32),
        "mlm_head.bias": (96,),
    }
    params = parameters.nested({name: np.zeros(shape) for name, shape in shapes.items()})
    optimizer = optim.make_optimizer(optim.OptimizerOptions(), params)

    def draw(leaf):
        if leaf.dtype == np.int32:
            return np.int32(7)
        return rng.standard_normal(leaf.shape, np.float32)

    drawn = jax.tree.map(draw, (params, jax.eval_shape(optimizer.init, params)))
    return state.TrainState(np.int32(5), *drawn)


def placements(tree, *, data=1, tensor=1, rule_table="data_parallel"):
    mesh = sharding.make_mesh(jax.devices()[: data * tensor], data=data, tensor=tensor)
    return sharding.shardings(mesh, tree.params, tree, rule_table=rule_table)


def on_devices(tree, step=None, **where):
    placed = jax.device_put(tree, placements(tree, **where))
    step = placed.step if step is None else jax.device_put(np.int32(step), placed.step.sharding)
    return dataclasses.replace(placed, step=step)


def abstract(tree, **where):
    def shape(leaf, placement):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placement)

    return jax.tree.map(shape, tree, placements(tree, **where))


@pytest.fixture(scope="module")
def kept(tmp_path_factory, trained):
    """A workdir with steps 4 and 6."""
    workdir = tmp_path_factory.mktemp("saved")
    save_steps(workdir, trained, [4, 6])
    return workdir


@pytest.fixture
def saved(kept, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(kept, tmp_path / "saved")


def save_steps(workdir, tree, steps, retention=RETENTION):
    with checkpoint.Checkpointer(workdir, retention) as checkpointer:
        for step in steps:
            checkpointer.save(on_devices(tree, step), META)
        checkpointer.wait()


def restore(workdir, tree, **where):
    with checkpoint.Checkpointer(workdir, RETENTION) as checkpointer:
        return checkpointer.restore(abstract(tree, **where))


def saved_steps(workdir):
    names = (workdir / checkpoint.DIRECTORY).iterdir()
    return sorted(int(path.name) for path in names if path.name.isdigit())


def assert_identical(found, expected):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    for one, other in zip(found, expected, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def data_file(workdir, step, item):
    """The file that holds the arrays of an item."""
    files = (workdir / checkpoint.DIRECTORY / str(step) / item).rglob("*")
    return max((path for path in files if path.is_file()), key=lambda path: path.stat().st_size)


PLACES = [
    {"data": 1},
    {"data": 8, "rule_table": "fsdp"},
    {"data": 2, "tensor": 4, "rule_table": "fsdp_tensor"},
    {"data": 2, "tensor": 2, "rule_table": "tensor"},
]


@pytest.mark.parametrize("saved_at", PLACES[:2], ids=str)
def test_a_state_comes_back_bit_for_bit_on_any_mesh(tmp_path, trained, saved_at):
    assert restore(tmp_path, trained) is None
    with checkpoint.Checkpointer(tmp_path, RETENTION) as checkpointer:
        assert checkpointer.latest_step() is checkpointer.read_meta() is None
        checkpointer.save(on_devices(trained, **saved_at), META)
    for place in PLACES:
        restored = restore(tmp_path, trained, **place)
        assert_identical(restored.state, trained)
        assert jax.tree.structure(restored.state) == jax.tree.structure(trained)
        assert restored.meta.items() >= META.items()
        shardings = jax.tree.leaves(placements(trained, **place))
        for leaf, expected in zip(jax.tree.leaves(restored.state), shardings, strict=True):
            assert leaf.sharding.is_equivalent_to(expected, leaf.ndim)


def test_the_newest_the_regular_and_the_best_checkpoints_stay(tmp_path, trained):
    retention = checkpoint.RetentionOptions(
        keep_last=2, keep_every_steps=4, keep_best=1, best_metric="nsp_loss"
    )
    losses = {2: float("nan"), 3: 1.0, 6: 2.0, 9: 1.5}
    for steps in (range(1, 6), range(6, 12)):  # a resumed run knows the scores of before
        with checkpoint.Checkpointer(tmp_path, retention) as checkpointer:
            for step in steps:
                checkpointer.save(on_devices(trained, step), META)
                if step in losses:
                    scores = {"mlm_loss": -step, "nsp_loss": losses[step]}
                    checkpointer.add_evaluation(step, scores, {})
    assert saved_steps(tmp_path) == [3, 4, 8, 10, 11]


def test_a_checkpoint_is_kept_once_the_run_asks_for_it(tmp_path, trained):
    retention = checkpoint.RetentionOptions(keep_last=1, always_kept=(1,))
    with checkpoint.Checkpointer(tmp_path, retention) as checkpointer:
        for step in range(1, 5):
            if step == 2:
                checkpointer.keep([step])
            checkpointer.save(on_devices(trained, step), META)
    assert saved_steps(tmp_path) == [1, 2, 4]


@pytest.mark.parametrize("is_higher_better", [False, True])
def test_the_two_best_of_a_loss_are_the_lowest_and_of_a_score_the_highest(is_higher_better):
    retention = checkpoint.RetentionOptions(
        keep_last=1, keep_best=2, best_metric="x", is_higher_better=is_higher_better
    )
    distances = {step: abs(step - 2.6) for step in range(1, 7)}
    scores = {step: -far if is_higher_better else far for step, far in distances.items()}
    assert checkpoint.retained(range(1, 7), scores, retention) == {2, 3, 6}
    del scores[2]  # not evaluated
    assert checkpoint.retained(range(1, 7), scores, retention) == {3, 4, 6}
    always = dataclasses.replace(retention, always_kept=(1, 9))
    assert checkpoint.retained(range(1, 7), scores, always) == {1, 3, 4, 6}


def test_a_metric_that_the_task_lacks_ranks_nothing_and_a_step_is_saved_once(tmp_path, trained):
    retention = checkpoint.RetentionOptions(keep_last=1, best_metric="f1")
    with checkpoint.Checkpointer(tmp_path, retention) as checkpointer:
        for step in (1, 2):
            for _ in range(2):
                checkpointer.save(on_devices(trained, step), META)
            checkpointer.add_evaluation(step, {"mlm_loss": 1.0}, {})
    assert saved_steps(tmp_path) == [2]


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def remove_item(path):
    item = next(p for p in path.parents if p.name in ("params", "opt_state"))
    shutil.rmtree(item)


@pytest.mark.parametrize(
    ("damage", "item"),
    [
        (cut, "params"),
        (flip_byte, "opt_state"),
        (remove_item, "params"),
        (remove_item, "opt_state"),
    ],
)
def test_a_damaged_checkpoint_is_reported_set_aside_passed_over_and_saved_again(
    trained, saved, caplog, damage, item
):
    damage(data_file(saved, 6, item))
    with checkpoint.Checkpointer(saved, RETENTION) as checkpointer:
        restored = checkpointer.restore(abstract(trained))
        assert int(restored.state.step) == checkpointer.latest_step() == 4
        assert_identical(restored.state.params, trained.params)
        assert_identical(restored.state.opt_state, trained.opt_state)
        assert "A checkpoint cannot be read and is set aside, step 6: " in caplog.text
        assert saved_steps(saved) == [4]
        assert [p.name for p in (saved / checkpoint.UNREADABLE_DIRECTORY).iterdir()] == ["6_0"]
        checkpointer.save(on_devices(trained, 6), META)
    assert int(restore(saved, trained).state.step) == 6


@pytest.mark.parametrize("item", ["params", "opt_state"])
def test_values_that_orbax_reads_but_are_not_those_saved_are_set_aside(
    trained, saved, tmp_path, caplog, item
):
    save_steps(tmp_path / "other", jax.tree.map(lambda leaf: leaf + 1, trained), [6])
    place = pathlib.Path(checkpoint.DIRECTORY, "6", item)
    shutil.rmtree(saved / place)
    shutil.copytree(tmp_path / "other" / place, saved / place)
    assert int(restore(saved, trained).state.step) == 4
    assert f"the values of item '{item}' are not those that were saved" in caplog.text


def test_a_checkpoint_without_meta_is_passed_over(trained, saved):
    shutil.rmtree(saved / checkpoint.DIRECTORY / "6" / "meta")
    with checkpoint.Checkpointer(saved, RETENTION) as checkpointer:
        assert checkpointer.read_meta()["config"] == META["config"]
        assert int(checkpointer.restore(abstract(trained)).state.step) == 4


def test_when_none_can_be_read_all_are_named_and_nothing_starts_afresh(trained, saved):
    cut(data_file(saved, 4, "params"))
    remove_item(data_file(saved, 6, "opt_state"))
    aside = saved / checkpoint.UNREADABLE_DIRECTORY
    with pytest.raises(checkpoint.CheckpointError, match=r"(?s)step 6: .*step 4: ") as caught:
        restore(saved, trained)
    assert str(aside) in str(caught.value)
    assert len(list(aside.iterdir())) == 2
    with pytest.raises(checkpoint.CheckpointError, match="remove that directory|Remove that"):
        restore(saved, trained)
    shutil.rmtree(aside)
    assert restore(saved, trained) is None


@contextlib.contextmanager
def failing(error, times):
    """Makes reading arrays fail so often, as a disk does that has a bad moment."""
    left = [times]
    original = ocp.StandardCheckpointHandler.restore

    def fail(self, *args, **options):
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return original(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ocp.StandardCheckpointHandler, "restore", fail)
        yield


ERRORS = [
    OSError(errno.EIO, "Input/output error"),
    # As orbax hands on what tensorstore says.
    ValueError("RESOURCE_EXHAUSTED: Failed to open [OS error 24: EMFILE Too many open files]"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_passing_error_of_the_disk_costs_nothing(trained, saved, error):
    with failing(error, times=2):
        assert int(restore(saved, trained).state.step) == 6
    assert saved_steps(saved) == [4, 6]


def test_an_error_of_the_disk_that_stays_stops_and_moves_nothing(trained, saved, monkeypatch):
    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", raising(ERRORS[0]))
    message = "step 6 in .* cannot be read now.*Nothing was moved"
    with pytest.raises(checkpoint.CheckpointError, match=message), failing(ERRORS[1], times=99):
        restore(saved, trained)
    assert saved_steps(saved) == [4, 6]
    assert not (saved / checkpoint.UNREADABLE_DIRECTORY).exists()


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/6"])
def test_what_cannot_be_looked_at_is_not_taken_for_what_is_not_there(
    trained, saved, monkeypatch, name
):
    stat = os.stat

    def fail(path, *args, **options):
        if os.fspath(path) == f"{saved}/{name}":
            raise ERRORS[0]
        return stat(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fail)
        with pytest.raises((checkpoint.CheckpointError, OSError), match=str(saved)):
            restore(saved, trained)
    assert int(restore(saved, trained).state.step) == 6


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


def test_what_is_whole_but_does_not_fit_or_another_process_cannot_read_stays(
    trained, saved, monkeypatch
):
    fewer = dataclasses.replace(trained, params={"mlm_head": trained.params["mlm_head"]})
    with pytest.raises(checkpoint.CheckpointError, match="step 6 in .* is whole, but"):
        restore(saved, fewer)
    assert saved_steps(saved) == [4, 6]
    monkeypatch.setattr(checkpoint, "_all_processes", lambda is_so: False)
    with pytest.raises(checkpoint.CheckpointError, match="another process could not read it"):
        restore(saved, trained)
    assert saved_steps(saved) == [4, 6]


@pytest.mark.parametrize("content", ["", '{"metric": 1}'])
def test_scores_that_cannot_be_read_are_no_scores(trained, saved, content, caplog):
    path = saved / checkpoint.DIRECTORY / "6" / "evaluation.json"
    path.write_text(content)
    with checkpoint.Checkpointer(saved, RETENTION) as checkpointer:
        assert int(checkpointer.restore(abstract(trained)).state.step) == 6
        checkpointer.add_evaluation(4, {"mlm_loss": 1.0}, {})
    assert checkpoint.load_params(saved, "best")[2] == 4
    assert str(path.parent) in caplog.text


def test_what_an_evaluation_tuned_after_the_save_is_in_the_meta_item(saved, monkeypatch):
    with checkpoint.Checkpointer(saved, RETENTION) as checkpointer:
        assert not checkpointer.is_evaluated(6)
        checkpointer.add_evaluation(6, {"f1": 1.0}, {"null_threshold": 0.25})
        checkpointer.add_evaluation(9, {"f1": 1.0}, {"null_threshold": 0.5})  # of no checkpoint
        assert checkpointer.is_evaluated(6)
    assert checkpoint.load_params(saved)[1]["tuned"] == {"null_threshold": 0.25}
    assert checkpoint.read_meta(saved)[0]["tuned"] == {"null_threshold": 0.25}
    # An error of the disk is not read as the absence of a score.
    monkeypatch.setattr(checkpoint_storage.json, "loads", raising(ERRORS[0]))
    with pytest.raises(checkpoint.CheckpointError, match="so the best is unknown"):
        checkpoint.Checkpointer(saved, RETENTION)


def test_a_checkpoint_has_its_name_only_when_all_of_it_is_on_disk(tmp_path, trained, monkeypatch):
    synced, sync = [], os.fsync

    def record(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    save_steps(tmp_path, trained, [4])
    directory = tmp_path / checkpoint.DIRECTORY / "4"
    files = [path.relative_to(directory) for path in directory.rglob("*") if path.is_file()]
    drafts = [pathlib.Path(path) for path in synced if "4.orbax-checkpoint-tmp" in path]
    for file in files:
        assert any(path.parts[-len(file.parts) :] == file.parts for path in drafts), file
    assert synced[-1] == str(tmp_path / checkpoint.DIRECTORY)


def test_what_an_interrupted_save_left_is_gone_before_anything_else_is_done(tmp_path, monkeypatch):
    # Removed behind our back it was still going when the next one in the process opened.
    draft = tmp_path / checkpoint.DIRECTORY / f"7{ocp.utils.TMP_DIR_SUFFIX}"
    draft.mkdir(parents=True)
    removers, remove = [], shutil.rmtree

    def removed(*arguments, **options):
        removers.append(threading.current_thread())
        remove(*arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", removed)
    with checkpoint.Checkpointer(tmp_path, RETENTION):
        assert not draft.exists()
        assert set(removers) == {threading.main_thread()}


def test_a_state_donated_right_after_save_is_saved_as_it_was(tmp_path):
    rng = np.random.default_rng(0)
    params = {"kernel": rng.standard_normal((512, 1024), np.float32)}
    first = state.TrainState(np.int32(0), params, optax.scale_by_adam().init(params))
    expected = {0: params["kernel"] + np.float32(1)}
    step_on = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    before = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 1, tree))(
        jax.device_put(first, here)
    )
    running = dataclasses.replace(step_on(before), step=jnp.int32(0))
    assert before.params["kernel"].is_deleted()
    with checkpoint.Checkpointer(tmp_path, KEEP_ALL) as checkpointer:
        for step in range(5):
            checkpointer.save(running, META)
            following = step_on(step_on(running))
            running = dataclasses.replace(following, step=jnp.int32(step + 1))
            expected[step + 1] = (expected[step] + np.float32(1)) + np.float32(1)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), running
    )
    for step in reversed(range(5)):
        with checkpoint.Checkpointer(tmp_path, KEEP_ALL) as checkpointer:
            restored = checkpointer.restore(shapes)
        assert int(restored.state.step) == step
        assert_identical(restored.state.params["kernel"], expected[step])
        assert int(restored.state.opt_state.count) == 2 * step + 1
        shutil.rmtree(tmp_path / checkpoint.DIRECTORY / str(step))


# Arrays that are written together may lie in files of any size; a kernel of 32 x 64 is in one file.
SMALLER_THAN_A_KERNEL = 6_000


@contextlib.contextmanager
def no_file_larger_than(size):
    """Makes the kernel refuse writes beyond `size` bytes of a file, as a full disk does."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_save_that_the_disk_refuses_names_directory_and_last_good_step(tmp_path, trained):
    save_steps(tmp_path, trained, [4])
    with (
        pytest.raises(checkpoint.CheckpointError) as caught,
        checkpoint.Checkpointer(tmp_path, RETENTION) as checkpointer,
        no_file_larger_than(SMALLER_THAN_A_KERNEL),
    ):
        checkpointer.save(on_devices(trained, 6), META)
        checkpointer.wait()
    message = str(caught.value)
    assert str(tmp_path / checkpoint.DIRECTORY) in message
    assert "the last good one is step 4" in message
    assert saved_steps(tmp_path) == [4]
    restored = restore(tmp_path, trained)
    assert int(restored.state.step) == 4
    assert_identical(restored.state.params, trained.params)
    save_steps(tmp_path, trained, [6])  # there is room again
    assert int(restore(tmp_path, trained).state.step) == 6


def test_a_save_that_failed_is_reported_by_the_next_or_the_end_and_hides_no_other_error(
    tmp_path, trained, caplog
):
    with (
        pytest.raises(checkpoint.CheckpointError, match="there is no earlier one"),
        checkpoint.Checkpointer(tmp_path, RETENTION) as checkpointer,
        no_file_larger_than(SMALLER_THAN_A_KERNEL),
    ):
        checkpointer.save(on_devices(trained, 4), META)
        checkpointer.save(on_devices(trained, 6), META)
    assert saved_steps(tmp_path) == []
    for error, words in ((None, "could not be written"), (KeyboardInterrupt, "^$")):
        with (
            pytest.raises(error or checkpoint.CheckpointError, match=words),
            no_file_larger_than(SMALLER_THAN_A_KERNEL),
            checkpoint.Checkpointer(tmp_path, RETENTION) as checkpointer,
        ):
            checkpointer.save(on_devices(trained, 4), META)
            if error:
                raise error
    assert "a checkpoint could not be written to" in caplog.text


def test_load_params_gives_numpy_parameters_meta_and_step_and_reads_no_optimizer(trained, saved):
    remove_item(data_file(saved, 6, "opt_state"))
    params, meta, step = checkpoint.load_params(saved)
    assert step == 6 and meta["config"] == META["config"]
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(params))
    assert jax.tree.structure(params) == jax.tree.structure(trained.params)
    assert_identical(params, trained.params)


def test_an_average_is_saved_with_the_parameters_and_read_where_it_was_evaluated(tmp_path, trained):
    averaged = dataclasses.replace(trained, ema=jax.tree.map(lambda leaf: leaf + 1, trained.params))
    averaged = jax.device_put(averaged, placements(averaged))
    for is_evaluated in (True, False):
        directory = tmp_path / str(is_evaluated)
        meta = META | {"config": {"evaluation": {"ema": is_evaluated}}}
        with checkpoint.Checkpointer(directory, RETENTION) as checkpointer:
            checkpointer.save(averaged, meta)
            checkpointer.wait()
            assert_identical(checkpointer.restore(abstract(averaged)).state, averaged)
        for ema, is_average in ((None, is_evaluated), (True, True), (False, False)):
            params, _, _ = checkpoint.load_params(directory, ema=ema)
            assert_identical(params, averaged.ema if is_average else averaged.params)


def test_a_run_without_an_average_has_three_items(saved):
    items = {path.name for path in (saved / "checkpoints" / "6").iterdir() if path.is_dir()}
    assert items == {"params", "opt_state", "meta"}
    with pytest.raises(ValueError, match="holds no average.*ema_decay"):
        checkpoint.load_params(saved, ema=True)


@pytest.mark.parametrize("damage", [cut, flip_byte])
def test_load_params_refuses_damaged_parameters(saved, damage):
    damage(data_file(saved, 6, "params"))
    with pytest.raises(checkpoint.CheckpointError, match="the checkpoint of step 6 in .* cannot"):
        checkpoint.load_params(saved)


def test_load_params_says_what_a_directory_without_checkpoints_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="give the workdir of a run"):
        checkpoint.load_params(tmp_path)
    (tmp_path / checkpoint.DIRECTORY).mkdir()
    with pytest.raises(FileNotFoundError, match="holds no complete checkpoint"):
        checkpoint.load_params(tmp_path)


def test_parameters_alone_are_used_but_not_resumed(trained, tmp_path):
    with checkpoint.Checkpointer(tmp_path, RETENTION) as checkpointer:
        checkpointer.save_params(trained.params, META)
    params, meta, step = checkpoint.load_params(tmp_path)
    assert_identical(params, trained.params)
    assert step == 0 and meta["skipped"] == META["skipped"]
    with (
        checkpoint.Checkpointer(tmp_path, RETENTION) as checkpointer,
        pytest.raises(checkpoint.CheckpointError, match=f"init_from={tmp_path} and another"),
    ):
        checkpointer.read_meta()
    assert saved_steps(tmp_path) == [0]


def test_narrow_moments_are_saved_and_a_flipped_bit_of_them_is_noticed(tmp_path, trained):
    def narrowed(leaf):
        return leaf.astype(jnp.bfloat16) if leaf.ndim > 1 else leaf

    narrow = dataclasses.replace(trained, opt_state=jax.tree.map(narrowed, trained.opt_state))
    save_steps(tmp_path, narrow, [6])
    restored = restore(tmp_path, narrow, data=4, tensor=2)
    assert_identical(restored.state.opt_state, narrow.opt_state)
    before = checkpoint_storage.fingerprint(narrow.opt_state)
    assert before == checkpoint_storage.fingerprint(jax.tree.map(jnp.asarray, narrow.opt_state))
    flipped = jax.tree.map(np.copy, narrow.opt_state)
    leaf = next(it for it in jax.tree.leaves(flipped) if it.dtype == jnp.bfloat16)
    leaf.view(np.uint16)[0, 0] ^= 1
    assert checkpoint_storage.fingerprint(flipped) != before


def test_a_process_that_could_not_write_waits_for_no_other(monkeypatch):
    """orbax lets it wait at a barrier, inside `finally`, for those that wait for it elsewhere."""
    waited = []
    wait = lambda *, key, timeout_ms: waited.append(key)  # noqa: E731
    monkeypatch.setattr(ocp.multihost, "get_barrier_sync_fn", lambda: wait)
    barrier = checkpoint_storage._barrier_unless_failing()
    with pytest.raises(OSError, match="no space"):
        try:
            raise OSError("no space")
        finally:
            barrier(key="failed", timeout_ms=1000)
    barrier(key="well", timeout_ms=1000)
    assert waited == ["well"]


def test_a_process_waits_for_no_directory_that_it_cannot_look_at(tmp_path, monkeypatch):
    """orbax asks whether process 0 has made it, and takes an error of the disk for "not yet"."""
    checkpoint_storage.make_manager(epath.Path(tmp_path / "checkpoints"), set).close()
    metadata_store = ocp._src.metadata.array_metadata_store
    monkeypatch.setattr(metadata_store.multihost, "is_primary_host", lambda host: False)
    monkeypatch.setattr(checkpoint_storage, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(checkpoint_storage, "RETRY_SECONDS", ())
    looks, names_in = threading.Semaphore(0), checkpoint_storage.names_in

    def looked(directory):
        names = names_in(directory)
        looks.release()
        return names

    monkeypatch.setattr(checkpoint_storage, "names_in", looked)
    store, made = metadata_store.Store(), epath.Path(tmp_path / "made")

    async def made_while_waiting():
        waiting = asyncio.ensure_future(store._maybe_create_base_dir(made))
        for _ in range(3):
            await asyncio.to_thread(looks.acquire)
        assert not waiting.done()
        made.mkdir()
        await waiting
        with monkeypatch.context() as disk:
            disk.setattr(type(made), "exists", lambda path: False)
            await store._maybe_create_base_dir(made)

    asyncio.run(made_while_waiting())
    lost = OSError(errno.EIO, "the disk is gone", str(tmp_path))
    monkeypatch.setattr(type(made), "iterdir", raising(lost))
    with pytest.raises(checkpoint_storage.UnreadableError, match="the disk is gone"):
        asyncio.run(store._maybe_create_base_dir(epath.Path(tmp_path / "never")))


def test_the_host_and_the_devices_find_the_same_fingerprints():
    rng = np.random.default_rng(0)
    arrays = {
        "matrix": rng.normal(size=(5, 7)).astype(np.float32),
        "of other strides": rng.normal(size=(4, 6)).astype(np.float32).T,
        "number": np.array(-3, np.int32),
        "none": np.zeros((0, 3), np.float32),
    }
    with jax.transfer_guard("disallow"):  # on the host, where the arrays are
        before = checkpoint_storage.fingerprint(arrays)
    assert len(set(before)) == len(arrays)
    assert checkpoint_storage.fingerprint(jax.tree.map(jnp.asarray, arrays)) == before
    arrays["matrix"].view(np.uint32)[2, 3] ^= 1
    after = checkpoint_storage.fingerprint(arrays)
    assert [one != other for one, other in zip(before, after, strict=True)].count(True) == 1
