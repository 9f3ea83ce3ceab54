r"""BERT-small: 4 layers of 512, 28.8 M parameters, one of Google's 24 smaller BERTs.

Sizes: Turc et al. 2019 (arXiv:1908.08962). Recipe: the paper's for BERT-base, 128 tokens for 90% of
the steps and then 512, in one run.

Command:   python -m bertjax.train --config=configs/bert_small.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any number of devices that divides 256.
Planned:   8.5 h + 4.9 h on v5e-1: $16, spot $3.29 (2026-11-25).
Time:      not yet measured.
Result:    not yet measured. Google's checkpoint of this size has a GLUE test score of 71.2.
"""

import ml_collections

from bertjax.recipes import paper_config, sizes


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = paper_config()
    config.update_from_flattened_dict(sizes(4, 512, 8, 2048))
    return config
