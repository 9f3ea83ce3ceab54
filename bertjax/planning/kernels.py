"""What our kernels cost, for which the compiler has no estimate.

Counted are the instruction bundles that libtpu made of them, one cycle each and no stalls: so the
figures are a lower bound, as the compiler's own about are.
"""

from __future__ import annotations

# Kernel (`pallas_parts.name_of`) -> bundles of 1,000 scores. Source: benchmarks/kernel_bundles.py
# --all, v5e:2x2, heads of 64, bfloat16, libtpu 0.0.42.1, 2026-11-23. On v6e rows of 512 take 0.86
# and 0.79 of it.
BUNDLES_OF_1000_SCORES: dict[str, float] = {
}


def cycles(name: str, scores: int) -> int | None:
    """Returns the cycles of a kernel that makes so many scores, None for one not counted."""
    bundles = BUNDLES_OF_1000_SCORES.get(name)
    return None if bundles is None else round(bundles * scores / 1000)
