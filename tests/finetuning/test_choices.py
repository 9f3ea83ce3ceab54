"""Files of SWAG and CODAH, and the four rows of each of their examples."""

import numpy as np
import pytest

from bertjax.finetuning import choices
from bertjax.tokenization import tokenizer

Example = choices.Example

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["a", "dog", "barks", ".", "he", "she", "runs", "sits", "sleeps", "home", ",", "quietly"]

SWAG_HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
SWAG_HEADER += "ending0,ending1,ending2,ending3,label"
# As the official files are: a row has quotes only where it must.
SWAG = [
    SWAG_HEADER,
    "0,anetv_x,18,A dog barks. He,A dog barks.,He,gold,runs.,sits.,sleeps.,runs home.,2",
    '1,lsmdc_y,19,She sits. A,She sits.,A,gold,"dog ""barks"", quietly.",dog.,runs,sleeps,0',
]
CODAH = [
    "o\tA dog barks. He\truns.\tsits.\tsleeps.\truns home.\t2",
    '\tShe says "a"\t"dog"\tdog.\truns\tsleeps\t0',  # no category; quotes are characters
]


@pytest.fixture
def words():
    return tokenizer.WordPieceTokenizer([*SPECIALS, *WORDS])


def write(path, lines):
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def test_swags_second_sentence_begins_before_each_ending(tmp_path):
    path = write(tmp_path / "val.csv", SWAG)
    endings = ("He runs.", "He sits.", "He sleeps.", "He runs home.")
    others = ('A dog "barks", quietly.', "A dog.", "A runs", "A sleeps")
    assert choices.read_examples(path) == [
        Example("A dog barks.", endings, 2, f"{path}:2"),
        Example("She sits.", others, 0, f"{path}:3"),
    ]


def test_codah_keeps_the_beginning_with_the_context(tmp_path):
    path = write(tmp_path / "fold.tsv", CODAH)
    endings = ("runs.", "sits.", "sleeps.", "runs home.")
    assert choices.read_examples(path) == [
        Example("A dog barks. He", endings, 2, f"{path}:1"),
        Example('She says "a"', ('"dog"', "dog.", "runs", "sleeps"), 0, f"{path}:2"),
    ]


def test_a_file_without_labels_is_a_test_file(tmp_path, words):
    lines = [line.rpartition(",")[0] for line in SWAG]
    read = choices.read_examples(write(tmp_path / "test.csv", lines))
    assert [example.label for example in read] == [None, None]
    features = choices.choice_rows(read, words, max_seq_length=32)
    assert features.columns == {}
    assert len(features) == 2


def test_a_start_phrase_may_be_the_context_and_an_empty_second_sentence_begins_nothing(tmp_path):
    header = "startphrase,ending0,ending1,ending2,ending3,label"
    path = write(tmp_path / "own.csv", [header, "A dog,runs,sits,barks,sleeps,3"])
    endings = ("runs", "sits", "barks", "sleeps")
    assert choices.read_examples(path) == [Example("A dog", endings, 3, f"{path}:2")]
    path = write(tmp_path / "own.csv", [SWAG_HEADER, "0,v,1,A.,A.,,gold,runs,sits,barks,x,1"])
    (example,) = choices.read_examples(path)
    assert example.endings == ("runs", "sits", "barks", "x")


def test_lines_are_counted_through_quoted_line_ends(tmp_path):
    broken = SWAG[1].replace("runs home.", '"runs\nhome."')
    path = write(tmp_path / "val.csv", [SWAG_HEADER, broken, SWAG[2]])
    read = choices.read_examples(path)
    assert read[0].endings[3] == "He runs\nhome."
    assert [example.source for example in read] == [f"{path}:2", f"{path}:4"]


def test_each_choice_is_a_row_of_context_and_ending(words):
    both = [
        Example("a dog barks", ("he runs", "she", "sits .", "he sleeps"), 1, "file:1"),
        Example("she sits .", ("a dog", "home", "quietly", "she runs"), 3, "file:2"),
    ]
    features = choices.choice_rows(both, words, max_seq_length=32)
    rows = [[words.token(i) for i in row.tolist()] for row in features.tokens["input_ids"]]
    assert [" ".join(row) for row in rows] == [
        f"[CLS] {example.context} [SEP] {ending} [SEP]"
        for example in both
        for ending in example.endings
    ]
    for row, segments in zip(rows, features.tokens["segment_ids"], strict=True):
        np.testing.assert_array_equal(segments, [0] * 5 + [1] * (len(row) - 5))
    assert (features.choices, len(features), features.columns["labels"].tolist()) == (4, 2, [1, 3])
    assert features.columns["labels"].dtype == np.int32


def test_a_long_context_loses_its_end_and_the_ending_stays(words):
    example = Example("a dog barks he runs home", ("he", "she", "dog", "a dog"), 0, "file:1")
    features = choices.choice_rows([example], words, max_seq_length=8)
    assert max(map(len, features.tokens["input_ids"])) == 8
    first, *_, last = (words.decode(row.tolist()) for row in features.tokens["input_ids"])
    assert "home" not in first + last
    assert last.endswith("a dog [SEP]")


FAULTS = [
    ("a.tsv", [*CODAH, "o\tA dog\truns"], r"a\.tsv:3: the row has 3 columns; .* the 7 of"),
    ("a.tsv", ["o\tA\tb\tc\td\te\t4"], r"a\.tsv:1: label '4' is unknown; labels are 0, 1, 2"),
    ("a.tsv", ["o\tA\tb\t \td\t\t1"], r"a\.tsv:1: ending1, ending3 is empty"),
    ("a.csv", [*SWAG, "1,2,3"], r"a\.csv:4: the row has 3 columns; .* the 12 of the header"),
    ("a.csv", [SWAG[0], SWAG[1].replace("A dog barks.,", ",")], r"a\.csv:2: sent1 is empty"),
    ("a.csv", [SWAG_HEADER.replace("ending3", "x")], r"a\.csv:1: there is no column 'ending3'"),
    ("a.csv", [SWAG_HEADER], "a.csv holds no examples"),
    ("a.txt", CODAH, r"must end with \.csv .*but ends with '\.txt'"),
]


def test_a_faulty_file_is_named_with_its_line(tmp_path, words):
    for name, lines, fault in FAULTS:
        with pytest.raises(ValueError, match=fault):
            choices.read_examples(write(tmp_path / name, lines))
    mixed = [Example("a dog", ("he",) * 4, label, "file:1") for label in (0, 1, None)]
    with pytest.raises(ValueError, match="2 of 3 examples have a label"):
        choices.choice_rows(mixed, words, max_seq_length=32)


def test_predictions_are_written_as_swags_baselines_do(tmp_path):
    path = tmp_path / "predictions.csv"
    choices.write_choices(path, np.array([2, 0, 3]))
    assert path.read_text() == ",pred\n0,2\n1,0\n2,3\n"
