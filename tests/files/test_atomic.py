import os

import pytest

from bertjax.data import record_files
from bertjax.files import atomic

RECORDS = [bytes([number]) * 50 for number in range(8)]


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "file"
    with atomic.writing(path) as file:
        file.write(b"half ")
        file.flush()
        assert not path.exists()
        file.write(b"and half")
    assert path.read_bytes() == b"half and half" and names(tmp_path) == ["file"]
    atomic.write(path, "naïve")
    assert path.read_text(encoding="utf-8") == "naïve" and names(tmp_path) == ["file"]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"the old one")
    for error in (OSError, KeyboardInterrupt):
        with pytest.raises(error), atomic.writing(path) as file:
            file.write(b"the new")
            raise error
        assert path.read_bytes() == b"the old one" and names(tmp_path) == ["file"]


def test_a_file_has_reached_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    seen = []

    def fsync(number):
        seen.append((os.fstat(number).st_size, (tmp_path / "file").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    atomic.write(tmp_path / "file", b"content")
    assert seen == [(7, False)]


def test_two_that_write_one_shard_at_once_both_leave_it_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "WRITE_BLOCK_BYTES", 100)
    wanted = record_files.write_shard(tmp_path / "wanted", RECORDS)
    content = (tmp_path / "wanted").read_bytes()
    path = tmp_path / "shard"

    def interrupted():
        for number, record in enumerate(RECORDS):
            if number == 5:  # Another does the same work, from its beginning to its end.
                assert record_files.write_shard(path, RECORDS).bytes == wanted.bytes
                assert path.read_bytes() == content
            yield record
        assert path.read_bytes() == content

    assert record_files.write_shard(path, interrupted()).bytes == wanted.bytes
    assert path.read_bytes() == content and names(tmp_path) == ["shard", "wanted"]


def test_drafts_of_killed_writers_can_be_removed(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    writer = atomic.writing(tmp_path / "other")
    writer.__enter__()  # and never its end
    (tmp_path / "chapter.draft").write_text("years of work")
    assert len(names(tmp_path)) == 3
    atomic.remove_drafts(tmp_path)
    assert names(tmp_path) == ["chapter.draft", "file"]


@pytest.mark.parametrize(
    ("raised", "number"),
    [(OSError(28, "No space left on device"), 28), (OSError("arrow could not write"), None)],
)
def test_an_error_without_a_name_gets_that_of_the_file(tmp_path, monkeypatch, raised, number):
    path = tmp_path / "file"
    with pytest.raises(OSError, match=str(path)) as caught, atomic.writing(path) as file:
        file.write(b"half")
        raise raised
    assert caught.value.errno == number and not names(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda number: (_ for _ in ()).throw(OSError(5, "I/O")))
    with pytest.raises(OSError, match=str(path)):
        atomic.write(path, "content")


def test_a_pipe_or_a_directory_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(FileExistsError, match=name):
            atomic.write(tmp_path / name, "text")
    assert names(tmp_path) == ["folder", "pipe"]
