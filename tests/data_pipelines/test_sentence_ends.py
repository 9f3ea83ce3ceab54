"""The tokens that end a sentence, which records hold if asked."""

import numpy as np
import pytest

from bertjax.data import record_files, records
from bertjax.tokenization import tokenizer
from data_pipelines import build
from tests.data_pipelines import conftest, test_word_counts


@pytest.mark.parametrize(
    "chosen",
    [
        {"pair_objective": "none"},
        {"pair_objective": "none", "packing": "full_sentences", "count_words": True},
        {"pair_objective": "nsp", "segmenter": "characters"},
    ],
    ids=lambda chosen: "-".join(map(str, chosen.values())),
)
def test_a_row_says_where_sentences_end_and_nothing_else_changes(
    tmp_path, vocabulary_directory, chosen
):
    text = conftest.made_up_text(40)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    for is_asked in (False, True):
        options = {"num_shards": 2, "mask": "none", "sentence_ends": is_asked, **chosen}
        arguments = tmp_path / "text.txt", vocabulary_directory, tmp_path / str(is_asked)
        manifest = build.build(conftest.options(*arguments, **options))
        assert (records.SENTENCES_FEATURE in manifest.features) == is_asked
    before, rows = (parsed(tmp_path / str(it)) for it in (False, True))
    ends = rows.pop("ends_sentence")
    assert all((rows[name] == before[name]).all() for name in before) and len(rows) == len(before)
    # Here each sentence ends with its only full stop.
    vocabulary = tokenizer.load(vocabulary_directory)
    stop = vocabulary.vocabulary.index(".")
    np.testing.assert_array_equal(ends, (rows["input_ids"] == stop).astype(np.int32))
    assert 0.3 < ends.sum(axis=1).mean() < 5


def parsed(directory):
    """All rows with all of their features, as they are stored."""
    record_set = records.open(directory)
    parts = [
        records.parse_batch(serialized, record_set.manifest)
        for path in record_set.shard_paths
        for serialized in record_files.serialized(path).batch(64)
    ]
    return {name: np.concatenate([it[name] for it in parts]) for name in parts[0]}


def test_batches_hold_no_ends_and_integers_have_none(tmp_path, text_file, vocabulary_directory):
    options = {"num_shards": 1, "mask": "none", "sentence_ends": True}
    build.build(conftest.options(text_file, vocabulary_directory, tmp_path / "out", **options))
    assert records.SENTENCES_FEATURE not in test_word_counts.rows_of(tmp_path / "out")
    with pytest.raises(ValueError, match="sentence_ends is True, but algorithm exact only knows"):
        exact = options | {"algorithm": "exact", "mask": "token"}
        build.build(conftest.options(text_file, vocabulary_directory, tmp_path / "no", **exact))
