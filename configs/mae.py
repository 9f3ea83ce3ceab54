r"""MAE (He et al. 2022): masked autoencoders on images. Sizes: base, mini.

A vision transformer that reads a quarter of the patches, and a decoder of 8 layers of 512 that
predicts the others: 112 M parameters. mini is for digits on a laptop.

Command:   python -m bertjax.train --config=configs/mae.py:base --workdir=DIR \
               --config.data.train_dir=records/train --config.data.eval_dir=records/heldout
Hardware:  any mesh; --config.mesh.data=-1 takes all devices (mini: 2).
Planned:   base: 5.8 h on v5e-64, 1,281,167 rows of ImageNet: $445, spot $91 (2026-11-27)
           mini: 2.5 s on v5e-1, 6,800 rows of digits: under $0.01, spot under $0.01 (2026-11-27)
Time:      not yet measured.
Result:    docs/results.md has mini.
"""

import ml_collections

from bertjax.config import default_config
from bertjax.recipes import choose, leave_open, sizes

SIZES = {
    "base": {},
    "mini": {
        **sizes(layers=4, hidden=128, heads=4, intermediate=512),
        **{"pretraining.decoder.hidden_size": 64, "pretraining.decoder.num_hidden_layers": 2},
        **{"pretraining.decoder.num_attention_heads": 2},
        **{"pretraining.decoder.intermediate_size": 256},
        **{"phases.phase1.num_epochs": 20.0, "global_batch_size": 64},
        **{"schedule.peak_learning_rate": 1e-3, "schedule.warmup_steps": 100},
        "pretraining.flips": False,
        "pretraining.least_crop": 1.0,
        # Patches of a few values are drowned by their places with 0.02, and Xavier learns less.
        **{"model.initializer": "truncated_normal", "model.initializer_range": 0.1},
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size.

    Source: He et al. 2022, section 4 and table 8; facebookresearch/mae, PRETRAIN.md and
    main_pretrain.py: 800 epochs of batches of 4,096, 75% hidden, patches normalized, AdamW with
    beta2 0.95 and decay 0.05, a rate of 1.5e-4 x 4,096 / 256, 40 epochs of warm-up, a half cosine.
    """
    config = default_config()
    config.model.update(
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        **{"layer": "full_pre_norm", "layer_norm_eps": 1e-6, "type_vocab_size": 0},
        **{"embeddings": "patches", "position_embedding": "sines_of_grid"},
        **{"hidden_input": "none", "partial_patches": False, "initializer": "xavier_uniform"},
        # The kernels would fill up the decoder's 197 positions to 256.
        **{"max_position_embeddings": 197, "attention": "xla"},
    )
    config.pretraining.update(
        **{"objective": "masked_autoencoder", "pair_loss": "none", "masking": "dynamic"},
        **{"masked_lm_prob": 0.75, "normalized_patches": True},
        **{"least_crop": 0.2, "flips": True},
    )
    config.global_batch_size = 4_096
    config.phases.phase1.update(num_epochs=800.0, num_steps=0, max_seq_length=197)
    config.optimizer.update(beta2=0.95, eps=1e-8, weight_decay=0.05, clip_norm=0.0)
    config.schedule.update(name="cosine", peak_learning_rate=2.4e-3, warmup_steps=12_500)
    config.evaluation.global_batch_size = 64
    config.checkpoint.best_metric = "value_loss"
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    if size == "mini":
        leave_open(config, "phases.phase1.max_seq_length", "model.max_position_embeddings")
    return config
