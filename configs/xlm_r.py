r"""XLM-R (Conneau et al. 2020): RoBERTa on a hundred languages, 250,002 pieces. Sizes: base, large.

278 M and 560 M parameters. 1,500,000 steps of 8192 sequences of 512 tokens, each in one language.
The vocabulary is a SentencePiece model with XLM-R's special tokens; the paper draws languages with
the exponent 0.3. docs/families.md says how to make vocabulary and records.

Command:   python -m bertjax.train --config=configs/xlm_r.py:base --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices (the paper: 500 V100).
Planned:   base: 61.9 h on v5e-256, in 2 micro-batches: $19,009, spot $3,881 (2026-11-26)
           large: 162 h on v5e-256, in 4 micro-batches: $49,668, spot $10,141 (2026-11-26)
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipes import choose, roberta_config, sizes

SIZES = {
    "base": {},
    "large": {
        **sizes(layers=24, hidden=1024, heads=16, intermediate=4096),
        "schedule.peak_learning_rate": 2e-4,
        "schedule.warmup_steps": 30_000,
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size.

    Source: Conneau et al. 2020, section 3: updates, batch and vocabulary. The learning rate of
    large is from memory; that of base and the warm-ups are RoBERTa's.
    """
    config = roberta_config()
    config.model.vocab_size = 250_002  # 0 takes that of the records
    config.phases.phase1.update(num_steps=1_500_000, language_alpha=0.3)
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
