from data_pipelines.reports import health
from tests import small_records

# The figures of a decent corpus of English books.
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


def judged(statistics, pair_objective="nsp", split="all", **options):
    return health.warnings(
        statistics,
        max_seq_length=128,
        pair_objective=pair_objective,
        vocab_size=30522,
        masked_lm_prob=0.15,
        split=split,
        options=options,
    )


# The warning for figures that differ from those of HEALTHY.
OFF = (
    ("unknown_tokens", {"unknown_rate": 0.02}),
    ("lost_marks", {"lost_marks_share": 0.31, "lost_marks": ["グラフ -> クラフ"]}),
    ("unknown_tokens", {"unknown_rate": None, "example_unknown_rate": 0.2}),
    ("unused_vocabulary", {"vocabulary_used_share": 0.3}),
    ("tokens_per_word", {"tokens_per_word": 3.4}),
    ("characters_per_token", {"tokens_per_word": None, "characters_per_token": 0.6}),
    ("padding", {"fill": 0.5}),
    ("random_pairs", {"random_pair_share": 0.65}),
    ("random_pairs", {"random_pair_share": 0.1}),
    ("forced_random", {"forced_random_share": 0.4}),
    ("dropped_pairs", {"dropped_pair_share": 0.4}),
    ("swapped_pairs", {"random_pair_share": None, "swapped_pair_share": 0.9}),
    ("duplicate_documents", {"duplicate_document_share": 0.1}),
    ("duplicate_lines", {"duplicate_line_share": 0.2}),
    ("few_documents", {"documents": 3, "reading_problems": {}}),
    ("giant_document", {"longest_document_share": 0.9}),
    ("empty_documents", {"empty_documents": 900}),
    ("long_sentences", {"long_sentence_share": 0.5}),
    ("used_tokens", {"used_token_share": 0.79}),
    ("short_sentences", {"sentence_length": {"mean": 1.5}}),
    ("few_examples", {"examples": 500}),
    ("frequent_token", {"most_frequent_token_share": 0.3}),
    ("mask_shares", {"masked_as_mask_share": 1.0, "masked_kept_share": 0.0}),
    ("masked_share", {"masked_share": 0.08, "full_masks_share": 0.9}),
    ("long_words", {"masked_share": 0.08}),
    ("long_words", {"masked_share": 0.0, "masked_tokens": 0}),
    ("empty_files", {"reading_problems": {"empty_files": {"count": 1, "first": ["a"]}}}),
    ("odd_lines", {"reading_problems": {"odd_lines": {"count": 5000, "first": ["a"]}}}),
)


def test_each_thing_that_is_off_is_one_warning():
    for name, changes in OFF:
        assert [warning.name for warning in judged(HEALTHY | changes)] == [name]


def test_what_the_options_are_already_is_not_advised():
    blank_lines = ("blank_lines", {"one_sentence_document_share": 1.0})
    advised = set()
    for options in (
        {"pair_objective": "none"},
        {"pair_objective": "none", "packing": "full_sentences", "one_document_per_file": True},
        {"pair_objective": "sop"},
        {"sentence_splitter": "lines"},
    ):
        given = [
            f"--{name}" + ("" if value is True else f"={value}") for name, value in options.items()
        ]
        for name, changes in (*OFF, blank_lines):
            if "pair" in name or "forced" in name:  # Where there are pairs alone.
                continue
            for warning in judged(HEALTHY | changes, **options):
                advised.add(warning.name)
                text = warning.text.replace("(without --one_document_per_file)", "")
                assert not [it for it in given if f"{it} " in text or text.endswith(it)], text
    assert {"few_documents", "blank_lines", "used_tokens", "long_sentences"} <= advised


def test_a_warning_says_figure_place_and_cause():
    (warning,) = judged(HEALTHY | {"masked_share": 0.08, "full_masks_share": 0.9})
    assert "8.0%" in warning.text and "90% of the" in warning.text
    lines = {"invalid_utf8_lines": {"count": 4000, "first": ["a:7", "b:1"]}}
    (warning,) = judged(HEALTHY | {"reading_problems": lines})
    assert "4,000 lines" in warning.text and "first: a:7, b:1" in warning.text


def test_a_blank_line_after_every_line_is_named_as_the_one_cause():
    for documents in (
        {"one_sentence_document_share": 1.0},
        {"one_line_document_share": 1.0, "sentences_per_document": {"mean": 2.5}},
    ):
        changes = documents | {"random_pair_share": 1.0, "forced_random_share": 1.0}
        (warning,) = judged(HEALTHY | changes)
        assert warning.name == "blank_lines" and "blank line after every line" in warning.text
        assert "--one_document_per_file" in warning.text
        (packed,) = judged(HEALTHY | changes, pair_objective="none")
        assert "padding" in packed.text and "random" not in packed.text


def test_decent_records_and_what_nobody_has_counted_are_not_judged():
    assert judged(HEALTHY) == judged({}) == []
    for name in HEALTHY:
        assert judged({key: value for key, value in HEALTHY.items() if key != name}) == []
    # Nor is text without spaces by its words.
    assert judged(HEALTHY | {"words": 400_000, "tokens_per_word": 100.0}) == []


def test_shares_of_few_tokens_are_chance():
    small = {
        "examples": 100,
        "random_pair_share": 0.64,
        "masked_tokens": 100,
        "unigram_tokens": 100,
        "vocabulary_used_share": 0.001,
    }
    odd = {"masked_share": 0.3, "masked_as_mask_share": 0.5}
    assert [warning.name for warning in judged(HEALTHY | small | odd)] == ["few_examples"]
    constant = {"random_pair_share": None, "swapped_pair_share": 0.7}
    names = [warning.name for warning in judged(HEALTHY | small | constant)]
    assert names == ["swapped_pairs", "few_examples"]


def test_masks_drawn_while_training_are_not_missed():
    manifest = small_records.manifest(
        tokenizer={"vocab_size": 30522},
        max_seq_length=128,
        pair_objective="nsp",
        statistics={k: v for k, v in HEALTHY.items() if not k.startswith("masked")},
    )
    assert health.of_manifest(manifest) == []


def test_a_document_for_each_file_is_advised_only_where_there_are_many():
    for files, advice in ((1, ""), (9, ""), (10, "use --one_document_per_file, "), (None, "many")):
        facts = HEALTHY | {"one_sentence_document_share": 0.9, "text_files": files}
        [warning] = judged(facts)
        assert warning.name == "blank_lines" and advice in warning.text
        assert ("one_document_per_file" in warning.text) == bool(advice)
    # Few documents do not become fewer by our advice.
    [warning] = judged(HEALTHY | {"documents": 3, "reading_problems": {}, "text_files": 3})
    assert "(without --one_document_per_file)" in warning.text


def test_pairs_and_batches_are_named_only_where_they_are():
    odd = [{"longest_document_share": 0.9}, {"duplicate_document_share": 0.1}]
    odd += [{"long_sentence_share": 0.5}, {"sentence_length": {"mean": 1.5}}, {"examples": 500}]
    for changes in odd:
        (warning,) = judged(HEALTHY | changes, pair_objective="none")
        words = ("pairs are", "pairs become", "partner", "random segment", "batch")
        assert not [it for it in words if it in warning.text], warning.text


def test_a_problem_of_reading_is_a_warning_once_and_form_feeds_are_none():
    def problem(kind):
        return HEALTHY | {"reading_problems": {kind: {"count": 5000, "first": ["a:1"]}}}

    assert len(judged(problem("control_characters"))) == 1
    assert judged(problem("control_characters"), split="heldout") == []
    assert judged(problem("controls_as_spaces")) == []


def test_a_heldout_split_may_be_small():
    small = HEALTHY | {"documents": 3, "examples": 500}
    names = [warning.name for warning in judged(small)]
    assert names == ["few_documents", "few_examples"]
    assert judged(small, split="heldout") == []
