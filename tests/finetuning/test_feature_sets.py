"""Claims about rows: what stands where, and what goes when a row is too long."""

import numpy as np
import pytest

from bertjax.data import tokenizer
from bertjax.finetuning import feature_sets
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


def test_one_text_stands_between_cls_and_sep():
    rows = feature_sets.sequence_pairs(TOKENIZER, [text(0, 3), text(5, 1)], max_seq_length=8)
    assert lists(rows) == ([[CLS, *ids(0, 3), SEP], [CLS, *ids(5, 1), SEP]], [[0] * 5, [0] * 3])


def test_the_second_text_and_its_sep_are_segment_one():
    (input_ids,), (segment_ids,) = feature_sets.sequence_pairs(
        TOKENIZER, [text(0, 3)], [text(7, 2)], max_seq_length=8
    )
    assert input_ids.tolist() == [CLS, *ids(0, 3), SEP, *ids(7, 2), SEP]
    assert segment_ids.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert input_ids.dtype == segment_ids.dtype == np.int32


def test_a_single_text_loses_its_end():
    (input_ids,), _ = feature_sets.sequence_pairs(TOKENIZER, [text(0, 9)], max_seq_length=6)
    assert input_ids.tolist() == [CLS, *ids(0, 4), SEP]


@pytest.mark.parametrize("max_seq_length", [5, 6, 11, 12, 30])
def test_two_texts_lose_what_the_released_rule_takes(max_seq_length):
    pairs = [(a, b) for a in range(13) for b in range(13)]
    rows = feature_sets.sequence_pairs(
        TOKENIZER,
        [text(0, a) for a, _ in pairs],
        [text(15, b) for _, b in pairs],
        max_seq_length=max_seq_length,
    )
    kept = [truncated(ids(0, a), ids(15, b), max_seq_length - 3) for a, b in pairs]
    assert lists(rows) == (
        [[CLS, *a, SEP, *b, SEP] for a, b in kept],
        [[0] * (len(a) + 2) + [1] * (len(b) + 1) for a, b in kept],
    )


@pytest.mark.parametrize("texts_b", [None, []])
def test_no_texts_are_no_rows(texts_b):
    assert feature_sets.sequence_pairs(TOKENIZER, [], texts_b, max_seq_length=8) == ([], [])


@pytest.mark.parametrize(
    ("texts_b", "length", "message"),
    [
        (None, 2, "max_seq_length is 2; it must be at least 3"),
        (["a"], 4, "max_seq_length is 4; it must be at least 5"),
        (["a", "b"], 8, "1 first and 2 second texts"),
    ],
)
def test_rows_that_cannot_be_made_are_errors(texts_b, length, message):
    with pytest.raises(ValueError, match=message):
        feature_sets.sequence_pairs(TOKENIZER, ["a"], texts_b, max_seq_length=length)


def rows(*lengths):
    return [np.ones(length, np.int32) for length in lengths]


def test_an_example_is_as_long_as_its_longest_choice():
    made = feature_sets.FeatureSet(
        {"input_ids": rows(3, 5, 4, 2)}, {"labels": np.zeros(2)}, choices=2
    )
    assert len(made) == 2
    assert made.lengths().tolist() == [5, 4]


@pytest.mark.parametrize(
    ("columns", "choices", "message"),
    [
        ({"labels": np.zeros(3)}, 1, r"columns\['labels'\] has 3 values"),
        ({}, 3, "choices is 3; it must be at least 1 and divide the 2 rows"),
    ],
)
def test_parts_that_do_not_fit_together_are_errors(columns, choices, message):
    with pytest.raises(ValueError, match=message):
        feature_sets.FeatureSet({"input_ids": rows(3, 4)}, columns, choices=choices)


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


@pytest.mark.parametrize(
    ("labels", "dtype"), [([1, 0], np.int32), ([0.5, 4.0], np.float32), ([None, None], None)]
)
def test_labels_are_classes_or_numbers_or_absent(labels, dtype):
    texts = ("w0",), ("w1 w0",)
    examples = [feature_sets.TextExample(*both, "f:1") for both in zip(texts, labels, strict=True)]
    made = feature_sets.text_rows(examples, TOKENIZER, max_seq_length=8)
    ids = made.tokens["input_ids"]
    assert [len(row) for row in ids] == [3, 4] and made.pad_id == TOKENIZER.pad_id
    if dtype is None:
        assert made.columns == {}
    else:
        assert made.columns["labels"].dtype == dtype
        assert made.columns["labels"].tolist() == labels


def test_examples_of_a_set_have_as_many_texts_and_labels_of_one_type():
    first = feature_sets.TextExample(("w0",), 0, "")
    for other in (
        feature_sets.TextExample(("w0", "w1"), 0, ""),
        feature_sets.TextExample(("w0",), 0.5, ""),
    ):
        with pytest.raises(ValueError, match="examples of different kinds"):
            feature_sets.text_rows([first, other], TOKENIZER, max_seq_length=8)
    with pytest.raises(ValueError, match="no examples"):
        feature_sets.text_rows([], TOKENIZER, max_seq_length=8)
