import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bertjax.data import masking, records, tokenizer
from data_pipelines import blocks, build, shards
from data_pipelines.exact import algorithm
from data_pipelines.options import Options
from tests.data_pipelines import conftest

LENGTH = 32


def options(text_file, vocabulary_directory, output, **changes):
    fields = {
        "input": text_file,
        "vocabulary": vocabulary_directory,
        "output": str(output),
        "max_seq_length": LENGTH,
        "dupe_factor": 3,
        "num_shards": 4,
        "num_workers": 1,
    }
    return Options(**(fields | changes))


def read(directory):
    """All records of a directory, decoded by the trainer's own parser."""
    tf = records.import_tensorflow()
    record_set = records.open(directory)
    dataset = tf.data.TFRecordDataset(record_set.shard_paths).batch(1 << 20)
    serialized = next(iter(dataset))
    return {
        name: values.numpy()
        for name, values in records.parse_batch(serialized, record_set.manifest).items()
    }


@pytest.fixture(scope="module")
def built(text_file, vocabulary_directory, tmp_path_factory):
    """Options, manifest and decoded records of one build with pairs and static masks."""
    output = tmp_path_factory.mktemp("built") / "records"
    chosen = options(text_file, vocabulary_directory, output)
    return chosen, build.build(chosen), read(output)


def restored(batch):
    """The ids before masking."""
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    ids[rows, batch["masked_lm_positions"][rows, slots]] = batch["masked_lm_ids"][rows, slots]
    return ids


def files(directory):
    return {path.name: path.read_bytes() for path in sorted(pathlib.Path(directory).iterdir())}


def test_two_builds_are_identical_in_every_byte(built, tmp_path):
    chosen, _, _ = built
    build.build(dataclasses.replace(chosen, output=str(tmp_path / "again")))
    assert files(chosen.output) == files(tmp_path / "again")
    build.build(dataclasses.replace(chosen, output=str(tmp_path / "other"), random_seed=1))
    name = records.shard_name(0, 4)
    assert files(chosen.output)[name] != files(tmp_path / "other")[name]


def test_shards_are_equal_to_one_example_and_counted(built):
    chosen, manifest, batch = built
    counts = [shard.examples for shard in manifest.shards]
    assert len(counts) == 4 and max(counts) - min(counts) <= 1
    assert sum(counts) == len(batch["input_ids"]) == manifest.statistics["examples"]
    assert records.Manifest.load(chosen.output).shards == manifest.shards


def test_rows_are_well_formed(built, vocabulary):
    _, _, batch = built
    ids, mask, segments = restored(batch), batch["input_mask"], batch["segment_ids"]
    lengths = mask.sum(axis=1)
    place = np.arange(LENGTH)
    np.testing.assert_array_equal(mask, place < lengths[:, None])
    assert (ids[:, 0] == vocabulary.cls_id).all()
    assert (ids[mask == 0] == vocabulary.pad_id).all()
    assert ((ids == vocabulary.sep_id).sum(axis=1) == 2).all()
    first_sep = (ids == vocabulary.sep_id).argmax(axis=1)
    assert (ids[np.arange(len(ids)), lengths - 1] == vocabulary.sep_id).all()
    expected = (place > first_sep[:, None]) & (mask == 1)
    np.testing.assert_array_equal(segments, expected)


def test_masks_have_their_statistics_and_never_touch_specials(built, vocabulary):
    _, manifest, batch = built
    ids = restored(batch)
    used = batch["masked_lm_weights"] > 0
    assert not np.isin(batch["masked_lm_ids"][used], vocabulary.special_ids).any()
    assert (np.isin(ids, vocabulary.special_ids).sum(axis=1) >= 3).all()
    wanted = np.maximum(1, np.rint(0.15 * batch["input_mask"].sum(axis=1)))
    np.testing.assert_array_equal(used.sum(axis=1), np.minimum(wanted, used.shape[1]))

    shown = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], axis=1)[used]
    hidden = batch["masked_lm_ids"][used]
    assert abs((shown == vocabulary.mask_id).mean() - 0.8) < 0.03
    assert abs((shown == hidden).mean() - 0.1) < 0.03
    statistics = manifest.statistics
    assert statistics["masked_as_mask_share"] == (shown == vocabulary.mask_id).mean()
    counts = np.bincount(hidden)
    shares = counts[counts > 0] / counts.sum()
    np.testing.assert_allclose(statistics["unigram_entropy"], -(shares * np.log(shares)).sum())
    np.testing.assert_allclose(statistics["most_frequent_token_share"], shares.max())


def test_segments_are_text_of_the_corpus_in_the_order_of_their_label(built, vocabulary, text_file):
    _, manifest, batch = built
    text = " ".join(pathlib.Path(text_file).read_text(encoding="utf-8").split())
    corpus = "," + ",".join(map(str, vocabulary.encode(text))) + ","
    ids, labels = restored(batch), batch["next_sentence_labels"]
    assert manifest.statistics["random_pair_share"] == labels.mean()
    assert 0.4 < labels.mean() < 0.9
    for row, label in zip(ids[:200], labels[:200], strict=True):
        first, second = np.nonzero(row == vocabulary.sep_id)[0]
        segments = [row[1:first], row[first + 1 : second]]
        texts = ["," + ",".join(map(str, segment)) + "," for segment in segments]
        assert texts[0] in corpus and texts[1] in corpus
        is_whole = second < LENGTH - 1
        if label == 0 and is_whole:
            assert texts[0] + texts[1][1:] in corpus


def test_heldout_and_train_share_no_document(text_file, vocabulary_directory, tmp_path):
    counts = {}
    for split in ("all", "train", "heldout"):
        chosen = options(
            text_file, vocabulary_directory, tmp_path / split, split=split, heldout_fraction=0.2
        )
        counts[split] = build.build(chosen).statistics["documents"]
    assert counts["train"] + counts["heldout"] == counts["all"] == 120
    assert 0 < counts["heldout"] < 50


def test_dynamic_masking_stores_text_alone(text_file, vocabulary_directory, vocabulary, tmp_path):
    chosen = options(
        text_file,
        vocabulary_directory,
        tmp_path / "out",
        mask="none",
        pair_objective="none",
        dupe_factor=1,
        max_predictions_per_seq=7,
    )
    manifest = build.build(chosen)
    batch = read(tmp_path / "out")
    assert set(batch) == set(records.TOKEN_FEATURES)
    assert not (batch["input_ids"] == vocabulary.mask_id).any()
    assert not batch["segment_ids"].any()
    assert manifest.max_predictions_per_seq == 0
    assert manifest.statistics["unigram_entropy"] > 1.0
    # One pass stores every token once.
    stored = int(batch["input_mask"].sum()) - 2 * len(batch["input_ids"])
    assert stored == manifest.statistics["tokens"]


def test_the_vocabulary_travels_with_the_records(built, vocabulary):
    chosen, manifest, _ = built
    assert tokenizer.load(chosen.output).describe() == vocabulary.describe() == manifest.tokenizer


def test_existing_output_is_kept_unless_overwriting(built, tmp_path):
    chosen, _, _ = built
    output = tmp_path / "copy"
    shutil.copytree(chosen.output, output)
    changed = dataclasses.replace(chosen, output=str(output), random_seed=9)
    with pytest.raises(FileExistsError, match="--overwrite"):
        build.build(changed)
    assert files(output) == files(chosen.output)
    manifest = build.build(dataclasses.replace(changed, overwrite=True))
    assert manifest.seed == 9 and records.Manifest.load(output).seed == 9
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_overwriting_never_deletes_what_is_not_records(built, tmp_path):
    chosen, _, _ = built
    (tmp_path / "thesis.tex").write_text("years of work")
    changed = dataclasses.replace(chosen, output=str(tmp_path), overwrite=True)
    with pytest.raises(FileExistsError, match="not a record directory"):
        build.build(changed)
    assert (tmp_path / "thesis.tex").exists()


def test_a_build_that_fails_publishes_nothing_and_the_next_one_continues(
    built, tmp_path, monkeypatch
):
    chosen, _, _ = built
    changed = dataclasses.replace(chosen, output=str(tmp_path / "out"))

    def fail(self, directory):
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(records.Manifest, "save", fail)
        with pytest.raises(OSError, match="disk full"):
            build.build(changed)
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]

    def never(*_):
        raise AssertionError("made again")

    monkeypatch.setattr(blocks, "tokenize", never)
    monkeypatch.setattr(shards, "write_batches", never)
    build.build(changed)
    assert files(tmp_path / "out") == files(chosen.output)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
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
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    assert not partial.exists()


def test_the_exact_algorithm_deals_its_examples_to_the_shards_in_turn(
    built, vocabulary, tmp_path, text_file
):
    chosen, _, _ = built
    changed = dataclasses.replace(
        chosen,
        output=str(tmp_path / "out"),
        algorithm="exact",
        do_whole_word_mask=True,
    )
    manifest = build.build(changed)
    batch = read(tmp_path / "out")
    expected = algorithm.batches(
        [text_file],
        vocabulary,
        max_seq_length=LENGTH,
        dupe_factor=3,
        short_seq_prob=0.1,
        masked_lm_prob=0.15,
        max_predictions_per_seq=masking.default_max_predictions(LENGTH, 0.15),
        do_whole_word_mask=True,
        random_seed=12345,
        batch_size=10_000,
    )
    (whole,) = expected
    order = np.concatenate([np.arange(shard, len(whole["input_ids"]), 4) for shard in range(4)])
    for name, values in batch.items():
        np.testing.assert_array_equal(values, whole[name][order].reshape(values.shape))
    assert manifest.statistics["documents"] == 120


def test_an_exact_build_refuses_what_the_released_script_does_not_know(built, tmp_path):
    chosen, _, _ = built
    changed = dataclasses.replace(
        chosen, output=str(tmp_path / "out"), algorithm="exact", pair_objective="sop", mask="span"
    )
    with pytest.raises(ValueError, match="pair_objective is 'sop'.*\\n.*mask is 'span'"):
        build.build(changed)


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


@pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated:DeprecationWarning")  # inside tfds
def test_the_output_is_a_dataset_of_tfds_and_has_a_report(built):
    import tensorflow_datasets as tfds

    chosen, manifest, batch = built
    assert "<html" in (pathlib.Path(chosen.output) / build.REPORT_FILE).read_text()
    builder = tfds.builder_from_directory(chosen.output)
    assert builder.info.splits["train"].num_examples == manifest.num_examples
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    found = builder.as_dataset(split="train", batch_size=-1, read_config=in_order)
    np.testing.assert_array_equal(found["input_ids"].numpy(), batch["input_ids"])


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("", {}, "holds no documents"),
        ("\u200b\n\n\u200b", {}, "hold no sentence"),
        ("One document. Only one.", {}, "needs at least 2"),
        ("One. Two.\n\nThree.", {"num_shards": 1000}, "num_shards is 1000"),
        ("One.\n\nTwo.", {"pair_objective": "mlm"}, "pair_objective is 'mlm'"),
        ("One.\n\nTwo.", {"max_seq_length": 4, "dupe_factor": 0}, "max_seq_length is 4.*\n.*dupe"),
    ],
)
def test_bad_input_is_one_clear_error(vocabulary_directory, tmp_path, text, changes, message):
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        build.build(options(str(path), vocabulary_directory, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_without_mask_is_refused(text_file, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    with pytest.raises(ValueError, match=r"\[MASK\]"):
        build.build(options(text_file, str(tmp_path / "vocab.txt"), tmp_path / "out"))
