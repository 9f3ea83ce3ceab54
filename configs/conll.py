r"""Named entities from any checkpoint (Devlin et al. 2019, section 5.3): CoNLL-2003 and its like.

Command:   python -m bertjax.train --config=configs/conll.py --config.init_from=PATH \
               --config.finetuning.train_file=eng.train --config.finetuning.eval_file=eng.testa \
               --config.finetuning.test_file=eng.testb --workdir=DIR
           configs/conll.py:feature_based leaves the encoder as it is and trains a BiLSTM on its
           last four layers, the paper's ablation.
Hardware:  any; one device is enough.
Planned:   26.3 s on v5e-1, BERT-base, 14,041 sentences: under $0.01, spot under $0.01 (2026-11-25).
Time:      not yet measured.
Result:    CoNLL-2003: not yet measured. WNUT-17 from a BERT of 6 layers, 384 wide,
           uncased: F1 of 40.9, the median of three seeds (2026-11-22, docs/results.md).

Use a cased checkpoint for names. Learning rate and epochs follow from the encoder's width and the
number of sentences (docs/finetuning.md), as the paper gives only its grid of them; for the BiLSTM
it gives nothing: 1e-3 and 10 epochs are ours.
"""

import ml_collections

from bertjax.recipes import choose, finetuning_config, own_finetuning_config

IS_FEATURE_BASED = {"finetuned": False, "feature_based": True}


def get_config(encoder: str = "finetuned") -> ml_collections.ConfigDict:
    """Returns the recipe with the encoder finetuned or feature_based."""
    if not choose(IS_FEATURE_BASED, encoder, "encoder"):
        return own_finetuning_config("conll")
    config = finetuning_config("conll")
    config.finetuning.update(feature_based=True, num_epochs=10.0)
    config.schedule.peak_learning_rate = 1e-3
    return config
