r"""MASS (Song et al. 2019): an encoder and a decoder that predicts a fragment. Sizes: base, mini.

Six layers of 768 each, 123 M parameters, with one table of words: half of each row is hidden from
the encoder, and the decoder predicts it. mini is 4 layers of 256 each for a laptop, rows of 128.
--config.pretraining.sequence_rows=bart has BART's rows instead. docs/generation.md says more.

Command:   python -m bertjax.train --config=configs/mass.py:base --workdir=DIR \
               --config.data.train_dir=TRAIN
           where TRAIN was built with --pair_objective=none --mask=none --max_seq_length=512, or
           128 for mini.
Hardware:  any mesh; --config.mesh.data=-1 takes all devices (the authors: 32 V100).
Planned:   base: 7.1 h on v5e-64, in 2 micro-batches: $547, spot $112 (2026-11-28)
           mini: 4.2 min on v5e-1: $0.08, spot $0.02 (2026-11-28)
Time:      not yet measured.
Result:    docs/results.md has a smaller one.
"""

import ml_collections

from bertjax.config import default_config
from bertjax.recipes import choose, sizes

SIZES = {
    "base": {},
    "mini": {
        **sizes(layers=4, hidden=256, heads=4, intermediate=1024),
        **{"model.vocab_size": 0, "model.max_position_embeddings": 128, "global_batch_size": 64},
        **{"phases.phase1.num_steps": 20_000, "phases.phase1.max_seq_length": 128},
        "schedule.warmup_steps": 1_000,
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size.

    Source: microsoft/MASS, MASS-summarization/README.md: 125,000 steps of 4096 blocks of 512
    tokens, Adam with 0.9 and 0.98, no clipping, the vocabulary of bert-base-uncased. There a block
    has a fragment in each 64 tokens, and the decoder positions of its own; here a row has one
    fragment, as in the paper, and both stacks have the same embeddings.
    """
    config = default_config()
    config.model.update(num_hidden_layers=6, vocab_size=30_522)
    config.model.update(type_vocab_size=0, mlm_transform=False)
    config.pretraining.update(
        objective="masked_spans_to_sequence", masking="dynamic", pair_loss="none"
    )
    config.global_batch_size = 4_096
    config.phases.phase1.update(num_steps=125_000, max_seq_length=512)
    config.optimizer.update(beta2=0.98, clip_norm=0.0)
    config.schedule.update(peak_learning_rate=5e-4, warmup_steps=10_000)
    config.checkpoint.best_metric = "lm_loss"
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
