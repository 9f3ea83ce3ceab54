"""A minute on a laptop: two layers of 64 on random tokens, every part of the loop once.

Command:   python -m bertjax.train --config=configs/smoke.py --workdir=/tmp/smoke
Hardware:  any; needs no data and no TensorFlow.
Planned:   0.1 s on v5e-1: under $0.01, spot under $0.01 (2026-11-25).
Time:      under one minute on 2 CPU cores.
Result:    none to speak of: the tokens are random, so the loss stays near log(1000) = 6.9 nats.
"""

import ml_collections

from bertjax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = default_config()
    config.data.source = "synthetic"
    config.global_batch_size = 32
    config.phases.phase1.num_steps = 200
    config.phases.phase1.max_seq_length = 64
    config.model.vocab_size = 1000
    config.model.hidden_size = 64
    config.model.num_hidden_layers = 2
    config.model.num_attention_heads = 2
    config.model.intermediate_size = 256
    config.model.max_position_embeddings = 64
    config.schedule.warmup_steps = 20
    config.checkpoint.save_every_steps = 100
    config.log_every_steps = 20
    return config
