"""What the label of a pair of segments says: the one list of the objectives of pairs.

Records are built for one of them, and a model learns one of them or none. How examples are drawn
for it belongs to `data_pipelines.pairing`, its loss to `bertjax.tasks`.
"""

from __future__ import annotations

# Name -> what `next_sentence_labels` 0 and 1 mean. Without pairs there is no label.
# Sources: nsp, BERT (Devlin et al. 2019), section 3.1; sop, ALBERT (Lan et al. 2020), section 3.1.
LABELS: dict[str, tuple[str, ...]] = {
    "nsp": ("next", "random"),
    "sop": ("in order", "swapped"),
    "none": (),
}
