r"""ModernBERT-base (Warner et al. 2024): 22 layers of 768, 150 M parameters.

1.7 T tokens in sequences of 1,024, then 250 G in sequences of 8,192, then 50 G while the rate
falls: 30% masked, batches that grow to 4,608 sequences, StableAdamW. docs/families.md says how to
make the records, what differs from the released run, and what to change for a corpus that is not of
the size of the web.

Command:   python -m bertjax.train --config=configs/modernbert_base.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any number of devices that divides 192; the paper: eight H100, 8 days.
Planned:   64.0 h + 18.6 h + 3.7 h on v5e-64, in 3 micro-batches: $6,629, spot $1,353 (2026-11-24,
           docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured. The released model has a GLUE score of 88.4.
"""

import ml_collections

from bertjax.recipe_bases import modern_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    return modern_config()
