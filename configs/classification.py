r"""Classes or numbers of your own texts, in CSV, TSV or JSON lines, from any checkpoint.

Command:   python -m bertjax.train --config=configs/classification.py --config.init_from=PATH \
               --config.finetuning.train_file=train.csv --config.finetuning.eval_file=dev.csv \
               --config.finetuning.text_column=text --config.finetuning.label_column=label \
               --workdir=DIR
           With --config.finetuning.second_text_column=NAME rows are pairs of texts, with
           configs/classification.py:regression the label is a number.
Hardware:  any; one device is enough.
Time:      not yet measured.
Result:    not yet measured: it depends on the texts.

The recipe is that of GLUE. Labels are found in the training file, and stored with the checkpoint.
"""

import ml_collections

from bertjax.config import default_config

LABELS = ("classes", "regression")


def get_config(labels: str = "classes") -> ml_collections.ConfigDict:
    """Returns the recipe for classes or for a regression."""
    if labels not in LABELS:
        raise ValueError(f"the labels are {labels!r}; known are {', '.join(LABELS)}")
    config = default_config()
    config.task = "finetuning"
    config.finetuning.dataset = "table"
    config.finetuning.is_regression = labels == "regression"
    config.finetuning.max_seq_length = 128
    config.finetuning.num_epochs = 3.0
    config.global_batch_size = 32
    config.schedule.peak_learning_rate = 2e-5
    config.schedule.warmup_share = 0.1
    config.evaluation.every_steps = 0  # every epoch
    config.evaluation.global_batch_size = 64
    config.checkpoint.keep_last = 1
    config.checkpoint.keep_best = 0
    config.log_every_steps = 20
    return config
