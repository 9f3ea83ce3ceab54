"""The exact algorithm compared with its rules over lists of words, written slowly and plainly."""

import dataclasses
import pathlib
import random

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from bertjax.data import records
from bertjax.tokenization import wordpiece
from data_pipelines import build
from data_pipelines.building import exact
from tests import small_byte_bpe
from tests.data_pipelines import conftest

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefgh"
VOCABULARY = wordpiece.WordPieceTokenizer([*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS), "."])
OPTIONS = {
    "max_seq_length": 24,
    "dupe_factor": 3,
    "short_seq_prob": 0.1,
    "masked_lm_prob": 0.15,
    "max_predictions_per_seq": 4,
    "do_whole_word_mask": False,
    "random_seed": 12345,
}


def pieces(line):
    """Returns the tokens of words of known letters: the first letter bare, the others with ##."""
    return [c if not place else f"##{c}" for word in line.split() for place, c in enumerate(word)]


def plain_examples(text, options):
    """Returns the examples as (tokens, label, masks), masks being (position, original)."""
    rng = random.Random(options["random_seed"])
    documents = [[pieces(line) for line in part.splitlines()] for part in text.split("\n\n")]
    documents = [document for document in documents if document]
    rng.shuffle(documents)
    made = []
    for _ in range(options["dupe_factor"]):
        for number in range(len(documents)):
            for first, second, label in plain_pairs(documents, number, options, rng):
                tokens = ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
                made.append((*plain_masks(tokens, options, rng), len(first) + 2, label))
    rng.shuffle(made)
    return made


def plain_pairs(documents, number, options, rng):
    room = options["max_seq_length"] - 3
    goal = rng.randint(2, room) if rng.random() < options["short_seq_prob"] else room
    left = list(documents[number])
    while left:
        chunk = [left.pop(0)]
        while left and sum(map(len, chunk)) < goal:
            chunk.append(left.pop(0))
        cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
        first, rest = sum(chunk[:cut], []), chunk[cut:]
        if len(chunk) == 1 or rng.random() < 0.5:
            label, left = 1, rest + left
            draws = 0
            while draws < 10:
                other = rng.randint(0, len(documents) - 1)
                draws = 10 if other != number else draws + 1
            start = rng.randint(0, len(documents[other]) - 1)
            second = list(documents[other][start])
            for sentence in documents[other][start + 1 :]:
                if len(second) < goal - len(first):
                    second += sentence
        else:
            label, second = 0, sum(rest, [])
        while len(first) + len(second) > room:
            longer = first if len(first) > len(second) else second
            longer.pop(0 if rng.random() < 0.5 else -1)
        yield first, second, label


def plain_masks(tokens, options, rng):
    words = []
    for position, token in enumerate(tokens):
        if token in ("[CLS]", "[SEP]"):
            continue
        if options["do_whole_word_mask"] and token.startswith("##") and words:
            words[-1].append(position)
        else:
            words.append([position])
    rng.shuffle(words)
    goal = max(1, round(len(tokens) * options["masked_lm_prob"]))
    goal = min(goal, options["max_predictions_per_seq"])
    masks, masked = {}, list(tokens)
    for word in words:
        if len(masks) + len(word) > goal:
            continue
        for position in word:
            masks[position] = tokens[position]
            if rng.random() < 0.8:
                masked[position] = "[MASK]"
            elif rng.random() >= 0.5:
                masked[position] = rng.choice(VOCABULARY.vocabulary)
    return tokens, masked, sorted(masks.items())


def plain_features(text, options):
    """Returns the arrays [examples, ...] that the plain examples make."""
    ids = {token: number for number, token in enumerate(VOCABULARY.vocabulary)}
    length, count = options["max_seq_length"], options["max_predictions_per_seq"]

    def padded(values, size):
        return [*values, *[0] * (size - len(values))]

    rows = [
        {
            "input_ids": padded([ids[token] for token in masked], length),
            "input_mask": padded([1] * len(tokens), length),
            "segment_ids": padded([0] * size_a + [1] * (len(tokens) - size_a), length),
            "masked_lm_positions": padded([position for position, _ in masks], count),
            "masked_lm_ids": padded([ids[token] for _, token in masks], count),
            "masked_lm_weights": padded([1.0] * len(masks), count),
            "next_sentence_labels": [label],
        }
        for tokens, masked, masks, size_a, label in plain_examples(text, options)
    ]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def made(tmp_path, *texts, vocabulary=VOCABULARY, batch_size=7, **options):
    paths = [tmp_path / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    fields = OPTIONS | options
    mask = "whole_word" if fields.pop("do_whole_word_mask") else "token"
    chosen = conftest.options("", "", "", mask=mask, **fields)
    return dataclasses.replace(exact.batches(paths, vocabulary, chosen), batch_size=batch_size)


def features(examples):
    batches = list(examples)
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def assert_equal(found, expected):
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


WORDS = strategies.text(LETTERS, min_size=1, max_size=4)
SENTENCES = strategies.lists(WORDS, min_size=1, max_size=12).map(" ".join)
DOCUMENTS = strategies.lists(SENTENCES, min_size=1, max_size=10).map("\n".join)
TEXTS = strategies.lists(DOCUMENTS, min_size=1, max_size=6).map("\n\n".join)
CHOICES = {
    "max_seq_length": [5, 6, 9, 24, 40, 140],
    "short_seq_prob": [0.1, 0.9],
    "masked_lm_prob": [0.15, 0.6],
    "max_predictions_per_seq": [1, 4, 20, 150],
    "do_whole_word_mask": [False, True],
    "random_seed": range(1000),
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("texts")


@hypothesis.settings(
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
@hypothesis.given(
    TEXTS,
    strategies.fixed_dictionaries(
        {name: strategies.sampled_from(values) for name, values in CHOICES.items()}
    ),
)
def test_examples_are_those_of_the_plain_rules(folder, text, options):
    options = OPTIONS | options
    examples = made(folder, text + "\n", **options)
    expected = plain_features(text + "\n", options)
    assert_equal(features(examples), expected)
    assert examples.num_examples == len(expected["input_ids"])


def test_the_numbers_of_examples_and_of_lines_at_a_time_change_nothing(tmp_path, monkeypatch):
    text = "ab cd ef\ngh ab\nc\n\nabcd e\nf gh\n\n" * 6
    one = features(made(tmp_path, text, batch_size=1))
    monkeypatch.setattr(exact, "_LINES_PER_BATCH", 3)
    assert_equal(features(made(tmp_path, text, batch_size=1000)), one)


def test_only_blank_lines_end_documents(tmp_path):
    for texts in (
        ("\n\n\na b\nc d\n\n\n\ne\n\n",),
        ("  a b \nc d\n \t\ne",),
        ("a b\r\nc d\r\n\r\ne\r\n",),
        ("a b\nc d\n\n", "e\n"),
        ("a b\nc", " d\n\ne\n"),
        ("a b\nc d\n\u200b\n\u3000\ne",),
    ):
        corpus = made(tmp_path, *texts).corpus
        assert corpus.tokens.tolist() == [5, 6, 7, 8, 9]
        # Where a file ends, the line does, but not the document.
        split = [3] * texts[0].endswith("c")
        assert corpus.sentence_starts.tolist() == [0, 2, *split, 4, 5]
        assert corpus.document_starts.tolist() == [0, 2 + len(split), 3 + len(split)]
    # Carriage returns are dropped within words too.
    assert made(tmp_path, "a\rb\n").corpus.tokens.tolist() == [5, 14]  # a ##b
    # A single document is its own partner.
    assert features(made(tmp_path, "a b\nc d\n"))["next_sentence_labels"].any()


def test_files_that_cannot_be_read_are_refused_by_their_names(tmp_path, vocabulary_directory):
    with pytest.raises(ValueError, match=r"1\.txt is not UTF-8 in line 3 \(invalid start byte\)"):
        made(tmp_path, "a b\n", b"a\n\nb \xff\n")
    for text in ("", "\n\n", "\u200b\n"):
        with pytest.raises(ValueError, match=r"0\.txt, .*1\.txt holds no token"):
            made(tmp_path, text, "")
    (tmp_path / "text.jsonl").write_text('{"text": "One. Two."}')
    places = (tmp_path / "text.jsonl", vocabulary_directory, tmp_path / "out")
    with pytest.raises(ValueError, match=r"text\.jsonl is not a plain text file"):
        build.build(conftest.options(*places, algorithm="exact"))


def test_lines_keep_their_blanks_where_those_are_part_of_the_tokens(tmp_path, monkeypatch):
    known = small_byte_bpe.vocabulary()
    path = tmp_path / "text.txt"
    path.write_text("the runner\nthe other\n\nthe tree\nran\n")
    expected = [*known.encode("the runner the other"), *known.encode("the tree ran")]
    for number in (1, 2, 3, 100):
        monkeypatch.setattr(exact, "_LINES_PER_BATCH", number)
        assert exact._read_corpus([path], known).tokens.tolist() == expected


@hypothesis.settings(deadline=None, derandomize=True, max_examples=100)
@hypothesis.given(
    strategies.integers(1, 1100), strategies.integers(0, 1100), strategies.integers(0, 2**32)
)
@hypothesis.example(64, 64, 0)
@hypothesis.example(1025, 1, 0)
def test_shuffles_and_draws_are_those_of_python(size, front, seed):
    front = min(front, size)
    ours, theirs = random.Random(seed), random.Random(seed)
    items, expected = list(range(size)), list(range(size))
    exact.shuffle(ours, items, front)
    theirs.shuffle(expected)
    assert items[:front] == expected[:front]
    assert exact.below(ours, size) == theirs.randrange(size)
    assert ours.getstate() == theirs.getstate()


def test_documents_are_known_by_the_hashes_that_the_fast_builder_gives_them(
    vocabulary_directory, tmp_path, text_file
):
    odd = [" ka lo.\r\nMi\x85ren\x07 tus.\r", "\x07", "\u00ad\u200b", "\t\nVor.\n  ", "vor pe"]
    (tmp_path / "a.txt").write_bytes(("\ufeff" + "\n\n".join(odd)).encode())
    # The released script reads on where a file ends, which makes one document of two texts.
    (tmp_path / "b.txt").write_text("Sha dim.\n\n" + pathlib.Path(text_file).read_text())
    for algorithm in ("exact", "fast"):
        places = (f"{tmp_path}/*.txt", vocabulary_directory, tmp_path / algorithm)
        changes = {"algorithm": algorithm, "sentence_splitter": "lines"}
        build.build(conftest.options(*places, **changes))
    released, fast = (records.open(tmp_path / name) for name in ("exact", "fast"))
    assert released.contents.documents == fast.contents.documents
    assert len(released.contents.documents.hashes) == 124
