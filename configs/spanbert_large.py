r"""SpanBERT-large (Joshi et al. 2020): BERT-large of one segment, told spans and boundaries too.

As configs/spanbert_base.py: 2,400,000 steps of 256 sequences of 512 tokens.

Command:   python -m bertjax.train --config=configs/spanbert_large.py --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices (the paper: 32 V100).
Planned:   124 h on v5e-16: $2,371, spot $484 (2026-11-25, docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipe_bases import spanbert_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = spanbert_config()
    config.model.num_hidden_layers = 24
    config.model.hidden_size = 1024
    config.model.num_attention_heads = 16
    config.model.intermediate_size = 4096
    return config
