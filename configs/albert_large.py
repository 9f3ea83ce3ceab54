r"""ALBERT-large v2 (Lan et al. 2020): 24 layers of 1024 that share 18 M parameters.

The released v2: 3,000,000 steps of 4096 sequences of 512 tokens, LAMB, no dropout, n-gram masks
and sentence order. docs/families.md says how to make the records, and what differs.

Command:   python -m bertjax.train --config=configs/albert_large.py --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices.
Planned:   96.5 h on v5e-256: $29,652, spot $6,054 (2026-11-25, docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipe_bases import albert_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = albert_config()
    config.phases.phase1.num_steps = 3_000_000
    config.model.num_hidden_layers = 24
    config.model.hidden_size = 1024
    config.model.num_attention_heads = 16
    config.model.intermediate_size = 4096
    return config
