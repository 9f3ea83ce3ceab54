r"""The paper's "LTR & No NSP": BERT-base that predicts the next token from those on its left.

The ablation of Devlin et al. 2019, section 5.1, table 5. All else is that of `bert_base.py`. The
records are built with --mask=none. Finetune it with --config.finetuning.pooling=last.

Command:   python -m bertjax.train --config=configs/left_to_right_base.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  a mesh of 4 devices; --config.mesh.data=-1 takes all.
Planned:   12.3 h + 6.2 h on v5e-4: $89, spot $18 (2026-11-25).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipes import paper_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = paper_config()
    config.model.left_to_right = True
    config.pretraining.update(objective="next_token", masking="none", pair_loss="none")
    config.checkpoint.best_metric = "lm_loss"
    config.mesh.data = 4
    return config
