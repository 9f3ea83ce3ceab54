"""Claims about lines, faults told together, and features of texts."""

import numpy as np
import pytest

from bertjax.data import tokenizer
from bertjax.finetuning import texts

TOKENIZER = tokenizer.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])


def test_lines_end_at_line_feeds_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes("\ufeffone\r\ntwo\u2028too\x0b\n\nfour".encode())
    assert texts.lines(path) == ["one", "two\u2028too\x0b", "", "four"]
    path.write_bytes(b"one\n")
    assert texts.lines(path) == ["one"]
    path.write_bytes(b"")
    assert texts.lines(path) == []


def test_a_file_that_is_not_utf8_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\ncaf\xe9\n")
    with pytest.raises(texts.FaultyFile, match="file:3: it is not UTF-8"):
        texts.lines(path)
    with pytest.raises(FileNotFoundError, match="absent does not exist"):
        texts.lines(tmp_path / "absent")


def test_the_first_ten_faults_are_told():
    faults = texts.Faults()
    faults.check()
    faults.add("file:1", "wrong")
    with pytest.raises(ValueError, match=r"^file:1: wrong$"):
        faults.check()
    for line in range(2, 13):
        faults.add(f"file:{line}", "wrong")
    with pytest.raises(ValueError, match=r"^12 faults, the first 10:\nfile:1: ") as caught:
        faults.check()
    assert "file:10:" in str(caught.value)
    assert "file:11:" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "dtype"), [([1, 0], np.int32), ([0.5, 4.0], np.float32), ([None, None], None)]
)
def test_labels_are_classes_or_numbers_or_absent(labels, dtype):
    examples = [texts.Example(("a",), labels[0], "f:1"), texts.Example(("b a",), labels[1], "f:2")]
    made = texts.features(examples, TOKENIZER, max_seq_length=8)
    assert [row.tolist() for row in made.tokens["input_ids"]] == [[2, 5, 3], [2, 6, 5, 3]]
    assert made.pad_id == TOKENIZER.pad_id
    if dtype is None:
        assert made.columns == {}
    else:
        assert made.columns["labels"].dtype == dtype
        assert made.columns["labels"].tolist() == labels


def test_two_texts_are_two_segments():
    made = texts.features([texts.Example(("a", "b"), 0, "f:1")], TOKENIZER, max_seq_length=8)
    assert made.tokens["input_ids"][0].tolist() == [2, 5, 3, 6, 3]
    assert made.tokens["segment_ids"][0].tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("second", "message"),
    [(texts.Example(("a", "b"), 0, ""), "2 texts"), (texts.Example(("a",), 0.5, ""), "float")],
)
def test_examples_of_different_kinds_are_an_error(second, message):
    with pytest.raises(ValueError, match=f"examples of different kinds.*{message}"):
        texts.features([texts.Example(("a",), 0, ""), second], TOKENIZER, max_seq_length=8)


def test_no_examples_are_an_error():
    with pytest.raises(ValueError, match="no examples"):
        texts.features([], TOKENIZER, max_seq_length=8)
