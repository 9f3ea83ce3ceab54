r"""SQuAD v1.1 or v2.0 from any checkpoint (Devlin et al. 2019, sections 4.2 and 4.3).

Command:   python -m bertjax.train --config=configs/squad.py:v1 --config.init_from=PATH \
               --config.finetuning.train_file=train-v1.1.json \
               --config.finetuning.eval_file=dev-v1.1.json --workdir=DIR
Hardware:  any; the paper's batch of BERT Base at 384 tokens wants 16 GB, or
           --config.gradient_accumulation_steps=4.
Planned:   7.8 min on v5e-1, BERT-base, 88,641 windows of v1.1: $0.16, spot $0.03 (2026-11-25).
Time:      not yet measured.
Result:    not yet measured.

Batch size, learning rate and epochs are the paper's. Windows of 384 tokens, 128 apart, questions of
64 tokens and a warm-up of a tenth of the steps are the released code's. For v2.0, evaluation finds
the threshold above which the prediction is "no answer" (the score null_threshold).
"""

import ml_collections

from bertjax.recipes import choose, finetuning_config

EPOCHS_AND_BATCH = {"v1": (3.0, 32), "v2": (2.0, 48)}


def get_config(version: str = "v1") -> ml_collections.ConfigDict:
    """Returns the recipe of v1 (v1.1) or v2 (v2.0)."""
    num_epochs, global_batch_size = choose(EPOCHS_AND_BATCH, version, "version")
    config = finetuning_config("squad")
    config.finetuning.name = version
    config.finetuning.max_seq_length = 384
    config.finetuning.num_epochs = num_epochs
    config.global_batch_size = global_batch_size
    config.schedule.peak_learning_rate = 5e-5
    return config
