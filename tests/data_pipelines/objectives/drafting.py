"""Drafts of a whole corpus as one block, and where their segments lie."""

import numpy as np

from data_pipelines.objectives import base, examples, pairing
from tests.data_pipelines import conftest

BUDGET = 29


def options(budget=BUDGET, **changes):
    return base.PairOptions(max_seq_length=budget + 3, **(conftest.PAIRS | changes))


def draft(corpus, options, **place):
    alone = {"index": 0, "first_document": 0, "num_documents": corpus.num_documents}
    return pairing.draft(base.Block(corpus, **(alone | place)), options)


def uncut(corpus, options):
    drafts = draft(corpus, options)
    return base.completed(drafts, *base.random_segments(corpus, drafts.requests))


def finished(corpus, options):
    rng = options.generator("cut", 0)
    return examples.cut_to(uncut(corpus, options), pairing.budget(options), rng)


def document_of(corpus, position):
    starts = corpus.sentence_starts[corpus.document_starts]
    return np.searchsorted(starts, position, side="right") - 1


def follows(spans, first="a", second="b"):
    return spans[f"begin_{first}"] + spans[f"length_{first}"] == spans[f"begin_{second}"]
