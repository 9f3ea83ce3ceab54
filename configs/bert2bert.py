r"""A text from a text: a decoder on a BERT, both begun from its weights (BERT2BERT).

Command:   python -m bertjax.train --config=configs/bert2bert.py --config.init_from=PATH \
               --config.finetuning.train_file=train.csv --config.finetuning.eval_file=dev.csv \
               --config.finetuning.text_column=text --config.finetuning.target_column=target \
               --workdir=DIR
           With configs/bert2bert.py:shared the two share all layers (BERTShare).
Hardware:  any; one device is enough.
Planned:   9.6 min on v5e-1, BERT-base, 100,000 pairs: $0.19, spot $0.04 (2026-11-28).
Time:      docs/generation.md has a run of some minutes on two CPU cores.
Result:    docs/results.md.
"""

import ml_collections

from bertjax.recipes import choose, finetuning_config

SHARES = {"own": "embeddings", "shared": "layers", "separate": "none"}


def get_config(layers: str = "own") -> ml_collections.ConfigDict:
    """Returns the recipe: own layers of the decoder, shared ones, or separate embeddings, too.

    Sources: Rothe et al. 2020, sections 2 and 3; patrickvonplaten/notebooks, BERT2BERT for
    CNN/Dailymail (5e-5, batches of 16).
    """
    config = finetuning_config("sequences")
    config.finetuning.shares = choose(SHARES, layers, "sharing of layers")
    config.global_batch_size = 16
    config.schedule.peak_learning_rate = 5e-5
    return config
