"""The pair objectives: how the text of a block becomes examples, by name.

How each draws its examples is a module in `objectives`; a new one is a function there and a row of
`PAIR_OBJECTIVES`, from which options, checks, help and reports follow. The released script, in its
own order of random numbers, is `exact`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from bertjax.data import pair_objectives
from bertjax.options import faults
from data_pipelines.objectives import base, packed_sentences, sentence_pairs, translated_pairs


@dataclasses.dataclass(frozen=True)
class PairObjective:
    """How the text of a block becomes examples, and what their label says.

    `labels` are what 0 and 1 mean, in a word or two each; without labels an example is a single
    segment. `needs_other_documents` if segments are drawn from them. `own_options` are those of
    `base.PairOptions` that mean something for some objectives only, with the values besides their
    defaults that this one takes.
    `separates_documents` says whether a [SEP] is to end every document of the corpus.
    """

    help: str
    labels: tuple[str, ...]
    draft: base.Draft
    needs_other_documents: bool = False
    own_options: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    separates_documents: Callable[[base.PairOptions], bool] = lambda options: False


_PACKED = {"packing": (base.BEST_FIT,)}

PAIR_OBJECTIVES: dict[str, PairObjective] = {
    "nsp": PairObjective(
        help="two segments, the second random in half the examples",
        labels=pair_objectives.LABELS["nsp"],
        draft=sentence_pairs.draft_next_sentence,
        needs_other_documents=True,
        own_options={"balanced_nsp": (True,), **_PACKED},
    ),
    "sop": PairObjective(
        help="in half of them swapped",
        labels=pair_objectives.LABELS["sop"],
        draft=sentence_pairs.draft_sentence_order,
        needs_other_documents=True,
        own_options=_PACKED,
    ),
    "none": PairObjective(
        help="single segments",
        labels=pair_objectives.LABELS["none"],
        draft=packed_sentences.draft,
        own_options={"packing": packed_sentences.PACKINGS},
        separates_documents=packed_sentences.separates_documents,
    ),
}

# Chosen by the languages of the input, en+fr, not by an option.
_TRANSLATIONS = PairObjective(
    help="a text and its translation",
    labels=pair_objectives.LABELS["none"],
    draft=translated_pairs.draft,
)


def labels(pair_objective: str) -> tuple[str, ...]:
    """Returns what the labels 0 and 1 mean; nothing where examples have none."""
    return _objective(pair_objective).labels


def help_text() -> str:
    """Returns what each objective is, for the help of an option."""
    return "; ".join(f"{name}: {one.help}" for name, one in PAIR_OBJECTIVES.items())


def budget(options: base.PairOptions) -> int:
    """Returns the tokens that the segments of an example may have together."""
    has_pairs = options.are_translations or bool(labels(options.pair_objective))
    return options.budget(2 if has_pairs else 1)


def separates_documents(options: base.PairOptions) -> bool:
    """Returns whether the corpus is to hold a [SEP] after every document."""
    return _of(options).separates_documents(options)


def draft(block: base.Block, options: base.PairOptions) -> base.Drafts:
    """Returns the examples of a block by the objective of the options."""
    check_documents(block.num_documents, options)
    return _of(options).draft(block, options)


def check_documents(num_documents: int, options: base.PairOptions) -> None:
    """Raises ValueError if there is only one document to draw random segments from."""
    if num_documents < 2 and _of(options).needs_other_documents:
        raise ValueError(
            f"the corpus, or this split of it, has {num_documents} documents; pair_objective "
            f"{options.pair_objective} needs at least 2 to draw random segments from: separate "
            "documents by blank lines, raise --heldout_fraction if it is the held-out split, or "
            "use --pair_objective=none"
        )


def _of(options: base.PairOptions) -> PairObjective:
    return _TRANSLATIONS if options.are_translations else _objective(options.pair_objective)


def _objective(name: str) -> PairObjective:
    if name not in PAIR_OBJECTIVES:
        raise faults.unknown("pair_objective", name, PAIR_OBJECTIVES)
    return PAIR_OBJECTIVES[name]
