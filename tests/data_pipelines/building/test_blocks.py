import dataclasses
import json
import pathlib
import pickle

import numpy as np
import pytest

from data_pipelines.building import blocks
from data_pipelines.documents import sources
from tests import small_byte_bpe

# Zero-width: text for the reader of files, nothing for the tokenizer.
NOTHING = "\u200b"


def documents(*texts):
    return [sources.Document(f"file:{number}", text) for number, text in enumerate(texts)]


@pytest.fixture
def how(vocabulary_directory):
    made = blocks.Vocabulary.of(vocabulary_directory, None)
    return blocks.Tokenization(made, sentence_splitter="lines")


def test_blocks_end_with_the_document_that_fills_them(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 10)
    monkeypatch.setattr(blocks, "DOCUMENT_CHARACTERS", 0)
    made = documents("a" * 4, "b" * 6, "c" * 30, "d" * 9)
    assert list(blocks.text_blocks(iter(made))) == [made[:2], made[2:3], made[3:]]
    assert list(blocks.text_blocks(iter(made[:3]))) == [made[:2], made[2:3]]
    assert not list(blocks.text_blocks(iter([])))
    # A block is made before the next document is read.
    stream = iter(made)
    next(blocks.text_blocks(stream))
    assert list(stream) == made[2:]
    # Empty documents fill a block too.
    monkeypatch.setattr(blocks, "DOCUMENT_CHARACTERS", 1)
    assert [len(block) for block in blocks.text_blocks(documents(*[""] * 25))] == [10, 10, 5]


def test_digests_tell_apart_what_gives_other_tokens():
    one = documents("abc", "d")
    others = [
        documents("abc"),
        documents("ab", "cd"),
        documents("d", "abc"),
        [one[0], sources.Document("other name", "d")],
        [one[0], sources.Document("file:1d", "")],
        [one[0], dataclasses.replace(one[1], markup="wikitext")],
    ]
    assert blocks.digest(one) == blocks.digest(documents("abc", "d"))
    assert len({blocks.digest(block) for block in [one, *others]}) == 7
    assert blocks.digest(documents("half a surrogate pair \ud800"))


def test_tokens_and_bytes_are_those_of_the_sentences(how, vocabulary, tmp_path):
    texts = ["Kalo mi.\nRentus.", "привет \u00a0你", "half a pair \ud800"]
    made = blocks.tokenize(documents(*texts), how)
    sentences = [line for text in texts for line in text.split("\n")]
    encoded = [vocabulary.encode(sentence) for sentence in sentences]
    assert made.corpus.tokens.tolist() == [one for ids in encoded for one in ids]
    assert np.diff(made.corpus.sentence_starts).tolist() == [len(ids) for ids in encoded]
    assert made.corpus.document_starts.tolist() == [0, 2, 3, 4]
    assert made.corpus.tokens.dtype == np.uint16
    statistics = made.tally.statistics()
    assert (statistics["documents"], statistics["sentences"]) == (3, 4)
    assert statistics["tokens"] == len(made.corpus.tokens)
    assert statistics["bytes"] == 16 + (12 + 1 + 2 + 3) + (12 + 3)
    path = tmp_path / "integers.json"
    roles = {"pad_id": 25, "cls_id": 26, "sep_id": 27, "mask_id": 28}
    path.write_text(json.dumps({"vocab_size": 30, **roles}))
    integers = blocks.Vocabulary.of(str(path), None)
    rules = blocks.Tokenization(integers, sentence_splitter="rules", longest_sentence=8)
    made = blocks.tokenize(documents("5 17 3 " * 500), rules)
    assert made.tally.tokens == 1500 and "bytes" not in made.tally.statistics()
    assert made.corpus.num_sentences == 1 and made.tally.sentence_cuts == 0
    assert made.tally.script_statistics(integers.load()) == {}


def test_sentences_and_documents_without_tokens_are_dropped_and_counted(how):
    texts = [NOTHING, f"Kalo.\n{NOTHING}\nMi.", NOTHING, "Vor.", NOTHING]
    made, expected = (
        blocks.tokenize(documents(*some), how) for some in (texts, ["Kalo.\nMi.", "Vor."])
    )
    for name in ("tokens", "sentence_starts", "document_starts"):
        np.testing.assert_array_equal(getattr(made.corpus, name), getattr(expected.corpus, name))
    assert made.tally.documents == 5 and made.tally.empty_documents == 3
    for separate in (False, True):
        changed = dataclasses.replace(how, separate_documents=separate)
        empty = blocks.tokenize(documents(NOTHING, NOTHING), changed)
        assert empty.corpus.num_documents == empty.corpus.num_sentences == 0
        assert len(empty.corpus.tokens) == 0 and empty.tally.documents == 2


def test_a_vocabulary_that_changes_while_it_is_used_is_an_error(tmp_path, vocabulary_directory):
    path = tmp_path / "vocab.txt"
    entries = (pathlib.Path(vocabulary_directory) / "vocab.txt").read_text()
    path.write_text(entries)
    made = blocks.Vocabulary.of(str(path), None)
    path.write_text(entries + "another\n")
    with pytest.raises(ValueError, match="changed while it was used"):
        made.load()
    path.write_text(entries)
    assert made.load() is made.load()
    assert pickle.loads(pickle.dumps(made)).load() is made.load()
    # Tokens take two bytes where the vocabulary allows it.
    for size, dtype in ((30522, np.uint16), (2**16, np.uint16), (2**16 + 1, np.uint32)):
        assert blocks.token_dtype(dataclasses.replace(made, vocab_size=size), False) == dtype


def test_groups_are_runs_of_units_of_enough_bytes(monkeypatch):
    monkeypatch.setattr(blocks, "GROUP_BYTES", 10)
    for grouped in ([[4, 6], [30], [0, 3, 9], [1]], [[0, 4, 6], [12], [0, 3, 0]], [[0] * 1000], []):
        sizes = [size for group in grouped for size in group]
        units = [sources.Unit("text", str(place), size) for place, size in enumerate(sizes)]
        groups = blocks.groups(units)
        assert [[unit.bytes for unit in group] for group in groups] == grouped
        assert [unit for group in groups for unit in group] == units


def test_sentences_keep_their_blanks_where_those_are_part_of_the_tokens(tmp_path):
    known = small_byte_bpe.vocabulary()
    known.save(tmp_path)
    how = blocks.Tokenization(blocks.Vocabulary.of(str(tmp_path), None))
    texts = ["The runner ran. The other ran.\nThey want water.", "Under the tree."]
    made = blocks.tokenize(documents(*texts), how).corpus
    first, last = (made.sentence_starts[place] for place in made.document_starts[:2])
    end = made.sentence_starts[made.document_starts[2]]
    assert made.tokens[first:last].tolist() == known.encode(texts[0].replace("\n", " "))
    assert made.tokens[last:end].tolist() == known.encode(texts[1])
    assert made.num_sentences == 4
