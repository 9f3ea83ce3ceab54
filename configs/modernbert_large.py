r"""ModernBERT-large (Warner et al. 2024): 28 layers of 1024, 396 M parameters.

As modernbert_base, at a rate of 5e-4, and of 5e-5 where texts are long. The released model began
from Base, whose weights were tiled, and went down to 5e-5 after 900 G tokens.

Command:   python -m bertjax.train --config=configs/modernbert_large.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any number of devices that divides 192.
Planned:   154 h + 39.5 h + 7.9 h on v5e-64, in 9 micro-batches: $15,502, spot $3,165 (2026-11-25,
           docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured. The released model has a GLUE score of 90.4.
"""

import ml_collections

from bertjax.recipe_bases import modern_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = modern_config()
    config.model.num_hidden_layers = 28
    config.model.hidden_size = 1_024
    config.model.num_attention_heads = 16
    config.model.intermediate_size = 2_624
    config.schedule.peak_learning_rate = 5e-4
    config.phases.phase2.rate_share = config.phases.phase3.rate_share = 5e-5 / 5e-4
    return config
