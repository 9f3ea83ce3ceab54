r"""ELECTRA-large (Clark et al. 2020): 24 layers of 1024, 335 M parameters, replaced tokens.

400,000 steps of 2048 sequences of 512 tokens (ELECTRA-400K; ELECTRA-1.75M goes on to 1,750,000), a
quarter of the tokens masked, a generator a quarter as wide. Sources: table 6 and appendix A of the
paper; google-research/electra, configure_pretraining.py. What differs: docs/faithfulness.md.

Command:   python -m bertjax.train --config=configs/electra_large.py --workdir=DIR \
               --config.data.train_dir=TRAIN
           where TRAIN was built with --pair_objective=none --mask=none --max_seq_length=512.
Hardware:  a mesh of 16 devices; --config.mesh.data=-1 takes all.
Planned:   173 h on v5e-16, in 8 micro-batches: $3,322, spot $678 (2026-11-25, docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured. The released ELECTRA-large (1.75M) has a GLUE test score of 85.2.
"""

import ml_collections

from bertjax.recipe_bases import electra_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = electra_config()
    config.model.hidden_size = 1024
    config.model.num_hidden_layers = 24
    config.model.num_attention_heads = 16
    config.model.intermediate_size = 4096
    config.global_batch_size = 2048
    config.phases.phase1.update(num_steps=400_000, max_seq_length=512)
    config.pretraining.masked_lm_prob = 0.25
    config.pretraining.max_predictions_per_seq = 130
    config.pretraining.generator.hidden_size = 256
    config.mesh.data = 16
    return config
