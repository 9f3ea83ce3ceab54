r"""SWAG, which of four endings goes on (Devlin et al. 2019, section 4.4), from any checkpoint.

Command:   python -m bertjax.train --config=configs/swag.py --config.init_from=PATH \
               --config.finetuning.train_file=train.csv --config.finetuning.eval_file=val.csv \
               --workdir=DIR
           Files that end with .tsv are CODAH's.
Hardware:  any; 16 examples are 64 sequences.
Planned:   8.3 min on v5e-1, BERT-base, 73,546 examples: $0.17, spot $0.03 (2026-11-25).
Time:      not yet measured.
Result:    SWAG: not yet measured. CODAH from a BERT of 6 layers, 384 wide: 50.7% of dev, one seed
           (2026-11-22, docs/results.md).

Batch, rate and epochs are the paper's.
"""

import ml_collections

from bertjax.recipes import finetuning_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = finetuning_config("swag")
    config.global_batch_size = 16
    return config
