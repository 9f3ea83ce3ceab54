r"""Classes or numbers of your own texts, in CSV, TSV or JSON lines, from any checkpoint.

Command:   python -m bertjax.train --config=configs/classification.py --config.init_from=PATH \
               --config.finetuning.train_file=train.csv --config.finetuning.eval_file=dev.csv \
               --config.finetuning.text_column=text --config.finetuning.label_column=label \
               --workdir=DIR
           With --config.finetuning.second_text_column=NAME rows are pairs of texts, with
           configs/classification.py:regression the label is a number.
Hardware:  any; one device is enough.
Planned:   18.7 s on v5e-1, BERT-base, 10,000 examples: under $0.01, spot under $0.01 (2026-11-25).
Time:      not yet measured.
Result:    not yet measured: it depends on the texts.

The recipe is that of GLUE, but learning rate and epochs follow from the encoder's width and the
number of rows (docs/finetuning.md). Labels are found in the training file, and stored with the
checkpoint.
"""

import ml_collections

from bertjax.recipes import choose, own_finetuning_config

IS_REGRESSION = {"classes": False, "regression": True}


def get_config(labels: str = "classes") -> ml_collections.ConfigDict:
    """Returns the recipe for classes or for a regression."""
    config = own_finetuning_config("table")
    config.finetuning.is_regression = choose(IS_REGRESSION, labels, "kind of labels")
    return config
