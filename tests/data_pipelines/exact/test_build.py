import numpy as np
import pytest

from bertjax.data import masking
from data_pipelines import build
from data_pipelines.exact import algorithm
from data_pipelines.options import Options
from tests.data_pipelines import decoded

LENGTH = 32


def test_the_program_deals_the_examples_to_the_shards_in_turn(
    vocabulary, vocabulary_directory, tmp_path, text_file
):
    chosen = Options(
        input=text_file,
        vocabulary=vocabulary_directory,
        output=str(tmp_path / "out"),
        max_seq_length=LENGTH,
        dupe_factor=3,
        num_shards=4,
        num_workers=1,
        algorithm="exact",
        do_whole_word_mask=True,
    )
    manifest = build.build(chosen)
    batch = decoded.read(tmp_path / "out")
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


def test_what_is_no_plain_text_is_refused_by_its_name(vocabulary_directory, tmp_path):
    (tmp_path / "text.jsonl").write_text('{"text": "One. Two."}')
    chosen = Options(
        input=str(tmp_path / "text.jsonl"),
        vocabulary=vocabulary_directory,
        output=str(tmp_path / "out"),
        algorithm="exact",
    )
    with pytest.raises(ValueError, match=r"text\.jsonl is not a plain text file"):
        build.build(chosen)
