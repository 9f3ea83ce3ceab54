"""A process whose file system fails: saves and restores a small state, once for every call of it.

Started by test_storage with the interposed calls; prints a JSON object of what came out.
"""

import ctypes
import dataclasses
import json
import pathlib
import shutil
import sys
import time

import jax
import numpy as np

from bertjax.workdirs import checkpoint, checkpoint_storage

RETENTION = checkpoint.RetentionOptions()
META = {"config": {}, "skipped": {"in_a_row": 0, "total": 0}}
checkpoint_storage.RETRY_SECONDS = (0.0, 0.0, 0.0)
calls = ctypes.CDLL(None)


@dataclasses.dataclass(frozen=True)
class State:
    """As small as a training state can be."""

    step: object
    params: object
    opt_state: object


def state(step: int) -> State:
    drawn = np.random.default_rng(step).standard_normal((2, 8, 3), np.float32)
    return State(jax.numpy.int32(step), {"w": {"kernel": jax.numpy.asarray(drawn[0])}}, drawn[1])


def abstract() -> State:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree_util.tree_map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
        dataclasses.replace(state(0), opt_state=jax.numpy.asarray(state(0).opt_state)),
    )


jax.tree_util.register_dataclass(State, ["step", "params", "opt_state"], [])


def arm(directory: pathlib.Path, nth: int, times: int, number: int) -> None:
    calls.faults_arm(str(directory).encode(), ctypes.c_long(nth), ctypes.c_long(times), number)


def disarm() -> int:
    """Returns how many calls there were since it was armed."""
    counted = calls.faults_counted()
    calls.faults_arm(b"", ctypes.c_long(0), ctypes.c_long(0), 0)
    return counted


def save(workdir: pathlib.Path, step: int) -> None:
    with checkpoint.Checkpointer(workdir, RETENTION) as checkpointer:
        checkpointer.save(state(step), META)
        checkpointer.wait()
        checkpointer.add_evaluation(step, {"mlm_loss": 1.0 / step}, {})


def restored_step(workdir: pathlib.Path) -> int:
    """Returns the step that is restored, after comparing every bit of it."""
    with checkpoint.Checkpointer(workdir, RETENTION) as checkpointer:
        found = checkpointer.restore(abstract()).state
    step = int(found.step)
    expected = state(step)
    np.testing.assert_array_equal(found.params["w"]["kernel"], expected.params["w"]["kernel"])
    np.testing.assert_array_equal(found.opt_state, expected.opt_state)
    return step


def outcome(action, *arguments) -> str:
    """Returns what an action came to: its result, or its error in one line."""
    try:
        return str(action(*arguments))
    except (OSError, checkpoint.CheckpointError) as error:
        return f"{type(error).__name__}: {error}"


def restoring(root: pathlib.Path, times: int, number: int) -> list[dict]:
    """Restores with every call failing in turn; nothing may be moved, and no older step taken."""
    workdir = root / "run"
    for step in (4, 6):
        save(workdir, step)
    arm(workdir / checkpoint.DIRECTORY, 0, 0, 0)
    restored_step(workdir)
    found = []
    for nth in range(1, disarm() + 1):
        arm(workdir / checkpoint.DIRECTORY, nth, times, number)
        told = outcome(restored_step, workdir)
        disarm()
        found.append({"nth": nth, "told": told, "then": outcome(restored_step, workdir)})
        assert not (workdir / checkpoint.UNREADABLE_DIRECTORY).exists(), found[-1]
    return found


def saving(root: pathlib.Path, times: int, number: int, stride: int) -> list[dict]:
    """Saves with every `stride`-th call failing in turn; what was there before is there after."""
    save(root / "before", 4)
    shutil.copytree(root / "before", root / "count")
    arm(root / "count", 0, 0, 0)
    save(root / "count", 6)
    found = []
    for nth in range(1, disarm() + 1, stride):
        workdir = root / f"run_{nth}"
        shutil.copytree(root / "before", workdir)
        arm(workdir, nth, times, number)
        told = outcome(save, workdir, 6)
        disarm()
        then = outcome(restored_step, workdir)
        again = outcome(save, workdir, 8)
        for _ in range(5):  # threads of the save that failed may still write
            if again != "None":
                time.sleep(1)
                again = outcome(save, workdir, 8)
        last = outcome(restored_step, workdir)
        found.append({"nth": nth, "told": told, "then": then, "again": again, "last": last})
        shutil.rmtree(workdir)
    return found


def killed(root: pathlib.Path, nth: int) -> list[dict]:
    """Is killed in the n-th call of a save."""
    workdir = root / "run"
    if not workdir.exists():
        save(workdir, 4)
    arm(workdir, nth, 1, -1)
    save(workdir, 6)
    return [{"nth": nth, "calls": disarm()}]


def restoring_once(root: pathlib.Path) -> list[dict]:
    """Restores what another process left."""
    return [{"told": outcome(restored_step, root / "run")}]


ACTIONS = {one.__name__: one for one in (restoring, saving, killed, restoring_once)}

if __name__ == "__main__":
    name, root, *numbers = sys.argv[1:]
    print(json.dumps(ACTIONS[name](pathlib.Path(root), *map(int, numbers))))
