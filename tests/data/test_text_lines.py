"""Claims about texts of files: plain lines, JSON objects, packed files, and what is wrong where."""

import gzip
import json

import pytest

from bertjax.data import text_lines

WEIRD = ["a b", "", "c\x0cd\u2028e", "ü"]
COLUMNS = text_lines.Columns()


def texts(path, columns=COLUMNS):
    return [(line.id, line.text) for line in text_lines.read_lines([path], columns)]


def test_lines_are_the_same_in_plain_and_in_packed_files(tmp_path):
    for suffix, packed, end in (
        ("", bytes, "\r\n"),
        ("", bytes, "\r"),
        (".gz", gzip.compress, "\r"),
    ):
        plain, objects = tmp_path / f"a.txt{suffix}", tmp_path / f"b.jsonl{suffix}"
        plain.write_bytes(packed("".join(f"{text}{end}" for text in WEIRD).encode()))
        fields = [{"_id": n, "body": text} for n, text in enumerate(WEIRD)]
        objects.write_bytes(packed("\n".join(map(json.dumps, fields)).encode()))
        assert texts(plain) == [("", text) for text in WEIRD]
        assert text_lines.count([plain, objects]) == 2 * len(WEIRD)
        columns = text_lines.Columns("body", "_id")
        assert texts(objects, columns) == [(str(n), text) for n, text in enumerate(WEIRD)]
        both = list(text_lines.read_lines([objects, plain], columns))
        places = [(source, number) for source in (0, 1) for number in (1, 2, 3, 4)]
        assert [(line.source, line.number) for line in both] == places


def test_half_a_surrogate_pair_is_replaced(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "\ud800", "text": "a\ud83db 😀"}))
    assert texts(path) == [("\ufffd", "a\ufffdb 😀")]
    assert [line.text for line in text_lines.numbered(["caf\udce9"])] == ["caf\ufffd"]


def test_what_is_wrong_is_named_with_file_and_line(tmp_path):
    for content, message in (
        (b'{"text": "a"}\n\n', r"a.jsonl:2: it is not JSON"),
        (b'{"body": "a"}\n', r"a.jsonl:1: it has no text under 'text'; it has 'body'.*--text"),
        (b'{"text": "a", "id": [1]}\n', r"a.jsonl:1: it has the id \[1\] .*--id_column"),
    ):
        (tmp_path / "a.jsonl").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            texts(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match="is a directory; give the path of a file"):
        texts(tmp_path)
    paths = [tmp_path / name for name in ("a.jsonl", "b.txt", "c.txt")]
    with pytest.raises(FileNotFoundError, match=r"b\.txt, .*c\.txt: no such file"):
        text_lines.read_lines(paths, COLUMNS)
