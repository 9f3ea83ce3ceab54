"""The objectives of sentence pairs, and the meaning of their labels.

Records are built for one of them, and a model learns one of them or none. Drawing the examples
belongs to `data_pipelines.objectives.pairing`, the loss to `bertjax.tasks`.
"""

from __future__ import annotations

# Name -> what `next_sentence_labels` 0 and 1 mean. Without pairs there is no label.
# Sources: nsp, BERT (Devlin et al. 2019), section 3.1; sop, ALBERT (Lan et al. 2020), section 3.1.
LABELS: dict[str, tuple[str, ...]] = {
    "nsp": ("next", "random"),
    "sop": ("in order", "swapped"),
    "none": (),
}
