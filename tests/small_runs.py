"""Workdirs of small runs, for tests of their readers: config and metrics, or weights."""

import ml_collections
from etils import epath

from bertjax import config as config_lib
from bertjax import train
from bertjax.models import parameters
from bertjax.training import monitor, starting, writers
from bertjax.workdirs import checkpoint, reader
from tests import small_modules

STEPS = range(10, 101, 10)


def config_of(directory, **options):
    config = config_lib.default_config()
    config.phases.phase1.num_steps = 100
    config.phases.phase1.max_seq_length = 16
    config.global_batch_size = 4
    config.schedule.warmup_steps = 10
    config.data.train_dir, config.data.eval_dir = (
        str(directory / "train"),
        str(directory / "heldout"),
    )
    config.update_from_flattened_dict(options)
    return config


def scalars(step, loss):
    return {"train/mlm_loss": loss, "train/loss": loss, "perf/step_seconds": 36.0,
            "train/learning_rate": 1e-3 * (1 - step / 100), "train/grad_norm": 1.0,
            "perf/tokens_per_second": 100.0}  # fmt: skip


def write(workdir, config, losses=lambda step: 5 - step / 50, resumed=()):
    """Writes what a run leaves besides its checkpoints, with a start at each step of `resumed`."""
    reader.write_config(config.to_dict(), workdir)
    for start, end in zip([0, *resumed], [*resumed, 100], strict=True):
        with writers.RunWriter(workdir, total_steps=100, start_step=start) as writer:
            for step in STEPS:
                if start < step <= end:
                    writer.scalars(step, scalars(step, losses(step)))


def untrained(config: ml_collections.ConfigDict, workdir) -> None:
    """Writes the workdir of a run before its first step, with weights as large as trained ones."""
    run = train.prepare(config, workdir)
    starting.write_workdir(run, epath.Path(workdir))
    _, params = parameters.split(small_modules.made(run.job.task.init))
    meta = starting.meta(run, 0, monitor.Progress(), {})
    with checkpoint.Checkpointer(workdir, checkpoint.RetentionOptions()) as checkpointer:
        checkpointer.save_params(params, meta)


def set_phases(config, *phases):
    """Makes phase1, phase2, ... of these options, else as phase1 was; returns the config."""
    first = config.phases.phase1
    with config.phases.unlocked():
        for number, changes in enumerate(phases, start=1):
            config.phases[f"phase{number}"] = first.copy_and_resolve_references()
            config.phases[f"phase{number}"].update(changes)
    return config
