r"""ModernBERT's architecture for a laptop: 4 layers of 256.

Sizes between Ettin's smallest and BERT-mini's: layers 0 and 3 see the whole row, 1 and 2 64 tokens
to each side. One phase of 512 tokens, of rows that several documents share.

Command:   python -m bertjax.train --config=configs/modern_mini.py --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any number of devices that divides 64.
Planned:   7.5 min on v5e-1: $0.15, spot $0.03 (2026-11-24).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipes import modern_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = modern_config()
    config.model.vocab_size = 0  # that of the records
    config.model.num_hidden_layers = 4
    config.model.hidden_size = 256
    config.model.num_attention_heads = 4
    config.model.intermediate_size = 384
    config.model.max_position_embeddings = 512
    config.model.update(rotary_base=160_000.0, local_rotary_base=10_000.0)  # as ModernBERT ends
    config.global_batch_size = 64
    with config.phases.unlocked():
        config.phases = {"phase1": config.phases.phase1}
    config.phases.phase1.update(num_tokens=0, num_steps=20_000, max_seq_length=512)
    config.phases.phase1.update(global_batch_size=0, ramp_from=0, ramp_tokens=0)
    config.schedule.update(warmup_tokens=0, warmup_steps=1_000, decay_tokens=0, decay_share=0.1)
    return config
