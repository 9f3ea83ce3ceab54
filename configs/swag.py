r"""SWAG, which of four endings goes on (Devlin et al. 2019, section 4.4), from any checkpoint.

Command:   python -m bertjax.train --config=configs/swag.py --config.init_from=PATH \
               --config.finetuning.train_file=train.csv --config.finetuning.eval_file=val.csv \
               --workdir=DIR
           Files that end with .tsv are CODAH's.
Hardware:  any; 16 examples are 64 sequences.
Time:      not yet measured.
Result:    not yet measured.

Batch, rate and epochs are the paper's.
"""

import ml_collections

from bertjax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = default_config()
    config.task = "finetuning"
    config.finetuning.dataset = "swag"
    config.finetuning.max_seq_length = 128
    config.finetuning.num_epochs = 3.0
    config.global_batch_size = 16
    config.schedule.peak_learning_rate = 2e-5
    config.schedule.warmup_share = 0.1
    config.evaluation.every_steps = 0  # every epoch
    config.evaluation.global_batch_size = 64
    config.checkpoint.keep_last = 1
    config.checkpoint.keep_best = 0
    config.log_every_steps = 20
    return config
