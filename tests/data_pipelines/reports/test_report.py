import dataclasses
import types

import numpy as np

from bertjax.data import records
from bertjax.tokenization import tokenizer
from data_pipelines.reports import report
from tests import small_byte_bpe, small_records

ENTRIES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "the", "cat", "dog"]
VOCABULARY = tokenizer.WordPieceTokenizer(ENTRIES)
PLAY, ING, THE, CAT, DOG = range(5, 10)
CLS, SEP, MASK = VOCABULARY.cls_id, VOCABULARY.sep_id, VOCABULARY.mask_id

SIZES = {"max_seq_length": 12, "max_predictions_per_seq": 3}
MANIFEST = small_records.manifest(tokenizer=VOCABULARY.describe(), **SIZES, pair_objective="nsp")


def example(ids, segments, hidden=None, label=0):
    """The features of one row; `hidden` are the original ids by position."""
    places = sorted(hidden or {})
    unused = MANIFEST.max_predictions_per_seq - len(places)
    padding = MANIFEST.max_seq_length - len(ids)
    return {
        "input_ids": np.array(ids + [0] * padding),
        "input_mask": np.array([1] * len(ids) + [0] * padding),
        "segment_ids": np.array(segments + [0] * padding),
        "masked_lm_positions": np.array(places + [0] * unused),
        "masked_lm_ids": np.array([hidden[place] for place in places] + [0] * unused),
        "masked_lm_weights": np.array([1.0] * len(places) + [0.0] * unused),
        "next_sentence_labels": np.array(label),
    }


def test_decoded_text_is_the_original_with_marks_for_what_the_model_sees():
    row = example(
        [CLS, THE, CAT, SEP, PLAY, MASK, DOG, SEP],
        [0, 0, 0, 0, 1, 1, 1, 1],
        {2: CAT, 5: ING, 6: THE},
        label=1,
    )
    found = report.decoded_row(row, MANIFEST, VOCABULARY)
    assert str(found) == "8 tokens, second segment random\n  | the «cat=»\n  | play«ing» «the→dog»"


def test_frames_are_left_out_but_not_what_was_hidden_by_them():
    packed = dataclasses.replace(MANIFEST, pair_objective="none")
    row = example([CLS, THE, SEP, SEP, CAT, SEP], [0] * 6, {2: DOG})
    del row["next_sentence_labels"]
    found = report.decoded_row(row, packed, VOCABULARY)
    assert str(found) == "6 tokens\n  | the «dog→[SEP]» [SEP] cat"


def test_records_without_masks_and_swapped_segments_are_decoded():
    swapped = dataclasses.replace(MANIFEST, pair_objective="sop", max_predictions_per_seq=0)
    row = example([CLS, THE, SEP, CAT, DOG, SEP], [0, 0, 0, 1, 1, 1], label=1)
    row = {name: values for name, values in row.items() if not name.startswith("masked")}
    found = report.decoded_row(row, swapped, VOCABULARY)
    assert str(found) == "6 tokens, second segment swapped\n  | the\n  | cat dog"


def test_pieces_of_sentencepiece_are_joined():
    pieces = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "\u2581play", "ing", "\u2581"]
    continues = np.array([False] * 6 + [True, False])
    vocabulary = types.SimpleNamespace(
        keeps_blanks=False,
        cls_id=2,
        sep_id=3,
        mask_id=4,
        token=pieces.__getitem__,
        continues_word=continues,
    )
    row = example([2, 5, 4, 7, 3], [0] * 5, {2: 6})
    assert str(report.decoded_row(row, MANIFEST, vocabulary)).endswith("| play«ing» \u2581")


def test_the_report_says_each_figure_with_its_unit_and_the_warnings_last():
    statistics = {
        "documents": 1200,
        "empty_documents": 3,
        "sentences": 24_000,
        "sentences_per_document": {"mean": 20.0, "median": 18, "max": 70, "from": [], "counts": []},
        "unknown_rate": 0.08,
        "lost_marks_share": 0.005,
        "lost_marks": ["グラフ -> クラフ", "{é} -> {e}"],
        "characters": 100_000,
        "bytes": 130_000,
        "scripts": [
            {
                "script": "Cyrillic",
                "character_share": 0.9,
                "characters_per_token": 3.5,
                "unknown_rate": 0.001,
                "vocabulary_entries": 7000,
            }
        ],
        "repeated_lines": [["Contents", 7]],
        "reading_problems": {"long_lines": {"count": 4, "first": ["a.txt:3", "b.txt:1"]}},
        "fill": 0.75,
        "random_pair_share": 0.5,
        "forced_random_share": 0.125,
        "unigram_entropy": 6.5,
    }
    found = list(report.lines(dataclasses.replace(MANIFEST, statistics=statistics)))
    text = "\n".join(found)
    assert "documents               1,200, 3 of them empty" in text
    assert "24,000, 20.0 per document (median 18, at most 70)" in text
    assert "characters              100,000, 130,000 bytes of UTF-8" in text
    scripts = "90.00% of the characters, 3.50 per token, 0.100% [UNK], 7,000 entries of the"
    assert f"by a sample)\n  Cyrillic                {scripts} vocabulary" in text
    assert "repeated lines          7 times: Contents" in text
    assert "long lines              4, first: a.txt:3, b.txt:1" in text
    assert "words that lose marks   0.50%, as グラフ -> クラフ, {é} -> {e}" in text
    assert "75.00%, 9.0 of 12 tokens" in text
    assert "50.00%, 12.50% because a chunk was one sentence" in text
    assert "6.5000 nats" in text
    warnings = found[found.index("Warnings: 1") :]
    assert warnings[1].startswith("  ! unknown tokens: 8.0% of the tokens are [UNK]")
    assert all(len(line) <= report.LINE_WIDTH for line in warnings)


def test_the_report_says_which_documents_of_which_corpus_were_taken():
    for split, taken in (
        ("all", "all: none is held out"),
        ("heldout", "split heldout: 2.0% are held out, by a hash of the text"),
    ):
        arguments = {"input": "corpus/*.txt", "heldout_fraction": 0.02, "split": split}
        rows = list(report.lines(dataclasses.replace(MANIFEST, arguments=arguments)))
        assert "  input                   corpus/*.txt" in rows
        assert f"  documents taken         {taken}" in rows


def test_pieces_of_a_byte_level_bpe_are_text():
    known = small_byte_bpe.vocabulary()
    ids = known.encode("they want\nwater 家")
    row = example([known.cls_id, *ids, known.sep_id], [0] * (len(ids) + 2), {})
    shown = str(report.decoded_row(row, MANIFEST, known))
    assert "| they want \u010awater" in shown  # a new line, and parts of characters, by their names
    assert shown.endswith("å®¶")


def test_examples_that_share_a_row_are_decoded_one_by_one(monkeypatch):
    manifest = dataclasses.replace(
        MANIFEST,
        max_sequences_per_row=3,
        shards=(records.Shard("shard", 1, 1),),
        statistics={"sequences": 2, "sequences_per_row": 2.0, "rows_at_limit_share": 0.0},
    )
    row = example(
        [CLS, THE, CAT, SEP, DOG, SEP, CLS, MASK, SEP, MASK, SEP],
        [0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1],
        {2: CAT, 7: PLAY, 9: DOG},
    )
    numbers = np.array([1] * 6 + [2] * 5 + [0])
    row |= {"sequence_ids": numbers, "next_sentence_labels": np.array([0, 1, 0])}
    rows = {name: values[None] for name, values in row.items()}
    monkeypatch.setattr(report, "read_batches", lambda *arguments: iter([rows]))
    shown = [str(one) for one in report.decoded("directory", manifest, VOCABULARY, 1)]
    assert shown == [
        "row 0, example 1 of 2: 6 tokens, second segment next\n  | the «cat=»\n  | dog",
        "row 0, example 2 of 2: 5 tokens, second segment random\n  | «play»\n  | «dog»",
    ]
    told = "\n".join(report.lines(manifest, []))
    assert "rows                    1, several examples in each" in told
    assert "examples                2, 2.0 a row, at most 3" in told
