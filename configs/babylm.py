r"""BabyLM's tracks: an encoder from 10 or 100 million words. Sizes: strict_small, strict, mini.

Rows of 128 tokens that several texts share, masked and left-to-right rows in one batch
(`config.pretraining.objective=hybrid`, GPT-BERT), masks from 30% down to 15%, ten passes at most,
as the challenge has it. strict_small is for 10 million words and 8,192 entries, strict for 100
million and 16,384; mini is for two cores: six layers of 256, five passes.

Command:   python -m bertjax.train --config=configs/babylm.py:strict_small --workdir=DIR \
               --config.data.train_dir=train_128
Hardware:  any number of devices that divides 8 (mini: 2).
Planned:   strict_small: 4.8 min on v5e-1, 110,000 rows: $0.10, spot $0.02 (2026-11-27)
           strict: 37.2 min on v5e-4, 1,100,000 rows: $2.98, spot $0.61 (2026-11-27)
           mini: 59.0 s on v5e-1, 110,000 rows: $0.02, spot under $0.01 (2026-11-27)
Time:      mini: 15 M tokens in 1.4 hours on two CPU cores, 60 M in 10 minutes on a part of one
           H200; strict_small: 18 minutes on the same, with up to nine others (2026-11-27).
Result:    docs/results.md#ten-million-words. BLiMP and held-out mlm_loss of ten million words:
           mini 62.4 percent and 2.68 nats after 60 M tokens, strict_small 67.8 and 2.22.
"""

import ml_collections

from bertjax.recipes import choose, modern_config, sizes

SIZES = {
    "strict_small": {
        **sizes(layers=12, hidden=384, heads=6, intermediate=1280),
        "global_batch_size": 128,
    },
    "strict": {
        **sizes(layers=12, hidden=768, heads=12, intermediate=2560),
        "global_batch_size": 512,
        "schedule.warmup_steps": 1_000,
    },
    "mini": {
        **sizes(layers=6, hidden=256, heads=4, intermediate=384),
        "phases.phase1.num_epochs": 5.0,
    },
}


def get_config(size: str = "strict_small") -> ml_collections.ConfigDict:
    """Returns the recipe of a size.

    Layers, width, mask rates and the share of left-to-right rows are GPT-BERT's (Charpentier and
    Samuel 2024; ltgoslo/gpt-bert, pretraining/train_*.py). It makes thousands of passes in batches
    of four million tokens, so batch, optimizer and learning rate are our own; layers are
    ModernBERT's, without windows, as rows are short.
    """
    config = modern_config()
    config.model.update(vocab_size=0, max_position_embeddings=512)  # entries: those of the records
    config.model.update(window=0, global_every=1)
    config.pretraining.objective = "hybrid"
    config.global_batch_size = 32
    with config.phases.unlocked():
        config.phases = {"phase1": config.phases.phase1}
    config.phases.phase1.update(num_tokens=0, num_epochs=10.0, max_seq_length=128)
    config.phases.phase1.update(global_batch_size=0, ramp_from=0, ramp_tokens=0)
    config.phases.phase1.update(masked_lm_prob=0.3, final_masked_lm_prob=0.15)
    config.optimizer.update(name="muon", fully_decoupled_decay=False, weight_decay=0.1)
    config.schedule.update(warmup_tokens=0, warmup_steps=300, decay_tokens=0, decay_share=0.35)
    config.schedule.update(peak_learning_rate=2e-3)
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
