import logging
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from data_pipelines import progress


@pytest.fixture
def lines(monkeypatch, caplog):
    """What is logged, without waiting half a minute between two lines."""
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 0)
    caplog.set_level(logging.INFO, logger="absl")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_line_says_count_total_figures_memory_and_time_left(lines, monkeypatch):
    with progress.Progress("tokenizing", 2_000_000, "B") as shown:
        later = time.monotonic() + 20
        monkeypatch.setattr(progress.time, "monotonic", lambda: later)
        shown.at(500_000, documents="1,234")
    (line,) = lines()
    assert line.startswith("tokenizing: 500k of 2.00MB, 1,234 documents, ")
    assert "GB memory" in line and re.search(r"01:0\d left$", line)


def test_lines_are_rare_but_the_last_is_shown(lines, monkeypatch):
    monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 1000)
    with progress.Progress("pairing", 50, " blocks") as shown:
        for count in range(51):
            shown.at(count)
    assert len(lines()) == 1 and lines()[0].startswith("pairing: 50.0 of 50.0 blocks")


def test_without_a_known_total_neither_total_nor_time_left_is_claimed(lines, monkeypatch):
    with progress.Progress("tokenizing", 0, "B") as shown:
        shown.at(1_000_000)
        shown.at(2_000_000)
        assert len(lines()) == 2
        assert not any(" of " in line or "left" in line for line in lines())
        # Nor is every count the last one.
        monkeypatch.setattr(progress, "LOG_INTERVAL_SECONDS", 1000)
        shown.at(3_000_000)
    assert len(lines()) == 2


def test_memory_is_that_of_this_process():
    before = progress.memory_in_use()
    held = np.ones(8_000_000)
    assert 50e6 < progress.memory_in_use() - before < 200e6
    assert held[0] == 1


def test_memory_of_child_processes_counts():
    script = "held = b'1' * 60_000_000; print('ready', flush=True); input()"
    before = progress.memory_in_use()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout and child.stdout.readline() == b"ready\n"
        assert progress.memory_in_use() - before > 50e6
        child.kill()


def test_errors_pass_through():
    with (
        pytest.raises(ValueError, match="of the work"),
        progress.Progress("writing", 3, " examples"),
    ):
        raise ValueError("an error of the work")
