r"""ELECTRA (Clark et al. 2020), replaced-token detection. Sizes: base, small, large.

base: 110 M parameters, 766,000 steps of 256 sequences of 512 tokens, a generator a third as wide.
small: 14 M, the paper's 1,000,000 steps of 128 sequences of 128 tokens, a generator a quarter as
wide. The checkpoint that was released under this name (ELECTRA-small++ in the paper) has a
generator as wide as the discriminator and was trained four times as long, at 512 tokens:
--config.pretraining.generator.hidden_size=256.
large: 335 M, 400,000 steps of 2048 sequences of 512 tokens (ELECTRA-400K; ELECTRA-1.75M goes on to
1,750,000), a quarter of the tokens masked, a generator a quarter as wide.
Differences from the released code: docs/faithfulness.md.

Command:   python -m bertjax.train --config=configs/electra.py:base --workdir=DIR \
               --config.data.train_dir=TRAIN
           where TRAIN was built with --pair_objective=none --mask=none --max_seq_length=512, or
           128 for small.
Hardware:  base, large: a mesh of 16 devices (the paper's base: 16 TPUv3); --config.mesh.data=-1
           takes all. small: any number of devices that divides 128 (the paper: one V100).
Planned:   small: 2.6 h on v5e-4: $13, spot $2.58 (2026-11-25)
           base: 15.5 h on v5e-16: $298, spot $61 (2026-11-25)
           large: 173 h on v5e-16, in 8 micro-batches: $3,322, spot $678 (2026-11-25)
Time:      not yet measured; the paper: 4 days for base and for small.
Result:    not yet measured. GLUE test scores of the released models: base 82.7, small (++) 77.4,
           large (1.75M) 85.2.
"""

import ml_collections

from bertjax.config import default_config
from bertjax.recipes import choose, sizes

SIZES = {
    "base": {
        "phases.phase1.num_steps": 766_000,
        "phases.phase1.max_seq_length": 512,
        "pretraining.max_predictions_per_seq": 79,
        "pretraining.generator.hidden_size": 256,
        "mesh.data": 16,
    },
    "small": {
        **sizes(layers=12, hidden=256, heads=4, intermediate=1024),
        "model.embedding_size": 128,
        "schedule.peak_learning_rate": 5e-4,
        "global_batch_size": 128,
        "phases.phase1.num_steps": 1_000_000,
        "phases.phase1.max_seq_length": 128,
        "pretraining.max_predictions_per_seq": 19,
    },
    "large": {
        **sizes(layers=24, hidden=1024, heads=16, intermediate=4096),
        "global_batch_size": 2048,
        "phases.phase1.num_steps": 400_000,
        "phases.phase1.max_seq_length": 512,
        "pretraining.masked_lm_prob": 0.25,
        "pretraining.max_predictions_per_seq": 130,
        "pretraining.generator.hidden_size": 256,
        "mesh.data": 16,
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size.

    Source: Clark et al. 2020, appendix A, table 6; google-research/electra,
    configure_pretraining.py and pretrain/pretrain_helpers.py (85% [MASK], 15% kept, no random).
    """
    config = default_config()
    config.model.vocab_size = 30522  # bert-base-uncased; 0 takes that of the records
    config.model.pooler_act = "gelu"  # of the pooler that finetuning adds
    config.pretraining.update(objective="replaced_tokens", pair_loss="none")
    config.pretraining.update(masking="dynamic", mask_share=0.85, keep_share=0.15)
    config.optimizer.bias_correction = False
    config.schedule.update(name="electra", peak_learning_rate=2e-4)
    config.checkpoint.best_metric = "discriminator_loss"
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
