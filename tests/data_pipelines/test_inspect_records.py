import dataclasses
import pathlib
import shutil

import numpy as np
import pytest

from bertjax.data import contents, records, tokenizer
from data_pipelines import build, inspect_records
from tests import small_records
from tests.data_pipelines import conftest


def original_record(rng, tf, vocabulary, length=16, predictions=3):
    """One example written as create_pretraining_data.py writes it, in its order of features."""
    tokens = rng.integers(5, vocabulary.vocab_size, size=length - 2).tolist()
    ids = [vocabulary.cls_id, *tokens[:8], vocabulary.sep_id, *tokens[9:-1], vocabulary.sep_id]
    ids += [0] * (length - len(ids))
    real = int(np.count_nonzero(ids))
    positions, hidden = [1, 4, 0], [ids[1], ids[4], 0]
    ids[1] = ids[4] = vocabulary.mask_id
    features = {
        "input_ids": ids,
        "input_mask": [1] * real + [0] * (length - real),
        "segment_ids": [0] * 10 + [1] * (real - 10) + [0] * (length - real),
        "masked_lm_positions": positions[:predictions],
        "masked_lm_ids": hidden[:predictions],
    }
    example = tf.train.Example()
    for name, values in features.items():
        example.features.feature[name].int64_list.value.extend(values)
    example.features.feature["masked_lm_weights"].float_list.value.extend([1.0, 1.0, 0.0])
    example.features.feature["next_sentence_labels"].int64_list.value.append(int(rng.integers(2)))
    return example.SerializeToString()


@pytest.fixture
def foreign(tmp_path, vocabulary):
    tf = records.import_tensorflow()
    rng = np.random.default_rng(0)
    for name, count in (("tf_examples.tfrecord", 5), ("tf_examples.tfrecord1", 3)):
        with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
            for _ in range(count):
                writer.write(original_record(rng, tf, vocabulary))
    return tmp_path


def adopting(directory, vocabulary_directory, **changes):
    fields = {"directory": str(directory), "adopt": True}
    fields["vocabulary"] = f"{vocabulary_directory}/vocab.txt"
    return inspect_records.Options(**(fields | changes))


def test_records_of_the_original_script_can_be_trained_on_once_adopted(
    foreign, vocabulary_directory, vocabulary
):
    (foreign / "tf_examples.tfrecord2.1.draft").write_bytes(b"of a writer that was killed")
    manifest = inspect_records.adopt(adopting(foreign, vocabulary_directory))
    assert [shard.examples for shard in manifest.shards] == [5, 3]
    assert (manifest.max_seq_length, manifest.max_predictions_per_seq) == (16, 3)
    assert manifest.pair_objective == "nsp"
    assert manifest.statistics["masked_tokens"] == 16
    assert manifest.statistics["masked_as_mask_share"] == 1.0
    assert 0 < manifest.statistics["unigram_entropy"] <= np.log(16)
    opened = records.open(foreign, tokenizer_sha256=vocabulary.describe()["sha256"])
    assert opened.manifest == manifest
    assert opened.contents.token_counts.sum() == 16 and opened.contents.documents is None
    assert tokenizer.load(foreign).describe() == vocabulary.describe()


def test_a_directory_with_manifest_is_not_adopted_again(foreign, vocabulary_directory):
    inspect_records.adopt(adopting(foreign, vocabulary_directory))
    with pytest.raises(FileExistsError, match="nothing is to adopt"):
        inspect_records.adopt(adopting(foreign, vocabulary_directory))


def write_foreign(foreign, records_written):
    tf = records.import_tensorflow()
    with tf.io.TFRecordWriter(str(foreign / "tf_examples.tfrecord1")) as writer:
        for record in records_written:
            writer.write(record)


def test_a_file_of_another_length_is_named(foreign, vocabulary, vocabulary_directory):
    tf = records.import_tensorflow()
    rng = np.random.default_rng(1)
    write_foreign(foreign, [original_record(rng, tf, vocabulary, length=20)])
    with pytest.raises(ValueError, match="tfrecord1 does not hold records of max_seq_length 16"):
        inspect_records.adopt(adopting(foreign, vocabulary_directory))
    assert not (foreign / records.MANIFEST_FILE).exists()


@pytest.mark.parametrize("content", [b"", b"not records at all, but text"])
def test_files_that_are_no_records_are_named(foreign, vocabulary_directory, content):
    (foreign / "tf_examples.tfrecord").write_bytes(content)
    with pytest.raises(ValueError, match=r"tf_examples\.tfrecord "):
        inspect_records.adopt(adopting(foreign, vocabulary_directory))


def test_another_vocabulary_is_noticed(foreign, tmp_path_factory):
    directory = tmp_path_factory.mktemp("small")
    small = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    tokenizer.WordPieceTokenizer(small).save(directory)
    with pytest.raises(ValueError, match="the vocabulary has 6 entries"):
        inspect_records.adopt(adopting(foreign, directory))


def test_adopt_says_what_it_lacks(foreign, vocabulary_directory, tmp_path_factory):
    with pytest.raises(ValueError, match="--vocabulary"):
        inspect_records.adopt(adopting(foreign, vocabulary_directory, vocabulary=""))
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(FileNotFoundError, match="--pattern"):
        inspect_records.adopt(adopting(empty, vocabulary_directory))


def test_inspect_prints_report_and_decoded_examples(
    text_file, vocabulary_directory, tmp_path, capsys
):
    output = str(tmp_path / "records")
    build.build(conftest.options(text_file, vocabulary_directory, output))
    page = tmp_path / "page.html"
    inspect_records.main(
        inspect_records.Options(directory=output, examples=2, recount=True, html=str(page))
    )
    printed = capsys.readouterr().out
    assert "  documents               120\n" in printed
    assert "nats" in printed and "few examples" in printed
    assert "manifest differs" not in printed
    assert printed.count("second segment") == 2 and "«" in printed
    assert page.read_text().count("<article>") == 2
    shutil.rmtree(output)
    with pytest.raises(FileNotFoundError, match="manifest.json"):
        inspect_records.main(inspect_records.Options(directory=output))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return small_records.write(tmp_path_factory.mktemp("small") / "made")


@pytest.fixture
def small(written, tmp_path):
    """A record directory that a test may spoil."""
    return pathlib.Path(shutil.copytree(written, tmp_path / "made"))


def test_strict_fails_where_there_is_something_to_warn_of(small, capsys):
    directory = small
    inspect_records.main(inspect_records.Options(directory=str(directory), strict=True))
    assert "Warnings: none" in capsys.readouterr().out
    with pytest.raises(ValueError, match="(?s)--strict.*168 examples"):
        inspect_records.main(
            inspect_records.Options(directory=str(directory), recount=True, strict=True)
        )


def test_strict_adopts_nothing_that_is_to_be_warned_of(foreign, vocabulary_directory):
    with pytest.raises(ValueError, match="(?s)--strict.*8 examples"):
        inspect_records.adopt(adopting(foreign, vocabulary_directory, strict=True))
    assert not (foreign / records.MANIFEST_FILE).exists()


def changed_manifest(directory, **changes):
    manifest = records.Manifest.load(directory)
    dataclasses.replace(manifest, **changes).save(directory)
    return records.open(directory)


def test_a_recount_finds_figures_that_are_not_those_of_the_records(small):
    directory, vocabulary = small, small_records.vocabulary()
    counted, warnings = inspect_records.recounted(
        changed_manifest(directory, statistics={}), vocabulary
    )
    assert warnings == []
    _, warnings = inspect_records.recounted(
        changed_manifest(directory, statistics=counted.statistics), vocabulary
    )
    assert warnings == []
    wrong = {**counted.statistics, "masked_share": 0.5, "documents": 7}
    recounted, (warning,) = inspect_records.recounted(
        changed_manifest(directory, statistics=wrong), vocabulary
    )
    assert "(masked_share: 0.5, now 0.1" in warning.text
    assert recounted.statistics == {**counted.statistics, "documents": 7}


def test_a_recount_gives_older_records_their_counts(small, tmp_path, capsys):
    shown = inspect_records.Options(directory=str(small), recount=True, examples=0)
    assert records.open(small).contents is None
    inspect_records.main(shown)
    counted = records.open(small).contents
    # The same records, written with what they are made of.
    known = small_records.write(tmp_path / "known", documents=range(5))
    expected = contents.load(known)
    np.testing.assert_array_equal(counted.token_counts, expected.token_counts)
    assert counted.documents is None
    inspect_records.main(dataclasses.replace(shown, directory=str(known)))
    assert contents.load(known) == expected
    assert "tells other counts" not in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["other counts", "cut off"])
def test_a_recount_finds_counts_that_are_not_those_of_the_records(tmp_path, capsys, damage):
    directory = small_records.write(tmp_path / "made", documents=range(5))
    kept = contents.load(directory)
    if damage == "cut off":
        (directory / contents.FILE).write_bytes(b"PK")
    else:
        contents.RecordSummary(kept.token_counts + 1, kept.documents).save(directory)
    before = (directory / contents.FILE).read_bytes()
    inspect_records.main(inspect_records.Options(directory=str(directory), recount=True))
    assert "contents.npz" in capsys.readouterr().out
    assert (directory / contents.FILE).read_bytes() == before


def test_a_recount_says_that_it_could_not_write(small, capsys, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied", "somewhere")

    monkeypatch.setattr(contents.RecordSummary, "save", refused)
    inspect_records.main(inspect_records.Options(directory=str(small), recount=True))
    assert "contents.npz could not be written" in capsys.readouterr().out


def test_a_recount_reads_all_records_and_checksums(small):
    directory, vocabulary = small, small_records.vocabulary()
    shards = records.Manifest.load(directory).shards
    wrong = (dataclasses.replace(shards[0], examples=3), *shards[1:])
    with pytest.raises(ValueError, match=f"{shards[0].file} has 40 examples, the manifest says 3"):
        inspect_records.recounted(changed_manifest(directory, shards=wrong), vocabulary)
    record_set = changed_manifest(directory, shards=shards)
    path = directory / shards[-1].file
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=f"{shards[-1].file} .* is damaged"):
        inspect_records.recounted(record_set, vocabulary)
