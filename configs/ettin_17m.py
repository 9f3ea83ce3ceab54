r"""Ettin's encoder of 17 M parameters (Weller et al. 2025): 7 layers of 256.

ModernBERT's architecture and recipe at another size: 1.7 T tokens at 1,024, 250 G at 8,192, 50 G
while the rate falls and 15% are masked. docs/families.md says what differs from the released run.

Command:   python -m bertjax.train --config=configs/ettin_17m.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any number of devices that divides 192; the paper: four H100.
Planned:   49.5 h + 11.8 h + 2.2 h on v5e-16, in 3 micro-batches: $1,219, spot $249 (2026-11-24,
           docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipe_bases import ettin_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = ettin_config()
    config.model.num_hidden_layers = 7
    config.model.hidden_size = 256
    config.model.num_attention_heads = 4
    config.model.intermediate_size = 384
    config.schedule.peak_learning_rate = 3e-3
    config.optimizer.weight_decay = 3e-4
    config.phases.phase1.ramp_tokens = 125_000_000_000
    config.phases.phase2.local_rotary_base = 0.0  # 10,000, in this size alone (de_decay)
    return config
