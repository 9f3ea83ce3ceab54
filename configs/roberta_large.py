r"""RoBERTa-large (Liu et al. 2019): 24 layers of 1024, 355 M parameters.

The paper's 500,000 steps of 8192 sequences of 512 tokens: full sentences, masks drawn anew at each
visit, byte-level BPE. docs/families.md says how to make the records, and what differs.

Command:   python -m bertjax.train --config=configs/roberta_large.py --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices.
Planned:   38.7 h on v5e-256, in 2 micro-batches: $11,893, spot $2,428 (2026-11-25,
           docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipe_bases import roberta_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = roberta_config()
    config.model.num_hidden_layers = 24
    config.model.hidden_size = 1024
    config.model.num_attention_heads = 16
    config.model.intermediate_size = 4096
    config.schedule.peak_learning_rate = 4e-4
    config.schedule.warmup_steps = 30_000
    return config
