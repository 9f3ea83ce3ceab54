r"""A model of your own text: every size comes from the records.

Layers with at most one parameter for each token of the text, from BERT-tiny to BERT-base; 40 passes
over it, as the paper's; batches of 32 to 256 sequences that leave 10,000 steps where the text
allows. Length, vocabulary, masks and pair loss are those of the records. An option that you give
counts before them. The log and the run's config.json have the values.

Command:   bertjax start --input='corpus/*.txt' --output=my_bert, which builds the records, too; or
           python -m bertjax.train --config=configs/own.py --workdir=DIR \
               --config.data.train_dir=train --config.data.eval_dir=heldout
Hardware:  any number of devices that divides 32.
Time:      by the length of the text; --config.budget.hours=2 bounds it.
Result:    not yet measured.
"""

import ml_collections

from bertjax.config import default_config
from bertjax.recipes import leave_open


def get_config() -> ml_collections.ConfigDict:
    """Returns the recipe."""
    config = default_config()
    leave_open(
        config,
        *(f"phases.phase1.{name}" for name in ("num_steps", "num_epochs", "max_seq_length")),
        *("pretraining.pair_loss", "pretraining.masking", "global_batch_size"),
        *("model.num_hidden_layers", "model.hidden_size", "model.num_attention_heads"),
        *("model.intermediate_size", "model.max_position_embeddings"),
        *("schedule.peak_learning_rate", "evaluation.every_steps", "plateau.check_step"),
    )
    config.schedule.warmup_steps = 0
    config.schedule.warmup_share = 0.06  # RoBERTa, table 9
    config.evaluation.global_batch_size = 32
    return config
