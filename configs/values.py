r"""Finetuning on records of values: a class, numbers or a forecast, from weights that read values.

Command:   python -m bertjax.train --config=configs/values.py --workdir=DIR --config.init_from=RUN \
               --config.finetuning.train_file=records/train
Hardware:  any number of devices that divides 64.
Planned:   2.8 s on v5e-1, 10,000 rows of PatchTST: under $0.01, spot under $0.01 (2026-11-27).
Time:      not yet measured.
Result:    docs/results.md.
"""

import ml_collections

from bertjax.recipes import finetuning_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe: 10 epochs of batches of 64, without dropout in the encoder."""
    config = finetuning_config("values")
    config.finetuning.num_epochs = 10.0
    config.global_batch_size = 64
    config.model.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config.schedule.update(peak_learning_rate=1e-3, warmup_share=0.1)
    config.evaluation.global_batch_size = 256
    return config
