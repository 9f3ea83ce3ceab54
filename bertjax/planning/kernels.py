"""What our kernels cost, for which the compiler has no estimate.

Counted are the instruction bundles that libtpu made of them, one cycle each and no stalls: so the
figures are a lower bound, as the compiler's own about are.
"""

from __future__ import annotations

# Kernel (`pallas_parts.name_of`) -> bundles of 1,000 scores. Source: benchmarks/kernel_bundles.py
# --all, v5e:2x2, heads of 64, bfloat16, libtpu 0.0.42.1, 2026-11-23; those with dropout 2026-11-25.
# Of that, rows of 512 take 1.01 and 0.99 (forward and backward) on v5p, 0.86 and 0.79 on v6e. Only
# the shapes of recipes are here.
BUNDLES_OF_1000_SCORES: dict[str, float] = {
    "attention_rows_128_forward_dropout": 9.04,
    "attention_rows_128_backward_dropout": 15.04,
    "attention_rows_128_forward_pairs_dropout": 10.49,
    "attention_rows_128_backward_pairs_dropout": 16.29,
    "attention_rows_512_forward_dropout": 6.15,
    "attention_rows_512_backward_dropout": 12.70,
    "attention_rows_512_forward_pairs_dropout": 7.36,
    "attention_rows_512_backward_pairs_dropout": 13.51,
    "attention_rows_128_forward": 7.39,
    "attention_rows_128_backward": 13.90,
    "attention_rows_512_forward": 4.84,
    "attention_rows_512_backward": 11.49,
    "attention_rows_256_forward_dropout": 7.11,
    "attention_rows_256_backward_dropout": 13.24,
    "attention_rows_384_forward_dropout": 7.25,
    "attention_rows_384_backward_dropout": 13.38,
    "attention_rows_512_forward_pairs": 5.63,
    "attention_rows_512_backward_pairs": 12.14,
    "attention_blocks_512_forward_dropout": 6.98,
    "attention_blocks_512_backward_dropout": 12.43,
    "attention_blocks_512_forward_pairs_dropout": 8.00,
    "attention_blocks_512_backward_pairs_dropout": 12.70,
    "attention_blocks_512_forward": 5.46,
    "attention_blocks_512_backward": 11.50,
    "attention_blocks_512_forward_pairs": 6.34,
    "attention_blocks_512_backward_pairs": 11.97,
    "attention_blocks_512_forward_rotary": 5.84,
    "attention_blocks_512_backward_rotary": 12.55,
    "attention_blocks_512_forward_pairs_rotary": 6.80,
    "attention_blocks_512_backward_pairs_rotary": 13.11,
    "attention_window_128x256_forward_pairs_rotary": 8.77,
    "attention_window_128x256_backward_pairs_rotary": 14.56,
    "attention_window_128x256_forward_pairs_positions_rotary": 10.34,
    "attention_window_128x256_backward_pairs_positions_rotary": 17.53,
    "attention_window_128x256_forward_pairs_dropout": 9.18,
    "attention_window_128x256_backward_pairs_dropout": 13.69,
    "attention_window_128x256_forward_pairs": 7.60,
    "attention_window_128x256_backward_pairs": 12.43,
}


def cycles(name: str, scores: int) -> int | None:
    """Returns the cycles of a kernel that makes so many scores, None for one not counted."""
    bundles = BUNDLES_OF_1000_SCORES.get(name)
    return None if bundles is None else round(bundles * scores / 1000)
