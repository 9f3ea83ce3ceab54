r"""Ettin's encoder of 396 M parameters (Weller et al. 2025): 28 layers of 1024.

ModernBERT's architecture and recipe at its Large size: 1.7 T tokens at 1,024, 250 G at 8,192, 50 G
while the rate falls and 15% are masked. docs/families.md says what differs from the released run.

Command:   python -m bertjax.train --config=configs/ettin_400m.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any number of devices that divides 192; the paper: four H100.
Planned:   153 h + 39.5 h + 7.8 h on v5e-64, in 9 micro-batches: $15,367, spot $3,137 (2026-11-25,
           docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipe_bases import ettin_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = ettin_config()
    config.model.num_hidden_layers = 28
    config.model.hidden_size = 1_024
    config.model.num_attention_heads = 16
    config.model.intermediate_size = 2_624
    config.schedule.peak_learning_rate = 5e-4
    config.phases.phase1.ramp_tokens = 10_000_000_000
    return config
