"""Claims about rows: what stands where, and what goes when a row is too long."""

import numpy as np
import pytest

from bertjax.finetuning import feature_sets
from bertjax.tokenization import tokenizer
from tests import small_byte_bpe

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{number}" for number in range(30)]
TOKENIZER = tokenizer.WordPieceTokenizer([*SPECIALS, *WORDS])
FIRST = len(SPECIALS)
CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id


def text(start, length):
    return " ".join(WORDS[start : start + length])


def ids(start, length):
    return list(range(FIRST + start, FIRST + start + length))


def lists(rows):
    return tuple([part.tolist() for part in parts] for parts in rows)


def truncated(a, b, limit):
    """The released rule, token by token: the longer text loses its last, of equal ones b."""
    a, b = list(a), list(b)
    while len(a) + len(b) > limit:
        (a if len(a) > len(b) else b).pop()
    return a, b


def test_a_row_is_one_text_or_two_between_cls_and_sep():
    rows = feature_sets.sequence_pairs(TOKENIZER, [text(0, 3), text(5, 9)], max_seq_length=8)
    assert lists(rows) == ([[CLS, *ids(0, 3), SEP], [CLS, *ids(5, 6), SEP]], [[0] * 5, [0] * 8])
    (input_ids,), (segment_ids,) = feature_sets.sequence_pairs(
        TOKENIZER, [text(0, 3)], [text(7, 2)], max_seq_length=8
    )
    assert input_ids.tolist() == [CLS, *ids(0, 3), SEP, *ids(7, 2), SEP]
    assert segment_ids.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert input_ids.dtype == segment_ids.dtype == np.int32
    for no_texts in (None, []):
        assert feature_sets.sequence_pairs(TOKENIZER, [], no_texts, max_seq_length=8) == ([], [])


def test_two_texts_lose_what_the_released_rule_takes():
    pairs = [(a, b) for a in range(13) for b in range(13)]
    firsts, seconds = [text(0, a) for a, _ in pairs], [text(15, b) for _, b in pairs]
    for length in (5, 6, 11, 12, 30):
        rows = feature_sets.sequence_pairs(TOKENIZER, firsts, seconds, max_seq_length=length)
        kept = [truncated(ids(0, a), ids(15, b), length - 3) for a, b in pairs]
        assert lists(rows) == (
            [[CLS, *a, SEP, *b, SEP] for a, b in kept],
            [[0] * (len(a) + 2) + [1] * (len(b) + 1) for a, b in kept],
        )


def test_the_log_counts_rows_that_lose_a_part_of_their_texts(caplog):
    with caplog.at_level("INFO", logger="absl"):
        feature_sets.sequence_pairs(TOKENIZER, [text(0, 3), text(0, 9)], max_seq_length=11)
    assert not caplog.text
    with caplog.at_level("INFO", logger="absl"):
        feature_sets.sequence_pairs(TOKENIZER, [text(0, 3), text(0, 9)], max_seq_length=10)
    assert "1 of 2 rows" in caplog.text and "max_seq_length is 10" in caplog.text


def rows(*lengths):
    return [np.ones(length, np.int32) for length in lengths]


def test_rows_that_cannot_be_made_and_parts_that_do_not_fit_are_errors():
    for texts_b, length, message in (
        (None, 2, "max_seq_length is 2; it must be at least 3"),
        (["a"], 4, "max_seq_length is 4; it must be at least 5"),
        (["a", "b"], 8, "1 first and 2 second texts"),
    ):
        with pytest.raises(ValueError, match=message):
            feature_sets.sequence_pairs(TOKENIZER, ["a"], texts_b, max_seq_length=length)
    for columns, choices, message in (
        ({"labels": np.zeros(3)}, 1, r"columns\['labels'\] has 3 values"),
        ({}, 3, "choices is 3; it must be at least 1 and divide the 2 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            feature_sets.FeatureSet({"input_ids": rows(3, 4)}, columns, choices=choices)
    tokens = {"input_ids": rows(3, 5, 4, 2)}
    made = feature_sets.FeatureSet(tokens, {"labels": np.zeros(2)}, choices=2)
    assert made.lengths().tolist() == [5, 4]  # those of the longest choices


def test_two_separators_stand_between_texts_where_the_vocabulary_has_it_so():
    known = small_byte_bpe.vocabulary()
    a, b = known.encode("the runner"), known.encode("they want water")
    cls, sep = known.cls_id, known.sep_id
    texts = ["the runner"], ["they want water"]
    rows = feature_sets.sequence_pairs(known, *texts, max_seq_length=64)
    assert lists(rows) == (
        [[cls, *a, sep, sep, *b, sep]],
        [[0] * (len(a) + 3) + [1] * (len(b) + 1)],
    )
    assert rows[0][0].tolist() == known.library().encode("the runner", "they want water").ids
    (cut,), _ = lists(feature_sets.sequence_pairs(known, *texts, max_seq_length=6))
    assert cut == [cls, a[0], sep, sep, b[0], sep]
    with pytest.raises(ValueError, match="at least 6, for 4 special tokens"):
        feature_sets.sequence_pairs(known, *texts, max_seq_length=5)


def test_labels_are_classes_or_numbers_or_absent_and_of_one_type():
    def made(*examples):
        examples = [feature_sets.TextExample(*it, "f:1") for it in examples]
        return feature_sets.text_rows(examples, TOKENIZER, max_seq_length=8)

    one, two = ("w0",), ("w1 w0",)
    for labels, dtype in (([1, 0], np.int32), ([0.5, 4.0], np.float32)):
        found = made(*zip((one, two), labels, strict=True))
        assert [len(row) for row in found.tokens["input_ids"]] == [3, 4]
        assert found.pad_id == TOKENIZER.pad_id
        column = found.columns["labels"]
        assert column.dtype == dtype and column.tolist() == labels
    assert made((one, None), (two, None)).columns == {}
    for other in ((("w0", "w1"), 0), (one, 0.5)):
        with pytest.raises(ValueError, match="examples of different kinds"):
            made((one, 0), other)
    with pytest.raises(ValueError, match="no examples"):
        made()
