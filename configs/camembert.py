r"""CamemBERT (Martin et al. 2020): RoBERTa-base for French, with whole words masked.

111 M parameters. 100,000 steps of 8192 sequences of 512 tokens. The vocabulary is a SentencePiece
model of 32,005 entries with CamemBERT's special tokens. docs/families.md says how to make
vocabulary and records.

Command:   python -m bertjax.train --config=configs/camembert.py --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices (the paper: 256 V100).
Planned:   5.2 h on v5e-128: $796, spot $162 (2026-11-26).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipes import roberta_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe.

    Source: Martin et al. 2020, section 4 (learning rate, warm-up and steps from memory); fairseq,
    examples/camembert. Words begin at a piece with a mark, and at punctuation, which fairseq leaves
    in the word before it.
    """
    config = roberta_config()
    config.model.vocab_size = 32_005  # 0 takes that of the records
    config.pretraining.mask_strategy = "whole_word"
    config.phases.phase1.num_steps = 100_000
    config.schedule.update(peak_learning_rate=7e-4, warmup_steps=10_000)
    return config
