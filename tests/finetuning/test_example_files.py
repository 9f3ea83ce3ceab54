"""Claims about lines of a file, and faults told together."""

import pytest

from bertjax.finetuning import example_files


def test_lines_end_at_line_feeds_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes("\ufeffone\r\ntwo\u2028too\x0b\n\nfour".encode())
    assert example_files.lines(path) == ["one", "two\u2028too\x0b", "", "four"]
    path.write_bytes(b"one\n")
    assert example_files.lines(path) == ["one"]
    path.write_bytes(b"")
    assert example_files.lines(path) == []


def test_a_file_that_is_not_utf8_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\ncaf\xe9\n")
    with pytest.raises(example_files.FaultyFile, match="file:3: it is not UTF-8"):
        example_files.lines(path)
    with pytest.raises(FileNotFoundError, match="absent does not exist"):
        example_files.lines(tmp_path / "absent")


def test_the_first_ten_faults_are_told():
    faults = example_files.Faults()
    faults.check()
    faults.add("file:1", "wrong")
    with pytest.raises(ValueError, match=r"^file:1: wrong$"):
        faults.check()
    for line in range(2, 13):
        faults.add(f"file:{line}", "wrong")
    with pytest.raises(ValueError, match=r"^12 faults, the first 10:\nfile:1: ") as caught:
        faults.check()
    assert "file:10:" in str(caught.value)
    assert "file:11:" not in str(caught.value)
