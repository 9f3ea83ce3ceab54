import pathlib

import numpy as np
import pytest

from bertjax.data import masking, overlaps, records
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
    masked = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
    counts = np.bincount(masked, minlength=vocabulary.vocab_size)
    contents = records.open(tmp_path / "out").contents
    np.testing.assert_array_equal(contents.token_counts, counts)
    assert len(contents.documents.hashes) == 120


def test_documents_are_known_by_the_hashes_that_the_fast_builder_gives_them(
    vocabulary_directory, tmp_path, text_file
):
    odd = [" ka lo.\r\nMi\x85ren\x07 tus.\r", "\x07", "\u00ad\u200b", "\t\nVor.\n  ", "vor pe"]
    (tmp_path / "a.txt").write_bytes(("\ufeff" + "\n\n".join(odd)).encode())
    # The released script reads on where a file ends, which makes one document of two texts.
    (tmp_path / "b.txt").write_text("Sha dim.\n\n" + pathlib.Path(text_file).read_text())
    made = {}
    for way, split in (("exact", "all"), ("fast", "all"), ("fast", "heldout")):
        name = f"{way}_{split}"
        build.build(
            Options(
                input=f"{tmp_path}/*.txt",
                vocabulary=vocabulary_directory,
                output=str(tmp_path / name),
                max_seq_length=LENGTH,
                dupe_factor=1,
                num_workers=1,
                algorithm=way,
                sentence_splitter="lines",
                split=split,
                heldout_fraction=0.2,
            )
        )
        made[name] = records.open(tmp_path / name)
    exact, fast, held_out = made.values()
    assert exact.contents.documents == fast.contents.documents
    assert len(exact.contents.documents.hashes) == 124
    found = overlaps.find(exact, held_out)
    assert found and found.share == 1


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
