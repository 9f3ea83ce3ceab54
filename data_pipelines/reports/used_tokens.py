"""The share of a corpus's tokens that stand in at least one example.

Positions are sampled evenly, all of them in a corpus below `MAX_SAMPLED` tokens, so that each block
of examples leaves the same few kilobytes whatever the corpus.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable

import numpy as np

from data_pipelines.objectives import examples

# A share of this number of positions is off by 0.14% at most (one standard deviation).
MAX_SAMPLED = 2**17


def step(num_tokens: int) -> int:
    """Returns the distance between sampled positions of a corpus."""
    return -(-num_tokens // MAX_SAMPLED)


def of(spans: examples.Spans, num_tokens: int) -> str:
    """Returns which sampled positions of a corpus of `num_tokens` are in a span, as text."""
    each = step(num_tokens)
    size = -(-num_tokens // each)
    change = np.zeros(size + 1, np.int64)
    for segment in ("a", "b"):
        begin, length = spans[f"begin_{segment}"], spans[f"length_{segment}"]
        real = length > 0
        begin, end = begin[real], begin[real] + length[real]
        change += np.bincount(-(-begin // each), minlength=size + 1)
        change -= np.bincount(-(-end // each), minlength=size + 1)
    bits = np.packbits(np.cumsum(change[:-1]) > 0)
    return base64.b64encode(zlib.compress(bits.tobytes())).decode()


def share(parts: Iterable[str], num_tokens: int) -> float:
    """Returns the share of the positions that are in a span of any part."""
    size = -(-num_tokens // step(num_tokens))
    used = np.zeros(-(-size // 8), np.uint8)
    for part in parts:
        used |= np.frombuffer(zlib.decompress(base64.b64decode(part)), np.uint8)
    return int(np.unpackbits(used)[:size].sum()) / size
