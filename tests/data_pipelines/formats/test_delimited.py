"""Claims about CSV and TSV: a row is a document, and what is no row of the table is left out."""

import gzip

import pytest

from data_pipelines import sources
from data_pipelines.formats import base, delimited, input_files


def read(path, content, text_field="text"):
    path.write_bytes(content)
    log = input_files.Log()
    found = delimited.read(str(path), base.Reading(text_field=text_field), log)
    return [(name.removeprefix(str(path)), text) for name, text in found], log


def test_csv_rows_are_documents_and_quotes_hold_commas_quotes_and_lines(tmp_path):
    content = '\ufeffid,text\r\n1,"one, ""two""\nthree"\r\n\r\n2,é\r\n'.encode()
    found, log = read(tmp_path / "a.csv", content)
    assert found == [(":1", 'one, "two"\nthree'), (":2", "é")]
    assert not log.counts and log.bytes_read == len(content)


def test_in_tsv_a_quote_is_a_character(tmp_path):
    found, _ = read(tmp_path / "a.tsv", b'body\tn\n"one\t1\ntwo", three\t2\n', "body")
    assert [text for _, text in found] == ['"one', 'two", three']


def test_a_table_may_be_compressed_and_is_found_by_its_suffix(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"text\none\ntwo\n"))
    assert [one.text for one in sources.documents(str(path))] == ["one", "two"]


def test_what_is_no_row_of_the_table_is_counted_and_left_out(tmp_path):
    content = b"id,text\n1,one\n2,two, three\n3\n4,si\xe9x\n5,  \n6,seven\n"
    found, log = read(tmp_path / "a.csv", content)
    assert found == [(":1", "one"), (":6", "seven")]
    assert log.counts == {"torn_rows": 2, "invalid_utf8_records": 1, "empty_documents": 1}
    for empty in (b"", b"\n\n", b"id,text\n"):
        found, log = read(tmp_path / "b.csv", empty)
        assert not found and log.counts == {"empty_files": 1}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"id,body\n1,one\n", r"no column 'text'; .*names: id, body\. If it is plain"),
        ("a.csv", b"A line of text, and more.\n", "no column 'text'.*rename it to end in .txt"),
        ("a.csv", b"id,text\n1,one, two\n", "names 2 columns .* its first row has 3: put quotes"),
        ("a.tsv", b"id,text\n1,one\n", "no column 'text'"),
        ("a.csv", "id,text\n1,one\n".encode("utf-16"), "UTF-16"),
    ],
)
def test_what_cannot_be_the_table_is_an_error_at_once(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        sources.documents(str(tmp_path / name))


def test_a_quote_that_is_never_closed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "LONGEST_FIELD", 1000)
    with pytest.raises(ValueError, match=r"a\.csv cannot be read as a table .*never closed"):
        read(tmp_path / "a.csv", b'text\none\n"two\n' + b"three\n" * 300)
