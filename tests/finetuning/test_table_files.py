"""Claims about a user's own CSV, TSV and JSON lines."""

import json

import pytest

from bertjax.finetuning import table_files

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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_examples(tmp_path, kind):
    path = write(tmp_path, kind, [("one", "spam"), ("two", "ham"), ("three", " spam ")])
    table = table_files.read_table(path, COLUMNS)
    assert table.labels == ("ham", "spam")
    assert [example.texts for example in table.examples] == [("one",), ("two",), ("three",)]
    assert [example.label for example in table.examples] == [1, 0, 1]
    first = 1 if kind.startswith("json") else 2
    assert table.examples[0].source == f"{path}:{first}"


def test_two_texts_in_any_order_of_columns(tmp_path):
    path = write(
        tmp_path, "tsv", [("0", "B", "x", "A"), ("1", "D", "y", "C")], ["id", "b", "label", "a"]
    )
    assert [example.texts for example in table_files.read_table(path, PAIR).examples] == [
        ("A", "B"),
        ("C", "D"),
    ]


def test_a_number_is_no_class(tmp_path):
    table = table_files.read_table(
        write(tmp_path, "csv", [("one", "1.5"), ("two", "-3e2")]), NUMBER
    )
    assert table.labels == ()
    assert [example.label for example in table.examples] == [1.5, -300.0]


def test_a_file_to_predict_on_needs_no_label(tmp_path):
    table = table_files.read_table(
        write(tmp_path, "csv", [("one", "?")]), table_files.Columns(("text",))
    )
    assert table.labels == ()
    assert [example.label for example in table.examples] == [None]


def test_a_later_file_has_the_classes_of_training(tmp_path):
    path = write(tmp_path, "csv", [("one", "c"), ("two", "a")])
    table = table_files.read_table(path, COLUMNS, labels=("c", "b", "a"))
    assert table.labels == ("c", "b", "a")
    assert [example.label for example in table.examples] == [0, 2]
    with pytest.raises(ValueError, match="train.csv:2: 'label' is 'c'; known are a, b"):
        table_files.read_table(path, COLUMNS, labels=("a", "b"))


@pytest.mark.parametrize(
    ("found", "labels"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["b", "B", "ä", "a"], ("B", "a", "b", "ä")),
    ],
)
def test_classes_are_sorted_as_numbers_where_all_are(tmp_path, found, labels):
    path = write(tmp_path, "csv", [("text", label) for label in found])
    assert table_files.read_table(path, COLUMNS).labels == labels


def test_values_of_json_are_classes_and_numbers(tmp_path):
    lines = [{"text": "a", "label": 1}, {"text": "b", "label": 0}, {"label": 10, "text": "c"}]
    path = raw(tmp_path, "train.jsonl", "\n\n".join(map(json.dumps, lines)))
    assert table_files.read_table(path, COLUMNS).labels == ("0", "1", "10")
    assert [example.label for example in table_files.read_table(path, NUMBER).examples] == [
        1.0,
        0.0,
        10.0,
    ]
    path = raw(
        tmp_path, "bool.jsonl", '{"text": "a", "label": true}\n{"text": "b", "label": false}'
    )
    assert table_files.read_table(path, COLUMNS).labels == ("false", "true")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "text,lable\na,b\n", "set config.finetuning.label_column, or rename the col"),
        ("a.csv", "text,label\n", "a.csv has no rows"),
        ("a.csv", "text,label\na,x\n ,y\n", "a.csv:3: 'text' is empty"),
        ("a.csv", "text,label\na,x\nb,x\n", "a.csv: 'label' is 'x' in every row"),
        ("a.jsonl", '{"text": 3, "label": "x"}', "a.jsonl:1: 'text' is 3; it must be a text"),
        ("a.jsonl", '{"text": "a", "label": ["x"]}', "a.jsonl:1: 'label' is .*one value"),
    ],
)
def test_faults_of_a_file_name_file_and_line(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        table_files.read_table(raw(tmp_path, name, text), COLUMNS)


@pytest.mark.parametrize("number", ["high", "nan"])
def test_a_number_must_be_finite(tmp_path, number):
    path = raw(tmp_path, "a.csv", f"text,label\nb,1\na,{number}\n")
    with pytest.raises(ValueError, match=f"a.csv:3: 'label' is '{number}'; .*finite number"):
        table_files.read_table(path, NUMBER)


def test_all_faults_are_told_at_once(tmp_path):
    path = raw(tmp_path, "a.csv", "text,label\n,x\nb\nc,z\n")
    with pytest.raises(ValueError, match="^3 faults:\n") as told:
        table_files.read_table(path, COLUMNS, labels=("x", "y"))
    for fault in (":2: 'text' is empty", ":3: the row has 1 columns", ":4: 'label' is 'z'"):
        assert f"a.csv{fault}" in str(told.value)


@pytest.mark.parametrize(
    ("names", "label", "message"),
    [
        ((), "x", "must be one or two"),
        (("a", "b", "c"), "x", "one or two"),
        (("a",), "a", "another"),
    ],
)
def test_columns_are_one_or_two_texts_and_another_label(names, label, message):
    with pytest.raises(ValueError, match=message):
        table_files.Columns(names, label)


SEVERAL = table_files.Columns(("text",), "label", separator="|")


def test_rows_may_have_any_number_of_labels(tmp_path):
    path = tmp_path / "train.jsonl"
    labels = ["a| b", "", ["c", "a"], None, "b", ["a, x"], "a|a"]
    rows = [{"text": "w", "label": label} for label in labels]
    path.write_text("\n".join(map(json.dumps, rows)))
    read = table_files.read_table(path, SEVERAL)
    assert read.labels == ("a", "a, x", "b", "c")
    assert [example.label for example in read.examples] == [
        (0, 2), (), (0, 3), (), (2,), (1,), (0,),
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"train.jsonl:1: 'label' is 'b'; known are a, c"):
        table_files.read_table(path, SEVERAL, labels=("a", "c"))
    path.write_text('{"text": "w", "label": ""}')
    with pytest.raises(ValueError, match="'label' names no label in any row"):
        table_files.read_table(path, SEVERAL)
    path.write_text('{"text": "w", "label": "a||b"}')
    with pytest.raises(ValueError, match=":1: 'label' is empty; it must be a class"):
        table_files.read_table(path, SEVERAL)


TOXIC = table_files.Columns(("comment_text",), flags=("toxic", "threat", "insult"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_label_may_have_a_column_of_0_and_1(tmp_path, kind, caplog):
    names = ("id", "insult", "comment_text", "toxic", "threat")
    rows = [
        ("a1", "1", "w1", "1", "0"),
        ("a2", "0.0", "w2", "0.0", "0.0"),
        ("a3", " 0", "w3", "True", "0"),
        ("a4", "1.0", "w4", "0", "false"),
    ]
    read = table_files.read_table(write(tmp_path, kind, rows, names), TOXIC)
    assert read.labels == ("toxic", "threat", "insult")  # as they are named, those of no row too
    assert [example.label for example in read.examples] == [(0, 2), (), (0,), (2,)]
    assert "no row has the label threat: it cannot be learnt" in caplog.text
    # Other files have the labels of training, in its order, whether they occur or not.
    order = ("insult", "threat", "toxic")
    other = write(tmp_path, kind, [("a5", "0", "w5", "0", "0")], names)
    assert table_files.read_table(other, TOXIC, labels=order).examples[0].label == ()
    other = write(tmp_path, kind, [("a5", "0", "w5", "1", "0")], names)
    assert table_files.read_table(other, TOXIC, labels=order).examples[0].label == (2,)


def test_flags_of_json_may_be_numbers_and_truths(tmp_path):
    path = tmp_path / "train.jsonl"
    rows = [{"comment_text": "w", "toxic": 1, "threat": True, "insult": 0.0}]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert table_files.read_table(path, TOXIC).examples[0].label == (0, 1)


@pytest.mark.parametrize("flag", ["-1", ""])
def test_a_flag_is_0_or_1(tmp_path, flag):
    path = raw(tmp_path, "a.csv", f"comment_text,toxic,threat,insult\nw,1,{flag},0\n")
    with pytest.raises(ValueError, match=rf"a.csv:2: 'threat' is '{flag}'; it must be 0 or 1"):
        table_files.read_table(path, TOXIC)


def test_flags_that_are_nowhere_are_told(tmp_path):
    path = raw(tmp_path, "a.csv", "comment_text,toxic,threat,insult\nw,0,0,0\n")
    with pytest.raises(ValueError, match="'toxic', 'threat', 'insult' names no label in any row"):
        table_files.read_table(path, TOXIC)
    path = raw(tmp_path, "a.csv", "comment_text,toxic,threat\nw,0,1\n")
    with pytest.raises(ValueError, match="there is no column 'insult'"):
        table_files.read_table(path, TOXIC)


@pytest.mark.parametrize("flags", [[0, 1, 0], [True, False, False]])
def test_a_list_of_0_and_1_is_not_taken_for_names(tmp_path, flags):
    path = raw(tmp_path, "a.jsonl", json.dumps({"text": "w", "label": flags}))
    with pytest.raises(ValueError, match="a list must hold the names .* make a column of each"):
        table_files.read_table(path, SEVERAL)
