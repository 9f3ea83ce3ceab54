"""Killed, or told to stop, in every phase of a run: the same command ends in the same run.

A phase is known by what the log says when it begins. The run that goes on from what a stopped
process left must end as the one that was never stopped: in its parameters, its scalars, its best
checkpoint. How an evaluation is stopped in its middle, tests/test_train.py shows.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from bertjax.workdirs import checkpoint
from tests import small_records

ROOT = pathlib.Path(__file__).parent.parent.parent
pytestmark = pytest.mark.faults

# A phase, what the log says when it begins, and how it is stopped. Every signal is sent in several
# phases, and the first and the later half of a run are both killed; all pairs would take minutes.
PHASES = {
    "the opening of the data": ("masked tokens to score", [signal.SIGTERM]),
    "compilation": ("compiling step 1", [signal.SIGKILL, signal.SIGINT]),
    "training": ("step 1/12", [signal.SIGTERM]),
    "the step after an evaluation": (
        "Evaluation on heldout at step 4",
        [signal.SIGKILL, signal.SIGINT],
    ),
    "the second length": ("compiling step 9", [signal.SIGTERM, signal.SIGKILL]),
    "the last evaluation": ("step 12/12", [signal.SIGTERM]),
    "the end": ("Evaluation on heldout at step 12", [signal.SIGKILL]),
}


class Workplace:
    """Records of two lengths, and one command that trains on them."""

    def __init__(self, root):
        self.root = root
        small_records.write(root / "train_16", max_seq_length=16)
        small_records.write(root / "train_24", max_seq_length=24, seed=1)
        small_records.write(root / "heldout", max_seq_length=24, counts=(40,), seed=2)

    def start(self, name):
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        options = {
            "data.source": "records",
            "data.train_dir": self.root / "train_{max_seq_length}",
            "data.eval_dir": self.root / "heldout",
            "model.vocab_size": 0,
            "model.hidden_size": 32,
            "model.num_hidden_layers": 1,
            "global_batch_size": 8,
            "phases.phase1.max_seq_length": 16,
            "phases.phase1.num_steps": 8,
            "phases.phase2.max_seq_length": 24,
            "phases.phase2.num_steps": 4,
            "evaluation.every_steps": 4,
            "evaluation.global_batch_size": 4,
            "checkpoint.save_every_steps": 2,
            "log_every_steps": 3,
            "compilation_cache_dir": self.root / "cache",
        }
        command = [sys.executable, "-m", "bertjax.train", f"--config={self.recipe()}"]
        command += [f"--workdir={self.root / name}"]
        command += [f"--config.{option}={value}" for option, value in options.items()]
        with open(self.root / f"{name}.log", "a", encoding="utf-8") as log:
            return subprocess.Popen(command, env=environment, cwd=ROOT, stderr=log)

    def recipe(self):
        """A recipe of two phases, made of the smallest one."""
        path = self.root / "two_phases.py"
        path.write_text(
            "from bertjax import config as config_lib\n"
            "from configs import smoke\n\n\n"
            "def get_config():\n"
            "    config = smoke.get_config()\n"
            "    with config.phases.unlocked():\n"
            "        config.phases.phase2 = config_lib.phase_config()\n"
            "    return config\n"
        )
        return path

    def said(self, name):
        return (self.root / f"{name}.log").read_text(encoding="utf-8")

    def run(self, name):
        assert self.start(name).wait(300) == 0, self.said(name)[-3000:]

    def left(self, name):
        """Returns what people look at afterwards, without what the clock says."""
        workdir = self.root / name
        lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        scalars = [
            {key: value for key, value in json.loads(line).items() if "perf/" not in key}
            for line in lines
        ]
        best = checkpoint.load_params(workdir, "best")[2]
        names = {path.name for path in workdir.iterdir()}
        return {"scalars": scalars, "best": best, "names": names}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    place = Workplace(tmp_path_factory.mktemp("runs"))
    place.run("reference")
    return place


@pytest.mark.parametrize(
    ("phase", "number"), [(phase, number) for phase in PHASES for number in PHASES[phase][1]]
)
def test_a_run_that_is_stopped_ends_as_if_it_never_was(workplace, phase, number):
    name = re.sub(r"\W", "_", f"{phase}_{number.name}")
    process = workplace.start(name)
    deadline = time.monotonic() + 200
    while process.poll() is None and not re.search(PHASES[phase][0], workplace.said(name)):
        assert time.monotonic() < deadline, workplace.said(name)[-3000:]
        time.sleep(0.002)
    assert re.search(PHASES[phase][0], workplace.said(name)), workplace.said(name)[-3000:]
    process.send_signal(number)
    code = process.wait(100)
    expected = {signal.SIGTERM: 75, signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}[number]
    assert code in (expected, 0), workplace.said(name)[-3000:]
    assert code == expected or phase in ("the last evaluation", "the end"), "it was stopped late"
    assert "Traceback" not in workplace.said(name)
    workplace.run(name)

    params = [checkpoint.load_params(workplace.root / run)[0] for run in ("reference", name)]
    jax.tree.map(np.testing.assert_array_equal, *params)
    assert workplace.left(name) == workplace.left("reference")
