r"""SpanBERT-base (Joshi et al. 2020): BERT-base of one segment, told spans and boundaries too.

2,400,000 steps of 256 sequences of 512 tokens: whole sentences of one document, spans masked anew
at each visit. docs/families.md says how to make the records, and what differs from the release.

Command:   python -m bertjax.train --config=configs/spanbert_base.py --workdir=DIR \
               --config.data.train_dir=train_512
Hardware:  any mesh; --config.mesh.data=-1 takes all devices (the paper: 32 V100).
Planned:   39.7 h on v5e-16: $762, spot $156 (2026-11-25, docs/scaling.md).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipe_bases import spanbert_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    return spanbert_config()
