"""Finetuning: a module for each kind, the readers of its files, and batches over their rows.

Another kind is one more module and its row in KINDS (`base.Kind` says what it must have).
"""

from bertjax.finetuning import base, choices, embeddings, spans, tags, texts

# config.finetuning.dataset -> its kind.
KINDS: dict[str, type[base.Kind]] = {
    "glue": texts.Glue,
    "table": texts.Table,
    "squad": spans.Spans,
    "conll": tags.Tags,
    "swag": choices.Choices,
    "embeddings": embeddings.Embeddings,
}
