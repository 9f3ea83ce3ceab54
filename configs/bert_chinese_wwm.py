r"""Chinese BERT-wwm (Cui et al. 2019): BERT-base on characters, with whole words masked.

102 M parameters. A segmenter's words (`build --segmenter=jieba`) decide which characters are masked
together, and nothing else. 100,000 steps of 2560 sequences of 128 tokens, then 100,000 of 384 of
512, by LAMB. BERT-wwm began with the weights of Google's bert-base-chinese (--config.init_from);
BERT-wwm-ext has 1,000,000 and 400,000 steps. docs/families.md says how to make the records.

Command:   python -m bertjax.train --config=configs/bert_chinese_wwm.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any mesh; --config.mesh.data=-1 takes all devices (the paper: a TPU v3).
Planned:   3.7 h + 2.4 h on v5e-16, in 2 micro-batches: $117, spot $24 (2026-11-26).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipes import paper_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe.

    One schedule goes over both phases; the released runs had one each, and words of LTP. Masks are
    drawn anew at each visit.
    Source: ymcui/Chinese-BERT-wwm, README_EN.md; learning rate and warm-up from memory.
    """
    config = paper_config()
    config.model.vocab_size = 21_128  # 0 takes that of the records
    config.pretraining.update(masking="dynamic", mask_strategy="whole_word")
    config.phases.phase1.update(num_steps=100_000, global_batch_size=2560)
    config.phases.phase2.update(num_steps=100_000, global_batch_size=384)
    config.optimizer.name = "lamb"
    return config
