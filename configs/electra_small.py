r"""ELECTRA-small (Clark et al. 2020): 12 layers of 256, 14 M parameters, replaced-token detection.

The paper's: a generator a quarter as wide, 1,000,000 steps of 128 sequences of 128 tokens. The
checkpoint that was released under this name (ELECTRA-small++ in the paper) has a generator as wide
as the discriminator and was trained four times as long, at 512 tokens:
--config.pretraining.generator.hidden_size=256. Sources: table 6 and appendix A of the paper;
google-research/electra, configure_pretraining.py. What differs: docs/faithfulness.md.

Command:   python -m bertjax.train --config=configs/electra_small.py --workdir=DIR \
               --config.data.train_dir=TRAIN
           where TRAIN was built with --pair_objective=none --mask=none --max_seq_length=128.
Hardware:  any number of devices that divides 128; the paper: one V100, 4 days.
Planned:   2.6 h on v5e-4: $13, spot $2.58 (2026-11-25, docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured. The released ELECTRA-small(++) has a GLUE test score of 77.4.
"""

import ml_collections

from bertjax.recipe_bases import electra_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = electra_config()
    config.model.hidden_size = 256
    config.model.embedding_size = 128
    config.model.num_attention_heads = 4
    config.model.intermediate_size = 1024
    config.schedule.peak_learning_rate = 5e-4
    config.global_batch_size = 128
    config.phases.phase1.update(num_steps=1_000_000, max_seq_length=128)
    config.pretraining.max_predictions_per_seq = 19
    return config
