"""The number of trained positions of a model, and a warning if a program uses more.

A run on 64 tokens never trains the position embeddings from row 64 on.
"""

from __future__ import annotations

from absl import logging
from etils import epath

from bertjax.workdirs import checkpoint, reader


def number(description: reader.Description, later: tuple[str, ...] = ()) -> int | None:
    """Returns the number of positions that this run or its sources trained, None if unknown.

    Converted weights count as trained on all. `later` are the sources already followed: workdirs
    that were written again may name each other.
    """
    config = description.config
    if "converted" in description.meta or config.model.embeddings != "learnt":
        return None
    if config.task == "finetuning":
        longest = config.finetuning.max_seq_length
    else:
        lengths = (it.max_seq_length for it in config.phases.values() if it.num_steps)
        longest = max(lengths, default=0)
    if not config.init_from:
        return longest
    earlier = None if config.init_from in later else _of_source(config.init_from, later)
    return None if earlier is None else max(longest, earlier)


def _of_source(path: str, later: tuple[str, ...]) -> int | None:
    if not (epath.Path(path) / checkpoint.DIRECTORY).exists():
        return None
    try:
        source = reader.describe(path)
    except (ValueError, OSError, checkpoint.CheckpointError):
        return None  # the model can be used without its source
    return None if source is None else number(source, (*later, path))


def warn_beyond(trained: int | None, length: int, use: str) -> bool:
    """Warns if more positions are used than were trained; the message starts with `use`."""
    if trained is None or length <= trained:
        return False
    logging.warning(
        "%s: positions %d to %d were never trained (the longest phase had %d tokens), so what the "
        "model says of longer texts may be chance. Train a phase of that length first, or use "
        "texts of at most %d tokens", use, trained, length - 1, trained, trained,
    )  # fmt: skip
    return True
