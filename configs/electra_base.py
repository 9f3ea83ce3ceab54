r"""ELECTRA-base (Clark et al. 2020): 12 layers of 768, 110 M parameters, replaced-token detection.

766,000 steps of 256 sequences of 512 tokens, a generator a third as wide. Sources: table 6 and
appendix A of the paper; google-research/electra, configure_pretraining.py. What differs:
docs/faithfulness.md.

Command:   python -m bertjax.train --config=configs/electra_base.py --workdir=DIR \
               --config.data.train_dir=TRAIN
           where TRAIN was built with --pair_objective=none --mask=none --max_seq_length=512.
Hardware:  a mesh of 16 devices (the paper: 16 TPUv3); --config.mesh.data=-1 takes all.
Planned:   15.5 h on v5e-16: $298, spot $61 (2026-11-25, docs/scaling.md).
Time:      not yet measured; the paper: 4 days.
Result:    not yet measured. The released ELECTRA-base has a GLUE test score of 82.7.
"""

import ml_collections

from bertjax.recipe_bases import electra_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = electra_config()
    config.phases.phase1.update(num_steps=766_000, max_seq_length=512)
    config.pretraining.max_predictions_per_seq = 79
    config.pretraining.generator.hidden_size = 256
    config.mesh.data = 16
    return config
