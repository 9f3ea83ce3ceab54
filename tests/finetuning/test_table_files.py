"""Claims about a user's own CSV, TSV and JSON lines."""

import itertools
import json
import unicodedata

import pyarrow
import pytest
from pyarrow import parquet

from bertjax.finetuning import table_files

# pyarrow before 21 writes no views of strings.
VERSION = int(pyarrow.__version__.partition(".")[0])

COLUMNS = table_files.Columns(("text",), "label")
PAIR = table_files.Columns(("a", "b"), "label")
NUMBER = table_files.Columns(("text",), "label", is_number=True)
KINDS = ("csv", "tsv", "jsonl", "json")


def write(directory, kind, rows, names=("text", "label")):
    path = directory / f"train.{kind}"
    if kind in ("jsonl", "json"):
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    else:
        lines = [{"csv": ",", "tsv": "\t"}[kind].join(row) for row in (names, *rows)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def raw(directory, name, text):
    path = directory / name
    path.write_bytes(text.encode())
    return path


def labels_of(table):
    return [example.label for example in table.examples]


def test_every_kind_of_file_gives_the_same_examples(tmp_path):
    for kind in KINDS:
        path = write(tmp_path, kind, [("one", "spam"), ("two", "ham"), ("three", " spam ")])
        table = table_files.read_table(path, COLUMNS)
        assert table.labels == ("ham", "spam") and labels_of(table) == [1, 0, 1]
        assert [example.texts for example in table.examples] == [("one",), ("two",), ("three",)]
        assert table.examples[0].source == f"{path}:{1 if kind.startswith('json') else 2}"


def test_texts_are_one_or_two_columns_and_the_label_a_class_a_number_or_nothing(tmp_path):
    names, rows = ["id", "b", "label", "a"], [("0", "B", "x", "A"), ("1", "D", "y", "C")]
    table = table_files.read_table(write(tmp_path, "tsv", rows, names), PAIR)
    assert [example.texts for example in table.examples] == [("A", "B"), ("C", "D")]
    path = write(tmp_path, "csv", [("one", "1.5"), ("two", "-3e2")])
    table = table_files.read_table(path, NUMBER)
    assert table.labels == () and labels_of(table) == [1.5, -300.0]
    table = table_files.read_table(path, table_files.Columns(("text",)))
    assert table.labels == () and labels_of(table) == [None, None]
    path = write(tmp_path, "csv", [("one", "c"), ("two", "a")])
    table = table_files.read_table(path, COLUMNS, labels=("c", "b", "a"))  # those of training
    assert table.labels == ("c", "b", "a") and labels_of(table) == [0, 2]
    with pytest.raises(ValueError, match="train.csv:2: 'label' is 'c'; known are a, b"):
        table_files.read_table(path, COLUMNS, labels=("a", "b"))
    for texts, label, message in (
        ((), "x", "must be one or two"),
        (("a", "b", "c"), "x", "one or two"),
        (("a",), "a", "another"),
    ):
        with pytest.raises(ValueError, match=message):
            table_files.Columns(texts, label)


def test_classes_are_sorted_as_numbers_where_all_are(tmp_path):
    for classes, labels in (
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["b", "B", "ä", "a"], ("B", "a", "b", "ä")),
    ):
        path = write(tmp_path, "csv", [("text", label) for label in classes])
        assert table_files.read_table(path, COLUMNS).labels == labels
    lines = [{"text": "a", "label": 1}, {"text": "b", "label": 0}, {"label": 10, "text": "c"}]
    path = raw(tmp_path, "train.jsonl", "\n\n".join(map(json.dumps, lines)))
    assert table_files.read_table(path, COLUMNS).labels == ("0", "1", "10")
    assert labels_of(table_files.read_table(path, NUMBER)) == [1.0, 0.0, 10.0]
    path = write(tmp_path, "jsonl", [("a", True), ("b", False)])
    assert table_files.read_table(path, COLUMNS).labels == ("false", "true")


def test_a_label_has_one_spelling_whatever_the_form_of_its_letters(tmp_path):
    forms = [unicodedata.normalize(form, "şık") for form in ("NFC", "NFD")]
    for kind in KINDS:
        path = write(tmp_path, kind, [("a", forms[0]), ("b", forms[1]), ("c", "ığdır")])
        read = table_files.read_table(path, COLUMNS)
        assert read.labels == ("ığdır", forms[0]) and labels_of(read) == [1, 1, 0]
        for labels in ((forms[0], "ığdır"), (forms[1], "ığdır")):
            assert labels_of(table_files.read_table(path, COLUMNS, labels=labels)) == [0, 0, 1]
    path = write(tmp_path, "csv", [("a", "|".join(forms)), ("b", "x")])
    assert table_files.read_table(path, SEVERAL).labels == ("x", forms[0])
    for kind, form in itertools.product(KINDS, forms):
        path = write(tmp_path, kind, [("a", "1", "0"), ("b", "0", "1")], ("text", forms[1], "x"))
        read = table_files.read_table(path, table_files.Columns(("text",), flags=(form, "x")))
        assert read.labels == (forms[0], "x") and labels_of(read) == [(0,), (1,)]
    path = raw(
        tmp_path, "a.jsonl", '{"text": "a", "label": "\\ud83dx"}\n{"text": "a", "label": "y"}'
    )
    assert table_files.read_table(path, COLUMNS).labels == ("y", "\ufffdx")


def test_numbers_have_a_decimal_comma_where_semicolons_are_between_columns(tmp_path):
    path = raw(tmp_path, "a.csv", "\ufefftext;label\r\nfoo, bar;4,5\r\nw;-,25\r\nw;3\r\n")
    assert labels_of(table_files.read_table(path, NUMBER)) == [4.5, -0.25, 3.0]
    path = raw(tmp_path, "a.csv", "text;label\nw;4,5\nw;1.200\n")
    with pytest.raises(ValueError, match=r":3: 'label' has a decimal point here .* in .*a.csv:2"):
        table_files.read_table(path, NUMBER)
    for name, text in (
        ("a.csv", 'text,label\nw,"4,5"\n'),
        ("a.tsv", "text\tlabel\nw\t4,5\n"),
        ("a.csv", "text;label\nw;1.234,5\n"),
    ):
        with pytest.raises(ValueError, match=":2: 'label' is '.*,5'; .*with a decimal point"):
            table_files.read_table(raw(tmp_path, name, text), NUMBER)


def test_a_column_of_parquet_is_a_class_or_a_number_as_in_other_files(tmp_path):
    path = tmp_path / "a.parquet"
    numbers = pyarrow.array(["1.5", "2"]).cast(pyarrow.decimal128(5, 2))
    for labels, number, classes in (
        (numbers, [1.5, 2.0], ("1.5", "2")),
        (pyarrow.array(["1.5", "x"]).dictionary_encode(), None, ("1.5", "x")),
        (pyarrow.array([20000, 20001], pyarrow.date32()), None, ("2024-10-04", "2024-10-05")),
        (pyarrow.array([b"a", b"b"]), None, ("a", "b")),
    ):
        texts = pyarrow.array(["a", "b"], pyarrow.string_view() if VERSION > 20 else None)
        parquet.write_table(pyarrow.table({"text": texts, "label": labels}), path)
        assert table_files.read_table(path, COLUMNS).labels == classes
        if number:
            assert labels_of(table_files.read_table(path, NUMBER)) == number
    for values in ([b"\xff", b"a"], [{"x": 1}, {"x": 2}], [[1], [2]]):
        parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": values}), path)
        with pytest.raises(ValueError, match=r"a.parquet:1: 'label' is .*; it must be one value"):
            table_files.read_table(path, COLUMNS)


SEVERAL = table_files.Columns(("text",), "label", separator="|")
TOXIC = table_files.Columns(("comment_text",), flags=("toxic", "threat", "insult"))
FLAGS = "comment_text,toxic,threat,insult"
# Columns, a file's name and content, and what is wrong.
FAULTS = [
    (COLUMNS, "a.csv", "text,lable\na,b\n", "set config.finetuning.label_column, or rename"),
    (COLUMNS, "a.csv", "text,label\n", "a.csv has no rows"),
    (COLUMNS, "a.csv", "text,label\na,x\n ,y\n", "a.csv:3: 'text' is empty; .* fill it in, or"),
    (COLUMNS, "a.csv", "text,label\na,x\nb,\n", "a.csv:3: 'label' is empty; .* fill it in, or"),
    (COLUMNS, "a.jsonl", '{"text": null, "label": "x"}', ":1: 'text' is None; .* fill it in, or"),
    (COLUMNS, "a.csv", "text,label\n" + "a,\n" * 12, "^12 .*\n.*a.csv:2: (.*\n)+.* lines 12, 13$"),
    (COLUMNS, "a.csv", "text,label\n" + "a,\n" * 112, "lines 12, 13, .*, 111 and 2 more$"),
    (COLUMNS, "a.csv", "text,label\na,x\nb,x\n", "a.csv: 'label' is 'x' in every row"),
    (COLUMNS, "a.jsonl", '{"text": 3, "label": "x"}', "a.jsonl:1: 'text' is 3; it must be a text"),
    (COLUMNS, "a.jsonl", '{"text": "a", "label": ["x"]}', "a.jsonl:1: 'label' is .*one value"),
    (NUMBER, "a.csv", "text,label\nb,1\na,high\n", "3: 'label' is 'high'; .*finite number"),
    (NUMBER, "a.csv", "text,label\nb,1\na,nan\n", "3: 'label' is 'nan'; .*finite number"),
    (NUMBER, "a.csv", "text,label\nb,1\na,\n", "3: 'label' is ''; .*finite number: fill it in"),
    (SEVERAL, "a.jsonl", '{"text": "w", "label": ""}', "'label' names no label in any row"),
    (SEVERAL, "a.jsonl", '{"text": "w", "label": "a||b"}', ":1: 'label' is empty; it must be"),
    (SEVERAL, "a.jsonl", '{"text": "w", "label": [0, 1, 0]}', "must hold the names .* make a col"),
    (SEVERAL, "a.jsonl", '{"text": "w", "label": [true, false, true]}', "must hold the names"),
    (TOXIC, "a.csv", f"{FLAGS}\nw,1,-1,0\n", "a.csv:2: 'threat' is '-1'; it must be 0 or 1"),
    (TOXIC, "a.csv", f"{FLAGS}\nw,1,,0\n", "a.csv:2: 'threat' is ''; .* 0 or 1: fill it in"),
    (TOXIC, "a.csv", f"{FLAGS}\nw,0,0,0\n", "'toxic', 'threat', 'insult' names no label in any"),
    (TOXIC, "a.csv", "comment_text,toxic,threat\nw,0,1\n", "there is no column 'insult'"),
]


def test_faults_of_a_file_name_file_and_line(tmp_path):
    for columns, name, text, message in FAULTS:
        with pytest.raises(ValueError, match=message):
            table_files.read_table(raw(tmp_path, name, text), columns)
    path = raw(tmp_path, "a.csv", "text,label\n,x\nb\nc,z\n")
    with pytest.raises(ValueError, match="^3 faults:\n") as caught:
        table_files.read_table(path, COLUMNS, labels=("x", "y"))
    for fault in (":2: 'text' is empty", ":3: the row has 1 columns", ":4: 'label' is 'z'"):
        assert f"a.csv{fault}" in str(caught.value)


def test_rows_may_have_any_number_of_labels(tmp_path):
    path = tmp_path / "train.jsonl"
    labels = ["a| b", "", ["c", "a"], None, "b", ["a, x"], "a|a"]
    rows = [{"text": "w", "label": label} for label in labels]
    path.write_text("\n".join(map(json.dumps, rows)))
    read = table_files.read_table(path, SEVERAL)
    assert read.labels == ("a", "a, x", "b", "c")
    assert labels_of(read) == [(0, 2), (), (0, 3), (), (2,), (1,), (0,)]
    with pytest.raises(ValueError, match=r"train.jsonl:1: 'label' is 'b'; known are a, c"):
        table_files.read_table(path, SEVERAL, labels=("a", "c"))


def test_each_label_may_have_a_column_of_0_and_1(tmp_path, caplog):
    names = ("id", "insult", "comment_text", "toxic", "threat")
    rows = [
        ("a1", "1", "w1", "1", "0"),
        ("a2", "0.0", "w2", "0.0", "0.0"),
        ("a3", " 0", "w3", "True", "0"),
        ("a4", "1.0", "w4", "0", "false"),
    ]
    # Other files have the labels of training, in its order, whether they occur or not.
    order = ("insult", "threat", "toxic")
    for kind in KINDS:
        caplog.clear()
        read = table_files.read_table(write(tmp_path, kind, rows, names), TOXIC)
        assert read.labels == (
            "toxic",
            "threat",
            "insult",
        )  # as named, also without a row
        assert labels_of(read) == [(0, 2), (), (0,), (2,)]
        assert "no row has the label threat: it cannot be learnt" in caplog.text
        more = [("a5", "0", "w5", "0", "0"), ("a6", "0", "w6", "1", "0")]
        other = table_files.read_table(write(tmp_path, kind, more, names), TOXIC, labels=order)
        assert labels_of(other) == [(), (2,)]
    rows = [(1, True, 0.0, "w")]  # of JSON: numbers and truths
    path = write(tmp_path, "jsonl", rows, ("toxic", "threat", "insult", "comment_text"))
    assert labels_of(table_files.read_table(path, TOXIC)) == [(0, 1)]


def test_text_in_cp1252_that_was_read_as_latin1_is_warned_of_once(tmp_path, caplog):
    good = [("“a”", "x"), ("b – c", "y"), ("d…", "x")]
    mistaken = [(text.encode("cp1252").decode("latin1"), label) for text, label in good]
    read = table_files.read_table(write(tmp_path, "csv", mistaken), COLUMNS)
    assert [example.texts[0] for example in read.examples] == [text for text, _ in mistaken]
    assert caplog.text.count("the text holds C1 controls") == 1 and "csv:2: " in caplog.text
    caplog.clear()
    table_files.read_table(write(tmp_path, "csv", good), COLUMNS)
    assert not caplog.records
