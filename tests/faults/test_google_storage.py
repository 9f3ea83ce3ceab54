"""Vocabulary, records and a run at gs://, by the real clients, while requests fail.

The store is `google_storage`; what is there in the end is what a disk would hold.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests.faults import google_storage

ROOT = pathlib.Path(__file__).parent.parent.parent
FAULTS = 0.03
NUM_STEPS = 30
# As `python -m MODULE`, with heartbeats of a workdir that come sooner.
PROGRAM = (
    "import runpy, sys; from bertjax.workdirs import ownership; ownership.HEARTBEAT_SECONDS = 2; "
    "sys.argv = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__')"
)
# A run that stays at a step between two checkpoints, with its heartbeats, until it is killed.
HELD = f"""
import time
from bertjax.training import monitor
submit = monitor.Monitor.submit
def held(self, step, *rest):
    submit(self, step, *rest)
    time.sleep(3600 if step == 15 else 0)
monitor.Monitor.submit = held
{PROGRAM}
"""


def start(environment, module, *arguments, shown=False, program=PROGRAM):
    command = [sys.executable, "-c", program, f"{module}", *map(str, arguments)]
    paths = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        command, env=os.environ | paths | environment, cwd=ROOT, text=True,
        stdout=subprocess.PIPE if shown else subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def succeed(environment, module, *arguments):
    process = start(environment, module, *arguments)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 0, told[-3000:]
    return told


def training(root):
    """The arguments of a run whose records and workdir are below `root`."""
    return (
        *("bertjax.train", "--config=configs/smoke.py", f"--workdir={root}/run"),
        *("--config.data.source=records", f"--config.data.train_dir={root}/records"),
        f"--config.phases.phase1.num_steps={NUM_STEPS}",
        *("--config.phases.phase1.max_seq_length=32", "--config.model.max_position_embeddings=32"),
        *("--config.checkpoint.save_every_steps=10", "--config.log_every_steps=5"),
    )


def prepare(environment, root, text, scratch):
    vocabulary, records = f"{root}/vocabulary", f"{root}/records"
    given = (f"--input={text}", f"--output={vocabulary}")
    succeed(environment, "data_pipelines.train_vocabulary", *given)
    given = (f"--input={text}", f"--vocabulary={vocabulary}", f"--output={records}")
    options = ("--max_seq_length=32", f"--scratch={scratch}", "--num_workers=1")
    succeed(environment, "data_pipelines.build", *given, *options)


def metrics(content):
    lines = [json.loads(line) for line in content.splitlines()]
    return [
        {name: value for name, value in line.items() if not name.startswith("perf/")}
        for line in lines
    ]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    sentences = [f"Word{n % 17} word{n % 31} and word{n % 7} of word{n % 13}." for n in range(1500)]
    documents = ("\n".join(sentences[at : at + 5]) for at in range(0, len(sentences), 5))
    path.write_text("\n\n".join(documents))
    return path


@pytest.mark.faults
def test_a_run_at_a_store_that_fails_and_kills_is_that_of_a_disk(tmp_path, text):
    local = tmp_path / "disk"
    prepare({}, local, text, tmp_path / "scratch")
    succeed({}, *training(local))
    store = google_storage.Store()
    with google_storage.running(tmp_path, store) as at_store:
        prepare(at_store, "gs://bucket", text, tmp_path / "scratch_of_store")
        for path in sorted((local / "records").glob("*.tfrecord")):
            assert store.objects[f"bucket/records/{path.name}"].content == path.read_bytes()
        store.faults = FAULTS
        killed = start(at_store, *training("gs://bucket"), program=HELD)
        try:
            wait_for(lambda: has_checkpoint(store, 10), killed)
            second = start(at_store, *training("gs://bucket"))
            _, told = second.communicate(timeout=100)
            assert second.returncode == 1 and "is in use by process" in told, told[-2000:]
            assert killed.poll() is None
        finally:
            killed.kill()
            killed.communicate()
        told = succeed(at_store, *training("gs://bucket"))
        assert "has an owner" in told and "Resuming at step" in told, told[-6000:]
    assert store.failed > 5
    run = "bucket/run/"
    found = metrics(store.objects[run + "metrics.jsonl"].content)
    assert found == metrics((local / "run" / "metrics.jsonl").read_bytes())
    meta = f"checkpoints/{NUM_STEPS}/meta/metadata"
    saved = [json.loads(it) for it in (store.objects[run + meta].content, local_bytes(local, meta))]
    assert saved[0]["fingerprints"] == saved[1]["fingerprints"]


def local_bytes(local, name):
    return (local / "run" / name).read_bytes()


def has_checkpoint(store, step):
    return any(
        name.startswith(f"bucket/run/checkpoints/{step}/meta") for name in list(store.objects)
    )


def wait_for(condition, process, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_the_doctor_uses_a_workdir_there_and_leaves_nothing(tmp_path):
    store = google_storage.Store()
    with google_storage.running(tmp_path, store) as at_store:
        found = examined(at_store, "gs://bucket/runs")
        assert [it["status"] for it in found["workdir"]] == ["ok"], found
        assert found["workdir"][0]["found"].startswith("gs: written, renamed, read back")
        assert "free disk" not in found
        assert not [name for name in store.objects if name.startswith("bucket/")]


def examined(environment, workdir):
    """Returns what the doctor finds of a workdir, by what it looked at."""
    process = start(environment, "bertjax.doctor", f"--workdir={workdir}", "--json", shown=True)
    told, _ = process.communicate(timeout=300)
    found: dict[str, list[dict[str, str]]] = {}
    for line in told.splitlines():
        it = json.loads(line)
        found.setdefault(it["what"], []).append(it)
    return found
