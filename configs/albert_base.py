r"""ALBERT-base v2 (Lan et al. 2020): 12 layers of 768 that share 12 M parameters.

The released v2: 10,000,000 steps of 4096 sequences of 512 tokens, LAMB, no dropout, n-gram masks
and sentence order. docs/families.md says how to make the records, and what differs.

Command:   python -m bertjax.train --config=configs/albert_base.py --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices.
Planned:   423 h on v5e-64: $32,508, spot $6,637 (2026-11-24, docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipe_bases import albert_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = albert_config()
    config.phases.phase1.num_steps = 10_000_000
    return config
