"""Claims about records that are called held out and are not."""

import dataclasses

import numpy as np
import pytest
from etils import epath

from bertjax.data import contents, overlaps, records

ARGUMENTS = {"input": "corpus/*.txt", "split": "train", "heldout_fraction": 0.02}
HELD_OUT = ARGUMENTS | {"split": "heldout"}
RULE = {"split_by": "text"}


def made(directory, arguments=None, documents=None, seed=0):
    """A record set as manifests and contents tell it; no shard is read."""
    directory = epath.Path(directory)
    directory.mkdir()
    if documents is not None:
        sample = contents.Documents(np.sort(np.array(documents, np.uint64)))
        contents.Contents(np.ones(9, np.int64), sample).save(directory)
    manifest = records.Manifest(
        tokenizer={"kind": "wordpiece", "sha256": "a", "vocab_size": 9},
        max_seq_length=8,
        max_predictions_per_seq=2,
        masked_lm_prob=0.15,
        pair_objective="none",
        shards=(records.Shard("0", 3, 300),),
        seed=seed,
        arguments=arguments or {},
        statistics={},
    )
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


@pytest.mark.parametrize("documents", [range(9), None])
def test_one_text_cut_in_other_documents_is_suspected(tmp_path, documents):
    train = made(tmp_path / "train", ARGUMENTS | RULE, documents)
    per_file = HELD_OUT | RULE | {"one_document_per_file": True}
    apart = None if documents is None else range(20, 30)
    found = overlaps.find(train, made(tmp_path / "heldout", per_file, apart, seed=1))
    assert found and not found.is_most and "only one with --one_document_per_file" in found.text


@pytest.mark.parametrize(
    ("trained", "evaluated", "reason"),
    [
        (ARGUMENTS, HELD_OUT, None),
        (ARGUMENTS | RULE, HELD_OUT | RULE | {"input": "/data/corpus/*.txt"}, None),
        (ARGUMENTS | {"split": "all"}, HELD_OUT, "--split=all and --split=heldout"),
        (ARGUMENTS, ARGUMENTS, "--split=train and --split=train"),
        (ARGUMENTS, HELD_OUT | {"input": "/data/corpus/*.txt"}, "as it was typed"),
        (ARGUMENTS, HELD_OUT | {"input": "./corpus/*.txt"}, "as it was typed"),
        (ARGUMENTS, HELD_OUT | {"input": "*.txt"}, "as it was typed"),
        (ARGUMENTS, HELD_OUT | {"input": "../corpus/*.txt,more.txt"}, "as it was typed"),
        (ARGUMENTS, HELD_OUT | RULE, "one was split by path, the other by text"),
        (ARGUMENTS, HELD_OUT | {"heldout_fraction": 0.05}, "0.05 for --split=heldout"),
        (ARGUMENTS, HELD_OUT | {"heldout_fraction": 0.01}, None),
        (ARGUMENTS | {"split": "all"}, HELD_OUT | {"input": "other/*.txt"}, None),
        (ARGUMENTS | {"split": "all"}, {}, None),
    ],
)
def test_manifests_of_one_corpus_are_suspected(tmp_path, trained, evaluated, reason):
    train = made(tmp_path / "train", trained)
    found = overlaps.find(train, made(tmp_path / "heldout", evaluated, seed=1))
    if reason is None:
        assert found is None
    else:
        assert found and found.share is None and not found.is_most
        assert "may hold documents of" in found.text and reason in found.text
