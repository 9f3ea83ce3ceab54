r"""RoBERTa (Liu et al. 2019): BERT with larger batches and no pairs. Sizes: base, large.

125 M and 355 M parameters. The paper's 500,000 steps of 8192 sequences of 512 tokens: full
sentences, masks drawn anew at each visit, byte-level BPE. docs/families.md says how to make the
records, and what differs.

Command:   python -m bertjax.train --config=configs/roberta.py:base --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices.
Planned:   base: 27.0 h on v5e-128: $4,140, spot $845 (2026-11-25)
           large: 38.7 h on v5e-256, in 2 micro-batches: $11,893, spot $2,428 (2026-11-25)
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.config import default_config
from bertjax.recipes import choose, sizes

SIZES = {
    "base": {"schedule.peak_learning_rate": 6e-4, "schedule.warmup_steps": 24_000},
    "large": {
        **sizes(layers=24, hidden=1024, heads=16, intermediate=4096),
        "schedule.peak_learning_rate": 4e-4,
        "schedule.warmup_steps": 30_000,
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size: one phase of 512 tokens, masks drawn anew at each visit.

    Source: Liu et al. 2019, section 3.1 and appendix A, table 9. LayerNorm and biases are not
    decayed, as in BERT; fairseq decays them (config.optimizer.decay_biases).
    """
    config = default_config()
    config.model.update(
        vocab_size=50_265,
        position_offset=2,
        type_vocab_size=1,
        initializer="normal",
        layer_norm_eps=1e-5,
    )
    config.pretraining.update(pair_loss="none", masking="dynamic")
    config.global_batch_size = 8192
    config.phases.phase1.update(num_steps=500_000, max_seq_length=512)
    config.optimizer.update(beta2=0.98, clip_norm=0.0)
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
