"""Claims about who may write into a workdir: one at a time; a second is told who the first is."""

import json
import os
import socket
import subprocess
import sys

import pytest

from bertjax.files import directories
from bertjax.training.run_writers import base as writer_base
from bertjax.workdirs import ownership, scalars

HOLDING = """
import sys
from bertjax.workdirs import ownership
with ownership.Ownership(sys.argv[1]):
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def on_a_store(monkeypatch):
    """A directory that knows no locks, with a heart that beats fast."""
    monkeypatch.setattr(ownership.Ownership, "_lock", lambda self: False)
    monkeypatch.setattr(ownership, "HEARTBEAT_SECONDS", 0.05)


def test_a_second_owner_is_refused_with_host_process_and_time_of_the_first(tmp_path):
    with ownership.Ownership(tmp_path):
        told = json.loads((tmp_path / ownership.FILE).read_text())
        with pytest.raises(ownership.WorkdirInUseError) as caught, ownership.Ownership(tmp_path):
            pass
    for part in (str(tmp_path), f"process {os.getpid()}", socket.gethostname(), told["time"]):
        assert part in str(caught.value)
    with ownership.Ownership(tmp_path):
        pass


def test_a_killed_owner_leaves_the_workdir_free(tmp_path):
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"has it\n"
        with pytest.raises(ownership.WorkdirInUseError, match=f"process {holder.pid} on"):
            ownership.Ownership(tmp_path).__enter__()
        holder.kill()
        holder.wait()
    with ownership.Ownership(tmp_path):
        pass


def test_on_a_store_a_heartbeat_keeps_others_out(tmp_path, on_a_store):
    with ownership.Ownership(tmp_path) as owner:
        with pytest.raises(ownership.WorkdirInUseError, match=f"process {os.getpid()} on"):
            ownership.Ownership(tmp_path).__enter__()
        owner.check()
    assert not (tmp_path / ownership.FILE).exists()


def test_on_a_store_an_owner_without_a_heartbeat_is_gone(tmp_path, on_a_store):
    (tmp_path / ownership.FILE).write_text('{"host": "h", "pid": 1, "time": "t", "token": "x"}\n')
    with ownership.Ownership(tmp_path) as owner:
        owner.check()


def test_on_a_store_who_was_taken_for_gone_writes_nothing_more(tmp_path, on_a_store):
    with ownership.Ownership(tmp_path) as owner:
        other = '{"host": "elsewhere", "pid": 7, "time": "now", "token": "x"}\n'
        (tmp_path / ownership.FILE).write_text(other)
        owner._heart.join(5)
        with pytest.raises(ownership.WorkdirInUseError, match="taken over by process 7 on else"):
            owner.check()
    assert (tmp_path / ownership.FILE).read_text() == other


@pytest.mark.parametrize("locks", [True, False])
def test_an_owner_file_of_another_program_is_refused_and_left_as_it_is(
    tmp_path, monkeypatch, locks
):
    if not locks:
        monkeypatch.setattr(ownership.Ownership, "_lock", lambda self: False)
    theirs = '{"owner": "the museum"}\n'
    (tmp_path / ownership.FILE).write_text(theirs)
    with (
        pytest.raises(directories.NotOursError, match=r"owner\.json was not written by bertjax"),
        ownership.Ownership(tmp_path),
    ):
        pass
    assert (tmp_path / ownership.FILE).read_text() == theirs


def test_a_pipe_in_the_place_of_a_file_of_ours_is_refused_and_not_waited_for(tmp_path):
    def own():
        with ownership.Ownership(tmp_path):
            pass

    def lock():
        with directories.lock(tmp_path):
            pass

    for name, read in (
        (ownership.FILE, own),
        (ownership.FILE, lambda: ownership.others_file(tmp_path)),
        (directories.LOCK_FILE, lock),
        (scalars.FILE, lambda: scalars.read(tmp_path / scalars.FILE)),
        (writer_base.SENT_FILE, lambda: writer_base.update_sent(tmp_path, [], [])),
    ):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ValueError, match=f"{name} is a named pipe; it must be a file"):
            read()
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / directories.MARKER)
    assert directories.format_of(tmp_path) == ""
