"""FASTA and FASTQ: each sequence is a document under the first word of its header."""

import dataclasses
import gzip
import re

import numpy as np
import pytest

from bertjax.data import records
from bertjax.tokenization import tokenizer
from data_pipelines import build, train_vocabulary
from data_pipelines.documents import deduplication, sources
from data_pipelines.formats import fasta
from data_pipelines.reports import health, report
from tests.data_pipelines import conftest

PROTEINS = ">sp|P1 first\nMKTAYI\nAKQR\n\n>P2\nACD EF*\n; a comment\n>P3\n"
READS = "@r1 lane 1\nACGT\n+r1\n@@II\n@r2\nNNA\n+\nIII\n"


def read(path, log=None):
    return [(it.id, it.text) for it in sources.documents(str(path), log=log)]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines_of_a_sequence_are_joined_and_the_stop_is_left_out(tmp_path, ending):
    (tmp_path / "a.faa").write_bytes(PROTEINS.replace("\n", ending).encode())
    log = sources.Log()
    assert read(tmp_path / "a.faa", log) == [("sp|P1", "MKTAYIAKQR"), ("P2", "ACDEF")]
    assert log.counts == {"empty_documents": 1}


def test_fastq_is_read_without_qualities_compressed_too(tmp_path):
    (tmp_path / "a.fastq.gz").write_bytes(gzip.compress(READS.encode()))
    assert read(tmp_path / "a.fastq.gz") == [("r1", "ACGT"), ("r2", "NNA")]


def test_sequences_as_people_have_them_are_the_same_sequences(tmp_path):
    written = b"\xef\xbb\xbf>a M\xfcller\r\n        1 mktay iakqr\r\n       11 mk*\r\n>b\r\nMKT\r\n"
    (tmp_path / "a.fasta").write_bytes(written + written.replace(b">a", b">\xfc"))
    names, texts = zip(*read(tmp_path / "a.fasta"), strict=True)
    assert names == ("a", "b", "\ufffd", "b") and texts == ("MKTAYIAKQRMK", "MKT") * 2
    (tmp_path / "b.fasta").write_bytes(written.replace(b"\r\n", b"\r"))
    assert read(tmp_path / "b.fasta") == [("a", "MKTAYIAKQRMK"), ("b", "MKT")]


def test_a_copy_in_small_letters_is_a_copy(tmp_path):
    (tmp_path / "a.fna").write_text(">a\nACGTACGT\n>b\nacgtACGT*\n>c\nACGTT\n")
    log = sources.Log()
    once = deduplication.filter_for("documents", log)(sources.documents(str(tmp_path / "a.fna")))
    assert [it.id for it in once] == ["a", "c"] and log.removed == {"documents": 1}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.fa", ">a\nMKT\n".encode("utf-16").decode("latin1"), "a.fa is not UTF-8 text; .*utf-16"),
        ("a.fa", "MKTAYI\n", "begins with 'M'; FASTA begins with '>'"),
        ("a.fa", "; note\nMKT\n", r"a.fa:2 is 'MKT', before any header"),
        ("a.fq", READS[:-4], r"a.fq:5 begins a record of FASTQ that is not one"),
        ("a.fq", "@r1\nACGT\n+\nIII\n", r"a.fq:1 begins a record of FASTQ"),
    ],
)
def test_what_is_not_one_is_named(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text.encode("latin1"))
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)


def test_both_strands_are_read_and_stay_on_one_side(tmp_path):
    rng = np.random.default_rng(0)
    sequences = ["".join(rng.choice(list("ACGT"), size=30)) for _ in range(200)]
    (tmp_path / "a.fna").write_text("".join(f">s{n}\n{it}\n" for n, it in enumerate(sequences)))
    pairs = {"A": "T", "C": "G", "G": "C", "T": "A"}
    sides = {
        split: dict(
            (it.id, it.text)
            for it in sources.documents(
                str(tmp_path / "a.fna"),
                sources.Reading(both_strands=True, split=split, heldout_fraction=0.3),
            )
        )
        for split in ("train", "heldout")
    }
    for side in sides.values():
        assert len(side) > 80 and all(f"{name.removesuffix('#2')}#2" in side for name in side)
    both = sides["train"] | sides["heldout"]
    for n, sequence in enumerate(sequences):
        assert both[f"s{n}"] == sequence
        assert both[f"s{n}#2"] == "".join(pairs[base] for base in reversed(sequence))
    assert fasta.reverse_complement("ACRN", "s") == "NYGT"
    with pytest.raises(ValueError, match="the sequence P2 has E, F, which are not bases"):
        fasta.reverse_complement("ACDEF", "P2")


def test_proteins_become_records_of_whole_sequences_in_packed_rows(tmp_path, capsys):
    proteins = "".join(f">p{n}\n{'MKTAYIAKQRQISFVKSHFS'[: 5 + n % 15]}\n" for n in range(60))
    (tmp_path / "a.fasta").write_text(f"{proteins}>odd\nmjk*TJ\n")
    letters = {"kind": "letters", "alphabet": "esm2"}
    text, vocabulary = str(tmp_path / "a.fasta"), str(tmp_path / "v")
    train_vocabulary.main(train_vocabulary.Options(text, vocabulary, **letters))
    sizes = {"max_seq_length": 64, "num_shards": 1, "short_seq_prob": 0.0}
    rows = {"pair_objective": "none", "packing": "best_fit", "mask": "none"}
    build.build(conftest.options(text, vocabulary, tmp_path / "r", **sizes, **rows))
    record_set = records.open(tmp_path / "r")
    known = tokenizer.load(record_set.directory)
    assert record_set.manifest.is_packed and record_set.manifest.tokenizer["vocab_size"] == 33
    assert known.kind == "tokenizers" and record_set.manifest.statistics["tokens"] >= 60 * 5
    assert record_set.manifest.statistics["unknown_letters"] == [["J", 2], ["*", 1]]
    assert {it.name for it in health.of_manifest(record_set.manifest)} == {
        *("duplicate_documents", "few_examples", "row_limit", "frequent_token")
    }
    shown = "\n".join(report.lines(record_set.manifest))
    assert "'J' 2, '*' 1" in shown
    assert not re.search("sentence|blank|word|asked for", shown + capsys.readouterr().out)
    page = (record_set.directory / build.REPORT_FILE).read_text()
    assert "Length of examples" in page and "Length of sentences" not in page
    counts = {"unknown_rate": 0.2, "unknown_letters": [["J", 2]]}
    manifest = dataclasses.replace(record_set.manifest, statistics=counts)
    (warning,) = health.of_manifest(manifest)
    assert warning.name == "unknown_letters" and "'J' 2" in warning.text
