"""`python -m bertjax.train` that also appends, for every batch, which records it held.

RECORDED_TO names the file; a line is [global step, record positions of this process's rows].
SIGNAL_AT, "STEP:NUMBER", sends this process a signal when it has read the batch of a step. From
step 5 on it waits while the file HELD_BY exists. With READS_FAIL the disk gives this process no
array of a checkpoint.
"""

import errno
import json
import os
import time

from bertjax import jobs, train
from bertjax.cli import command_line, programs
from bertjax.workdirs import checkpoint_storage

original = jobs.pretraining_data.PretrainingData.train_batches


def recorded(self, phase, *, start_step, rows):
    """Yields the batches of the job, each after its line is on disk."""
    signal_step, number = map(int, os.environ.get("SIGNAL_AT", "-1:0").split(":"))
    with open(os.environ["RECORDED_TO"], "a", encoding="utf-8") as file:
        batches = original(self, phase, start_step=start_step, rows=rows)
        for step, batch in enumerate(batches, start=start_step):
            file.write(json.dumps([step, batch["record_positions"].tolist()]) + "\n")
            file.flush()
            if step == signal_step:
                os.kill(os.getpid(), number)
            while step >= 5 and os.path.exists(os.environ.get("HELD_BY", "")):
                time.sleep(0.02)
            yield batch


def no_arrays(*_):
    """Fails as reading does from a disk that has gone."""
    message = "Input/output error"
    raise checkpoint_storage.UnreadableError(f"[Errno {errno.EIO}] {message}", is_of_storage=True)


if __name__ == "__main__":
    if "READS_FAIL" in os.environ:
        checkpoint_storage._restored = no_arrays
    jobs.pretraining_data.PretrainingData.train_batches = recorded
    command_line.parse(programs.Train, None)
    command_line.run(train.main)
