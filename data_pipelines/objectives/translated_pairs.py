"""Pairs of a text and its translation: the two sentences of a document, in every pass.

Source: Conneau and Lample 2019, section 3.3 (TLM).
"""

from __future__ import annotations

import numpy as np

from data_pipelines.objectives import base, examples


def draft(block: base.Block, options: base.PairOptions) -> base.Drafts:
    """Returns a pair of each document; one whose text or translation has no token is left out."""
    starts, documents = (np.array(it) for it in block.starts())
    first = documents[:-1][np.diff(documents) == 2]
    spans = np.zeros(len(first), examples.SPAN)
    for segment, sentence in (("a", first), ("b", first + 1)):
        spans[f"begin_{segment}"] = starts[sentence]
        spans[f"length_{segment}"] = starts[sentence + 1] - starts[sentence]
    return base.Drafts(np.tile(spans, options.dupe_factor), base.Requests.none())
