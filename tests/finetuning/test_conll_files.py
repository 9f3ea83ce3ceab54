"""Tagged files: what is read, what is refused and where, and the way from rows back to words."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from bertjax.data import wordpiece
from bertjax.finetuning import batches, conll_files
from tests import small_byte_bpe

CONLL_2003 = """\
-DOCSTART- -X- -X- O

EU NNP B-NP I-ORG
rejects VBZ B-VP O
German JJ B-NP I-MISC
call NN I-NP O

Peter NNP B-NP I-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- O O

Fischler NNP B-NP I-PER
Vienna NNP B-NP I-LOC
Graz NNP B-NP B-LOC
"""
LETTERS = [*"abcdefghijklmnopqrstuvwxyz"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]
TOKENIZER = wordpiece.WordPieceTokenizer(VOCABULARY, lowercase=True)


@pytest.fixture
def write(tmp_path):
    def write(text, name="train.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def tags(sentences):
    return [sentence.tags for sentence in sentences]


def test_conll_2003_is_read_in_iob2(write):
    sentences = conll_files.read_sentences(write(CONLL_2003))
    assert [sentence.words for sentence in sentences] == [
        ("EU", "rejects", "German", "call"), ("Peter", "Blackburn"), ("Fischler", "Vienna", "Graz"),
    ]  # fmt: skip
    assert tags(sentences) == [
        ("B-ORG", "O", "B-MISC", "O"), ("B-PER", "I-PER"), ("B-PER", "B-LOC", "B-LOC"),
    ]  # fmt: skip
    assert sentences[0].parts_of_speech == ("NNP", "VBZ", "JJ", "NN")
    assert [sentence.document for sentence in sentences] == [1, 1, 2]
    assert [sentence.line for sentence in sentences] == [3, 8, 13]


@pytest.mark.parametrize(
    "text",
    [
        "a\tB-X\nb c\tI-X\n\nd\tO\n",
        "\ufeffa\tB-X\r\nb c\tI-X\r\n \t\r\n\r\nd\tO",
        "\n\na\tB-X\nb c\tI-X\n\t\nd\tO\n\n\n",
    ],
)
def test_tabs_line_ends_and_empty_lines_are_as_people_write_them(write, text):
    sentences = conll_files.read_sentences(write(text))
    assert [sentence.words for sentence in sentences] == [("a", "b c"), ("d",)]
    assert tags(sentences) == [("B-X", "I-X"), ("O",)]


def test_only_spaces_part_columns_and_only_line_feeds_end_lines(write):
    (sentence,) = conll_files.read_sentences(write("a\u00a0b   O\n c\u2028d O \n"))
    assert sentence.words == ("a\u00a0b", "c\u2028d")


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        (None, "a B-X\nb I-X\nc B-X\n"),
        (None, "a I-X\nb I-X\nc B-X\n"),
        (None, "a B-X\nb E-X\nc S-X\n"),
        ("iob1", "a B-X\nb I-X\nc B-X\n"),
    ],
)
def test_every_scheme_comes_out_the_same(write, scheme, text):
    assert tags(conll_files.read_sentences(write(text), scheme=scheme)) == [("B-X", "I-X", "B-X")]


def test_plain_tags_are_taken_as_they_are(write):
    sentences = conll_files.read_sentences(write("EU NNP\n, ,\n"), scheme="plain")
    assert tags(sentences) == [("NNP", ",")]
    assert conll_files.labels(sentences, scheme="plain") == (",", "NNP")


def test_labels_hold_all_tags_of_the_types_that_occur(write):
    sentences = conll_files.read_sentences(write("a I-Y\nb O\nc I-X\n"))
    assert conll_files.labels(sentences) == ("O", "B-X", "I-X", "B-Y", "I-Y")


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("a O\nb O O\n\nc\n", {}, [":2: the line has 3 columns", ":4: the line has 1"]),
        ("a O\n\nb B_X\nc b-X\n", {}, [":3: the tag is 'B_X'", ":4: the tag is 'b-X'"]),
        ("a B-X\nb O\n\nc O\nd I-X\n", {}, [":5: I-X comes after O", "scheme iob1"]),
        ("a E-X\nb O\n", {"scheme": "iob2"}, [":1: the tag is 'E-X'"]),
        ("a\tO\n\tO\n", {}, [":2: the word is empty"]),
        ("\n\na\nb\n", {}, [":3: word and tag are both column 0"]),
        ("\n\n", {}, ["has no words"]),
    ],
)
def test_a_bad_file_is_refused_by_name_and_line(write, text, options, parts):
    path = write(text)
    with pytest.raises(ValueError) as error:
        conll_files.read_sentences(path, **options)
    for part in parts:
        assert (f"{path}{part}" if part.startswith(":") else part) in str(error.value)


def test_an_unknown_tag_is_named_with_its_line(write):
    train, dev = write("a I-X\n"), write("\na O\nb I-NEW\nc O\n", "dev.txt")
    known = conll_files.labels(conll_files.read_sentences(train))
    with pytest.raises(ValueError, match=r"dev\.txt:3: the tag is 'B-NEW'.*O, B-X, I-X"):
        conll_files.tagged_rows(
            conll_files.read_sentences(dev), TOKENIZER, labels=known, max_seq_length=8
        )


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"max_seq_length": 2}, "max_seq_length is 2; it must be at least 3"),
        ({"max_seq_length": 8, "context": "document"}, "has no -DOCSTART-"),
    ],
)
def test_an_option_out_of_range_is_refused(write, options, part):
    sentences = conll_files.read_sentences(write("a O\n"))
    with pytest.raises(ValueError, match=part):
        conll_files.tagged_rows(sentences, TOKENIZER, labels=["O"], **options)


def test_the_first_token_of_a_word_has_its_label(write):
    made = conll_files.tagged_rows(
        conll_files.read_sentences(
            write("abc I-X\n\u0007 O\nd I-X\n")
        ),  # the second word has no tokens at all
        TOKENIZER,
        labels=["O", "B-X", "I-X"],
        max_seq_length=16,
    )
    (ids,), (labels,) = made.tokens["input_ids"], made.tokens["labels"]
    assert [TOKENIZER.token(token) for token in ids.tolist()] == [
        "[CLS]", "a", "##b", "##c", "[UNK]", "d", "[SEP]",
    ]  # fmt: skip
    assert labels.tolist() == [-1, 1, -1, -1, 0, 1, -1]
    assert {values.dtype for values in (ids, labels)} == {np.dtype(np.int32)}


def random_file(rng, *, sentences=20, longest=40):
    """Documents of three sentences, of words of one to five letters."""
    lines = []
    for number in range(sentences):
        lines += ["-DOCSTART- O", ""] if number % 3 == 0 else []
        for _ in range(int(rng.integers(1, longest))):
            word = "".join(rng.choice(LETTERS, int(rng.integers(1, 6))))
            lines.append(f"{word} {rng.choice(['O', 'B-X', 'B-Y'])}")
        lines.append("")
    return "\n".join(lines)


every_context = pytest.mark.parametrize("context", ["sentence", "document"])


@every_context
@pytest.mark.parametrize("max_seq_length", [3, 7, 30, 64, 512])
def test_every_word_is_scored_once_and_comes_back_to_its_place(write, context, max_seq_length):
    sentences = conll_files.read_sentences(
        write(random_file(np.random.default_rng(max_seq_length)))
    )
    labels = conll_files.labels(sentences)
    made = conll_files.tagged_rows(
        sentences, TOKENIZER, labels=labels, max_seq_length=max_seq_length, context=context
    )
    assert made.lengths().max() <= max_seq_length
    row_labels = made.tokens["labels"]
    assert sum((row != -1).sum() for row in row_labels) == sum(len(s.words) for s in sentences)
    assert made.tags(row_labels, labels) == tags(sentences)


@every_context
def test_the_token_at_a_words_place_is_its_first(write, context):
    sentences = conll_files.read_sentences(write(random_file(np.random.default_rng(1))))
    made = conll_files.tagged_rows(
        sentences,
        TOKENIZER,
        labels=conll_files.labels(sentences),
        max_seq_length=24,
        context=context,
    )
    words = [word for sentence in sentences for word in sentence.words]
    for word, row, position in zip(words, made.rows, made.positions, strict=True):
        assert made.tokens["input_ids"][row][position] == VOCABULARY.index(word[0])


def test_a_document_is_read_in_one_and_no_two_documents_are(write):
    sentences = conll_files.read_sentences(write("-DOCSTART- O\na O\n\nb O\n-DOCSTART- O\nc O\n"))
    kinds = {
        context: conll_files.tagged_rows(
            sentences, TOKENIZER, labels=["O"], max_seq_length=16, context=context
        )
        for context in ("sentence", "document")
    }
    decoded = {
        context: [TOKENIZER.decode(row.tolist()) for row in made.tokens["input_ids"]]
        for context, made in kinds.items()
    }
    assert decoded["sentence"] == ["[CLS] a [SEP]", "[CLS] b [SEP]", "[CLS] c [SEP]"]
    assert decoded["document"] == ["[CLS] a b [SEP]", "[CLS] c [SEP]"]


def test_documents_of_two_files_stay_apart(write):
    text = "-DOCSTART- O\na O\n"
    sentences = conll_files.read_sentences(write(text)) + conll_files.read_sentences(
        write(text, "more.txt")
    )
    made = conll_files.tagged_rows(
        sentences, TOKENIZER, labels=["O"], max_seq_length=16, context="document"
    )
    assert len(made) == 2


def test_predictions_out_of_batches_come_back_to_their_words(write):
    sentences = conll_files.read_sentences(write(random_file(np.random.default_rng(2))))
    labels = conll_files.labels(sentences)
    made = conll_files.tagged_rows(sentences, TOKENIZER, labels=labels, max_seq_length=20)
    rows = [np.zeros(0, np.int32)] * len(made)
    for batch in batches.evaluation_batches(made, batch_size=8, buckets=(10, 20)):
        for row, position in zip(batch["labels"], batch["record_positions"], strict=True):
            if position >= 0:
                rows[position] = row
    assert made.tags(rows, labels) == tags(sentences)


def test_words_without_tags_are_scored_nowhere_and_predicted_everywhere(write):
    tagged = conll_files.read_sentences(write("ab O\nc O\n\nd O\n"))
    sentences = [dataclasses.replace(sentence, tags=()) for sentence in tagged]
    made = conll_files.tagged_rows(sentences, TOKENIZER, labels=["O", "B-X"], max_seq_length=8)
    assert all((row == -1).all() for row in made.tokens["labels"])
    ones = [np.ones(8, np.int32)] * 2
    assert made.tags(ones, ["O", "B-X"]) == [("B-X", "B-X"), ("B-X",)]


def test_predictions_are_written_in_the_columns_of_conlleval(write, tmp_path):
    path = tmp_path / "predictions.txt"
    sentences = conll_files.read_sentences(write(CONLL_2003))[:2]
    conll_files.write_predictions(path, sentences, [("O", "O", "B-MISC", "O"), ("B-PER", "O")])
    assert path.read_text() == (
        "EU NNP B-ORG O\nrejects VBZ O O\nGerman JJ B-MISC B-MISC\ncall NN O O\n\n"
        "Peter NNP B-PER B-PER\nBlackburn NNP I-PER O\n\n"
    )
    (sentence,) = conll_files.read_sentences(write("a b\tO\n"))
    conll_files.write_predictions(path, [sentence], [("O",)])
    assert path.read_text() == "a_b _ O O\n\n"


def test_words_have_the_tokens_that_they_have_in_a_text(write):
    path = write("the O\nrunner O\nran O\n, O\nhome O\n")
    sentences = conll_files.read_sentences(path)
    known = small_byte_bpe.vocabulary()
    made = conll_files.tagged_rows(sentences, known, labels=("O",), max_seq_length=64)
    ids = made.tokens["input_ids"][0].tolist()
    assert ids == [known.cls_id, *known.encode(" the runner ran , home"), known.sep_id]
    firsts = [known.surface(ids[place]) for place in made.positions.tolist()]
    assert firsts[:2] == [" the", " runner"] and all(first[0] == " " for first in firsts)


@strategies.composite
def cases(draw):
    """Lengths of words, the tokens of a piece, and the stride."""
    capacity = draw(strategies.integers(1, 20))
    one = strategies.integers(1, capacity)
    lengths = draw(strategies.lists(one, min_size=1, max_size=60))
    return np.array(lengths), capacity, draw(one)


def around(word, first, end, lengths):
    """The tokens on the poorer side of a word in a piece."""
    return min(lengths[first:word].sum(), lengths[word + 1 : end].sum())


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(cases())
def test_every_word_is_scored_once_and_where_it_has_most_around_it(case):
    lengths, capacity, stride = case
    pieces = conll_files.pieces(lengths, capacity, stride)
    scored = np.concatenate([words for _, _, words in pieces])
    assert sorted(scored.tolist()) == list(range(len(lengths)))
    for first, end, words in pieces:
        assert lengths[first:end].sum() <= capacity
        assert ((first <= words) & (words < end)).all()
        for word in words:
            others = [around(word, a, b, lengths) for a, b, _ in pieces if a <= word < b]
            assert around(word, first, end, lengths) == max(others)


def test_what_fits_is_one_piece():
    assert [piece[:2] for piece in conll_files.pieces(np.array([3, 2, 5]), 10, 1)] == [(0, 3)]
    assert len(conll_files.pieces(np.array([3, 2, 5]), 9, 9)) == 2


def test_pieces_overlap_by_what_the_stride_leaves_and_the_last_one_is_full():
    pieces = conll_files.pieces(np.ones(100, int), 40, 10)
    assert [piece[:2] for piece in pieces] == [
        (0, 40), (10, 50), (20, 60), (30, 70), (40, 80), (50, 90), (60, 100),
    ]  # fmt: skip
    assert [piece[:2] for piece in conll_files.pieces(np.ones(50, int), 40, 40)] == [
        (0, 40),
        (10, 50),
    ]


@pytest.mark.parametrize(("capacity", "stride"), [(30, 15), (100, 50)])
def test_half_a_piece_of_stride_leaves_a_quarter_on_both_sides_of_every_word(capacity, stride):
    count = 500
    for first, end, words in conll_files.pieces(np.ones(count, int), capacity, stride):
        inner = words[(words >= capacity // 4) & (words < count - capacity // 4)]
        assert (inner - first >= capacity // 4 - 1).all()
        assert (end - inner >= capacity // 4 - 1).all()


def test_of_two_equal_pieces_the_first_scores_the_word():
    (_, _, first), (_, _, second) = conll_files.pieces(np.ones(7, int), 5, 2)  # 0 to 4 and 2 to 6
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3], [4, 5, 6])
