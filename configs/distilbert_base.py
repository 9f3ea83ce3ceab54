r"""DistilBERT-base (Sanh et al. 2019): 6 layers of 768, 67 M parameters, taught by a BERT-base.

Three passes in batches of 1024 sequences of 512 tokens (released: 250 for each GPU), masks drawn
anew at each visit, no pairs; soft targets, masked tokens and cosine weigh 5, 2 and 1 at temperature
2, config.distillation's defaults. Source: transformers, examples/research_projects/distillation,
train.py and README. Differences: docs/families.md.

Command:   python -m bertjax.train --config=configs/distilbert_base.py --workdir=DIR \
               --config.distillation.teacher=TEACHER --config.data.train_dir=train_512
           where TEACHER is a BERT-base, of our own or another's, and train_512 was built with its
           vocabulary, --pair_objective=none --mask=none --max_seq_length=512.
Hardware:  any number of devices that divides 1024 / config.gradient_accumulation_steps.
Planned:   45.8 min on v5e-16, 8,000,000 examples: $15, spot $2.99 (2026-11-25).
Time:      not yet measured.
Result:    not yet measured. The released DistilBERT-base has a GLUE dev score of 77.0.
"""

import ml_collections

from bertjax.config import default_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = default_config()
    config.model.update(vocab_size=30522, num_hidden_layers=6, type_vocab_size=0, pooler_act="relu")
    config.pretraining.update(pair_loss="none", masking="dynamic")
    config.phases.phase1.update(num_epochs=3.0, max_seq_length=512)
    config.global_batch_size = 1024
    config.gradient_accumulation_steps = 4  # the logits of all tokens, twice
    config.optimizer.update(beta2=0.98, weight_decay=0.0, clip_norm=5.0)
    config.schedule.update(peak_learning_rate=5e-4, warmup_share=0.05)
    return config
