r"""PatchTST (Nie et al. 2023): self-supervised on series. Sizes: base, mini.

Windows of 512 steps in 42 patches of 12, a channel a row, 40% of the patches hidden. Three layers
of 128, as in the paper; mini is a layer of 32 for a laptop, and windows are those of the records.

Command:   python -m bertjax.train --config=configs/patchtst.py --workdir=DIR \
               --config.data.train_dir=records/train --config.data.eval_dir=records/heldout
Hardware:  any number of devices that divides 448 (mini: 32).
Planned:   base: 20.2 s on v5e-1, 56,903 rows of ETTh1: under $0.01, spot under $0.01 (2026-11-27)
           mini: 3.4 s on v5e-1, 56,903 rows of ETTh1: under $0.01, spot under $0.01 (2026-11-27)
Time:      not yet measured.
Result:    docs/results.md.
"""

import ml_collections

from bertjax.config import default_config
from bertjax.recipes import choose, leave_open, sizes

SIZES = {
    "base": {},
    "mini": {
        **sizes(layers=1, hidden=32, heads=4, intermediate=64),
        **{"global_batch_size": 32, "schedule.peak_learning_rate": 5e-3},
        "model.initializer_range": 0.1,  # at this size 0.02 learns more slowly
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size.

    Source: yuqinie98/PatchTST, PatchTST_self_supervised/patchtst_pretrain.py: 10 epochs of batches
    of 64 windows of 7 channels, Adam, one cycle whose rate a search finds (1e-3 here), dropout 0.2,
    zeros where a patch is hidden, the mean square over hidden patches. There layers are normalized
    over the batch; here, as in all of ours, over the width.
    """
    config = default_config()
    config.model.update(
        **{"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 16},
        **{"intermediate_size": 512, "hidden_act": "gelu", "layer_norm_eps": 1e-5},
        **{"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.0},
        **{"max_position_embeddings": 42, "type_vocab_size": 0, "embeddings": "patches"},
        **{"hidden_input": "zeros", "normalized_rows": True},
    )
    config.pretraining.update(
        objective="masked_values", pair_loss="none", masking="dynamic", masked_lm_prob=0.4
    )
    config.global_batch_size = 448
    config.phases.phase1.update(num_epochs=10.0, num_steps=0, max_seq_length=42)
    config.optimizer.update(beta2=0.999, eps=1e-8, weight_decay=0.0, clip_norm=0.0)
    config.schedule.update(name="one_cycle", peak_learning_rate=1e-3, warmup_steps=380)
    config.evaluation.global_batch_size = 448
    config.checkpoint.best_metric = "value_loss"
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    if size == "mini":
        leave_open(config, "phases.phase1.max_seq_length", "model.max_position_embeddings")
    return config
