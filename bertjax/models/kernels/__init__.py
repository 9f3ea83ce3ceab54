"""Attention as kernels: Pallas for TPU, cuDNN's for NVIDIA GPUs. `models.attention` chooses them.

`pallas_attention` gives a row to `pallas_rows` (short rows, whole) or to `pallas_blocks` (long
rows and windows); `pallas_parts` is what these two share.
"""
