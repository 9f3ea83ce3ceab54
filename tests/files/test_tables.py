"""Claims about rows of tables: the same from every kind of file, and each fault with its line."""

import bz2
import datetime
import decimal
import gzip
import json
import lzma

import pyarrow
import pytest
from pyarrow import parquet

from bertjax.files import opening, tables

PACKED = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
VERSION = int(pyarrow.__version__.partition(".")[0])
ROWS = [{"a": "x\u2028\x0c", "b": "ü"}, {"a": "", "b": '"'}]
LENIENT = tables.Rules(lenient=True)


def write(path, rows, end="\r\n"):
    """Writes rows as the suffix of the path says, with `end` between lines."""
    suffix, compression = opening.suffixes(path)
    if suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=1)
        return path
    if suffix == ".csv":
        quoted = [[value.replace('"', '""') for value in row.values()] for row in rows]
        lines = ["a,b", *(",".join(f'"{value}"' for value in row) for row in quoted)]
    elif suffix == ".tsv":
        lines = ["a\tb", *("\t".join(row.values()) for row in rows)]
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_bytes(PACKED[compression](end.join(["\ufeff" + lines[0], *lines[1:]]).encode()))
    return path


@pytest.mark.parametrize("rules", [tables.EXACT, LENIENT])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, rules):
    names = ["t.csv", "T.TSV", "t.jsonl", "t.json", "t.ndjson", "t.parquet", "t.csv.gz"]
    names = [*names, "t.tsv.bz2", "t.jsonl.xz"]
    for name, end in [(name, end) for name in names for end in ("\r\n", "\n", "\r")]:
        path = write(tmp_path / name, ROWS, end)
        rows = list(tables.rows(path, rules))
        assert [row.values for row in rows] == ROWS
        first = 2 if opening.suffixes(path)[0] in tables.FIELDS else 1
        assert [row.number for row in rows] == [first, first + 1]
        assert tables.column_names(path) == ("a", "b")
        if not name.endswith(".parquet"):
            path.write_bytes(PACKED[opening.suffixes(path)[1]](b""))
            assert tables.column_names(path) == () and not list(tables.rows(path))


def test_csv_rows_span_lines_and_reading_goes_on_after_a_stray_quote(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(
        b'a,b\r\n"one, ""1""\r\nmore",x\r\n\r\n"b"c,y\n1,2,3\n' + b"w" * 200_000 + b",y"
    )
    rows = list(tables.rows(path))
    assert rows[0] == (2, {"a": 'one, "1"\nmore', "b": "x"}, None)
    assert [(row.number, row.fault.kind) for row in rows[1:3]] == [(5, "csv"), (6, "columns")]
    assert rows[3].number == 7 and len(rows[3].values["a"]) == 200_000
    assert [row.fault and row.fault.kind for row in tables.rows(path, LENIENT)] == [
        None, None, "columns", None,
    ]  # fmt: skip
    assert next(iter(tables.rows(path, tables.Rules(names=("a", "b"))))).values["a"] == "a"


def test_a_blank_line_is_skipped_or_a_fault(tmp_path):
    for suffix in ("csv", "tsv", "jsonl"):
        path = write(tmp_path / f"t.{suffix}", ROWS)
        path.write_bytes(path.read_bytes() + b"\n\n")
        for rules, faults in ((tables.EXACT, []), (tables.Rules(blank_lines=True), [True])):
            rows = list(tables.rows(path, rules))
            assert [bool(row.fault) for row in rows] == [False, False, *faults]


def test_rows_of_delimiters_alone_are_blank_as_excel_leaves_them_beneath_a_table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text;label\na;1\n;\nb;\n;\n")
    rows = [row.values for row in tables.rows(path, tables.EXACT)]
    assert rows == [{"text": "a", "label": "1"}, {"text": "b", "label": ""}]


def test_a_line_of_json_may_be_faulty_and_the_next_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_SKIPPED_BYTES", 7)
    path = tmp_path / "t.jsonl"
    for line, kind in (
        (b'{"text": 1', "json"),
        (b"[" * 100_000, "json"),
        (b'["a", 1]', "object"),
        (b'{"text": "si\xe9x"}', "utf8"),
        (b'{"text": "' + b"x" * 200 + b'"}', "long"),
    ):
        monkeypatch.setattr(tables, "LONGEST_RECORD_BYTES", 200_000 if kind == "json" else 100)
        path.write_bytes(line + b'\n{"a": 1}')
        faulty, whole = tables.rows(path, LENIENT)
        assert (faulty.number, faulty.fault.kind) == (1, kind)
        assert whole == (2, {"a": 1}, None)


def test_bytes_that_are_not_utf8_end_the_reading_unless_it_is_lenient(tmp_path):
    excel = '; in Excel save it as "CSV UTF-8"$'
    for name, line, hint in (("t.csv", 3, excel), ("t.tsv", 3, ""), ("t.jsonl", 2, "")):
        path = write(tmp_path / name, [{"a": "one", "b": "two"}, {"a": "three", "b": "x"}])
        path.write_bytes(path.read_bytes().replace(b"three", b"th\xe9"))
        message = rf"{name}:{line}: it is not UTF-8 .*iconv.*{hint}"
        with pytest.raises(ValueError, match=message):
            list(tables.rows(path))
        last = list(tables.rows(path, LENIENT))[-1]
        assert last.fault.kind == "utf8" if last.fault else last.values["a"] == "th\udce9"


def test_a_lone_carriage_return_ends_a_row_of_a_lenient_reader(tmp_path):
    for name, content in (("t.csv", b"a,b\r1,2\r\n3,4"), ("t.tsv", b"a\tb\r1\t2\r\n3\t4\r")):
        (tmp_path / name).write_bytes(content)
        assert [row.values for row in tables.rows(tmp_path / name, LENIENT)] == [
            {"a": "1", "b": "2"},
            {"a": "3", "b": "4"},
        ]


def test_a_file_that_cannot_be_a_table_is_an_error(tmp_path):
    rules = tables.Rules(names_fault=lambda names: None if "b" in names else "no column b")
    cut = gzip.compress(b"{}\n" * 99, mtime=0)[:-9]
    for name, content, message in (
        ("t.csv", b"a,c\n1,2\n", r"t.csv:1: no column b$"),
        ("t.csv", b'"a"b,c\n1,2\n', r"t.csv:1: the row is not CSV"),
        ("t.csv", b'"a,b\n1,2\n', r"t.csv:1: the row is not CSV .*not closed up to the file's end"),
        ("t.csv", "text,label\n".encode("utf-16"), r"t.csv:1: .*it looks like utf-16,.*'text"),
        (
            "t.tsv",
            "text\tlabel\n".encode("utf-16-le"),
            r"t.tsv:1: .*it looks like utf-16-le.*'text",
        ),
        ("t.jsonl.gz", cut, "t.jsonl.gz is damaged"),
        ("t.csv.gz", b"no archive", "t.csv.gz is damaged"),
        ("t.parquet", b"PAR1", r"t.parquet cannot be read as Parquet"),
        ("t.xlsx", b"", r"ends in '.xlsx'; known files end in .csv, .tsv, .jsonl"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            list(tables.rows(tmp_path / name, rules))
    with pytest.raises(FileNotFoundError, match=r"absent.csv does not exist"):
        list(tables.rows(tmp_path / "absent.csv"))


# The beginning of a file named .csv up to its header, the columns of that, and the delimiter that
# is found where `text` and `label` are asked for: as Excel of other countries writes them, and
# healthy files with other marks in their names.
HEADERS = [
    ("text,label", 2, ","), ("text;label", 2, ";"), ("text\tlabel", 2, "\t"),
    ("text|label", 2, "|"), ('"text";"label"', 2, ";"), ("text;a, b;label", 3, ";"),
    ('"a;b",text,label', 3, ","), ("text,a;b;c;d,label", 3, ","), ('"a\n;b",text,label', 3, ","),
    ("\n\ntext;label", 2, ";"), ("sep=;\ntext;label", 2, ";"), ('"sep=|"\ntext|label', 2, "|"),
    ("sep=#\ntext#label", 2, "#"),
]  # fmt: skip


def names_fault(names):
    return None if {"text", "label"} <= set(names) else f"the columns are {', '.join(names)}"


def test_the_delimiter_is_the_one_by_which_the_header_has_the_columns(tmp_path):
    rules = tables.Rules(names_fault=names_fault)
    path = tmp_path / "t.csv"
    for header, columns, delimiter in HEADERS:
        row = delimiter.join(['"a;b, ""c""|d"'] * columns)
        for mark, end in (("", "\n"), ("\ufeff", "\r\n")):
            path.write_bytes(f"{mark}{header}\n{row}\n".replace("\n", end).encode())
            (found,) = tables.rows(path, rules)
            assert found.values["label"] == 'a;b, "c"|d', header
            assert found.number == 2 + header.count("\n")
            assert tables.decimal_mark(path, rules) == ("," if delimiter == ";" else ".")
            assert tables.column_names(path, rules)[-1] == "label"


def test_a_given_delimiter_is_taken_and_a_wrong_one_is_named_in_the_error(tmp_path):
    for name, header, delimiter, message in (
        ("t.csv", "text;label", ",", "read as separated by ',' and looks separated by ';'$"),
        ("t.tsv", "text,label", "auto", "by 'tab' and looks separated by ','; rename .* in .csv"),
        ("t.tsv", '"text"\t"label"', "auto", "a quote is a character like others, rename it"),
        ("t.csv", "text#label", "auto", "separated by ',' and looks separated by '#'$"),
        ("t.csv", "text；label", "auto", "separated by ',' and looks separated by '；'$"),
        ("t.csv", "text-label", "auto", "text-label$"),
    ):
        rules = tables.Rules(names_fault=names_fault, delimiter=delimiter)
        (tmp_path / name).write_text(f"{header}\na\n")
        with pytest.raises(ValueError, match=rf"{name}:1: the columns are .*{message}"):
            list(tables.rows(tmp_path / name, rules))
    for name, delimiter, text in (
        ("t.csv", "#", "a"),
        ("t.tsv", "#", '"a"'),
        ("t.csv", "tab", "a"),
    ):
        character = "\t" if delimiter == "tab" else delimiter
        (tmp_path / name).write_text(f'text{character}label\n"a"{character}b\n')
        rules = tables.Rules(names_fault=names_fault, delimiter=delimiter)
        assert [row.values["text"] for row in tables.rows(tmp_path / name, rules)] == [text]


def test_a_tsv_that_looks_quoted_is_warned_of_once_and_read_as_it_stands(tmp_path, caplog):
    path = tmp_path / "t.tsv"
    for row, looks_quoted in (
        ('"he said ""no"""\tx', True),
        ('"a"\t"b"', True),
        ('"a" b\t"c', False),
        ('"No," he said, "no"\tx', False),
        ('"No"\tx', False),
    ):
        caplog.clear()
        path.write_text(f"text\tlabel\n{row}\n{row}\n")
        assert [it.values["text"] for it in tables.rows(path)] == [row.split("\t")[0]] * 2
        assert caplog.text.count("t.tsv:2: the file looks quoted") == looks_quoted, row
        caplog.clear()
        list(tables.rows(path, tables.Rules(delimiter="\t")))
        assert not caplog.text


def test_values_of_parquet_are_those_of_json(tmp_path):
    """Also where pandas is installed, which arrow would use for nanoseconds."""
    zoned, moment = pyarrow.timestamp("ns", "UTC"), "1970-01-01 00:00:00.000001"
    lists = (pyarrow.list_(zoned), pyarrow.large_list(zoned), pyarrow.list_(zoned, 1))
    times = pyarrow.struct([("a", pyarrow.list_(pyarrow.time64("ns"))), ("b", pyarrow.int8())])
    for column, values in (
        (pyarrow.array([decimal.Decimal("4.50"), decimal.Decimal("4.00"), None]), [4.5, 4, None]),
        (pyarrow.array([datetime.date(2026, 1, 2)]), ["2026-01-02"]),
        (pyarrow.array([1001], pyarrow.timestamp("ns")), [moment]),
        (pyarrow.array([1001], pyarrow.timestamp("ns")).dictionary_encode(), [moment]),
        (pyarrow.array([1001], zoned), [f"{moment}+00:00"]),
        *((pyarrow.array([[1001]], it), [[f"{moment}+00:00"]]) for it in lists),
        (pyarrow.array([{"a": [1001], "b": 2}], times), [{"a": ["00:00:00.000001"], "b": 2}]),
        (
            pyarrow.array([[("k", 1001)]], pyarrow.map_(pyarrow.string(), zoned)),
            [
                [["k", f"{moment}+00:00"]],
            ],
        ),
        (pyarrow.array([1001], pyarrow.duration("ns")), ["0:00:00.000001"]),
        (pyarrow.array(["é".encode(), b"\xff"]), ["é", b"\xff"]),
        (pyarrow.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        # pyarrow 18 does not write views.
        (pyarrow.array(["a"], pyarrow.string_view() if VERSION > 18 else None), ["a"]),
        (pyarrow.array([{"a": [decimal.Decimal("0.5")]}]), [{"a": [0.5]}]),
        (pyarrow.array([[1, 2], None]), [[1, 2], None]),
    ):
        parquet.write_table(pyarrow.table({"a": column}), tmp_path / "t.parquet")
        found = [row.values["a"] for row in tables.rows(tmp_path / "t.parquet")]
        assert found == values and list(map(type, found)) == list(map(type, values))


def test_suffixes_of_format_and_compression():
    for path, expected in (
        ("a/b.JSONL.GZ", (".jsonl", ".gz")),
        ("a.b/c", ("", "")),
        ("c.txt", (".txt", "")),
        ("articles1.xml-p1p41242.bz2", (".xml-p1p41242", ".bz2")),
    ):
        assert opening.suffixes(path) == expected


def test_a_table_in_another_encoding_is_read_with_it_and_without_it_the_option_is_named(tmp_path):
    text = "text,label\nВсе люди рождаются свободными,да\nДо свидания, нет\n".replace(
        "ния, ", "ния,"
    )
    expected = [("Все люди рождаются свободными", "да"), ("До свидания", "нет")]
    lines = "".join(f'{{"text": "{a}", "label": "{b}"}}\n' for a, b in expected)
    for encoding in ("cp1251", "koi8-r", "utf-16"):
        for name, content in (
            ("t.csv", text),
            ("t.tsv", text.replace(",", "\t")),
            ("t.jsonl", lines),
        ):
            path = tmp_path / name
            path.write_bytes(content.encode(encoding))
            rules = tables.Rules(encoding=encoding)
            assert [
                (row.values["text"], row.values["label"]) for row in tables.rows(path, rules)
            ] == expected
            assert tables.column_names(path, rules) == ("text", "label")
            message = rf"{name}:\d: .*{encoding}.*, which reads .*: give --encoding="
            with pytest.raises(ValueError, match=message):
                list(tables.rows(path, tables.Rules(encoding_option="--encoding")))
            path.write_text(content)
            with pytest.raises(ValueError, match=rf"{name} is UTF-8, and another text"):
                list(tables.rows(path, rules))
