import pytest

from bertjax.data import records
from data_pipelines.reports import health

# What a decent corpus of English books gives.
HEALTHY = {
    "documents": 3000,
    "empty_documents": 0,
    "sentences": 600_000,
    "tokens": 15_000_000,
    "characters": 60_000_000,
    "words": 11_000_000,
    "one_sentence_document_share": 0.01,
    "one_line_document_share": 1.0,
    "sentences_per_document": {"mean": 200.0},
    "longest_document_share": 0.002,
    "unknown_rate": 0.0001,
    "tokens_per_word": 1.3,
    "duplicate_document_share": 0.0,
    "duplicate_line_share": 0.01,
    "repeated_lines": [["All rights reserved.", 12]],
    "sentence_length": {"mean": 25.0},
    "reading_problems": {"invalid_utf8_lines": {"count": 3, "first": ["a.txt:7"]}},
    "forced_random_share": 0.1,
    "dropped_pair_share": 0.0,
    "examples": 1_500_000,
    "fill": 0.92,
    "example_unknown_rate": 0.0001,
    "random_pair_share": 0.55,
    "masked_tokens": 25_000_000,
    "masked_share": 0.149,
    "masked_as_mask_share": 0.8,
    "masked_random_share": 0.1,
    "masked_kept_share": 0.1,
    "full_masks_share": 0.1,
    "unigram_tokens": 25_000_000,
    "most_frequent_token": ",",
    "most_frequent_token_share": 0.05,
    "vocabulary_used_share": 0.8,
}


def judged(statistics, pair_objective="nsp", split="all"):
    return health.warnings(
        statistics,
        max_seq_length=128,
        pair_objective=pair_objective,
        vocab_size=30522,
        masked_lm_prob=0.15,
        split=split,
    )


def test_nothing_is_wrong_with_decent_records():
    assert judged(HEALTHY) == []


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("unknown_tokens", {"unknown_rate": 0.02}, "2.0% of the tokens are [UNK] (too many)"),
        ("unknown_tokens", {"unknown_rate": 0.2}, "hardly this text's"),
        ("unknown_tokens", {"unknown_rate": None, "example_unknown_rate": 0.2}, "20.0%"),
        ("unused_vocabulary", {"vocabulary_used_share": 0.3}, "only 30% of the 30,522"),
        ("tokens_per_word", {"tokens_per_word": 3.4}, "3.4 tokens"),
        ("padding", {"fill": 0.5}, "64 of 128 tokens"),
        ("random_pairs", {"random_pair_share": 0.65}, "10% because a chunk was a single"),
        ("random_pairs", {"random_pair_share": 0.1}, "always answers 'next'"),
        ("forced_random", {"forced_random_share": 0.4}, "40% of the pairs"),
        ("dropped_pairs", {"dropped_pair_share": 0.4}, "40% of the pairs were left out"),
        ("swapped_pairs", {"random_pair_share": None, "swapped_pair_share": 0.9}, "90%"),
        ("duplicate_documents", {"duplicate_document_share": 0.1}, "10.0% of the documents"),
        ("duplicate_lines", {"duplicate_line_share": 0.2}, "'All rights reserved.' 12 times"),
        ("few_documents", {"documents": 3, "reading_problems": {}}, "only 3 documents"),
        ("giant_document", {"longest_document_share": 0.9}, "90% of all tokens"),
        ("empty_documents", {"empty_documents": 900}, "900 of 3,000"),
        ("long_sentences", {"sentence_length": {"mean": 300.0}}, "300 tokens on average"),
        ("short_sentences", {"sentence_length": {"mean": 1.5}}, "1.5 tokens on average"),
        ("few_examples", {"examples": 500}, "500 examples, 2.0 batches of 256"),
        ("frequent_token", {"most_frequent_token_share": 0.3}, "30% of what is to be predicted"),
        ("mask_shares", {"masked_as_mask_share": 1.0, "masked_kept_share": 0.0}, "100% show"),
        ("masked_share", {"masked_share": 0.08, "full_masks_share": 0.9}, "8.0%.*90% of the"),
        (
            "invalid_utf8_lines",
            {"reading_problems": {"invalid_utf8_lines": {"count": 4000, "first": ["a:7", "b:1"]}}},
            "4,000 lines .* skipped.*first: a:7, b:1",
        ),
        (
            "empty_files",
            {"reading_problems": {"empty_files": {"count": 1, "first": ["a.txt"]}}},
            "1 files are empty",
        ),
        (
            "odd_lines",
            {"reading_problems": {"odd_lines": {"count": 5000, "first": ["a.txt"]}}},
            "5,000 odd lines were met",
        ),
    ],
)
def test_each_thing_that_is_off_is_one_warning(name, changes, said):
    found = judged(HEALTHY | changes)
    assert [warning.name for warning in found] == [name]
    pattern = said.replace("[UNK]", r"\[UNK\]").replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=pattern):
        raise ValueError(found[0].text)


@pytest.mark.parametrize(
    "documents",
    [
        {"one_sentence_document_share": 1.0},
        {"one_line_document_share": 1.0, "sentences_per_document": {"mean": 2.5}},
    ],
)
def test_a_blank_line_after_every_line_is_named_as_the_one_cause(documents):
    changes = documents | {"random_pair_share": 1.0, "forced_random_share": 1.0}
    (warning,) = judged(HEALTHY | changes)
    assert warning.name == "blank_lines"
    assert (
        "blank line after every line" in warning.text and "--one_document_per_file" in warning.text
    )
    (packed,) = judged(HEALTHY | changes, pair_objective="none")
    assert "padding" in packed.text and "random" not in packed.text


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_what_nobody_has_counted_is_not_judged(name):
    assert judged({key: value for key, value in HEALTHY.items() if key != name}) == []
    assert judged({}) == []


def test_text_without_spaces_is_not_judged_by_its_words():
    chinese = HEALTHY | {"words": 400_000, "tokens_per_word": 100.0}
    assert judged(chinese) == []


def test_shares_of_few_tokens_are_chance():
    small = {
        "examples": 100,
        "random_pair_share": 0.7,
        "masked_tokens": 100,
        "unigram_tokens": 100,
        "vocabulary_used_share": 0.001,
    }
    odd = {"masked_share": 0.3, "masked_as_mask_share": 0.5}
    assert [warning.name for warning in judged(HEALTHY | small | odd)] == ["few_examples"]


def test_masks_drawn_while_training_are_not_missed():
    manifest = records.Manifest(
        tokenizer={"vocab_size": 30522},
        max_seq_length=128,
        max_predictions_per_seq=0,
        masked_lm_prob=0.15,
        pair_objective="nsp",
        shards=(),
        seed=0,
        arguments={},
        statistics={k: v for k, v in HEALTHY.items() if not k.startswith("masked")},
    )
    assert health.of_manifest(manifest) == []


@pytest.mark.parametrize(
    ("files", "advice"), [(1, ""), (9, ""), (10, "use --one_document_per_file, "), (None, "many")]
)
def test_a_document_for_each_file_is_advised_only_where_there_are_many(files, advice):
    facts = HEALTHY | {"one_sentence_document_share": 0.9, "text_files": files}
    [warning] = judged(facts)
    assert warning.name == "blank_lines" and advice in warning.text
    assert ("one_document_per_file" in warning.text) == bool(advice)


def test_few_documents_do_not_become_fewer_by_our_advice():
    [warning] = judged(HEALTHY | {"documents": 3, "reading_problems": {}, "text_files": 3})
    assert "(without --one_document_per_file)" in warning.text


def test_a_heldout_split_may_be_small():
    small = HEALTHY | {"documents": 3, "examples": 500}
    names = [warning.name for warning in judged(small)]
    assert names == ["few_documents", "few_examples"]
    assert judged(small, split="heldout") == []
