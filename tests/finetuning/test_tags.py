"""Claims about tagged words."""

import numpy as np

from tests import small_datasets


def test_the_sentences_of_a_document_are_read_together_where_the_config_says_so(
    tmp_path, open_kind
):
    path = tmp_path / "documents.conll"
    sentences = [[f"w{n}" for n in range(first, first + 9)] for first in range(0, 54, 9)]
    blocks = ["\n".join(f"{word} O" for word in words) for words in sentences]
    path.write_text("-DOCSTART- O\n\n" + "\n\n".join([*blocks[:4], "-DOCSTART- O", *blocks[4:]]))
    options = {"train_file": str(path), "eval_file": str(path)}
    options |= {"test_file": "", "labels": ("O", "B-PER")}
    assert len(open_kind("conll", **options)[1].features("dev")) == 6
    _, reader = open_kind("conll", **options, context="document")
    features = reader.features("dev")
    # 36 words of which 30 fit, in two rows, and 18 in one; each is scored once.
    assert [len(row) - 2 for row in features.tokens["input_ids"]] == [30, 30, 18]
    assert sum(np.count_nonzero(row >= 0) for row in features.tokens["labels"]) == 54
    answers = small_datasets.true_answers(reader, "dev")["predictions"]
    found = features.tags(list(answers), reader.labels)
    assert found == [("O",) * 9] * 6
