r"""Sentence embeddings from any checkpoint: a vector for each text, compared by cosine.

Command:   python -m bertjax.train --config=configs/embeddings.py:ranking --config.init_from=PATH \
               --config.finetuning.train_file=pairs.jsonl --config.finetuning.eval_file=dev.tsv \
               --workdir=DIR
           Losses are ranking (pairs, or triplets with hard negatives), simcse (texts alone), cosine
           (pairs with a score, such as STS-B), softmax (pairs with a class, such as SNLI) and
           distillation (texts, and --config.distillation.teacher=PATH). docs/embeddings.md says
           what the files hold.
Hardware:  any; one device is enough.
Planned:   6.4 min on v5e-1, BERT-base, 100,000 pairs: $0.13, spot $0.03 (2026-11-25).
Time:      not yet measured.
Result:    docs/embeddings.md.

Learning rate and epochs follow from the encoder's width and the number of rows
(docs/finetuning.md). Batches of 16 are SBERT's (Reimers and Gurevych 2019, section 3.1, with 2e-5,
10% of warm-up and one epoch). As in its examples, ranking has batches of 128, because every row is
a negative of the others. SimCSE has 64, 3e-5, one epoch and 32 tokens (Gao et al. 2021, appendix A,
without labels).
"""

import ml_collections

from bertjax.recipes import choose, own_finetuning_config

LOSSES = {
    "ranking": {"global_batch_size": 128},
    "simcse": {
        "global_batch_size": 64,
        "schedule.peak_learning_rate": 3e-5,
        "schedule.warmup_share": 0.1,
        "finetuning.num_epochs": 1.0,
        "finetuning.max_seq_length": 32,
        "finetuning.pooling": "cls",
    },
    "cosine": {},
    "softmax": {},
    "distillation": {"global_batch_size": 64},
}


def get_config(loss: str = "ranking") -> ml_collections.ConfigDict:
    """Returns the recipe of a loss."""
    config = own_finetuning_config("embeddings")
    config.global_batch_size = 16
    config.finetuning.update(loss=loss, pooling="mean")
    config.update_from_flattened_dict(choose(LOSSES, loss, "loss"))
    return config
