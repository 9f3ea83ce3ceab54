"""Broken text, end to end: a counted, reported skip or one clear error; never a wrong record."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from bertjax.data import records, tokenizer
from data_pipelines import build
from data_pipelines.options import Options
from data_pipelines.reports import report

GOOD = "Kalo miren. Tus vor pe.\nSha dim gol.\n\nRen ka lo mi. Vor tus.\n\nPe sha. Gol ka ren."


@pytest.fixture
def build_of(tmp_path, vocabulary_directory):
    """Builds text (or bytes) and returns the manifest and the tokens of all examples."""

    def run(content, *, name="text.txt", **changes):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        fields = {
            "input": str(path),
            "vocabulary": vocabulary_directory,
            "output": str(tmp_path / "out"),
            "max_seq_length": 32,
            "dupe_factor": 2,
            "num_workers": 1,
        }
        chosen = Options(**(fields | changes))
        manifest = build.build(chosen)
        return manifest, words_of(chosen.output)

    return run


def words_of(directory):
    """The words of all examples, before masking, as a set."""
    tf = records.import_tensorflow()
    record_set = records.open(directory)
    vocabulary = tokenizer.load(directory)
    words = set()
    for serialized in tf.data.TFRecordDataset(record_set.shard_paths).batch(64):
        parsed = records.parse_batch(serialized, record_set.manifest)
        batch = {name: value.numpy() for name, value in parsed.items()}
        ids = batch["input_ids"]
        if record_set.manifest.has_static_masks:
            rows, slots = np.nonzero(batch["masked_lm_weights"])
            hidden = batch["masked_lm_ids"][rows, slots]
            ids[rows, batch["masked_lm_positions"][rows, slots]] = hidden
        for row, mask in zip(ids, batch["input_mask"], strict=True):
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


def test_another_encoding_is_one_error_before_anything_is_made(build_of, tmp_path):
    with pytest.raises(ValueError, match=r"text\.txt.*UTF-16.*iconv"):
        build_of(GOOD.encode("utf-16"))
    assert not (tmp_path / "out").exists()


def test_nul_and_control_characters_are_removed_and_counted(build_of):
    manifest, words = build_of(GOOD.replace("Kalo", "Ka\0l\x07o").replace("Sha", "Sh\x1ba"))
    clean, clean_words = build_of(GOOD, output=f"{manifest.arguments['input']}.clean")
    assert problems(manifest) == {"control_characters": 2} and not problems(clean)
    assert words == clean_words


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="no /proc here")
def test_a_line_of_a_hundred_megabytes_is_read_in_pieces_and_little_memory(
    tmp_path, vocabulary_directory
):
    sentence, repetitions = "Ren ka lo mi vor tus pe sha dim gol ka " * 7 + ". ", 380_000
    path = tmp_path / "text.txt"
    path.write_text(sentence * repetitions + f"\n\n{GOOD}")
    arguments = [f"--input={path}", f"--vocabulary={vocabulary_directory}", "--num_workers=1"]
    arguments += [f"--output={tmp_path / 'out'}", "--dupe_factor=1", "--mask=none"]
    subprocess.run([sys.executable, "-m", "data_pipelines.build", *arguments], check=True)
    manifest = records.Manifest.load(tmp_path / "out")
    found = problems(manifest)
    assert found["long_lines"] == 1 and found["long_documents"] >= 1
    # Pieces are cut at white space: no word was broken, none lost.
    tokens = len(tokenizer.load(vocabulary_directory).encode(GOOD))
    assert manifest.statistics["tokens"] == 78 * repetitions + tokens
    # The peak of a process that reads it. (What the kernel tells a parent of its child counts the
    # parent's own memory, up to the child's exec.)
    code = (
        "import sys; from data_pipelines.formats import base, input_files, text_files\n"
        "found = text_files.read(sys.argv[1], base.Reading(), input_files.Log())\n"
        "print(sum(len(text) for _, text in found), open('/proc/self/status').read())"
    )
    said = subprocess.check_output([sys.executable, "-c", code, str(path)], text=True)
    peak = re.search(r"VmHWM:\s+(\d+) kB", said)
    assert peak, "the kernel tells no peak"
    assert int(said.split()[0]) > 0.99 * path.stat().st_size
    assert int(peak[1]) * 1024 < 200e6  # seen: 120e6; all of the text at once: 380e6


def test_empty_files_are_counted(build_of, tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "blank.txt").write_bytes(b"\n \n\n")
    manifest, _ = build_of(GOOD, input=str(tmp_path / "*.txt"))
    assert problems(manifest)["empty_files"] == 2
    assert manifest.statistics["documents"] == 3


def test_a_single_document_cannot_be_paired(build_of, tmp_path):
    with pytest.raises(ValueError, match=r"1 documents.*blank lines.*--pair_objective=none"):
        build_of(GOOD.replace("\n\n", "\n"))
    # It can be packed, and the tokens of the first attempt need not be made again.
    manifest, _ = build_of(GOOD.replace("\n\n", "\n"), pair_objective="none")
    assert manifest.statistics["documents"] == 1


@pytest.mark.parametrize("text", [GOOD.replace("\n", "\n\n").replace(". ", ".\n\n"), "Ka.\n\nLo."])
def test_documents_of_one_sentence_are_warned_of(build_of, text):
    manifest, _ = build_of(text)
    assert manifest.statistics["forced_random_share"] == 1.0
    said = "\n".join(report.lines(manifest))
    assert "single sentence" in said and "blank line" in said


def test_strict_refuses_documents_of_one_sentence(build_of, tmp_path):
    with pytest.raises(ValueError, match="--strict"):
        build_of("Ka lo.\n\nLo mi.\n\nRen pe.", strict=True)
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_without_mask_is_an_error(build_of, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nka\n")
    with pytest.raises(ValueError, match=r"vocab\.txt.*lacks \[MASK\]"):
        build_of(GOOD, vocabulary=str(path))
    assert not (tmp_path / "out.partial").exists()


def test_a_file_that_cannot_be_opened_is_an_error_before_any_text_is_read(build_of, tmp_path):
    (tmp_path / "zz.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises((ValueError, FileNotFoundError), match=r"zz\.txt"):
        build_of(GOOD, input=str(tmp_path / "*.txt"))
    assert not list(tmp_path.glob("out.partial/scratch/blocks*"))


def test_a_damaged_compressed_file_is_named(build_of, tmp_path):
    import gzip

    whole = gzip.compress((GOOD * 200).encode())
    with pytest.raises(ValueError, match=r"text\.txt\.gz.*damaged|text\.txt\.gz.*cut"):
        build_of(whole[: len(whole) // 2], name="text.txt.gz")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_is_full_is_an_error_and_finished_work_is_kept(
    tmp_path, text_file, vocabulary_directory
):
    command = [
        *(sys.executable, "-m", "data_pipelines.build", f"--input={text_file}", "--num_workers=1"),
        *(f"--vocabulary={vocabulary_directory}", f"--output={tmp_path / 'out'}"),
        *("--max_seq_length=64", "--dupe_factor=40", "--num_shards=3"),
    ]

    # In blocks of 1024 bytes; a write beyond it fails, as on a full disk, if its signal is ignored.
    limited = ["bash", "-c", 'trap "" XFSZ; ulimit -f 976; exec "$@"', "bash", *command]
    failed = subprocess.run(limited, capture_output=True, text=True)
    assert failed.returncode == 1
    last = failed.stderr.strip().splitlines()[-1]
    assert last.startswith("error:") and "bert-train.tfrecord-00000-of-00003" in last
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.partial" / "scratch" / "blocks.jsonl").exists()
    subprocess.run(command, check=True, capture_output=True)
    assert records.open(tmp_path / "out").manifest.num_examples > 1000
