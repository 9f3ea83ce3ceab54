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
        cause = (
            "With --one_document_per_file a file is one document, and so few cannot be split: "
            "leave it out and separate documents by blank lines"
            if options.one_document_per_file
            else "Its documents are few, or there are none: separate them by blank lines, give more"
        )
        remedy = "" if options.split == "all" else f". {cause}, or raise --heldout_fraction"
        raise ValueError(
            f"input {options.input!r} holds no documents in its split {options.split!r} "
            f"(heldout_fraction {options.heldout_fraction}){remedy or ': give other files'}"
        )
    if not tally.sentences:
        raise ValueError(
            f"the {tally.documents} documents of input {options.input!r} hold no sentence; check "
            "that they are text"
        )
