r"""BERT-base (Devlin et al. 2019): 12 layers of 768, 110 M parameters, the paper's recipe.

One run of 1,000,000 steps of 256 sequences: 128 tokens for 90% of the steps, then 512, the
optimizer's state carried over and one learning-rate schedule over the whole (appendix A.2).

Command:   python -m bertjax.train --config=configs/bert_base.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  a mesh of 4 devices (the paper: 4 Cloud TPUs); --config.mesh.data=-1 takes all.
Planned:   9.9 h + 4.6 h on v5e-4: $70, spot $14 (2026-11-25).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipes import paper_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = paper_config()
    config.mesh.data = 4
    return config
