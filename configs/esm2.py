r"""ESM-2 (Lin et al. 2023): encoders of proteins. Sizes: 8m, 35m, 150m, 650m, 3b, mini.

7.5 M to 2.8 G parameters. A letter is a token, positions are rotary, masks are zero and the rest of
a sequence is scaled for them. 500,000 steps of two million tokens, crops of 1,024, AdamW. mini is
for a laptop. docs/families.md says how to make the records, and what differs.

Command:   python -m bertjax.train --config=configs/esm2.py:8m --workdir=DIR \
               --config.data.train_dir=train_1024
Hardware:  any mesh; --config.mesh.data=-1 takes all devices (mini: 2).
Planned:   8m: 126 h on v5e-16, in 16 micro-batches: $2,415, spot $493 (2026-11-27)
           35m: 280 h on v5e-16, in 32 micro-batches: $5,368, spot $1,096 (2026-11-27)
           150m: 70.3 h on v5e-64: $5,397, spot $1,102 (2026-11-27)
           650m: 41.6 h on v5e-256: $12,786, spot $2,611 (2026-11-27)
           3b: 198 h on v5e-256, in 4 micro-batches: $60,905, spot $12,435 (2026-11-27)
           mini: 1.8 s on v5e-1: under $0.01, spot under $0.01 (2026-11-27)
Time:      not yet measured.
Result:    docs/results.md has mini.
"""

import ml_collections

from bertjax.config import default_config
from bertjax.recipes import choose, sizes

SIZES = {
    "8m": sizes(layers=6, hidden=320, heads=20, intermediate=1280),
    "35m": sizes(layers=12, hidden=480, heads=20, intermediate=1920),
    "150m": sizes(layers=30, hidden=640, heads=20, intermediate=2560),
    "650m": sizes(layers=33, hidden=1280, heads=20, intermediate=5120),
    "3b": sizes(layers=36, hidden=2560, heads=40, intermediate=10240),
    "mini": {
        **sizes(layers=4, hidden=160, heads=10, intermediate=640),
        "global_batch_size": 16,
        "phases.phase1.num_steps": 1_000,
        "phases.phase1.max_seq_length": 256,
        "schedule.peak_learning_rate": 2e-3,
        "schedule.warmup_steps": 100,
    },
}


def get_config(size: str = "8m") -> ml_collections.ConfigDict:
    """Returns the recipe of a size: one phase, packed rows of 1,024, masks drawn as they are read.

    Source: Lin et al. 2023 (ESM-2), supplement A.2.2 and table S1, by its digest: Adam with betas
    0.9 and 0.98, epsilon 1e-8 and decay 0.01, learning rate 4e-4 after 2,000 steps, linearly to a
    tenth, batches of two million tokens. facebookresearch/esm, esm/model/esm2.py, has the sizes.
    """
    config = default_config()
    config.model.update(
        vocab_size=33,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=1_024,
        type_vocab_size=0,
        embeddings="token_dropout",
        mask_id=32,
        position_embedding="rotary",
        layer="full_pre_norm",
        layer_norm_eps=1e-5,
    )
    config.pretraining.update(pair_loss="none", masking="dynamic")
    config.global_batch_size = 2_048
    config.phases.phase1.update(num_steps=500_000, max_seq_length=1_024)
    config.optimizer.update(beta2=0.98, eps=1e-8)
    config.schedule.update(peak_learning_rate=4e-4, warmup_steps=2_000, end_share=0.1)
    config.evaluation.global_batch_size = 64
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
