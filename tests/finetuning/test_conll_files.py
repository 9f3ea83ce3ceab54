"""Tagged files: what is read, what is refused and where, and the way from rows back to words."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from bertjax.finetuning import batches, conll_files
from bertjax.tokenization import wordpiece
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
def read(tmp_path):
    def read(text, name="train.txt", **options):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return conll_files.read_sentences(path, **options)

    return read


def tags(sentences):
    return [sentence.tags for sentence in sentences]


def rows_of(sentences, *, labels=("O",), max_seq_length=16, tokenizer=TOKENIZER, **options):
    return conll_files.tagged_rows(
        sentences, tokenizer, labels=labels, max_seq_length=max_seq_length, **options
    )


def test_conll_2003_is_read_in_iob2_and_written_in_the_columns_of_conlleval(read, tmp_path):
    sentences = read(CONLL_2003)
    assert [sentence.words for sentence in sentences] == [
        ("EU", "rejects", "German", "call"), ("Peter", "Blackburn"), ("Fischler", "Vienna", "Graz"),
    ]  # fmt: skip
    assert tags(sentences) == [
        ("B-ORG", "O", "B-MISC", "O"), ("B-PER", "I-PER"), ("B-PER", "B-LOC", "B-LOC"),
    ]  # fmt: skip
    assert sentences[0].parts_of_speech == ("NNP", "VBZ", "JJ", "NN")
    assert [sentence.document for sentence in sentences] == [1, 1, 2]
    assert [sentence.line for sentence in sentences] == [3, 8, 13]
    path = tmp_path / "predictions.txt"
    conll_files.write_predictions(path, sentences[:2], [("O", "O", "B-MISC", "O"), ("B-PER", "O")])
    assert path.read_text() == (
        "EU NNP B-ORG O\nrejects VBZ O O\nGerman JJ B-MISC B-MISC\ncall NN O O\n\n"
        "Peter NNP B-PER B-PER\nBlackburn NNP I-PER O\n\n"
    )
    conll_files.write_predictions(path, read("a b\tO\n"), [("O",)])
    assert path.read_text() == "a_b _ O O\n\n"


X = ("B-X", "I-X", "B-X")
# The text of a file, options, and its words and tags: lines as people end them, spaces of other
# kinds, every scheme.
READ = [
    ("a\tB-X\nb c\tI-X\n\nd\tO\n", {}, ["a", "b c", "d"], [("B-X", "I-X"), ("O",)]),
    ("\ufeffa\tB-X\r\nb c\tI-X\r\n \t\r\n\r\nd\tO", {}, ["a", "b c", "d"], [X[:2], ("O",)]),
    ("\n\na\tB-X\nb c\tI-X\n\t\nd\tO\n\n\n", {}, ["a", "b c", "d"], [X[:2], ("O",)]),
    ("a\u00a0b   O\n c\u2028d O \n", {}, ["a\u00a0b", "c\u2028d"], [("O", "O")]),
    ("a B-X\nb I-X\nc B-X\n", {}, ["a", "b", "c"], [X]),
    ("a I-X\nb I-X\nc B-X\n", {}, ["a", "b", "c"], [X]),
    ("a B-X\nb E-X\nc S-X\n", {}, ["a", "b", "c"], [X]),
    ("a B-X\nb I-X\nc B-X\n", {"scheme": "iob1"}, ["a", "b", "c"], [X]),
    ("EU NNP\n, ,\n", {"scheme": "plain"}, ["EU", ","], [("NNP", ",")]),
]


def test_lines_spaces_and_schemes_are_read_as_people_write_them(read):
    for text, options, words, wanted in READ:
        sentences = read(text, **options)
        assert [word for it in sentences for word in it.words] == words, text
        assert tags(sentences) == wanted, text


# A sentence of CoNLL-U with a range, an empty node and a word "#", and one of entities.
CONLLU = """\
# newdoc id = a
# sent_id = 1
# text = vámonos al # mar
1-2	vámonos	_	_	_	_	_	_	_	_
1	vamos	ir	VERB	v	_	0	root	_	_
2	nos	yo	PRON	p	_	1	obj	_	SpaceAfter=No
2.1	que	que	SCONJ	c	_	_	_	1:x	_
3	#	#	SYM	s	_	1	x	_	_

# newdoc
1	mar	mar	NOUN	n	_	0	root	_	_
"""


def test_ranges_empty_nodes_and_comments_are_no_words(read):
    first, second = read(CONLLU, scheme="plain")
    assert first.words == ("vamos", "nos", "#") and first.tags == ("VERB", "PRON", "SYM")
    assert first.parts_of_speech == ("v", "p", "s")
    assert second.words == ("mar",) and [first.document, second.document] == [1, 2]
    assert [first.source(place).rpartition(":")[2] for place in range(3)] == ["5", "6", "8"]
    entities = CONLLU.replace("SpaceAfter=No", "B-X").replace("\t_\n", "\tO\n")
    assert tags(read(entities)) == [("O", "B-X", "O"), ("O",)]
    # Comments without numbers of words, in any number of columns.
    for text, words in (
        ("# id = 1\n# a b\nx\tA\n#\tB\n\n#\tA\n", ["x", "#", "#"]),
        ("# id 1 domain=d\nx _ _ A\n\n# _ _ B\n\n#tag NN NN B", ["x", "#", "#tag"]),
        ("# key = 5\n1 x A B\n2 y A B\n\n1 z A B\n", ["x", "y", "z"]),
        ("1 A B\n3 A B\n", ["1", "3"]),
    ):
        found = read(text, scheme="plain")
        assert [word for sentence in found for word in sentence.words] == words, text


def test_labels_hold_all_tags_of_the_types_that_occur_or_the_plain_tags_in_one_spelling(read):
    assert conll_files.labels(read("a I-Y\nb O\nc I-X\n")) == ("O", "B-X", "I-X", "B-Y", "I-Y")
    assert conll_files.labels(read("a B-Ş\nb B-S\u0327\n")) == ("O", "B-Ş", "I-Ş")
    for text, labels in (
        ("EU NNP\n, ,\n", (",", "NNP")),
        ("a\tİSİM\nb\tI\u0307SI\u0307M\n", ("İSİM",)),
    ):
        assert conll_files.labels(read(text, scheme="plain"), scheme="plain") == labels


# The text of a file, options, and what its error names.
FAULTS = [
    ("a O\nb O O\n\nc\n", {}, [":2: the line has 3 columns", ":4: the line has 1"]),
    ("a O\n\nb B_X\nc b-X\n", {}, [":3: the tag is 'B_X'", "plain", ":4: the tag is 'b-X'"]),
    ("a B-X\nb O\n\nc O\nd I-X\n", {}, [":5: I-X comes after O", "scheme iob1"]),
    ("a E-X\nb O\n", {"scheme": "iob2"}, [":1: the tag is 'E-X'"]),
    ("a\tO\n\tO\n", {}, [":2: the word is empty"]),
    ("\n\na\nb\n", {}, [":3: word and tag are both column 0"]),
    ("\n\n", {}, ["has no words"]),
    ("a\tX\nb\t_\n", {"scheme": "plain"}, [":2: the tag is '_': CoNLL-U has it where"]),
    ("a\tO\nb\t_\n", {}, [":2: the tag is '_'; it must be O", "CoNLL-U has it"]),
    ("# a\n1\tx\tX\n1-2\ty\t_\n2\tz\t_\n", {"scheme": "plain"}, [":4: the tag is '_'"]),
    ("a O\n\n#tag\n", {}, [":3: the line has 1 columns"]),
    ("a O\n# b c\n", {}, [":2: the line has 3 columns"]),
]


def test_a_bad_file_is_refused_by_name_and_line(read, tmp_path):
    for text, options, parts in FAULTS:
        with pytest.raises(ValueError) as error:
            read(text, **options)
        for part in parts:
            whole = f"{tmp_path / 'train.txt'}{part}" if part.startswith(":") else part
            assert whole in str(error.value)


def test_an_unknown_tag_and_an_option_out_of_range_are_refused(read):
    known = conll_files.labels(read("a I-X\n"))
    with pytest.raises(ValueError, match=r"dev\.txt:3: the tag is 'B-NEW'.*O, B-X, I-X"):
        rows_of(read("\na O\nb I-NEW\nc O\n", "dev.txt"), labels=known)
    with pytest.raises(ValueError, match="max_seq_length is 2; it must be at least 3"):
        rows_of(read("a O\n"), max_seq_length=2)
    with pytest.raises(ValueError, match="has no -DOCSTART-"):
        rows_of(read("a O\n"), context="document")


def test_the_first_token_of_a_word_has_its_label(read):
    # The second word has no tokens at all.
    sentences = read("abc I-X\n\u0007 O\nd I-X\n")
    made = rows_of(sentences, labels=["O", "B-X", "I-X"])
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


@pytest.mark.parametrize("context", ["sentence", "document"])
def test_every_word_is_scored_once_and_comes_back_to_its_place(read, context):
    for length in (3, 7, 64):
        sentences = read(random_file(np.random.default_rng(length)))
        labels = conll_files.labels(sentences)
        made = rows_of(sentences, labels=labels, max_seq_length=length, context=context)
        assert made.lengths().max() <= length
        row_labels = made.tokens["labels"]
        words = [word for sentence in sentences for word in sentence.words]
        assert sum((row != -1).sum() for row in row_labels) == len(words)
        for word, row, position in zip(words, made.rows, made.positions, strict=True):
            assert made.tokens["input_ids"][row][position] == VOCABULARY.index(word[0])
        assert made.tags(row_labels, labels) == tags(sentences)
        # And out of batches.
        rows = [np.zeros(0, np.int32)] * len(made)
        for batch in batches.evaluation_batches(made, batch_size=8, buckets=(length // 2, length)):
            for row, position in zip(batch["labels"], batch["record_positions"], strict=True):
                if position >= 0:
                    rows[position] = row
        assert made.tags(rows, labels) == tags(sentences)


def test_a_document_is_read_in_one_and_no_two_documents_are(read):
    text = "-DOCSTART- O\na O\n\nb O\n-DOCSTART- O\nc O\n"
    sentences = read(text) + read("-DOCSTART- O\nd O\n", "more.txt")
    wanted = {
        "sentence": [f"[CLS] {word} [SEP]" for word in "abcd"],
        "document": [f"[CLS] {words} [SEP]" for words in ("a b", "c", "d")],
    }
    for context, texts in wanted.items():
        made = rows_of(sentences, context=context)
        assert [TOKENIZER.decode(row.tolist()) for row in made.tokens["input_ids"]] == texts


def test_words_without_tags_are_scored_nowhere_and_predicted_everywhere(read):
    sentences = [dataclasses.replace(it, tags=()) for it in read("ab O\nc O\n\nd O\n")]
    made = rows_of(sentences, labels=["O", "B-X"], max_seq_length=8)
    assert all((row == -1).all() for row in made.tokens["labels"])
    ones = [np.ones(8, np.int32)] * 2
    assert made.tags(ones, ["O", "B-X"]) == [("B-X", "B-X"), ("B-X",)]


def test_words_have_the_tokens_that_they_have_in_a_text(read):
    known = small_byte_bpe.vocabulary()
    sentences = read("the O\nrunner O\nran O\n, O\nhome O\n")
    made = rows_of(sentences, max_seq_length=64, tokenizer=known)
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


def test_pieces_overlap_by_what_the_stride_leaves_and_the_last_one_is_full():
    # Lengths of words, tokens of a piece, stride; where the pieces begin and end.
    for lengths, capacity, stride, wanted in (
        ([3, 2, 5], 10, 1, [(0, 3)]),
        ([3, 2, 5], 9, 9, [(0, 2), (1, 3)]),
        ([1] * 100, 40, 10, [(first, first + 40) for first in range(0, 61, 10)]),
        ([1] * 50, 40, 40, [(0, 40), (10, 50)]),
    ):
        pieces = conll_files.pieces(np.array(lengths), capacity, stride)
        assert [piece[:2] for piece in pieces] == wanted
    # The first of two equal pieces scores the word.
    (_, _, first), (_, _, second) = conll_files.pieces(np.ones(7, int), 5, 2)  # 0 to 4 and 2 to 6
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3], [4, 5, 6])
