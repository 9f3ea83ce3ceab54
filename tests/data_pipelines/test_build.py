import dataclasses
import functools
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bertjax.data import overlaps, record_files, records
from data_pipelines import build
from data_pipelines.building import blocks, shards
from tests.data_pipelines import conftest, decoded

options = functools.partial(conftest.options, dupe_factor=3, num_shards=4)


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """About six blocks of the test corpus."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "BLOCK_CHARACTERS", 8_000)
        yield


@pytest.fixture(scope="module")
def built(text_file, vocabulary_directory, tmp_path_factory):
    """Options, manifest and decoded records of one build with pairs and static masks."""
    output = tmp_path_factory.mktemp("built") / "records"
    chosen = options(text_file, vocabulary_directory, output)
    return chosen, build.build(chosen), decoded.read(output)


def test_two_processes_write_every_byte_of_one_and_another_seed_writes_others(built, tmp_path):
    chosen, _, _ = built
    changed = dataclasses.replace(chosen, output=str(tmp_path / "two"), num_workers=2)
    build.build(changed)
    assert decoded.files(chosen.output) == decoded.files(tmp_path / "two")
    changed = dataclasses.replace(chosen, output=str(tmp_path / "other"), random_seed=1)
    build.build(changed)
    name = record_files.shard_name(0, 4)
    assert decoded.files(chosen.output)[name] != decoded.files(tmp_path / "other")[name]
    with pytest.raises(FileExistsError, match="--overwrite"):
        build.build(dataclasses.replace(changed, random_seed=2))


@pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")  # inside tfds
def test_shards_are_equal_to_one_example_and_counted_also_for_tfds(built):
    import tensorflow_datasets as tfds

    chosen, manifest, batch = built
    counts = [shard.examples for shard in manifest.shards]
    assert len(counts) == 4 and max(counts) - min(counts) <= 1
    assert sum(counts) == len(batch["input_ids"]) == manifest.statistics["examples"]
    sizes = [
        len(content) for name, content in decoded.files(chosen.output).items() if "tfrecord" in name
    ]
    assert [shard.bytes for shard in manifest.shards] == sizes
    assert records.Manifest.load(chosen.output).shards == manifest.shards
    # The contents are the tokens to be predicted and the documents.
    contents = records.open(chosen.output).contents
    masked = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
    expected = np.bincount(masked, minlength=manifest.tokenizer["vocab_size"])
    np.testing.assert_array_equal(contents.token_counts, expected)
    assert len(contents.documents.hashes) == manifest.statistics["documents"] == 120
    info = tfds.builder_from_directory(chosen.output).info
    assert info.splits["train"].num_examples == manifest.num_examples
    assert "<html" in (pathlib.Path(chosen.output) / build.REPORT_FILE).read_text()


def test_heldout_and_train_share_no_document_and_others_do(
    built, text_file, vocabulary_directory, tmp_path
):
    counts, built_sets = {"all": 120}, {"all": records.open(built[0].output)}
    for name, split, fraction in (
        ("train", "train", 0.2),
        ("heldout", "heldout", 0.2),
        ("more", "heldout", 0.25),
    ):
        part = {"split": split, "heldout_fraction": fraction, "dupe_factor": 1}
        chosen = options(text_file, vocabulary_directory, tmp_path / name, **part)
        counts[name] = build.build(chosen).statistics["documents"]
        built_sets[name] = records.open(tmp_path / name)
    assert counts["train"] + counts["heldout"] == counts["all"]
    assert 0 < counts["heldout"] < counts["more"] < 50
    heldout, more = built_sets["heldout"], built_sets["more"]
    assert overlaps.find(built_sets["train"], heldout) is None
    found = overlaps.find(built_sets["all"], heldout)
    assert found and found.share == 1 and "100.0% of the documents" in found.text
    found = overlaps.find(built_sets["train"], more)
    assert found and found.share == pytest.approx(1 - counts["heldout"] / counts["more"])


@pytest.mark.faults
def test_a_build_killed_at_any_moment_continues_to_the_same_bytes(tmp_path, vocabulary_directory):
    text = tmp_path / "text.txt"
    text.write_text(conftest.made_up_text(4000), encoding="utf-8")
    common = [
        *(sys.executable, "-m", "data_pipelines.build", f"--input={text}", "--max_seq_length=64"),
        *(f"--vocabulary={vocabulary_directory}", "--num_workers=2", "--dupe_factor=20"),
    ]
    subprocess.run([*common, f"--output={tmp_path / 'whole'}"], check=True, capture_output=True)
    partial = tmp_path / "killed.partial"
    # The first file of each step, and some way into the last one.
    for sign in ("tokens.json", "blocks.jsonl", "pairs-000000.npy", "*-00000-of-*", "*-00009-of-*"):
        process = subprocess.Popen(
            [*common, f"--output={tmp_path / 'killed'}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while process.poll() is None and not list(partial.rglob(sign)):
            time.sleep(0.005)
        assert process.poll() is None, f"finished before {sign} was seen"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "killed").exists()
    subprocess.run([*common, f"--output={tmp_path / 'killed'}"], check=True, capture_output=True)
    assert decoded.files(tmp_path / "killed") == decoded.files(tmp_path / "whole")
    assert not partial.exists()


def test_warnings_are_said_once_and_fail_a_strict_build_before_a_shard_is_written(
    tmp_path, vocabulary_directory, caplog, monkeypatch
):
    text = tmp_path / "text.txt"
    text.write_text(conftest.made_up_text(60).replace("\n\n", "\n").replace("\n", "\n\n"))
    chosen = options(str(text), vocabulary_directory, tmp_path / "out", sentence_splitter="lines")
    build.build(chosen)
    said = [record.message for record in caplog.records if "single sentence" in record.message]
    assert said and len(said) == len(set(said))
    monkeypatch.setattr(shards, "write_batches", None)
    strict = dataclasses.replace(chosen, output=str(tmp_path / "strict"), strict=True)
    with pytest.raises(ValueError, match="--strict.*\n.*single sentence"):
        build.build(strict)
    assert not (tmp_path / "strict").exists()


def test_text_from_a_pipe_is_read_whole_and_gives_the_records_of_the_file(
    built, text_file, vocabulary_directory, tmp_path
):
    chosen, manifest, _ = built
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f"exec cat '{text_file}' > '{pipe}'"]):
        of_pipe = build.build(options(str(pipe), vocabulary_directory, tmp_path / "out"))
    size = pathlib.Path(text_file).stat().st_size
    assert of_pipe.statistics["pipes"] == {"count": 1, "bytes": size}
    assert of_pipe.shards == manifest.shards
    for shard in of_pipe.shards:
        content = pathlib.Path(chosen.output, shard.file).read_bytes()
        assert (tmp_path / "out" / shard.file).read_bytes() == content
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "out"}


def test_input_that_changes_during_the_build_is_an_error_that_names_it(
    text_file, vocabulary_directory, tmp_path
):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(pathlib.Path(text_file).read_bytes())

    def changing(*arguments):
        content = build.BUILDERS["fast"](*arguments)
        with (tmp_path / "b.txt").open("a") as file:
            file.write("More.")
        return content

    text = f"{tmp_path}/a.txt,{tmp_path}/b.txt"
    with pytest.raises(ValueError, match=rf"changed while it was read: {tmp_path}/b\.txt\."):
        build.build(options(text, vocabulary_directory, tmp_path / "out"), changing)
    assert not (tmp_path / "out").exists()
