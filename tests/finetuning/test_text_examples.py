"""Claims about the rows of examples of one or two texts."""

import numpy as np
import pytest

from bertjax.data import tokenizer
from bertjax.finetuning import text_examples

TOKENIZER = tokenizer.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])


@pytest.mark.parametrize(
    ("labels", "dtype"), [([1, 0], np.int32), ([0.5, 4.0], np.float32), ([None, None], None)]
)
def test_labels_are_classes_or_numbers_or_absent(labels, dtype):
    examples = [
        text_examples.Example(("a",), labels[0], "f:1"),
        text_examples.Example(("b a",), labels[1], "f:2"),
    ]
    made = text_examples.text_rows(examples, TOKENIZER, max_seq_length=8)
    assert [row.tolist() for row in made.tokens["input_ids"]] == [[2, 5, 3], [2, 6, 5, 3]]
    assert made.pad_id == TOKENIZER.pad_id
    if dtype is None:
        assert made.columns == {}
    else:
        assert made.columns["labels"].dtype == dtype
        assert made.columns["labels"].tolist() == labels


def test_two_texts_are_two_segments():
    made = text_examples.text_rows(
        [text_examples.Example(("a", "b"), 0, "f:1")], TOKENIZER, max_seq_length=8
    )
    assert made.tokens["input_ids"][0].tolist() == [2, 5, 3, 6, 3]
    assert made.tokens["segment_ids"][0].tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (text_examples.Example(("a", "b"), 0, ""), "2 texts"),
        (text_examples.Example(("a",), 0.5, ""), "float"),
    ],
)
def test_examples_of_different_kinds_are_an_error(second, message):
    with pytest.raises(ValueError, match=f"examples of different kinds.*{message}"):
        text_examples.text_rows(
            [text_examples.Example(("a",), 0, ""), second], TOKENIZER, max_seq_length=8
        )


def test_no_examples_are_an_error():
    with pytest.raises(ValueError, match="no examples"):
        text_examples.text_rows([], TOKENIZER, max_seq_length=8)
