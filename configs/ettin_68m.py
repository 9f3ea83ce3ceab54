r"""Ettin's encoder of 68 M parameters (Weller et al. 2025): 19 layers of 512.

ModernBERT's architecture and recipe at another size: 1.7 T tokens at 1,024, 250 G at 8,192, 50 G
while the rate falls and 15% are masked. docs/families.md says what differs from the released run.

Command:   python -m bertjax.train --config=configs/ettin_68m.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any number of devices that divides 192; the paper: four H100.
Planned:   33.6 h + 10.2 h + 2.0 h on v5e-64, in 3 micro-batches: $3,520, spot $719 (2026-11-25,
           docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipe_bases import ettin_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = ettin_config()
    config.model.num_hidden_layers = 19
    config.model.hidden_size = 512
    config.model.num_attention_heads = 8
    config.model.intermediate_size = 768
    config.schedule.peak_learning_rate = 3e-3
    config.optimizer.weight_decay = 3e-4
    config.schedule.warmup_tokens = 3_000_000_000
    config.phases.phase1.ramp_tokens = 75_000_000_000
    return config
