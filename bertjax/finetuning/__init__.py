"""Finetuning: a module for each kind, the readers of its files, and batches over their rows.

Another kind is one more module and its row in KINDS (`base.FinetuningKind` says what it consists
of).
"""

from typing import Any

import ml_collections

from bertjax.finetuning import base, choices, embeddings, sequences, spans, tags, texts, values
from bertjax.models import encoder
from bertjax.options import table

# config.finetuning.dataset -> its kind.
KINDS: dict[str, base.FinetuningKind] = {
    "glue": texts.GLUE,
    "table": texts.TABLE,
    "squad": spans.SQUAD,
    "conll": tags.CONLL,
    "swag": choices.SWAG,
    "embeddings": embeddings.EMBEDDINGS,
    "values": values.VALUES,
    "sequences": sequences.SEQUENCES,
}
table.OWNERS["finetuning.dataset"] = KINDS


def head_task(config: ml_collections.ConfigDict) -> base.FinetuningTask:
    """Returns the task of a resolved config (sizes, labels and dtype known), without LoRA."""
    kind = KINDS[config.finetuning.dataset]
    return kind.task(encoder.EncoderConfig(**config.model), config.finetuning)


def checkpoint_meta(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """Returns what a checkpoint says of its head, for those who know formats and no kinds."""
    task = head_task(config)
    said = {"head": task.head, "export_fault": task.export_fault, **task.export_fields}
    return {"finetuned": said}
