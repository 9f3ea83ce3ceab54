import json

import numpy as np
import pytest

from data_pipelines.building import blocks, store
from data_pipelines.documents import sources
from data_pipelines.objectives import examples
from data_pipelines.reports import statistics
from tests.data_pipelines import conftest

FILES = (store.TOKENS, store.SENTENCES, store.DOCUMENTS)


def tokenized(corpus, dtype=np.uint16):
    made = examples.Corpus(corpus.tokens.astype(dtype), *arrays(corpus)[1:])
    tally = statistics.CorpusTally(
        documents=made.num_documents, sentences=made.num_sentences, tokens=len(made.tokens)
    )
    log = sources.Log()
    log.problem("unparsable_pages", f"page of {made.num_documents} documents")
    return blocks.TokenizedBlock(made, tally, log)


def arrays(corpus):
    return corpus.tokens, corpus.sentence_starts, corpus.document_starts


def assert_equal(one, other):
    for mine, others in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(mine, others)


@pytest.fixture
def parts(numbered_corpus):
    """Four consecutive blocks of the numbered corpus; the third is without any text."""
    ends = (0, 7, 40, 40, 60)
    return [
        store.block_of(numbered_corpus, first, last)[0]
        for first, last in zip(ends, ends[1:], strict=False)
    ]


@pytest.fixture
def filled(tmp_path, parts):
    kept = store.Store(tmp_path, token_dtype=np.dtype(np.uint16))
    for number, part in enumerate(parts):
        kept.append(f"digest {number}", tokenized(part))
    return kept


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_what_was_appended_block_by_block_is_the_corpus(tmp_path, parts, numbered_corpus, dtype):
    token_dtype = np.dtype(dtype)
    kept = store.Store(tmp_path, token_dtype=token_dtype)
    corpus = store.open_corpus(tmp_path, token_dtype)
    assert (
        corpus.num_documents == corpus.num_sentences == len(corpus.tokens) == kept.end.tokens == 0
    )
    assert kept.block_documents() == (0,)
    for number, part in enumerate(parts):
        # Opened anew each time, as after a build that was killed.
        kept = store.Store(tmp_path, token_dtype=token_dtype)
        assert len(kept.blocks) == number
        kept.append(str(number), tokenized(part, dtype))
    corpus = store.open_corpus(tmp_path, token_dtype)
    assert corpus.tokens.dtype == dtype
    assert_equal(corpus, numbered_corpus)
    assert kept.block_documents() == (0, 7, 40, 40, 60)
    for part, first, last in zip(parts, (0, 7, 40, 40), (7, 40, 40, 60), strict=True):
        block, first_token = store.block_of(corpus, first, last)
        assert_equal(block, part)
        begin = numbered_corpus.sentence_starts[numbered_corpus.document_starts[first]]
        assert first_token == begin


def test_large_ids_keep_their_value(tmp_path):
    corpus = conftest.corpus_of([[[3, 2**16, 2**30]]])
    kept = store.Store(tmp_path, token_dtype=np.dtype(np.uint32))
    kept.append("digest", tokenized(corpus, np.uint32))
    assert store.open_corpus(tmp_path, np.dtype(np.uint32)).tokens.tolist() == [3, 2**16, 2**30]
    small = store.Store(tmp_path / "small", token_dtype=np.dtype(np.uint16))
    with pytest.raises(TypeError, match="safe"):
        small.append("digest", tokenized(corpus, np.uint32))


def test_the_summary_is_of_all_blocks_and_survives_reopening(tmp_path, filled, numbered_corpus):
    for kept in (filled, store.Store(tmp_path, token_dtype=np.dtype(np.uint16))):
        tally, log = kept.summary()
        sizes = (numbered_corpus.num_documents, numbered_corpus.num_sentences)
        assert (tally.documents, tally.sentences) == sizes
        assert tally.tokens == len(numbered_corpus.tokens)
        assert log.counts == {"unparsable_pages": 4}
        assert log.first_places["unparsable_pages"][0] == "page of 7 documents"


def test_a_journal_that_outlived_its_data_is_not_believed(tmp_path, filled, parts):
    for name in FILES:
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-1])
        reopened = store.Store(tmp_path, token_dtype=np.dtype(np.uint16))
        # The third is empty, so that it has no data to lose.
        assert [block.digest for block in reopened.blocks] == ["digest 0", "digest 1", "digest 2"]
        reopened.append("digest 3", tokenized(parts[3]))
        assert reopened.blocks == filled.blocks
        lines = (tmp_path / store.JOURNAL_FILE).read_text().splitlines()
        assert [json.loads(line)["digest"] for line in lines] == [f"digest {n}" for n in range(4)]


@pytest.mark.parametrize("name", [*FILES, store.JOURNAL_FILE])
def test_from_a_changed_byte_on_blocks_are_made_again_and_the_place_is_named(
    tmp_path, filled, parts, caplog, name
):
    path, first = tmp_path / name, filled.blocks[0]
    data = bytearray(path.read_bytes())
    # The first byte that belongs to the second block.
    itemsize = {store.TOKENS: 2}.get(name, 8)
    place = {
        store.TOKENS: first.tokens * itemsize,
        store.SENTENCES: (first.sentences + 1) * itemsize,
        store.DOCUMENTS: (first.documents + 1) * itemsize,
        store.JOURNAL_FILE: first.journal_bytes,
    }[name]
    data[place] ^= 1
    path.write_bytes(data)
    again = store.Store(tmp_path, token_dtype=np.dtype(np.uint16))
    assert again.blocks == [first]
    assert f"{tmp_path / store.JOURNAL_FILE}:2" in caplog.text
    for number, part in enumerate(parts[1:], start=1):
        again.append(f"digest {number}", tokenized(part))
    assert again.blocks == filled.blocks
