import logging
import re
import subprocess
import sys

import numpy as np

from data_pipelines import progress


def test_a_line_says_count_total_figures_and_memory(caplog):
    caplog.set_level(logging.INFO, logger="absl")
    with progress.Progress("tokenizing", 2_000_000, "B") as shown:
        shown.at(500_000, documents="1,234")
    (line,) = (record.getMessage() for record in caplog.records)
    assert re.fullmatch(r"tokenizing 500k/2.00MB: 1,234 documents, \d+\.\d GB memory", line)


def test_memory_is_that_of_this_process_and_its_children():
    before = progress.memory_in_use()
    held = np.ones(8_000_000)
    assert 50e6 < progress.memory_in_use() - before < 200e6
    assert held[0] == 1
    before = progress.memory_in_use()
    script = "held = b'1' * 60_000_000; print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout and child.stdout.readline() == b"ready\n"
        assert progress.memory_in_use() - before > 50e6
        child.kill()
