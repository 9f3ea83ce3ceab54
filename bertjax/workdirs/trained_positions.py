"""How many positions of a model were trained, and the warning where more of them are used.

A run on 64 tokens leaves the rows of the position embeddings from 64 on as they were drawn, however
many the model has.
"""

from __future__ import annotations

from absl import logging
from etils import epath

from bertjax.workdirs import checkpoint, reader


def number(found: reader.Description, later: tuple[str, ...] = ()) -> int | None:
    """Returns how many positions some run has trained, None where nobody can tell.

    What a run began from counts too. Weights that were converted are taken to be trained. `later`
    are the sources already gone through: workdirs that were made anew may name each other.
    """
    config = found.config
    if "converted" in found.meta or config.model.embeddings != "learnt":
        return None
    if config.task == "finetuning":
        own = config.finetuning.max_seq_length
    else:
        lengths = (it.max_seq_length for it in config.phases.values() if it.num_steps)
        own = max(lengths, default=0)
    if not config.init_from:
        return own
    before = None if config.init_from in later else _of_source(config.init_from, later)
    return None if before is None else max(own, before)


def _of_source(path: str, later: tuple[str, ...]) -> int | None:
    if not (epath.Path(path) / checkpoint.DIRECTORY).exists():
        return None
    try:
        source = reader.describe(path)
    except (ValueError, OSError, checkpoint.CheckpointError):
        return None  # A model can be used whatever has become of what it began from.
    return None if source is None else number(source, (*later, path))


def warn_beyond(trained: int | None, length: int, use: str) -> bool:
    """Warns if `length` positions are used, for what is said in `use`, and fewer were trained."""
    if trained is None or length <= trained:
        return False
    logging.warning(
        "%s: positions %d to %d were never trained (the longest phase had %d tokens), so what the "
        "model says of longer texts may be chance. Train a phase of that length first, or use "
        "texts of at most %d tokens", use, trained, length - 1, trained, trained,
    )  # fmt: skip
    return True
