r"""Ettin's encoder of 150 M parameters (Weller et al. 2025): 22 layers of 768.

ModernBERT's architecture and recipe at its Base size: 1.7 T tokens at 1,024, 250 G at 8,192, 50 G
while the rate falls and 15% are masked. docs/families.md says what differs from the released run.

Command:   python -m bertjax.train --config=configs/ettin_150m.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any number of devices that divides 192; the paper: four H100.
Planned:   63.3 h + 18.6 h + 3.6 h on v5e-64, in 3 micro-batches: $6,568, spot $1,341 (2026-11-25,
           docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipe_bases import ettin_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = ettin_config()
    config.phases.phase1.ramp_tokens = 50_000_000_000
    return config
