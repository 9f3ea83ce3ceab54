import itertools
import tracemalloc

import pytest

from data_pipelines.formats import base, input_files, text_files


def read(folder, content: bytes, **options):
    path = folder / "a.txt"
    path.write_bytes(content)
    log, reading = input_files.Log(), base.Reading(**options)
    found = [
        (name.removeprefix(f"{path}"), text)
        for name, text in text_files.read(str(path), reading, log)
    ]
    return found, log.counts


def test_documents_end_at_blank_lines_and_are_named_by_their_first(tmp_path):
    text = "a\u2028b\u2029c\rd"  # only line feeds end lines, if there are any
    for content, texts, counts in (
        (
            b"\n\none\r\n two \n\t\n\x0c\nthree\n\nfour",
            [(":3", "one\ntwo"), (":7", "three"), (":9", "four")],
            {"controls_as_spaces": 1},
        ),
        (f"\ufeff{text}\nnext".encode(), [(":1", f"{text}\nnext")], {"carriage_returns": 1}),
        (b"one\rtwo\r\rthree\r", [(":1", "one\ntwo"), (":4", "three")], {}),
        (b"", [], {"empty_files": 1}),
        (b"\n \n\n", [], {"empty_files": 1}),
        (b"\xef\xbb\xbf", [], {"empty_files": 1}),
    ):
        assert read(tmp_path, content) == (texts, counts)
    whole = read(tmp_path, b"one\n\n\ntwo\n", one_document_per_file=True)
    assert whole == ([("", "one\ntwo")], {})


def test_lines_that_are_not_utf8_are_left_out_and_counted(tmp_path):
    found, problems = read(tmp_path, b"one\ntw\xe9\nthree\n\xff\n\nfour")
    assert found == [(":1", "one\nthree"), (":6", "four")]
    assert problems == {"invalid_utf8_lines": 2}


def test_control_characters_vanish_but_those_of_white_space_still_separate(tmp_path):
    found, problems = read(tmp_path, "o\x00ne\x7f\ntwo\x0bthree\nfo\xa0ur\t5\nsi\x85x".encode())
    assert found == [(":1", "one\ntwo three\nfo\xa0ur\t5\nsi x")]
    assert problems == {"control_characters": 1, "controls_as_spaces": 2}


def test_control_characters_are_named(tmp_path):
    log = input_files.Log()
    assert text_files.clean("one\x0ctwo\x0c", "a.txt:3", log) == "one two "
    assert text_files.clean("one\x0c\x00\ud800", "a.txt:4", log) == "one "
    assert log.first_places == {
        "controls_as_spaces": ["a.txt:3 (U+000C form feed)"],
        "control_characters": ["a.txt:4 (U+000C form feed, U+0000 NUL, U+D800)"],
    }


def test_text_in_cp1252_that_was_read_as_latin1_is_counted(tmp_path):
    content = "“a” – b…\nc".encode("cp1252").decode("latin1").encode()
    assert read(tmp_path, content) == ([(":1", "a  b\nc")], {"c1_controls": 1})
    found = read(tmp_path, "“a” – b…\nc".encode("cp1252"), encoding="cp1252")
    assert found == ([(":1", "“a” – b…\nc")], {})


def test_lines_that_are_not_in_the_encoding_are_left_out_and_counted(tmp_path):
    for encoding, wrong in (
        ("cp932", b"\x81 "),
        ("utf-16-le", b"\x00\xdc"),
        ("cp1253", b"\xd2"),
    ):
        one, end = "一" if encoding != "cp1253" else "ένα", "\n".encode(encoding)
        content = end.join([one.encode(encoding), wrong, one.encode(encoding)])
        found = read(tmp_path, content, encoding=encoding)
        assert found == ([(":1", f"{one}\n{one}")], {"invalid_utf8_lines": 1})


def test_long_lines_are_cut_without_loss_between_words_or_at_least_characters(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(text_files, "LONGEST_LINE_BYTES", 64)
    for word, extra in itertools.product(("word ", "é", "😀", "中a"), range(4)):
        line = "x" * extra + word * 100
        documents, problems = read(tmp_path, f"before\n{line}\nafter\n\nnext".encode())
        (_, text), (_, last) = documents
        before, *pieces, after = text.split("\n")
        assert (before, after, last) == ("before", "after", "next")
        assert problems == {"long_lines": 1}
        assert all(len(piece.encode()) <= 64 for piece in pieces)
        joined = "".join(pieces)
        assert joined.replace(" ", "") == line.replace(" ", "")
        assert word != "word " or all(piece.endswith("word") for piece in pieces)
    # The end of a line after a cut does not make a blank line.
    for length, end in itertools.product(range(60, 70), (b"", b" ")):
        assert len(read(tmp_path, b"x" * length + end + b"\nafter")[0]) == 1


def test_memory_does_not_grow_with_the_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"word " * 10_000_000)
    tracemalloc.start()
    for _ in text_files.read(str(path), base.Reading(), log := input_files.Log()):
        break
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert log.counts == {"long_lines": 1, "long_documents": 1}
    assert peak < 48_000_000


def test_long_documents_are_cut_between_paragraphs_without_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_DOCUMENT", 50)
    lines = [f"paragraph {number}" for number in range(20)]
    found, problems = read(tmp_path, "\n".join(lines).encode(), one_document_per_file=True)
    assert "\n".join(text for _, text in found) == "\n".join(lines)
    assert max(len(text) for _, text in found) <= 50
    assert len({name for name, _ in found}) == len(found) == problems["long_documents"] + 1


def test_tidied_text_obeys_the_rules_of_files(monkeypatch):
    log = input_files.Log()
    text = " one\x00 \n\n\r\n two\ud800 "
    assert list(text_files.tidied("name", text, log)) == [("name", "one\ntwo")]
    assert list(text_files.tidied("blank", " \n\n", log)) == []
    assert log.counts == {"control_characters": 1, "empty_documents": 1}

    monkeypatch.setattr(text_files, "LONGEST_LINE_BYTES", 64)
    monkeypatch.setattr(text_files, "LONGEST_DOCUMENT", 150)
    found = list(text_files.tidied("name", "é" * 100 + "\n" + "word " * 60, log))
    assert [name for name, _ in found] == [f"name{end}" for end in ("", "#2", "#3", "#4")]
    assert "".join("".join(text for _, text in found).split()) == "é" * 100 + "word" * 60
    assert log.counts["long_lines"] == 2
    assert log.counts["long_documents"] == 3


def test_another_encoding_is_an_error_before_anything_is_read_and_damaged_lines_are_none(tmp_path):
    path = tmp_path / "a.txt"
    for content, message in (
        ("café\n".encode("latin-1"), "too little text to tell; perhaps .* cp1252, which .*'café'"),
        ("มนุษย์ทั้งหลาย\n".encode("utf-16-le"), "looks like utf-16-le.*--encoding=utf-16-le,"),
        (bytes(100), "random bytes or other binary data"),
        ("Все люди рождаются свободными\n".encode("koi8-r") * 20_000, "looks like koi8-r, which"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"a.txt is not UTF-8.*{message}"):
            text_files.check(str(path), base.Reading())
    for content in (
        b"",
        b"good\n" * 10 + b"b\xe9d\n",
        b"nul\x00 here\n",
        "é".encode() * 100_000,
        b"a" + "中".encode() * 100_000,
        "été\n".encode() * 30_000,
    ):
        path.write_bytes(content)
        text_files.check(str(path), base.Reading())
