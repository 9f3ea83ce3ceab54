r"""A task of GLUE from any checkpoint (Devlin et al. 2019, section 4.1): 3 epochs in batches of 32.

Command:   python -m bertjax.train --config=configs/glue.py:rte --config.init_from=PATH \
               --config.finetuning.data_dir=GLUE --workdir=DIR
           Tasks are cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte and wnli; GLUE is the directory of
           the official files or tfds:glue. babylm_boolq, babylm_wsc and so on are the tasks of
           the BabyLM challenge. --config.search=True tries the paper's grid, --config.seeds=5
           tells how much chance decides, --config.finetuning.protocol=sane has other settings.
Hardware:  any; one device is enough.
Planned:   4.7 s on v5e-1, BERT-base, 2,490 of RTE: under $0.01, spot under $0.01 (2026-11-25).
Time:      1.8 minutes an epoch of RTE on 2 CPU cores, from a BERT of 6 layers, 384 wide.
Result:    from the same weights as in transformers: docs/results.md. From a Base or Large: not
           yet measured.

The paper picked the rate for each task among 5e-5, 4e-5, 3e-5 and 2e-5; 2e-5 is that of the
released code's example. Adam corrects its bias here, which the released optimizer does not: there
(--config.optimizer.bias_correction=False) small tasks fail more often (Mosbach et al. 2021).
"""

import ml_collections

from bertjax.recipes import finetuning_config


def get_config(name: str = "rte") -> ml_collections.ConfigDict:
    """Returns the recipe of a task."""
    config = finetuning_config("glue")
    config.finetuning.name = name
    return config
