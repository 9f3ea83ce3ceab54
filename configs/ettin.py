r"""Ettin's encoders (Weller et al. 2025). Sizes: 17m, 32m, 68m, 150m (the default), 400m, 1b.

ModernBERT's architecture and recipe at six sizes; 150m and 400m are ModernBERT's Base and Large.
1.7 T tokens in sequences of 1,024, 250 G in sequences of 8,192, 50 G while the learning rate falls
and 15% are masked. docs/families.md says what differs from the released run.

Command:   python -m bertjax.train --config=configs/ettin.py:150m --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any number of devices that divides 192; the paper: four H100.
Planned:   17m: 49.5 h + 11.8 h + 2.2 h on v5e-16, in 3 micro-batches: $1,219, spot $249
             (2026-11-24)
           32m: 100 h + 23.8 h + 4.4 h on v5e-16, in 3 micro-batches: $2,465, spot $503 (2026-11-24)
           68m: 33.6 h + 10.2 h + 2.0 h on v5e-64, in 3 micro-batches: $3,520, spot $719
             (2026-11-25)
           150m: 63.3 h + 18.6 h + 3.6 h on v5e-64, in 3 micro-batches: $6,568, spot $1,341
             (2026-11-25)
           400m: 153 h + 39.5 h + 7.8 h on v5e-64, in 9 micro-batches: $15,367, spot $3,137
             (2026-11-25)
           1b: 372 h + 83.3 h + 16.5 h on v5e-64, in 9 micro-batches: $36,271, spot $7,405
             (2026-11-25)
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipes import choose, modern_config, sizes

SIZES = {
    "17m": {
        **sizes(layers=7, hidden=256, heads=4, intermediate=384),
        "schedule.peak_learning_rate": 3e-3,
        "optimizer.weight_decay": 3e-4,
        "phases.phase1.ramp_tokens": 125_000_000_000,
        "phases.phase2.local_rotary_base": 0.0,  # 10,000, in this size alone (de_decay)
    },
    "32m": {
        **sizes(layers=10, hidden=384, heads=6, intermediate=576),
        "schedule.peak_learning_rate": 3e-3,
        "optimizer.weight_decay": 3e-4,
        "phases.phase1.ramp_tokens": 100_000_000_000,
    },
    "68m": {
        **sizes(layers=19, hidden=512, heads=8, intermediate=768),
        "schedule.peak_learning_rate": 3e-3,
        "optimizer.weight_decay": 3e-4,
        "schedule.warmup_tokens": 3_000_000_000,
        "phases.phase1.ramp_tokens": 75_000_000_000,
    },
    "150m": {"phases.phase1.ramp_tokens": 50_000_000_000},
    "400m": {
        **sizes(layers=28, hidden=1_024, heads=16, intermediate=2_624),
        "schedule.peak_learning_rate": 5e-4,
        "phases.phase1.ramp_tokens": 10_000_000_000,
    },
    "1b": {
        **sizes(layers=28, hidden=1_792, heads=28, intermediate=3_840),
        "schedule.peak_learning_rate": 5e-4,
        "optimizer.weight_decay": 5e-5,
        "phases.phase1.ramp_tokens": 3_000_000_000,
    },
}


def get_config(size: str = "150m") -> ml_collections.ConfigDict:
    """Returns the recipe of a size.

    The last phase masks 15% and begins at half the learning rate. In the released runs the learning
    rate falls to that half during the second phase; here it stays. Where texts get long, layers
    with a window have the rotary base 160,000, too. Source: Weller et al. 2025;
    JHU-CLSP/ettin-encoder-vs-decoder, pretraining/configs: standard/*/encoder_*.yaml, and those in
    de_decay and prolong_decay.
    """
    config = modern_config()
    config.phases.phase1.num_tokens = 1_700_000_000_000
    config.phases.phase3.masked_lm_prob = 0.15
    config.phases.phase2.rate_share, config.phases.phase3.rate_share = 1.0, 0.5
    config.phases.phase2.local_rotary_base = config.phases.phase3.local_rotary_base = 160_000.0
    config.schedule.warmup_tokens = 4_000_000_000
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
