r"""SpanBERT (Joshi et al. 2020): BERT of one segment that predicts spans. Sizes: base, large.

12 layers of 768 and 24 of 1024. 2,400,000 steps of 256 sequences of 512 tokens: whole sentences of
one document, spans masked anew at each visit and also predicted from their boundaries.
docs/families.md says how to make the records, and what differs from the release.

Command:   python -m bertjax.train --config=configs/spanbert.py:base --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices (the paper: 32 V100).
Planned:   base: 39.7 h on v5e-16: $762, spot $156 (2026-11-25)
           large: 124 h on v5e-16: $2,371, spot $484 (2026-11-25)
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.config import default_config
from bertjax.recipes import choose

SIZES = {
    "base": {},
    "large": {
        "model.num_hidden_layers": 24,
        "model.hidden_size": 1024,
        "model.num_attention_heads": 16,
        "model.intermediate_size": 4096,
    },
}


def get_config(size: str = "base") -> ml_collections.ConfigDict:
    """Returns the recipe of a size.

    Source: facebookresearch/SpanBERT, pretraining/README.md: 32 workers of 4096 tokens, Adam with
    eps 1e-8, learning rate 1e-4 after 10,000 steps. Its vocabulary is bert-base-cased's.
    """
    config = default_config()
    config.model.vocab_size = 28_996  # bert-base-cased; 0 takes that of the records
    config.pretraining.update(objective="span_boundary", pair_loss="none")
    config.pretraining.update(masking="dynamic", mask_strategy="span")
    config.phases.phase1.update(num_steps=2_400_000, max_seq_length=512)
    config.optimizer.eps = 1e-8
    config.update_from_flattened_dict(choose(SIZES, size, "size"))
    return config
