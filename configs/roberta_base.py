r"""RoBERTa-base (Liu et al. 2019): 12 layers of 768, 125 M parameters.

The paper's 500,000 steps of 8192 sequences of 512 tokens: full sentences, masks drawn anew at each
visit, byte-level BPE. docs/families.md says how to make the records, and what differs.

Command:   python -m bertjax.train --config=configs/roberta_base.py --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices.
Planned:   27.0 h on v5e-128: $4,140, spot $845 (2026-11-25, docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipe_bases import roberta_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    return roberta_config()
