"""What every builder is given and gives: `fast`, `exact` and the pipeline of `beam`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertjax.data import contents, records
from data_pipelines import blocks, sources
from data_pipelines.options import Options
from data_pipelines.partial_output import PartialOutput
from data_pipelines.reports import statistics

# Called with all figures known so far, before anything is written that depends on them.
Judge = Callable[[Mapping[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class Content:
    """What a build has written: the shards, the figures of the health report, and what it is of."""

    shards: tuple[records.Shard, ...]
    statistics: Mapping[str, Any]
    contents: contents.Contents


# Writes the shards of the options into `output.records`.
Builder = Callable[
    [Options, blocks.Vocabulary, Sequence[sources.Unit], PartialOutput, Judge], Content
]


def check_text(tally: statistics.CorpusTally, options: Options) -> None:
    """Raises ValueError if nothing was found in the input."""
    if not tally.documents:
        raise ValueError(
            f"input {options.input!r} holds no documents in its split {options.split!r}; give "
            "other files, or another --split and --heldout_fraction"
        )
    if not tally.sentences:
        raise ValueError(
            f"the {tally.documents} documents of input {options.input!r} hold no sentence; check "
            "that they are text"
        )
