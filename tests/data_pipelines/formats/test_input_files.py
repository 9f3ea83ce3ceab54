import bz2
import glob
import gzip
import itertools
import lzma
import os
import pickle

import pyarrow
import pytest
from etils.epath import gpath, stat_utils

from data_pipelines.formats import input_files


def zstd(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESSORS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
    "": bytes,
}
DATA = bytes(range(256)) * 3000


def test_concatenated_parts_are_read_as_one_file_and_every_byte_is_counted(tmp_path):
    for suffix, compress in COMPRESSORS.items():
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(compress(DATA) + compress(b"more\nlines"))
        log = input_files.Log()
        with input_files.opened(str(path), log) as file:
            first = file.readline()
            assert first + file.read() == DATA + b"more\nlines"
        assert log.bytes_read == path.stat().st_size


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    for data, (suffix, compress) in itertools.product(
        (DATA, lzma.compress(DATA) * 200), COMPRESSORS.items()
    ):
        whole = compress(data)
        middle = len(whole) // 2
        damaged = [whole[:middle], b"plain text, not compressed at all"]
        if suffix != ".zst":  # arrow writes no checksums: changed bytes are not noticed
            damaged.append(whole[:middle] + b"\xff" * 20 + whole[middle + 20 :])
        if suffix == ".gz":
            damaged.append(whole[:10] + b"\xff" * 20)
        path = tmp_path / f"a.txt{suffix}"
        for content in damaged if suffix else ():
            path.write_bytes(content)
            with (
                pytest.raises(ValueError, match=f"a.txt{suffix} is damaged"),
                input_files.opened(str(path)) as file,
            ):
                while file.read(1 << 16):
                    pass


def test_a_link_to_nowhere_and_compressed_data_under_another_name_are_errors(tmp_path):
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    (path,) = input_files.find(str(tmp_path / "*.txt"))
    with pytest.raises(FileNotFoundError, match=r"a\.txt does not"), input_files.opened(path):
        pass
    for name, message in (("b.txt", "rename it to end in .gz"), ("a.jsonl", "rename it")):
        (tmp_path / name).write_bytes(gzip.compress(b"text"))
        with pytest.raises(ValueError, match=message):
            input_files.head(str(tmp_path / name), 100)


def test_globs_are_sorted_recursive_and_skip_folders(tmp_path):
    for name in ("b/c.txt", "b/a.txt", "a.txt", "z/x/y.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = input_files.find(str(tmp_path / "**" / "*"))
    expected = ["a.txt", "b/a.txt", "b/c.txt", "z/x/y.txt"]
    assert [path.removeprefix(f"{tmp_path}/") for path in found] == expected


def test_a_place_is_named_once():
    log, later = input_files.Log(), input_files.Log()
    for record in (log, later):
        for _ in range(input_files.PLACES_KEPT):
            record.problem("long_lines", "a:1")
    later.problem("long_lines", "b:1")
    log.merge(later)
    assert log.counts == {"long_lines": 2 * input_files.PLACES_KEPT + 1}
    assert log.first_places == {"long_lines": ["a:1", "b:1"]}


def test_logs_merge_in_order_and_keep_the_first_places_only():
    first, second, whole = input_files.Log(3), input_files.Log(4), input_files.Log(7)
    for number in range(10):
        for log in (first if number < 3 else second, whole):
            log.problem("long_lines", f"a:{number}")
    second.problem("empty_files", "b")
    whole.problem("empty_files", "b")
    first.merge(pickle.loads(pickle.dumps(second)))
    assert first == whole
    problems = first.statistics()["reading_problems"]
    assert problems["long_lines"]["count"] == 10
    assert problems["long_lines"]["first"] == [f"a:{number}" for number in range(5)]


class _Bucket:
    """Files of a folder under a remote name, through the functions that epath calls."""

    def __init__(self, folder):
        self._folder = folder

    def local(self, path):
        return os.fspath(path).replace("gs://bucket", str(self._folder))

    def open(self, path, mode="r", **_):
        return open(self.local(path), mode)

    def exists(self, path):
        return os.path.exists(self.local(path))

    def isdir(self, path):
        return os.path.isdir(self.local(path))

    def glob(self, path):
        found = glob.glob(self.local(path), recursive=True)
        return [path.replace(str(self._folder), "gs://bucket") for path in found]

    def stat(self, path):
        found = os.stat(self.local(path))
        return stat_utils.StatResult(
            is_directory=False, length=found.st_size, mtime=int(found.st_mtime)
        )


def test_remote_files_are_found_and_read_like_local_ones(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "deep" / "a.txt.gz").write_bytes(gzip.compress(b"one"))
    monkeypatch.setattr(gpath._GPath, "_backend", _Bucket(tmp_path))
    assert input_files.find("gs://bucket/*.txt") == ["gs://bucket/b.txt"]
    everything = ["gs://bucket/b.txt", *input_files.find("gs://bucket/*/*.txt*")]
    assert everything[1:] == ["gs://bucket/deep/a.txt.gz"]
    assert input_files.find("gs://bucket/b.txt") == ["gs://bucket/b.txt"]
    with pytest.raises(FileNotFoundError, match=r"gs://bucket/c\.txt.*matches no file"):
        input_files.find("gs://bucket/c.txt")
    with pytest.raises(ValueError, match=r"\*\*.*whole bucket"):
        input_files.find("gs://bucket/**/*.txt")
    log = input_files.Log()
    contents = []
    for path in everything:
        with input_files.opened(path, log) as file:
            contents.append(file.read())
    assert contents == [b"two", b"one"]
    assert log.bytes_read == sum(map(input_files.size, everything))


def test_names_with_the_characters_of_globs_are_found(tmp_path):
    for name in ("a[1].txt", "a1.txt", "b*.txt", "{x}.txt", "-"):
        (tmp_path / name).write_text(name)
    (tmp_path / "d[2]").mkdir()
    (tmp_path / "d[2]" / "c.txt").touch()
    for pattern, names in (
        *(("a[1].txt", ["a[1].txt"]), ("b*.txt", ["b*.txt"]), ("{x}.txt", ["{x}.txt"])),
        *(("d[2]/*.txt", ["d[2]/c.txt"]), ("a[12].txt", ["a1.txt"])),
    ):
        assert input_files.find(str(tmp_path / pattern)) == [str(tmp_path / n) for n in names]
    assert input_files.find("-") == ["/dev/stdin"]


@pytest.mark.parametrize("change", ["append", "cut", "write over"])
def test_a_file_that_changes_while_it_is_read_is_an_error_in_the_end(tmp_path, change):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    os.utime(path, (1, 1))
    with (
        pytest.raises(ValueError, match=r"a\.txt changed while it was read"),
        input_files.opened(str(path)) as file,
    ):
        assert file.readline() == b"one\n"
        if change == "append":
            with path.open("a") as more:
                more.write("three\n")
        else:
            path.write_text("" if change == "cut" else "one\nTWO\n")
        file.read()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("a.docx", "plain text"), ("A.XLSX", "CSV"), ("page.html", "extract"), ("a.pdf", "pdftotext")],
)
def test_documents_that_are_not_text_are_refused_with_the_remedy(tmp_path, name, remedy):
    (tmp_path / name).write_bytes(b"PK\x03\x04 or <p>text</p>")
    with pytest.raises(ValueError, match=f"{name} .*{remedy}"):
        input_files.head(str(tmp_path / name), 100)


def test_a_text_may_be_called_as_a_document_is(tmp_path):
    (tmp_path / "list.numbers").write_text("one\n")
    assert input_files.head(str(tmp_path / "list.numbers"), 100) == b"one\n"
