r"""BERT-mini: 4 layers of 256, 11.2 M parameters, one of Google's 24 smaller BERTs.

Sizes: Turc et al. 2019 (arXiv:1908.08962). Recipe: the paper's for BERT-base, 128 tokens for 90% of
the steps and then 512 in one run; Google's smaller models used it unchanged.

Command:   python -m bertjax.train --config=configs/bert_mini.py --workdir=DIR \
               --config.data.train_dir='RECORDS_{max_seq_length}'
Hardware:  any number of devices that divides 256.
Time:      not yet measured.
Result:    not yet measured. Google's checkpoint of this size has a GLUE test score of 65.8.
"""

import ml_collections

from bertjax.config import default_config, phase_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = default_config()
    config.model.vocab_size = 30522  # bert-base-uncased; 0 takes that of the records
    config.model.num_hidden_layers = 4
    config.model.hidden_size = 256
    config.model.num_attention_heads = 4
    config.model.intermediate_size = 1024
    config.phases.phase1.num_steps = 900_000
    config.phases.phase1.max_seq_length = 128
    with config.phases.unlocked():
        config.phases.phase2 = phase_config()
    config.phases.phase2.num_steps = 100_000
    config.phases.phase2.max_seq_length = 512
    return config
