"""Builds that cannot end in records: one clear error, and finished work is kept."""

import contextlib
import dataclasses
import resource

import pytest

from bertjax.data import records
from data_pipelines import build
from tests.data_pipelines import conftest

GOOD = "Kalo miren. Tus vor pe.\nSha dim gol.\n\nRen ka lo mi. Vor tus.\n\nPe sha. Gol ka ren."


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


NOTHING = {"split": "heldout", "heldout_fraction": 0.0}


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("", {}, "holds no documents"),
        ("\u200b\n\n\u200b", {}, "hold no sentence"),
        ("Kalo. Mi.\nVor.", {}, r"1 documents.*blank lines.*--pair_objective=none"),
        ("Kalo. Mi.\n\nVor.", NOTHING, "split 'heldout'"),
        ("Kalo. Mi.\n\nVor.", NOTHING | {"one_document_per_file": True}, "--one_document_per_file"),
        ("Kalo.\n\nMi.", {"balanced_nsp": True}, "no examples are left.*balanced_nsp"),
        ("Kalo. Mi.\n\nVor.", {"num_shards": 1000}, "num_shards is 1000; it must be at most"),
        (GOOD, {"vocabulary": "vocab.txt"}, r"vocab\.txt.*lacks \[MASK\]"),
    ],
)
def test_what_allows_no_records_is_one_clear_error(
    tmp_path, vocabulary_directory, monkeypatch, text, changes, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nka\n")
    given = {"text": "text.txt", "vocabulary": vocabulary_directory, "output": "out"}
    with pytest.raises(ValueError, match=message):
        build.build(conftest.options(**given | changes))
    assert not (tmp_path / "out").exists()


def test_what_a_build_that_failed_has_read_need_not_be_read_again(tmp_path, vocabulary_directory):
    (tmp_path / "text.txt").write_text(GOOD.replace("\n\n", "\n"))
    chosen = conftest.options(tmp_path / "text.txt", vocabulary_directory, tmp_path / "out")
    with pytest.raises(ValueError, match="1 documents"):
        build.build(chosen)
    manifest = build.build(dataclasses.replace(chosen, pair_objective="none"))
    assert manifest.statistics["documents"] == 1
