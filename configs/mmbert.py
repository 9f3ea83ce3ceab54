r"""mmBERT (Marone et al. 2025): ModernBERT on 1,833 languages, 256,000 entries. Sizes: base, small.

308 M and 141 M parameters. 2 T tokens of 60 languages in sequences of 1,024, 30% masked; 600 G of
110 languages in sequences of 8,192, 15% masked; 100 G of all while the learning rate falls, 5%
masked. The exponent that languages are drawn with falls from 0.7 over 0.5 to 0.3. Released: English
has 34.5%, 12.1% and 10.2% of the tokens, code about 5%, set by hand (config.phases.phase1.languages
and so on, such as 'en=0.345, code=0.05, *'). docs/families.md says how to make the records.

Command:   python -m bertjax.train --config=configs/mmbert.py:base --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any number of devices that divides 384.
Planned:   base: 39.5 h + 11.7 h + 1.8 h on v5e-256, in 9 micro-batches: $16,270, spot $3,322
             (2026-11-26)
           small: 21.4 h + 6.3 h + 56.7 min on v5e-256, in 9 micro-batches: $8,815, spot $1,800
             (2026-11-26)
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipes import choose, modern_config

SIZES = {
    "base": {},
    "small": {
        "model.hidden_size": 384,
        "model.num_attention_heads": 6,
        "phases.phase1.ramp_tokens": 100_000_000_000,
        "schedule.warmup_tokens": 4_000_000_000,
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size.

    As in our ModernBERT, attention's output has no dropout (released: 0.1). The published file of
    base masks 25% in the first phase, the README says 30%. The first batch is 48 sequences for each
    of 8 devices (their number is from memory). The last phase is one run; the released weights are
    merged from three, on other mixtures.
    Source: JHU-CLSP/mmBERT, README and configs mmBERT-{base,small}{,-ext,-decay}.yaml.
    """
    config = modern_config()
    config.model.vocab_size = 256_000  # Gemma 2's; 0 takes that of the records
    config.global_batch_size = 4_608
    phases = config.phases
    phases.phase1.update(num_tokens=2_000_000_000_000, language_alpha=0.7)
    phases.phase1.update(ramp_from=384, ramp_tokens=60_000_000_000)
    phases.phase2.update(num_tokens=600_000_000_000, language_alpha=0.5, masked_lm_prob=0.15)
    phases.phase3.update(num_tokens=100_000_000_000, language_alpha=0.3, masked_lm_prob=0.05)
    for phase in (phases.phase2, phases.phase3):
        phase.update(rate_share=1.0, rotary_base=160_000.0, local_rotary_base=160_000.0)
    config.optimizer.update(beta2=0.95, eps=1e-8, weight_decay=8e-5)
    config.schedule.update(decay_tokens=100_000_000_000, end_share=0.02)
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
