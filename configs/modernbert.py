r"""ModernBERT (Warner et al. 2024): rotary positions, windows, texts of 8,192. Sizes: base, large.

22 layers of 768 (150 M parameters) and 28 of 1024 (396 M). 1.7 T tokens in sequences of 1,024, then
250 G in sequences of 8,192, then 50 G while the learning rate falls: 30% masked, batches that grow
to 4,608 sequences, StableAdamW. Large has the learning rate 5e-4, and 5e-5 where texts are long;
the released one began from the tiled weights of Base, and went down to 5e-5 after 900 G tokens.
docs/families.md says how to make the records, what differs from the released run, and what to
change for a corpus that is not of the size of the web.

Command:   python -m bertjax.train --config=configs/modernbert.py:base --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any number of devices that divides 192; the paper's base: eight H100, 8 days.
Planned:   base: 64.0 h + 18.6 h + 3.7 h on v5e-64, in 3 micro-batches: $6,629, spot $1,353
             (2026-11-24)
           large: 154 h + 39.5 h + 7.9 h on v5e-64, in 9 micro-batches: $15,502, spot $3,165
             (2026-11-25)
Time:      not yet measured.
Result:    not yet measured. GLUE scores of the released models: base 88.4, large 90.4.
"""

import ml_collections

from bertjax.recipes import choose, modern_config

SIZES = {
    "base": {},
    "large": {
        "model.num_hidden_layers": 28,
        "model.hidden_size": 1_024,
        "model.num_attention_heads": 16,
        "model.intermediate_size": 2_624,
        "schedule.peak_learning_rate": 5e-4,
        "phases.phase2.rate_share": 5e-5 / 5e-4,
        "phases.phase3.rate_share": 5e-5 / 5e-4,
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size."""
    config = modern_config()
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
