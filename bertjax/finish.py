"""Finishes a run of the schedule `wsd` early: its decay starts at its newest checkpoint.

python -m bertjax.finish RUN [--workdir=DIR] [--step=STEP] [--decay_steps=N]

RUN is the workdir of a run. Nothing in it is changed, and the run may go on. Start the program in
the directory in which the run was started: paths of data are the run's. The same command again
resumes a decay that was stopped.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import interruptions  # first: what follows takes seconds to import

    interruptions.leave_at_once()
    from bertjax.cli import command_line, programs

    command_line.parse(programs.Finish, __doc__, logs=True)

import ml_collections
from etils import epath

from bertjax import config as config_lib
from bertjax import train
from bertjax.cli import command_line, programs
from bertjax.training import config_faults, finishing, starting, state
from bertjax.workdirs import checkpoint


def finish(
    source: epath.PathLike,
    workdir: epath.PathLike = "",
    *,
    step: str | int = checkpoint.NEWEST,
    decay_steps: int = 0,
) -> state.TrainState:
    """Returns the state after the decay of a run that began at one of its steps.

    Without `workdir` its name is the run's with `_from_STEP`. A `decay_steps` of 0 is the recipe's
    decay.

    Raises:
      FileNotFoundError: if the run has no such checkpoint.
      ValueError: if it cannot decay from there, or the workdir holds another run.
      Otherwise as `train.train`.
    """
    source = epath.Path(source)
    meta, step = checkpoint.meta_of(source, step)
    starting.check_complete(meta, source)
    before = ml_collections.ConfigDict(config_lib.completed(meta["config"]))
    config = finishing.decaying(before, step, decay_steps)
    workdir = epath.Path(workdir or f"{source}_from_{step}")
    run = train.prepare(config, workdir)
    if checkpoint.read_meta(workdir) is None:
        finishing.adopt(run, source, step, workdir)
    return train.execute(run, workdir)


def main(options: programs.Finish) -> None:
    """Finishes a run as the options say; exits with 75 after a preemption."""
    with train.launched(options):
        finish(options.run, options.workdir, step=options.step, decay_steps=options.decay_steps)


if __name__ == "__main__":
    command_line.run(main, choices=config_faults.CHOICES)
