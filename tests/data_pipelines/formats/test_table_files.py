"""Claims about tables as documents: a row is one, and what is not a document is counted."""

import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from bertjax.files import tables
from data_pipelines.documents import sources
from data_pipelines.formats import base, input_files

# pyarrow before 21 writes no views of strings.
VERSION = int(pyarrow.__version__.partition(".")[0])


def read(path, text_field="text"):
    """The ends of ids, texts, and the log of a file."""
    log = input_files.Log()
    (unit,) = sources.units(str(path))
    reading = base.Reading(text_field=text_field)
    documents = sources.FORMATS[unit.format].read(str(path), reading, log)
    return [(name.removeprefix(str(path)), text) for name, text in documents], log


def write(path, content):
    path.write_bytes(content)
    return path


def write_json(path, *records):
    return write(path, "".join(json.dumps(record) + "\n" for record in records).encode())


def write_parquet(path, rows, **options):
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return path


def test_csv_rows_are_documents_and_quotes_hold_commas_quotes_and_lines(tmp_path):
    content = '\ufeffid,text\r\n1,"one, ""two""\nthree"\r\n\r\n2,é\r\n'.encode()
    found, log = read(write(tmp_path / "a.csv", content))
    assert found == [(":1", 'one, "two"\nthree'), (":2", "é")]
    assert not log.counts and log.bytes_read == len(content)
    found, _ = read(write(tmp_path / "a.tsv", b'body\tn\n"one\t1\ntwo", three\t2\n'), "body")
    assert [text for _, text in found] == ['"one', 'two", three']
    packed = write(tmp_path / "a.csv.gz", gzip.compress(b"text\none\ntwo\n"))
    assert [one.text for one in sources.documents(str(packed))] == ["one", "two"]


def test_columns_may_have_other_marks_between_them(tmp_path):
    path = write(tmp_path / "b.csv", b"id#text\n1#a, b;c\n")
    with pytest.raises(ValueError, match="no column 'text'"):
        sources.documents(str(path))
    reading = base.Reading(delimiter="#")
    assert [one.text for one in sources.documents(str(path), reading)] == ["a, b;c"]


def test_rows_that_do_not_fit_the_header_are_counted_and_left_out(tmp_path):
    content = b"id,text\n1,one\n2,two, three\n3\n4,si\xe9x\n5,  \n6,seven\n"
    found, log = read(write(tmp_path / "a.csv", content))
    assert found == [(":1", "one"), (":6", "seven")]
    assert log.counts == {"torn_rows": 2, "invalid_utf8_records": 1, "empty_documents": 1}
    for empty in (b"", b"\n\n", b"id,text\n"):
        found, log = read(write(tmp_path / "b.csv", empty))
        assert not found and log.counts == {"empty_files": 1}


def test_json_records_are_documents_of_paragraphs(tmp_path, monkeypatch):
    path = write_json(tmp_path / "a.jsonl", {"text": "one\n\n two \r\n"}, {"text": "é\u2028"})
    found, log = read(path)
    assert found == [(":1", "one\ntwo"), (":2", "é")]
    assert not log.counts and log.bytes_read == path.stat().st_size
    # Absurdly long lines are left out.
    monkeypatch.setattr(tables, "LONGEST_RECORD_BYTES", 100)
    path = write_json(tmp_path / "a.jsonl", {"text": "x" * 300}, {"text": "two"})
    assert [one.text for one in sources.documents(str(path))] == ["two"]
    assert read(path)[1].counts == {"long_lines": 1}


def test_json_may_be_compressed_nested_and_longer_than_a_line_of_text(tmp_path):
    text = "long words " * 200_000
    content = gzip.compress(json.dumps({"a": {"b.c": 1, "b": text}}).encode())
    found, log = read(write(tmp_path / "a.json.gz", content), "a.b")
    assert [name for name, _ in found] == [":1"]
    assert found[0][1].replace("\n", " ").split() == text.split()
    assert log.counts == {"long_lines": 1}


def test_json_lines_without_text_are_left_out_and_counted_by_what_is_wrong(tmp_path):
    lines = [
        b'{"text": "one"}',
        b'{"text": "two"',
        b'{"txt": "three"}',
        b'{"text": 4}',
        b"[5]",
        b'{"text": "si\xe9x"}',
        b"",
        b'{"text": " "}',
        b'{"text": "nul\\u0000 \\ud800here"}',
        b"[" * 100_000,
    ]
    path = write(tmp_path / "a.jsonl", b"\n".join(lines))
    found, log = read(path)
    assert found == [(":1", "one"), (":9", "nul here")]
    assert log.counts == {
        "invalid_json_lines": 2,
        "records_without_text": 3,
        "invalid_utf8_lines": 1,
        "empty_documents": 1,
        "control_characters": 1,
    }
    assert log.first_places["records_without_text"] == [f"{path}:{line}" for line in (3, 4, 5)]


def test_parquet_rows_are_documents_in_order_and_all_bytes_are_counted(tmp_path):
    rows = [{"n": row, "text": f"row {row}\n\nend"} for row in range(1000)]
    path = write_parquet(tmp_path / "a.parquet", rows, row_group_size=300)
    found, log = read(path)
    assert found == [(f":{row + 1}", f"row {row}\nend") for row in range(1000)]
    assert log.bytes_read == path.stat().st_size
    rows = [{"a": {"b": "one"}}, {"a": {"b": None}}, {"a": None}, {"a": {"b": "four"}}]
    found, log = read(write_parquet(path, rows), "a.b")
    assert found == [(":1", "one"), (":4", "four")]
    assert log.counts == {"records_without_text": 2}


def test_a_file_without_the_text_is_an_error_at_once(tmp_path):
    nested = b'{"title": "x", "body": {"text": "y"}, "n": 1}'
    for name, content, message in (
        ("a.csv", b"id,body\n1,one\n", r"no column 'text'; .*names: id, body\. If it is plain"),
        ("a.csv", b"id,text\n1,one, two\n", "has 3 columns; .* the 2 of the header: put quotes"),
        ("a.csv", "id,text\n1,one\n".encode("utf-16"), "utf-16"),
        ("a.jsonl", nested, "fields: title, body.text$"),
        ("a.jsonl", b'\n[{"text": "a"}, 2]', r"l:2: .* list of 2 elements.*`jq -c '\.\[\]' .*l >"),
        ("a.jsonl", b"[\n", r"a\.jsonl:1: it is not JSON .*jq"),
        ("a.jsonl", b"{}", "it has none"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            sources.documents(str(write(tmp_path / name, content)))
        assert name in str(caught.value)


def test_a_column_of_parquet_must_hold_text(tmp_path):
    path = str(write_parquet(tmp_path / "a.parquet", [{"text": "x", "n": 1, "a": {"b": "y"}}]))
    for field in ("text", "a.b"):
        sources.documents(path, base.Reading(text_field=field))
    kind = pyarrow.string_view() if VERSION > 20 else pyarrow.string()
    kinds = pyarrow.table({"text": pyarrow.array(["x", "é"], kind)})
    for column in (kinds["text"].cast(pyarrow.string()).dictionary_encode(), kinds["text"]):
        for each in (column, column.cast(pyarrow.string()).cast(pyarrow.binary())):
            other = tmp_path / "b.parquet"
            parquet.write_table(pyarrow.table({"text": each}), other)
            assert [one.text for one in sources.documents(str(other))] == ["x", "é"]
    for field in ("body", "n", "a"):
        with pytest.raises(ValueError, match=r"a\.parquet .*text, n, a\.b"):
            sources.documents(path, base.Reading(text_field=field))


def test_a_damaged_file_is_an_error_that_names_it(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", [{"text": f"x {row}"} for row in range(5000)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="a.parquet cannot be read as Parquet"):
        sources.documents(str(path))
    path.write_bytes(whole[:100] + bytes(2000) + whole[2100:])
    with pytest.raises(ValueError, match="a.parquet cannot be read as Parquet"):
        read(path)
    monkeypatch.setattr(tables, "LONGEST_FIELD", 1000)
    with pytest.raises(ValueError, match=r"a\.csv:3: the row is not CSV .*quotes"):
        read(write(tmp_path / "a.csv", b'text\none\n"two\n' + b"three\n" * 300))
