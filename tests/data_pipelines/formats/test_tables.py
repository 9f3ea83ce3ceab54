import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from data_pipelines.formats import base, input_files, tables


def read(reader, path, text_field="text"):
    log = input_files.Log()
    found = [
        (name.removeprefix(str(path)), text)
        for name, text in reader(str(path), base.Reading(text_field=text_field), log)
    ]
    return found, log


def write_json(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write_parquet(path, rows, **options):
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return path


def test_json_records_are_documents_of_paragraphs(tmp_path):
    path = write_json(tmp_path / "a.jsonl", {"text": "one\n\n two \r\n"}, {"text": "é\u2028"})
    found, log = read(tables.read_json_lines, path)
    assert found == [(":1", "one\ntwo"), (":2", "é")]
    assert not log.counts
    assert log.bytes_read == path.stat().st_size


def test_json_may_be_compressed_nested_and_longer_than_a_line_of_text(tmp_path):
    path = tmp_path / "a.json.gz"
    text = "long words " * 200_000
    path.write_bytes(gzip.compress(json.dumps({"a": {"b.c": 1, "b": text}}).encode()))
    found, log = read(tables.read_json_lines, path, "a.b")
    assert [name for name, _ in found] == [":1"]
    assert found[0][1].replace("\n", " ").split() == text.split()
    assert log.counts == {"long_lines": 1}


def test_json_lines_without_text_are_left_out_and_counted_by_what_is_wrong(tmp_path):
    path = tmp_path / "a.jsonl"
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
    path.write_bytes(b"\n".join(lines))
    found, log = read(tables.read_json_lines, path)
    assert found == [(":1", "one"), (":9", "nul here")]
    assert log.counts == {
        "invalid_json_lines": 2,
        "records_without_text": 3,
        "invalid_utf8_lines": 1,
        "empty_documents": 1,
        "control_characters": 1,
    }
    assert log.first_places["records_without_text"] == [f"{path}:{line}" for line in (3, 4, 5)]


def test_absurdly_long_json_lines_are_left_out_and_the_next_ones_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_RECORD_BYTES", 100)
    monkeypatch.setattr(tables, "_SKIPPED_BYTES", 7)
    path = write_json(tmp_path / "a.jsonl", {"text": "x" * 300}, {"text": "two"})
    found, log = read(tables.read_json_lines, path)
    assert found == [(":2", "two")]
    assert log.counts == {"long_lines": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"title": "x", "body": {"text": "y"}, "n": 1}', "of its fields: title, body.text$"),
        ('{"text": 3}', "of its fields: text"),
        ("[\n", "does not begin with a JSON record"),
        ('["a"]', "is a JSON array, of 1 elements"),
        ('[{"text": "a"}, {"text": "b"}]', r"array, of 2 elements .*`jq -c '\.\[\]' .*a\.jsonl >"),
        ('"a"', "it has none"),
        ('\n{"text" "y"}', "JSON record"),
    ],
)
def test_a_first_record_without_text_is_an_error_that_names_the_fields(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        tables.check_json_lines(str(tmp_path / "a.jsonl"), base.Reading())
    assert "a.jsonl" in str(caught.value)


def test_parquet_rows_are_documents_in_order_and_all_bytes_are_counted(tmp_path):
    rows = [{"n": row, "text": f"row {row}\n\nend"} for row in range(1000)]
    path = write_parquet(tmp_path / "a.parquet", rows, row_group_size=300)
    found, log = read(tables.read_parquet, path)
    assert found == [(f":{row + 1}", f"row {row}\nend") for row in range(1000)]
    assert log.bytes_read == path.stat().st_size


def test_parquet_fields_may_be_nested_and_missing(tmp_path):
    rows = [{"a": {"b": "one"}}, {"a": {"b": None}}, {"a": None}, {"a": {"b": "four"}}]
    path = write_parquet(tmp_path / "a.parquet", rows)
    found, log = read(tables.read_parquet, path, "a.b")
    assert found == [(":1", "one"), (":4", "four")]
    assert log.counts == {"records_without_text": 2}


@pytest.mark.parametrize("field", ["body", "n", "a"])
def test_a_wrong_column_is_an_error_that_names_the_columns(tmp_path, field):
    path = write_parquet(tmp_path / "a.parquet", [{"text": "x", "n": 1, "a": {"b": "y"}}])
    tables.check_parquet(str(path), base.Reading())
    tables.check_parquet(str(path), base.Reading(text_field="a.b"))
    with pytest.raises(ValueError, match="text, n, a.b"):
        tables.check_parquet(str(path), base.Reading(text_field=field))


def test_a_damaged_parquet_file_is_an_error_that_names_it(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", [{"text": f"x {row}"} for row in range(5000)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="a.parquet cannot be read as Parquet"):
        tables.check_parquet(str(path), base.Reading())
    path.write_bytes(whole[:100] + bytes(2000) + whole[2100:])
    with pytest.raises(ValueError, match="a.parquet cannot be read as Parquet"):
        read(tables.read_parquet, path)
