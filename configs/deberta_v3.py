r"""DeBERTa-v3 (He et al. 2023), replaced-token detection. Sizes: xsmall, small, base, large, mini.

base: 184 M parameters, 1,000,000 steps of 256 sequences of 512 tokens, as the released script has
them (131 thousand million tokens). The released models were trained longer, on 160 GB of text.
Generators are as wide as the discriminator and half as deep. mini is for trying things out.
Differences from the released code: docs/faithfulness.md.

Command:   python -m bertjax.train --config=configs/deberta_v3.py:base --workdir=DIR \
               --config.data.train_dir=TRAIN
           where TRAIN was built with --pair_objective=none --mask=none --max_seq_length=512
           --packing=best_fit, or 128 for mini. Tables have the 128,100 rows of the released models;
           with a vocabulary of your own --config.model.vocab_size=0 takes its number of entries.
Hardware:  base, large: a mesh of 16 devices; --config.mesh.data=-1 takes all. Others: any number
           that divides the batch.
Planned:   xsmall: 17.2 h on v5e-4: $83, spot $17 (2026-11-30)
           small: 27.4 h on v5e-16: $526, spot $107 (2026-11-30)
           base: 42.5 h on v5e-16: $816, spot $167 (2026-11-30)
           large: 119 h on v5e-16, in 2 micro-batches: $2,290, spot $468 (2026-11-30)
           mini: 22.9 s on v5e-1: under $0.01, spot under $0.01 (2026-11-30)
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.config import default_config
from bertjax.recipes import choose, sizes

SIZES = {
    "xsmall": {
        **sizes(layers=12, hidden=384, heads=6, intermediate=1536),
        "global_batch_size": 64,
        "schedule.peak_learning_rate": 3e-4,
        "pretraining.generator.num_hidden_layers": 6,
    },
    "small": {
        **sizes(layers=6, hidden=768, heads=12, intermediate=3072),
        "pretraining.generator.num_hidden_layers": 3,
    },
    "base": {
        **sizes(layers=12, hidden=768, heads=12, intermediate=3072),
        "pretraining.generator.num_hidden_layers": 6,
        "mesh.data": 16,
    },
    "large": {
        **sizes(layers=24, hidden=1024, heads=16, intermediate=4096),
        "pretraining.generator.num_hidden_layers": 12,
        "mesh.data": 16,
    },
    "mini": {
        **sizes(layers=4, hidden=256, heads=4, intermediate=1024),
        "model.vocab_size": 0,
        "pretraining.generator.num_hidden_layers": 2,
        "pretraining.max_predictions_per_seq": 0,
        "global_batch_size": 32,
        "schedule.peak_learning_rate": 1e-3,
        "schedule.warmup_steps": 500,
        "phases.phase1.num_steps": 5_000,
        "phases.phase1.max_seq_length": 128,
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size.

    Sources: microsoft/DeBERTa @4d7fe0bd, experiments/language_model (rtd.sh, rtd_*.json) and
    apps/tasks/rtd_task.py. All masked tokens become [MASK]. The weight of the discriminator's loss
    is the paper's and ELECTRA's 50; the script has 10, which Adam hardly tells apart, as each model
    has its own clipping.
    """
    config = default_config()
    config.model.update(vocab_size=128_100, type_vocab_size=0, layer_norm_eps=1e-7)
    config.model.update(position_embedding="none", relative="disentangled", initializer="normal")
    config.model.update(mask_decoder=True, replaced_head="with_first", pooler_act="gelu")
    config.pretraining.update(objective="replaced_tokens", pair_loss="none", masking="dynamic")
    config.pretraining.update(mask_share=1.0, keep_share=0.0, max_predictions_per_seq=77)
    config.pretraining.generator.embeddings = "gradient_disentangled"
    config.optimizer.update(bias_correction=False, clip_apart="generator")
    config.schedule.update(name="bert", peak_learning_rate=1e-4)
    config.global_batch_size = 256
    config.phases.phase1.update(num_steps=1_000_000, max_seq_length=512)
    config.checkpoint.best_metric = "discriminator_loss"
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    config.pretraining.generator.update(
        hidden_size=config.model.hidden_size,
        num_attention_heads=config.model.num_attention_heads,
        intermediate_size=config.model.intermediate_size,
    )
    return config
