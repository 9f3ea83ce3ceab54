"""Broken text, end to end: a counted, reported skip or one clear error; never a wrong record."""

import contextlib
import resource

import pytest

from bertjax.data import records
from bertjax.tokenization import tokenizer
from data_pipelines import build
from data_pipelines.reports import report
from tests.data_pipelines import conftest, decoded

GOOD = "Kalo miren. Tus vor pe.\nSha dim gol.\n\nRen ka lo mi. Vor tus.\n\nPe sha. Gol ka ren."


@pytest.fixture
def build_of(tmp_path, vocabulary_directory):
    """Builds text (or bytes) and returns the manifest and the tokens of all examples."""

    def run(content, *, name="text.txt", **changes):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        changes = {"dupe_factor": 2} | changes
        places = {"text": path, "vocabulary": vocabulary_directory, "output": tmp_path / "out"}
        chosen = conftest.options(**places | changes)
        manifest = build.build(chosen)
        return manifest, words_of(chosen.output)

    return run


def words_of(directory):
    """The words of all examples, before masking, as a set."""
    vocabulary, batch = tokenizer.load(directory), decoded.read(directory)
    words = set()
    for row, mask in zip(decoded.restored(batch), batch["input_mask"], strict=True):
        words.update(vocabulary.decode(row[mask != 0].tolist()).split())
    return words


def problems(manifest):
    found = manifest.statistics["reading_problems"]
    return {kind: problem["count"] for kind, problem in found.items()}


def test_a_line_that_is_not_utf8_is_left_out_and_named(build_of):
    manifest, words = build_of(GOOD.encode() * 3 + b"\n\nGol \xff\xfe qqq lo.\nRen mi.\n")
    assert problems(manifest) == {"invalid_utf8_lines": 1}
    (place,) = manifest.statistics["reading_problems"]["invalid_utf8_lines"]["first"]
    assert place.endswith("text.txt:18")
    assert "qqq" not in words and "ren" in words
    assert any("UTF-8" in line for line in report.lines(manifest))


def test_a_single_document_cannot_be_paired(build_of, tmp_path):
    with pytest.raises(ValueError, match=r"1 documents.*blank lines.*--pair_objective=none"):
        build_of(GOOD.replace("\n\n", "\n"))
    # It can be packed, and the tokens of the first attempt need not be made again.
    manifest, _ = build_of(GOOD.replace("\n\n", "\n"), pair_objective="none")
    assert manifest.statistics["documents"] == 1


def test_a_file_that_cannot_be_opened_is_an_error_before_any_text_is_read(build_of, tmp_path):
    (tmp_path / "zz.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises((ValueError, FileNotFoundError), match=r"zz\.txt"):
        build_of(GOOD, input=str(tmp_path / "*.txt"))
    assert not list(tmp_path.glob("out.partial/scratch/blocks*"))


@contextlib.contextmanager
def disk_of(size):
    """A disk on which a file takes at most `size` bytes."""
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))


def test_a_disk_that_is_full_is_an_error_and_finished_work_is_kept(
    tmp_path, text_file, vocabulary_directory
):
    changes = {"max_seq_length": 64, "dupe_factor": 10, "num_shards": 1}
    chosen = conftest.options(text_file, vocabulary_directory, tmp_path / "out", **changes)
    shard = "bert-train.tfrecord-00000-of-00001"
    with disk_of(400_000), pytest.raises(OSError, match="not written") as caught:
        build.build(chosen)
    assert shard in str(caught.value.filename)
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.partial" / "scratch" / "blocks.jsonl").exists()
    build.build(chosen)
    assert (tmp_path / "out" / shard).stat().st_size > 400_000
    assert records.open(tmp_path / "out").manifest.num_examples > 300


def test_what_allows_no_records_is_one_clear_error(build_of, tmp_path):
    nothing = {"split": "heldout", "heldout_fraction": 0.0}
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nka\n")
    for text, changes, message in (
        ("", {}, "holds no documents"),
        ("\u200b\n\n\u200b", {}, "hold no sentence"),
        ("Kalo. Mi.\n\nVor.", nothing, "split 'heldout'"),
        (
            "Kalo. Mi.\n\nVor.",
            nothing | {"one_document_per_file": True},
            "With --one_document_per_file a file is one document.*: leave it out",
        ),
        ("Kalo.\n\nMi.", {"balanced_nsp": True}, "no examples are left.*balanced_nsp"),
        ("Kalo. Mi.\n\nVor.", {"num_shards": 1000}, "num_shards is 1000; it must be at most"),
        ("Kalo.\n\nMi.", {"pair_objective": "mlm"}, "pair_objective is 'mlm'"),
        ("Kalo.\n\nMi.", {"max_seq_length": 4, "dupe_factor": 0}, "max_seq_length.*\n.*dupe"),
        (GOOD, {"vocabulary": f"{tmp_path}/vocab.txt"}, r"vocab\.txt.*lacks \[MASK\]"),
    ):
        with pytest.raises(ValueError, match=message):
            build_of(text, overwrite=True, **changes)
        assert not (tmp_path / "out").exists()
