r"""BERT-tiny: 2 layers of 128, 4.4 M parameters, one of Google's 24 smaller BERTs.

Sizes: Turc et al. 2019 (arXiv:1908.08962). Recipe: the paper's for BERT-base, 128 tokens for 90% of
the steps and then 512, in one run.

Command:   python -m bertjax.train --config=configs/bert_tiny.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any number of devices that divides 256.
Planned:   2.2 h + 1.0 h on v5e-1: $3.90, spot $0.80 (2026-11-25).
Time:      not yet measured.
Result:    not yet measured. Google's checkpoint of this size has a GLUE test score of 64.2.
"""

import ml_collections

from bertjax.recipes import paper_config, sizes


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = paper_config()
    config.update_from_flattened_dict(sizes(2, 128, 2, 512))
    return config
