"""The bytes of small builds, as they were on 2026-11-22: records that were made go on being made.

The pipeline of Beam writes the files of the local build, which its own tests compare. The random
numbers are Python's and NumPy's: a version of NumPy with other streams would change these digests.
"""

import hashlib

import pytest

from data_pipelines import build
from tests.data_pipelines import conftest


@pytest.mark.parametrize(
    ("changes", "digest"),
    [
        ({}, "4554b4ca24cce11a1d7a9077ed260fba03e1271ca6fecb1a0ed91f058e29ea03"),
        (
            {"pair_objective": "sop", "mask": "span"},
            "ba01d44f9005a5c66e6e27ec7ac3becb123c73dc3af6db8e212516764b7ec934",
        ),
        (
            {"balanced_nsp": True, "mask": "ngram"},
            "aa2d0e966fe7bd4c1fafe11bf1e6d771ae173e6ea7d1906549605cf088222e05",
        ),
        (
            {"pair_objective": "none", "mask": "whole_word"},
            "49dedebdbb2c1cf7f63aad7998d610097565a93e4846b9f1e9d6456c532a5de1",
        ),
        (
            {"pair_objective": "none", "packing": "full_sentences", "mask": "none"},
            "312a962a33cacc63813671320410194df53703e0d0b260d1186a57c88b9f7c8e",
        ),
        (
            {"algorithm": "exact"},
            "ae7ffc3a08293b17d6e34990912df083f7e32d11a89e1e470ed284bb05bd8486",
        ),
        (
            {"algorithm": "exact", "mask": "whole_word"},
            "a5ef82c4be64cc154d83acb4f138a060aef5c028c45939e60cc3941479097264",
        ),
    ],
    ids=["nsp", "sop", "balanced", "sentences", "full sentences", "exact", "exact whole words"],
)
def test_a_build_writes_the_bytes_of_before(
    tmp_path, text_file, vocabulary_directory, changes, digest
):
    changes = {"dupe_factor": 2, "num_shards": 2} | changes
    build.build(conftest.options(text_file, vocabulary_directory, tmp_path / "out", **changes))
    content = hashlib.sha256()
    for path in sorted((tmp_path / "out").glob("*tfrecord*")):
        content.update(path.read_bytes())
    assert content.hexdigest() == digest
