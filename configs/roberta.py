r"""RoBERTa (Liu et al. 2019): BERT with larger batches and no pairs. Sizes: base, large.

125 M and 355 M parameters. The paper's 500,000 steps of 8192 sequences of 512 tokens: full
sentences, masks drawn anew at each visit, byte-level BPE. docs/families.md says how to make the
records, and what differs.

Command:   python -m bertjax.train --config=configs/roberta.py:base --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices.
Planned:   base: 27.0 h on v5e-128: $4,140, spot $845 (2026-11-25)
           large: 38.7 h on v5e-256, in 2 micro-batches: $11,893, spot $2,428 (2026-11-25)
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipes import choose, roberta_config, sizes

SIZES = {
    "base": {},
    "large": {
        **sizes(layers=24, hidden=1024, heads=16, intermediate=4096),
        "schedule.peak_learning_rate": 4e-4,
        "schedule.warmup_steps": 30_000,
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size; its sources are those of `recipes.roberta_config`."""
    config = roberta_config()
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
