"""Claims about what a record directory tells of what it was made of."""

import numpy as np
import pytest

from bertjax.data import contents

HASHES = np.sort(np.random.default_rng(0).integers(0, 2**64, 4000, dtype=np.uint64))


def sampled(hashes, halvings=0):
    return contents.Documents(contents.Documents(np.sort(hashes)).below(halvings), halvings)


def test_what_is_saved_is_loaded_again_and_is_the_same_bytes(tmp_path):
    made = contents.RecordSummary(np.array([0, 3, 4]), sampled(HASHES, 2))
    for name in "ab":
        made.save(tmp_path / name)
        assert contents.load(tmp_path / name) == made
    assert (tmp_path / "a" / contents.FILE).read_bytes() == (
        tmp_path / "b" / contents.FILE
    ).read_bytes()
    without = contents.RecordSummary(np.array([1]))
    without.save(tmp_path / "c")
    assert contents.load(tmp_path / "c") == without != made
    assert contents.load(tmp_path / "nowhere") is None


def test_shared_documents_are_found_however_much_of_each_side_is_sampled():
    for ours, theirs in ((0, 0), (3, 0), (0, 3), (2, 4)):
        train, heldout = sampled(HASHES[::2], ours), sampled(HASHES[1::2], theirs)
        assert heldout.share_in(train) == 0
        assert heldout.share_in(sampled(HASHES, ours)) == 1
        assert train.merged(heldout) == sampled(HASHES, max(ours, theirs))
        half = sampled(HASHES[1::4], ours)
        assert heldout.share_in(half) == pytest.approx(0.5, abs=0.15)


def test_documents_of_both_are_known_only_if_those_of_each_are():
    known = contents.RecordSummary(np.array([1, 2]), sampled(HASHES))
    unknown = contents.RecordSummary(np.array([3, 4]))
    assert known.merged(known).documents == sampled(HASHES)
    merged = known.merged(unknown)
    assert merged.documents is None and merged.token_counts.tolist() == [4, 6]


def test_a_damaged_file_or_one_of_something_else_is_named(tmp_path):
    path, message = tmp_path / contents.FILE, r"contents\.npz .*copy it again"
    for arrays in (
        {"other": np.zeros(3, np.int64)},
        {"token_counts": np.array([1, -1])},
        {"token_counts": np.array([0.5])},
        {"token_counts": np.array([{}], dtype=object)},
        {"token_counts": np.array([1]), "document_hashes": np.zeros(1), "halvings": np.int64(0)},
    ):
        np.savez(path, **arrays)
        with pytest.raises(ValueError, match=message + ", or delete it"):
            contents.load(tmp_path)
    contents.RecordSummary(np.arange(50), sampled(HASHES)).save(tmp_path)
    content = path.read_bytes()
    for cut in (0, 1, 50, -30):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=message):
            contents.load(tmp_path)
