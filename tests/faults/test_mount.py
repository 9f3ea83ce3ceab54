"""From text to a trained model on a mount that is not a disk, as Google Drive's in Colab is.

The library in C stands between the programs and their files: below one directory there are no
locks and no links, directories are not synced, and a rename removes first what it replaces.
"""

import errno
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from bertjax.training import preemption
from bertjax.workdirs import checkpoint, ownership, scalars

ROOT = pathlib.Path(__file__).parent.parent.parent
STEPS, SAVE_EVERY = 60, 5
pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD"),
]


ASKING = """
import errno, fcntl, os, sys
os.chdir(sys.argv[1])
open("b", "w").close()
file, directory = open("a", "w"), os.open(".", os.O_RDONLY)
here = os.getcwd()
for name, call, *arguments in (
    ("flock", fcntl.flock, file, fcntl.LOCK_EX),
    ("lockf", fcntl.lockf, file, fcntl.LOCK_EX),
    ("link", os.link, "b", here + "/c"),
    ("fsync_of_directory", os.fsync, directory),
    ("fsync", os.fsync, file.fileno()),
    ("replace", os.replace, "b", here + "/a"),
):
    try:
        call(*arguments)
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""


class Mount:
    """A directory that programs take for a mount; `answers` has a letter for each refused call."""

    def __init__(self, library, root, number):
        self.root, self.number = root, number
        self._log = root.with_suffix(".log")
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAULTS_MOUNT": str(root),
            "FAULTS_MOUNT_ERROR": str(number),
            "FAULTS_MOUNT_LOG": str(self._log),
        }
        root.mkdir()

    @property
    def answers(self):
        return self._log.read_text() if self._log.exists() else ""

    def start(self, module, *arguments):
        return start(module, *arguments, **self.environment)


def start(module, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def ended(process, code=0):
    told, _ = process.communicate(timeout=300)
    assert process.returncode == code, told[-3000:]
    return told


def training(workdir, records):
    """The arguments of a short run over the records."""
    sizes = {
        "data.source": "records", "data.train_dir": records, "model.vocab_size": 0,
        "model.hidden_size": 32, "model.num_hidden_layers": 1, "global_batch_size": 8,
        "phases.phase1.max_seq_length": 16, "phases.phase1.num_steps": STEPS,
        "log_every_steps": 1, "checkpoint.save_every_steps": SAVE_EVERY,
    }  # fmt: skip
    options = [f"--config.{name}={value}" for name, value in sizes.items()]
    return (f"--config={ROOT}/configs/smoke.py", f"--workdir={workdir}", *options)


def write_text(path):
    drawn, words = random.Random(0), [f"w{number}" for number in range(60)]
    documents = [
        "\n".join(" ".join(drawn.choices(words, k=8)) + " ." for _ in range(12)) for _ in range(40)
    ]
    path.write_text("\n\n".join(documents))


def chain(begin, root):
    """Makes vocabulary and records of a text below a directory; returns what the build told."""
    text, vocabulary, records = root / "text.txt", root / "vocabulary", root / "records"
    write_text(text)
    ended(begin("data_pipelines.train_vocabulary", f"--input={text}", f"--output={vocabulary}",
                "--size=200"))  # fmt: skip
    return ended(begin("data_pipelines.build", f"--input={text}", f"--vocabulary={vocabulary}",
                f"--output={records}", "--max_seq_length=16", "--dupe_factor=1"))  # fmt: skip


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """Records and a run that was never stopped, on a disk."""
    root = tmp_path_factory.mktemp("disk")
    chain(start, root)
    ended(start("bertjax.train", *training(root / "run", root / "records")))
    return root


@pytest.fixture(params=[errno.ENOSYS, errno.ENOTSUP], ids=errno.errorcode.get)
def mount(request, library, tmp_path):
    return Mount(library, tmp_path / "drive", request.param)


def wait_for_step(process, workdir, step):
    deadline = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        if any(line["step"] >= step for line in scalars.read(workdir / scalars.FILE)):
            return
        time.sleep(0.01)
    process.kill()
    raise AssertionError(process.communicate()[0][-3000:])


def shards(records):
    return {path.name: path.read_bytes() for path in records.glob("*tfrecord*")}


@pytest.mark.slow
def test_what_stands_for_a_mount_refuses_what_a_mount_refuses(mount):
    asked = subprocess.run(
        [sys.executable, "-c", ASKING, str(mount.root)],
        env=os.environ | mount.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    refused = errno.errorcode[mount.number]
    found = dict(line.split() for line in asked.stdout.splitlines())
    assert found == {
        "flock": refused, "lockf": refused, "link": refused, "fsync_of_directory": "EINVAL",
        "fsync": "done", "replace": "done",
    }  # fmt: skip
    assert sorted(mount.answers) == sorted("fclsr")


@pytest.mark.faults
def test_a_stopped_run_on_a_mount_ends_as_one_on_a_disk(mount, on_disk):
    told = chain(mount.start, mount.root)
    assert "has no locks: let no other build write there meanwhile" in told
    run, records = mount.root / "run", mount.root / "records"
    assert shards(records) == shards(on_disk / "records") != {}

    stopped = mount.start("bertjax.train", *training(run, records))
    wait_for_step(stopped, run, 12)
    stopped.send_signal(signal.SIGTERM)
    ended(stopped, preemption.EXIT_CODE)
    assert 12 <= checkpoint.read_meta(run)[1] < STEPS
    ended(mount.start("bertjax.train", *training(run, records)))

    expected, _, _ = checkpoint.load_params(on_disk / "run")
    params, _, step = checkpoint.load_params(run)
    assert step == STEPS
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert scalars.read(run / scalars.FILE)[-1]["step"] == STEPS
    assert not (run / ownership.FILE).exists()  # the owner's heartbeat, where there is no lock
    assert not (run / checkpoint.UNREADABLE_DIRECTORY).exists()
    convert = ("bertjax.convert", f"--from={run}", f"--to={mount.root / 'exported'}")
    ended(mount.start(*convert))
    ended(mount.start(*convert, "--overwrite"))
    assert {*"fcsr"} <= {*mount.answers}  # to all of them it was a mount
