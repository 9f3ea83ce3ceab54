import dataclasses
import pathlib
import shutil

import numpy as np
import pytest

from bertjax.data import contents, encoding, records
from bertjax.tokenization import tokenizer
from data_pipelines import build, inspect_records
from tests import small_records
from tests.data_pipelines import conftest


def original_record(rng, tf, vocabulary, length=16):
    """One example as create_pretraining_data.py writes it, in its order of features."""
    tokens = rng.integers(5, vocabulary.vocab_size, size=length - 2).tolist()
    ids = [vocabulary.cls_id, *tokens[:8], vocabulary.sep_id, *tokens[9:-1], vocabulary.sep_id]
    ids.append(vocabulary.pad_id)
    hidden = [ids[1], ids[4], 0]
    ids[1] = ids[4] = vocabulary.mask_id
    features = {
        "input_ids": ids,
        "input_mask": [1] * (length - 1) + [0],
        "segment_ids": [0] * 10 + [1] * (length - 11) + [0],
        "masked_lm_positions": [1, 4, 0],
        "masked_lm_ids": hidden,
    }
    example = tf.train.Example()
    for name, values in features.items():
        example.features.feature[name].int64_list.value.extend(values)
    example.features.feature["masked_lm_weights"].float_list.value.extend([1.0, 1.0, 0.0])
    example.features.feature["next_sentence_labels"].int64_list.value.append(int(rng.integers(2)))
    return example.SerializeToString()


@pytest.fixture
def foreign(tmp_path, vocabulary):
    tf, rng = records.import_tensorflow(), np.random.default_rng(0)
    for name, count in (("tf_examples.tfrecord", 5), ("tf_examples.tfrecord1", 3)):
        written = [original_record(rng, tf, vocabulary) for _ in range(count)]
        (tmp_path / name).write_bytes(b"".join(map(encoding.frame, written)))
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
    opened = records.open(foreign)
    assert opened.manifest == manifest
    assert manifest.tokenizer_sha256 == vocabulary.describe()["sha256"]
    assert opened.contents.token_counts.sum() == 16 and opened.contents.documents is None
    assert tokenizer.load(foreign).describe() == vocabulary.describe()
    with pytest.raises(FileExistsError, match="nothing is to adopt"):
        inspect_records.adopt(adopting(foreign, vocabulary_directory))


def test_what_cannot_be_adopted_is_named_and_nothing_is_written(
    foreign, vocabulary, vocabulary_directory, tmp_path_factory
):
    small = tmp_path_factory.mktemp("small")
    tokenizer.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]).save(small)
    empty = tmp_path_factory.mktemp("empty")
    for directory, changes, error, message in (
        (foreign, {"vocabulary": f"{small}/vocab.txt"}, ValueError, "vocabulary has 6 entries"),
        (foreign, {"vocabulary": ""}, ValueError, "--vocabulary"),
        (empty, {}, FileNotFoundError, "--pattern"),
        (foreign, {"strict": True}, ValueError, "(?s)--strict.*8 examples"),
    ):
        with pytest.raises(error, match=message):
            inspect_records.adopt(adopting(directory, vocabulary_directory, **changes))
    rng, tf = np.random.default_rng(1), records.import_tensorflow()
    longer = encoding.frame(original_record(rng, tf, vocabulary, length=20))
    for name, content, message in (
        ("tf_examples.tfrecord1", longer, " does not hold records of max_seq_length 16"),
        ("tf_examples.tfrecord", b"", " "),
        ("tf_examples.tfrecord", b"not records at all, but text", " "),
    ):
        (foreign / name).write_bytes(content)
        with pytest.raises(ValueError, match=name + message):
            inspect_records.adopt(adopting(foreign, vocabulary_directory))
    assert not (foreign / records.MANIFEST_FILE).exists()


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


def changed_manifest(directory, **changes):
    manifest = records.Manifest.load(directory)
    dataclasses.replace(manifest, **changes).save(directory)
    return records.open(directory)


def test_a_recount_finds_figures_that_are_not_those_of_the_records(small):
    vocabulary = small_records.vocabulary()

    def recounted(figures):
        return inspect_records.recounted(changed_manifest(small, statistics=figures), vocabulary)

    counted, warnings = recounted({})
    assert warnings == [] == recounted(counted.statistics)[1]
    again, (warning,) = recounted({**counted.statistics, "masked_share": 0.5, "documents": 7})
    assert "(masked_share: 0.5, now 0.1" in warning.text
    assert again.statistics == {**counted.statistics, "documents": 7}


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


def test_a_recount_finds_counts_that_are_not_those_of_the_records(tmp_path, capsys, monkeypatch):
    directory = small_records.write(tmp_path / "made", documents=range(5))
    options = inspect_records.Options(directory=str(directory), recount=True)
    path, summary = directory / contents.FILE, contents.load(directory)
    contents.RecordSummary(summary.token_counts + 1, summary.documents).save(directory)
    for damaged in (path.read_bytes(), b"PK"):
        path.write_bytes(damaged)
        inspect_records.main(options)
        assert "contents.npz" in capsys.readouterr().out
        assert path.read_bytes() == damaged
    path.unlink()

    def refused(*_):
        raise PermissionError(13, "Permission denied", "somewhere")

    monkeypatch.setattr(contents.RecordSummary, "save", refused)
    inspect_records.main(options)
    assert "contents.npz could not be written" in capsys.readouterr().out


def test_a_recount_reads_all_records_and_checksums(small, capsys):
    shown = inspect_records.Options(directory=str(small), strict=True)
    inspect_records.main(shown)
    assert "Warnings: none" in capsys.readouterr().out
    with pytest.raises(ValueError, match="(?s)--strict.*168 examples"):
        inspect_records.main(dataclasses.replace(shown, recount=True))
    vocabulary = small_records.vocabulary()
    shards = records.Manifest.load(small).shards
    wrong = (dataclasses.replace(shards[0], examples=3), *shards[1:])
    with pytest.raises(ValueError, match=f"{shards[0].file} has 40 examples, the manifest says 3"):
        inspect_records.recounted(changed_manifest(small, shards=wrong), vocabulary)
    record_set = changed_manifest(small, shards=shards)
    path = small / shards[-1].file
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{shards[-1].file} .* is damaged"):
        inspect_records.recounted(record_set, vocabulary)
