"""Runs on values and on pairs of texts, killed from outside: they end as if they had not been."""

import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tests import small_records, small_values

ROOT = pathlib.Path(__file__).parent.parent.parent
SAVES = ("--config.checkpoint.save_every_steps=10", "--config.log_every_steps=5")
SMALL = (
    *("--config.model.hidden_size=16", "--config.model.num_hidden_layers=1"),
    *("--config.model.num_attention_heads=2", "--config.model.intermediate_size=32"),
)


def start(*arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-m", "bertjax.train", *map(str, arguments)],
        **{"env": environment, "cwd": ROOT, "text": True, "stderr": subprocess.PIPE},
    )


def ended(process):
    _, logged = process.communicate(timeout=900)
    assert process.returncode == 0, logged[-3000:]
    return logged


def of_values(root):
    """Pretraining on the cells of a table, of which some are exchanged for other rows'."""
    small_values.write(root / "records", "cells")
    return (
        *("--config=tables:replaced", f"--config.data.train_dir={root / 'records'}"),
        *("--config.phases.phase1.num_epochs=0", "--config.phases.phase1.num_steps=200"),
        "--config.global_batch_size=8",
    )


def of_sequences(root):
    """Finetuning on sources and targets, from a text encoder of a step."""
    small_records.write(root / "records")
    ended(start(
        *("--config=smoke", f"--workdir={root / 'weights'}", "--config.data.source=records"),
        *(f"--config.data.train_dir={root / 'records'}", "--config.model.vocab_size=0"),
        *("--config.phases.phase1.max_seq_length=16", "--config.phases.phase1.num_steps=1", *SMALL),
    ))  # fmt: skip
    words = small_records.WORDS
    with open(root / "pairs.csv", "w", newline="", encoding="utf-8") as file:
        pairs = [(f"{one} {words[-1]}", one) for one in words for _ in range(800 // len(words))]
        csv.writer(file).writerows([("text", "target"), *pairs])
    return (
        *("--config=bert2bert", f"--config.init_from={root / 'weights'}"),
        *(f"--config.finetuning.train_file={root / 'pairs.csv'}", "--config.global_batch_size=8"),
        *("--config.finetuning.max_seq_length=8", "--config.finetuning.max_target_length=8"),
        "--config.finetuning.num_epochs=2",
    )


def steps_saved(workdir):
    whole = (it for it in workdir.glob("checkpoints/*") if it.name.isdigit())
    return sorted(int(it.name) for it in whole if (it / "meta/metadata").exists())


def killed_at(step, workdir, *arguments):
    """Kills a run when the checkpoint of a step, or of a later one, is there."""
    process, most = start(*arguments, f"--workdir={workdir}"), time.monotonic() + 900
    while not any(saved >= step for saved in steps_saved(workdir)):
        assert process.poll() is None and time.monotonic() < most, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, (
        "it ended before it was killed: give it more steps"
    )


def left(workdir):
    """The last step, the fingerprints of its checkpoint, and the metrics that no clock makes."""
    last = steps_saved(workdir)[-1]
    meta = json.loads((workdir / f"checkpoints/{last}/meta/metadata").read_bytes())
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    metrics = [{n: it for n, it in line.items() if not n.startswith("perf/")} for line in lines]
    return last, meta["fingerprints"], metrics


@pytest.mark.faults
@pytest.mark.parametrize("prepare", [of_values, of_sequences])
def test_a_run_that_is_killed_twice_ends_as_one_that_was_not(tmp_path, prepare):
    arguments = (*prepare(tmp_path), *SAVES)
    ended(start(*arguments, f"--workdir={tmp_path / 'whole'}"))
    for step in (20, 60):
        killed_at(step, tmp_path / "killed", *arguments)
    assert "Resuming at step" in ended(start(*arguments, f"--workdir={tmp_path / 'killed'}"))
    assert left(tmp_path / "killed") == left(tmp_path / "whole")
