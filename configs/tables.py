r"""Tables: FT-Transformer (Gorishniy et al. 2021), pretrained. Sizes: replaced, values, mini.

A cell is a position. replaced predicts which cells hold the value of another row, values what is
hidden (Rubachev et al. 2022). mini is replaced in one layer of 32 for a laptop.

Command:   python -m bertjax.train --config=configs/tables.py:replaced --workdir=DIR \
               --config.data.train_dir=records/train --config.data.eval_dir=records/heldout
Hardware:  any number of devices that divides 128.
Planned:   replaced: 4.9 s on v5e-1, 13,209 rows of California: under $0.01, spot under $0.01
             (2026-11-27)
           values: 5.1 s on v5e-1, 13,209 rows of California: under $0.01, spot under $0.01
             (2026-11-27)
           mini: 1.3 s on v5e-1, 13,209 rows of California: under $0.01, spot under $0.01
             (2026-11-27)
Time:      not yet measured.
Result:    docs/results.md.
"""

import ml_collections

from bertjax.config import default_config
from bertjax.recipes import choose, leave_open, sizes

REPLACED = {"pretraining.predicts": "replaced", "pretraining.exchanged_cells": True}
SIZES = {
    "replaced": REPLACED,
    "values": {},
    "mini": {
        **REPLACED,
        **sizes(layers=1, hidden=32, heads=4, intermediate=64),
        **{"model.initializer_range": 0.1, "schedule.peak_learning_rate": 3e-3},
    },
}


def get_config(size: str = "replaced") -> ml_collections.ConfigDict:
    """Returns the recipe of a size.

    Source: Gorishniy et al. 2021, table 13 (three layers of 192, 8 heads, ReGLU of 4/3 of the
    width, dropout of attention 0.2); puhsu/tabular-dl-pretrain-objectives (batches of 128, AdamW).
    As there layer 0 has no norm before attention. In ours dropout of 0.1 stands behind attention
    and feed-forward, there within the latter; the last layer reads all positions.
    """
    config = default_config()
    config.model.update(
        **{"hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 8},
        **{"intermediate_size": 256, "feed_forward": "gated", "hidden_act": "relu"},
        **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2},
        **{"layer": "pre_norm", "layer_norm_eps": 1e-5, "type_vocab_size": 0},
        **{"embeddings": "columns", "position_embedding": "none"},
        # Theirs are uniform within 1 / sqrt(width); 0.02 learns replaced cells more slowly.
        **{"initializer_range": 0.04},
    )
    config.pretraining.update(
        objective="masked_values", pair_loss="none", masking="dynamic", masked_lm_prob=0.4
    )
    config.global_batch_size = 128
    config.phases.phase1.update(num_epochs=50.0, num_steps=0)
    config.optimizer.update(eps=1e-8, weight_decay=1e-5, clip_norm=0.0)
    config.schedule.update(name="constant", peak_learning_rate=3e-4, warmup_steps=0)
    config.evaluation.global_batch_size = 512
    config.checkpoint.best_metric = "replaced_loss"
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    leave_open(config, "phases.phase1.max_seq_length", "model.max_position_embeddings")
    if size == "values":
        config.checkpoint.best_metric = "value_loss"
    return config
