import json
import pickle

import numpy as np
import pytest

from bertjax.data import masking
from bertjax.tokenization import tokenizer
from data_pipelines.reports import distinct, losses, statistics
from tests import small_packed

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(35))]
VOCABULARY = tokenizer.WordPieceTokenizer(WORDS)
LINES = [f"line number {number} of the corpus" for number in range(40)]


def corpus_tally(documents, vocabulary=VOCABULARY):
    """A tally of documents: lists of lines; every line is a sentence of as many tokens as words."""
    sizes = [len(line.split()) for document in documents for line in document]
    tokens = np.arange(sum(sizes)) % 10
    lost = losses.LostMarks.of(vocabulary)
    for document in documents if lost else ():
        lost.add("\n".join(document))
    return statistics.CorpusTally.of(
        documents=["\n".join(document) for document in documents],
        sentences_per_document=np.array([len(document) for document in documents]),
        sentence_lengths=np.array(sizes, np.int64),
        tokens=tokens,
        unk_id=7,
        lost=lost,
    )


def test_tokens_of_a_script_without_spaces_are_measured_in_characters():
    for lines, figure, value in (
        (["日本語の文", "ไม่มีช่องว่าง word"], "characters_per_token", 24 / 3),
        (["한국어 문장", "हिन्दी में"], "tokens_per_word", 1.0),
        (["mostly English with 漢字 in it"], "tokens_per_word", 1.0),
    ):
        figures = corpus_tally([lines]).statistics()
        assert figures[figure] == value
        assert ("tokens_per_word" in figures) != ("characters_per_token" in figures)


@pytest.mark.parametrize("kept", [1, losses.PIECES_KEPT])
def test_words_that_lose_marks_are_counted_with_the_commonest_changes(kept, monkeypatch):
    monkeypatch.setattr(losses, "PIECES_KEPT", kept)
    documents = [["グラフ Graph café", "GRAPH"], ["café 漢字", "plain words alone"], ["क्\u200dष"]]
    merged = corpus_tally(documents[:1]).merged(corpus_tally(documents[1:]))
    again = statistics.CorpusTally.from_json(json.loads(json.dumps(merged.to_json())))
    for tally in (corpus_tally(documents), merged, again):
        figures = tally.statistics()
        assert figures["lost_marks_share"] == 4 / 11  # a CJK character is a word
        assert figures["lost_marks"] == ["café -> cafe", "क्\u200dष -> कष", "グラフ -> クラフ"]
    whole = tokenizer.WordPieceTokenizer(WORDS, normalization="nfc")
    assert "lost_marks_share" not in corpus_tally(documents, whole).statistics()
    cased = corpus_tally(documents, tokenizer.WordPieceTokenizer(WORDS, lowercase=False))
    assert cased.statistics()["lost_marks"] == ["क्\u200dष -> क्ष"]  # the joiner


def test_the_figures_of_a_corpus():
    documents = [LINES[:3], [], LINES[5:6], LINES[:3], ["x", "x y"]]
    found = corpus_tally(documents).statistics()
    assert (found["documents"], found["empty_documents"], found["sentences"]) == (5, 1, 9)
    assert found["tokens"] == found["words"] == 7 * 6 + 3
    assert found["unknown_rate"] == 4 / 45
    assert found["one_sentence_document_share"] == 1 / 4
    assert found["one_line_document_share"] == 1 / 4
    assert found["longest_document_share"] == 18 / 45
    assert found["duplicate_document_share"] == 1 / 4
    assert found["duplicate_line_share"] == 3 / 7  # the two short ones do not count
    assert found["copied_line_share"] == 3 / 9
    assert found["repeated_lines"] == [[line, 2] for line in LINES[:3]]
    assert found["sentences_per_document"]["from"] == [1, 2, 3]
    assert found["sentences_per_document"]["counts"] == [1, 1, 2]
    assert found["sentence_length"]["max"] == 6
    assert found["sentence_length"]["mean"] == 5


def test_copies_of_lines_are_those_that_sort_and_uniq_find():
    rng = np.random.default_rng(1)
    lines = [*LINES, "Yes.", "* * *", "Chapter II", "See also"]
    documents = [list(rng.choice(lines, rng.integers(1, 9))) for _ in range(20)]
    everything = [line for document in documents for line in document]
    copies = 1 - len(set(everything)) / len(everything)
    merged = corpus_tally(documents[:7]).merged(corpus_tally(documents[7:]))
    assert merged.statistics()["copied_line_share"] == pytest.approx(copies)
    again = statistics.CorpusTally.from_json(json.loads(json.dumps(merged.to_json())))
    assert again.statistics() == merged.statistics()


def test_a_corpus_and_examples_without_text_have_figures_without_shares():
    for documents in ([], [[], []]):
        found = corpus_tally(documents).statistics()
        assert found["documents"] == len(documents) and found["tokens"] == 0
        json.dumps(found)
    assert example_tally().statistics(VOCABULARY) == {"examples": 0}


def test_blocks_merged_are_the_whole():
    rng = np.random.default_rng(0)
    documents = [list(rng.choice(LINES, rng.integers(0, 6))) for _ in range(30)]
    merged = statistics.CorpusTally()
    for start in range(0, 30, 10):
        merged = merged.merged(corpus_tally(documents[start : start + 10]))
    whole = corpus_tally(documents)
    # Tokens restart in every block here, and a block names only what repeats within it.
    own = ("unknown_rate", "repeated_lines")
    expected, found = whole.statistics(), merged.statistics()
    assert {k: v for k, v in found.items() if k not in own} == {
        k: v for k, v in expected.items() if k not in own
    }


def test_a_tally_stays_small_whatever_the_corpus(monkeypatch):
    monkeypatch.setattr(distinct, "MAX_HASHES", 1000)
    tally = statistics.CorpusTally()
    for block in range(20):
        lines = [f"line number {block}-{number} of the corpus" for number in range(2000)]
        tally = tally.merged(corpus_tally([lines]))
    assert len(json.dumps(tally.to_json())) < 40_000
    assert tally.statistics()["duplicate_line_share"] < 0.1


def example_batch(rows, seed=0, length=32, predictions=5):
    """Rows with pairs, padding, unknown tokens and static masks."""
    rng = np.random.default_rng(seed)
    input_ids = rng.integers(5, VOCABULARY.vocab_size, (rows, length))
    ends = rng.integers(12, length + 1, rows)
    input_ids[:, 0], input_ids[:, 8] = VOCABULARY.cls_id, VOCABULARY.sep_id
    input_ids[np.arange(rows), ends - 1] = VOCABULARY.sep_id
    input_ids[::3, 3] = VOCABULARY.unk_id
    real = np.arange(length) < ends[:, None]
    input_ids = np.where(real, input_ids, VOCABULARY.pad_id)
    masked = masking.mask_tokens(
        input_ids,
        real.astype(np.int32),
        options=masking.MaskingOptions(max_predictions_per_seq=predictions),
        vocab_size=VOCABULARY.vocab_size,
        mask_id=VOCABULARY.mask_id,
        special_ids=VOCABULARY.special_ids,
        rng=rng,
    )
    return masked | {
        "input_mask": real.astype(np.int32),
        "segment_ids": (real & (np.arange(length) > 8)).astype(np.int32),
        "next_sentence_labels": rng.integers(0, 2, (rows, 1)),
    }


def example_tally(*batches, **changes):
    tally = statistics.ExampleTally(VOCABULARY, **({"max_seq_length": 32} | changes))
    for batch in batches:
        tally.add(batch)
    return tally


def test_the_figures_of_examples_are_those_counted_one_by_one():
    batch = example_batch(200)
    found = example_tally(batch).statistics(VOCABULARY)
    real = batch["input_mask"].sum()
    targets = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0].tolist()
    shown = [
        batch["input_ids"][row, position]
        for row in range(200)
        for position, weight in zip(
            batch["masked_lm_positions"][row], batch["masked_lm_weights"][row], strict=True
        )
        if weight
    ]
    assert found["examples"] == 200
    assert found["fill"] == real / (200 * 32)
    assert found["example_unknown_rate"] == (batch["input_ids"] == 1).sum() / real
    assert found["random_pair_share"] == batch["next_sentence_labels"].mean()
    assert found["first_segment_length"] == 7
    assert found["second_segment_length"] == pytest.approx(real / 200 - 10)
    assert found["masked_tokens"] == len(targets)
    assert found["masked_share"] == len(targets) / real
    assert found["masks_per_example"] == len(targets) / 200
    assert found["masked_as_mask_share"] == shown.count(VOCABULARY.mask_id) / len(targets)
    kept = sum(a == b for a, b in zip(shown, targets, strict=True))
    assert found["masked_kept_share"] == kept / len(targets)
    assert found["full_masks_share"] == (batch["masked_lm_weights"].sum(axis=1) == 5).mean()
    assert found["vocabulary_used_share"] == len(set(targets)) / 35
    shares = {
        token: targets.count(VOCABULARY.vocabulary.index(token)) / len(targets)
        for token, _ in found["most_frequent_tokens"]
    }
    assert dict(found["most_frequent_tokens"]) == shares
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert found["most_frequent_token_share"] == shares[found["most_frequent_token"]]


def test_what_could_be_masked_is_counted_where_no_masks_are_stored():
    batch = example_batch(50)
    dynamic = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
    found = example_tally(dynamic).statistics(VOCABULARY)
    assert "masked_share" not in found and "random_pair_share" not in found
    ordinary = batch["input_ids"][batch["input_ids"] >= 5]
    _, counts = np.unique(ordinary, return_counts=True)
    assert found["unigram_entropy"] == masking.unigram_baseline(counts)[0]
    # Swapped segments are not called random.
    found = example_tally(batch, pair_objective="sop").statistics(VOCABULARY)
    assert "swapped_pair_share" in found and "random_pair_share" not in found


def test_shards_merged_or_read_from_json_are_the_whole():
    batches = [example_batch(20, seed) for seed in range(3)]
    whole = example_tally(*batches).statistics(VOCABULARY)
    merged, read = example_tally(), example_tally()
    for batch in batches:
        merged.merge(pickle.loads(pickle.dumps(example_tally(batch))))
        read.add_json(json.loads(json.dumps(example_tally(batch).to_json())))
    assert merged.statistics(VOCABULARY) == read.statistics(VOCABULARY) == whole


def test_examples_that_share_a_row_are_counted_each():
    packed, apart = small_packed.rows([[9, 6, 5], [20], [3, 4]], 24, most=3, vocab_size=40)
    apart["next_sentence_labels"] = apart["next_sentence_labels"][:, None]
    tallies = [
        statistics.ExampleTally(VOCABULARY, max_seq_length=24, max_sequences_per_row=most)
        for most in (3, 0)
    ]
    tallies[0].add(packed)
    tallies[1].add(apart)
    found, alone = (tally.statistics(VOCABULARY) for tally in tallies)
    assert found.pop("examples") == 3 and alone.pop("examples") == 6
    assert found.pop("fill") == 47 / 72 and alone.pop("fill") == 47 / 144
    assert found.pop("sequences") == 6 and found.pop("sequences_per_row") == 2
    assert found.pop("rows_at_limit_share") == 1 / 3
    assert found == alone


def figures_of(lengths):
    return statistics.length_figures(
        statistics.counted_lengths(lengths), mean=0, largest=int(lengths.max(initial=0))
    )


def test_every_length_falls_into_one_of_few_bins():
    drawn = np.random.default_rng(0).geometric(0.01, 5000) - 1
    figures = figures_of(drawn)
    starts = np.array([*figures["from"], np.inf])
    bins = zip(starts, starts[1:], strict=False)
    expected = [((drawn >= begin) & (drawn < end)).sum() for begin, end in bins]
    assert figures["counts"] == expected and sum(expected) == 5000
    assert figures["median"] == np.median(drawn)
    # Single lengths at first, and few in all; none without lengths.
    figures = figures_of(np.arange(5000))
    assert figures["from"][:8] == list(range(8))
    assert len(figures["from"]) < 48 and sum(figures["counts"]) == 5000
    empty = figures_of(np.zeros(0, np.int64))
    assert (empty["from"], empty["counts"]) == ([], [])


def test_full_examples_have_a_bin_to_themselves():
    for longest in (16, 100, 128, 512):
        counts = np.ones(longest + 1, np.int64)
        figures = statistics.example_length_figures(counts)
        assert figures["from"][0] == 0 and figures["from"][-1] == longest
        assert figures["counts"][-1] == 1 and sum(figures["counts"]) == longest + 1
        assert figures["mean"] == longest / 2
