"""Records hold, if asked, the words that begin in each row and where sentences end."""

import numpy as np
import pytest

from bertjax.data import records, streams
from bertjax.tokenization import sentence_piece, tokenizer
from data_pipelines import build
from tests import small_byte_bpe
from tests.data_pipelines import conftest, decoded
from tests.tokenization import test_sentence_piece

TEXTS = [
    "don't stop--now, or (perhaps) never.",
    " a  b\u00a0c\td  ",
    "ein\u3000Wort\u2028noch eins",
    *("", "   ", "lonely"),
    "我来到北京。 清华大学",
]


TOKENIZERS = {
    "wordpiece": lambda: tokenizer.WordPieceTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdon't(),.", "##ely", "##to", "lon"]
    ),
    "bytes": small_byte_bpe.vocabulary,
    "bytes behind a blank": lambda: small_byte_bpe.vocabulary(add_prefix_space=True),
    "unigram": lambda: sentence_piece.SentencePieceTokenizer(
        test_sentence_piece.model(**test_sentence_piece.BERT)
    ),
}


def first_reaching(text: str, ends: np.ndarray) -> set[int]:
    """The first token that reaches into each word of a text."""
    found, place = set(), 0
    for word in text.split():
        place = text.index(word, place)
        found.add(next(number for number, end in enumerate(ends) if end > place))
        place += len(word)
    return found


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_token_begins_a_word_if_it_is_the_first_to_reach_into_it(name):
    vocabulary = TOKENIZERS[name]()
    ids, lengths, begins = vocabulary.encode_with_words(TEXTS)
    assert ids.tolist() == vocabulary.encode_flat(TEXTS)[0].tolist()
    parts = np.split(begins, np.cumsum(lengths)[:-1])
    for text, part in zip(TEXTS, parts, strict=True):
        assert part.sum() == len(text.split()), text
        _, starts, ends = vocabulary.encode_with_offsets(text)
        # A word may begin with the blank before it, where that is a token.
        is_blank = starts == ends
        begun = {number + int(is_blank[number]) for number in np.flatnonzero(part).tolist()}
        assert begun == first_reaching(text, ends), text


def rows_of(directory) -> dict[str, np.ndarray]:
    """All rows of the records of a directory."""
    batches = list(streams.evaluation_batches(records.open(directory), batch_size=1))
    return {name: np.concatenate([it[name] for it in batches]) for name in batches[0]}


@pytest.mark.parametrize(
    "chosen",
    [
        {"pair_objective": "none", "packing": "full_sentences", "mask": "none"},
        {"pair_objective": "sop", "packing": "best_fit", "mask": "none", "dupe_factor": 2},
        {"mask": "whole_word", "segmenter": "characters"},
    ],
    ids=lambda chosen: "-".join(map(str, chosen.values())),
)
def test_a_row_counts_its_words_says_where_sentences_end_and_nothing_else_changes(
    tmp_path, vocabulary_directory, chosen
):
    (tmp_path / "text.txt").write_text(conftest.made_up_text(40), encoding="utf-8")
    for is_asked in (False, True):
        added = {"num_shards": 2, "count_words": is_asked, "sentence_ends": is_asked}
        places = tmp_path / "text.txt", vocabulary_directory, tmp_path / str(is_asked)
        build.build(conftest.options(*places, **added, **chosen))
    before, rows = (decoded.read(tmp_path / name) for name in ("False", "True"))
    counts, ends = rows.pop("word_count"), rows.pop("ends_sentence")
    assert all((rows[name] == before[name]).all() for name in before) and len(rows) == len(before)
    # Here each word is letters, and maybe a full stop; each sentence ends with its only one.
    entries = tokenizer.load(vocabulary_directory).vocabulary
    ids, begins = decoded.restored(rows), np.array([entry.isalpha() for entry in entries])
    assert counts.tolist() == begins[ids].sum(axis=1).tolist() and np.ptp(counts) > 3
    np.testing.assert_array_equal(ends, ids == entries.index("."))
    assert 0.3 < ends.sum(axis=1).mean() < 5
    assert records.SENTENCES_FEATURE not in rows_of(tmp_path / "True")  # no batch holds them


def test_the_words_of_all_rows_are_those_of_the_text(tmp_path, vocabulary_directory):
    text = f"{conftest.made_up_text(9)}\n\n我来。到北京。「学」。大 ka lo。mi\n\nka.lo mi. Ren"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    options = {"pair_objective": "none", "packing": "best_fit", "mask": "none", "num_shards": 1}
    options |= {"max_seq_length": 8, "count_words": True, "dupe_factor": 3}
    arguments = tmp_path / "text.txt", vocabulary_directory, tmp_path / "out"
    build.build(conftest.options(*arguments, **options))
    assert rows_of(tmp_path / "out")["word_count"].sum() == 3 * len(text.split())
