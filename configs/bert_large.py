r"""BERT-large (Devlin et al. 2019): 24 layers of 1024, 340 M parameters, the paper's recipe.

One run of 1,000,000 steps of 256 sequences: 128 tokens for 90% of the steps, then 512, the
optimizer's state carried over and one learning-rate schedule over the whole (appendix A.2).

Command:   python -m bertjax.train --config=configs/bert_large.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  a mesh of 16 devices (the paper: 16 Cloud TPUs); --config.mesh.data=-1 takes all.
Planned:   15.9 h + 5.1 h on v5e-16: $403, spot $82 (2026-11-25).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipes import paper_config, sizes


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = paper_config()
    config.update_from_flattened_dict(sizes(24, 1024, 16, 4096))
    config.mesh.data = 16
    return config
