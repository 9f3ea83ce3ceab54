"""Attention as kernels: Pallas for TPU, cuDNN's for NVIDIA GPUs. `models.attention` chooses them.

`pallas_attention` calls `pallas_rows` for short rows and `pallas_blocks` for long rows and windows;
both use `pallas_parts`. `pallas_terms` are terms by distance in short rows.
"""
