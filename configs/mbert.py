r"""mBERT (Devlin et al. 2018): BERT-base on 104 languages, with a cased vocabulary of 119,547.

178 M parameters. How long it was trained is not published: the steps are BERT's, 128 tokens for 90%
of them, then 512. Languages are drawn with the exponent 0.7, for the vocabulary and for batches.
docs/families.md says how to make vocabulary and records.

Command:   python -m bertjax.train --config=configs/mbert.py --workdir=DIR \
               --config.data.train_dir='train_{max_seq_length}'
Hardware:  any mesh; --config.mesh.data=-1 takes all devices.
Planned:   8.8 h + 2.1 h on v5e-16: $209, spot $43 (2026-11-26).
Time:      not yet measured.
Result:    not yet measured.
"""

import ml_collections

from bertjax.recipes import paper_config


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe.

    Source: google-research/bert, multilingual.md; the vocabulary's size is that of multi_cased.
    """
    config = paper_config()
    config.model.vocab_size = 119_547  # 0 takes that of the records
    config.phases.phase1.language_alpha = config.phases.phase2.language_alpha = 0.7
    return config
