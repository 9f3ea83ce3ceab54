r"""ALBERT v2 (Lan et al. 2020): layers that share parameters. Sizes: base, large, xlarge, xxlarge.

12 M, 18 M, 59 M and 223 M parameters. The released v2: batches of 4096 sequences of 512 tokens,
10,000,000 steps for base and 3,000,000 for the others, LAMB, no dropout, n-gram masks and sentence
order. docs/families.md says how to make the records, and what differs.

Command:   python -m bertjax.train --config=configs/albert.py:base --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices.
Planned:   base: 423 h on v5e-64: $32,508, spot $6,637 (2026-11-24)
           large: 96.5 h on v5e-256: $29,652, spot $6,054 (2026-11-25)
           xlarge: 313 h on v5e-256, in 2 micro-batches: $96,084, spot $19,617 (2026-11-25)
           xxlarge: 636 h on v5e-256, in 2 micro-batches: $195,393, spot $39,893 (2026-11-25)
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.config import default_config
from bertjax.recipes import choose, sizes

SIZES = {
    "base": {"phases.phase1.num_steps": 10_000_000},
    "large": {
        **sizes(layers=24, hidden=1024, heads=16, intermediate=4096),
        "phases.phase1.num_steps": 3_000_000,
    },
    "xlarge": {
        **sizes(layers=24, hidden=2048, heads=16, intermediate=8192),
        "phases.phase1.num_steps": 3_000_000,
    },
    "xxlarge": {
        **sizes(layers=12, hidden=4096, heads=64, intermediate=16384),
        "phases.phase1.num_steps": 3_000_000,
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size: one phase of 512 tokens, masks from the records.

    Source: google-research/albert README (batch 4096, LAMB, learning rate .00176, warm-up 3,125
    steps) and lamb_optimizer.py, which does not correct the moments; v2: no dropout; the models
    compute tanh GELU whatever their config says.
    """
    config = default_config()
    config.model.update(
        vocab_size=30_000,
        embedding_size=128,
        num_hidden_groups=1,
        hidden_act="gelu_tanh",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config.pretraining.pair_loss = "sop"
    config.global_batch_size = 4096
    config.phases.phase1.max_seq_length = 512
    config.optimizer.update(name="lamb", bias_correction=False)
    config.schedule.update(peak_learning_rate=0.00176, warmup_steps=3_125)
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
