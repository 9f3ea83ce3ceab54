"""Whether evaluation records are held out: compares their documents with those trained on."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping
from typing import Any

from bertjax.data import records
from bertjax.files import atomic

# From this share of the held-out documents on, an evaluation is of the training data.
MOST_SHARE = 0.5

REMEDY = (
    "build both with the same --input and --heldout_fraction, one with --split=train and one with "
    "--split=heldout"
)


@dataclasses.dataclass(frozen=True)
class Overlap:
    """Why records are not held out; `share` of their documents, None for a suspicion."""

    text: str
    share: float | None

    @property
    def is_most(self) -> bool:
        """Whether most documents are trained on, so that scores say nothing about unseen text."""
        return self.share is not None and self.share >= MOST_SHARE


def find(trained: records.RecordSet, evaluated: records.RecordSet) -> Overlap | None:
    """Returns how evaluation records overlap the training records, None without evidence.

    The documents of adopted records are unknown: those are compared by place and content alone.
    """
    same_place = _real(trained.directory) == _real(evaluated.directory)
    if same_place or trained.manifest.digest == evaluated.manifest.digest:
        return Overlap(f"{evaluated.directory} holds the very records that are trained on", 1.0)
    ours, theirs = trained.contents, evaluated.contents
    if not ours or not theirs or ours.documents is None or theirs.documents is None:
        return None
    if share := theirs.documents.share_in(ours.documents):
        return shared_documents(evaluated, share)
    reason = _cut_otherwise(trained.manifest.arguments, evaluated.manifest.arguments)
    if reason is None:
        return None
    return Overlap(
        f"{evaluated.directory} may hold documents of {trained.directory}, which is trained on: "
        f"{reason}",
        None,
    )


def shared_documents(evaluated: records.RecordSet, share: float) -> Overlap | None:
    """Returns that a share of the documents is trained on, None if it is none."""
    if not share:
        return None
    return Overlap(
        f"{share:.1%} of the documents of {evaluated.directory} are trained on too, word for word",
        share,
    )


def _cut_otherwise(trained: Mapping[str, Any], evaluated: Mapping[str, Any]) -> str | None:
    """Returns that one text may be in both as other documents, which no hash of them would tell."""
    ours, theirs = trained.get("input"), evaluated.get("input")
    name = "one_document_per_file"
    if trained.get(name, False) == evaluated.get(name, False) or not ours or not theirs:
        return None
    for parts in itertools.product(ours.split(","), theirs.split(",")):
        # Two paths may name the same files, seen from other folders.
        pieces = [os.path.normpath(part).lstrip("./").split("/") for part in parts]
        shorter, longer = sorted(pieces, key=len)
        if longer[-len(shorter) :] == shorter:
            return f"both were built of {theirs!r}, but only one with --{name}"
    return None


def _real(directory: Any) -> str:
    return os.fspath(directory) if atomic.is_remote(directory) else os.path.realpath(directory)
