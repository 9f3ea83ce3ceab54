"""Claims about records that are called held out and are not."""

import dataclasses

import numpy as np
from etils import epath

from bertjax.data import contents, overlaps, records
from tests import small_records

ARGUMENTS = {"input": "corpus/*.txt", "split": "train", "heldout_fraction": 0.02}
HELD_OUT = ARGUMENTS | {"split": "heldout"}


def made(directory, arguments=None, documents=None, seed=0):
    """A record set as manifests and contents tell it; no shard is read."""
    directory = epath.Path(directory)
    directory.mkdir()
    if documents is not None:
        sample = contents.Documents(np.sort(np.array(documents, np.uint64)))
        contents.RecordSummary(np.ones(9, np.int64), sample).save(directory)
    shards = (records.Shard("0", 3, 300),)
    manifest = small_records.manifest(shards=shards, seed=seed, arguments=arguments or {})
    return records.RecordSet(directory, manifest)


def test_the_very_records_are_known_by_place_and_by_what_they_are(tmp_path):
    train, copy = made(tmp_path / "train"), made(tmp_path / "copy")
    (tmp_path / "link").symlink_to(tmp_path / "train")
    other = dataclasses.replace(train.manifest, seed=1)
    for evaluated in (copy, records.RecordSet(epath.Path(tmp_path / "link"), other)):
        found = overlaps.find(train, evaluated)
        assert found and found.is_most and "the very records" in found.text
    assert overlaps.find(train, made(tmp_path / "other", seed=1)) is None


def test_documents_tell_whatever_the_arguments_say(tmp_path):
    train = made(tmp_path / "train", ARGUMENTS, range(0, 90))
    apart = made(tmp_path / "apart", ARGUMENTS, range(90, 100), seed=1)
    assert overlaps.find(train, apart) is None
    few = overlaps.find(train, made(tmp_path / "few", HELD_OUT, range(89, 99), seed=1))
    assert few and not few.is_most and "10.0% of the documents" in few.text
    most = overlaps.find(train, made(tmp_path / "most", HELD_OUT, range(85, 95), seed=1))
    assert most and most.is_most


def test_one_text_cut_in_other_documents_is_suspected(tmp_path):
    train = made(tmp_path / "train", ARGUMENTS, range(9))
    per_file = HELD_OUT | {"one_document_per_file": True}
    found = overlaps.find(train, made(tmp_path / "heldout", per_file, range(20, 30), seed=1))
    assert found and found.share is None and not found.is_most
    assert "may hold documents of" in found.text
    assert "only one with --one_document_per_file" in found.text
