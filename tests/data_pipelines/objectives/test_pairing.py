"""Claims that hold for every pair objective."""

import dataclasses

import numpy as np
import pytest

from data_pipelines.building import store
from data_pipelines.objectives import base, sentence_pairs
from tests.data_pipelines import conftest
from tests.data_pipelines.objectives import drafting


def test_one_document_cannot_be_paired_but_one_of_many_can():
    alone = conftest.corpus_of([[[5, 6], [7]]])
    with pytest.raises(ValueError, match="at least 2"):
        drafting.draft(alone, drafting.options())
    with pytest.raises(ValueError, match="pair_objective sop"):
        drafting.draft(alone, drafting.options(pair_objective="sop"))
    drafts = drafting.draft(
        alone, drafting.options(dupe_factor=30), first_document=1, num_documents=3
    )
    assert set(drafts.requests.document) == {0, 2}


def test_blocks_seeds_and_passes_differ_and_repeat(numbered_corpus):
    for objective in ("nsp", "sop", "none"):
        chosen = drafting.options(pair_objective=objective, short_seq_prob=0.5)
        first = drafting.finished(numbered_corpus, chosen)
        np.testing.assert_array_equal(first, drafting.finished(numbered_corpus, chosen))
        twice = drafting.draft(numbered_corpus, dataclasses.replace(chosen, dupe_factor=2)).spans
        once = drafting.draft(numbered_corpus, chosen).spans
        assert not np.array_equal(twice[len(once) :], once)
        for other in (
            drafting.draft(numbered_corpus, dataclasses.replace(chosen, random_seed=4)),
            drafting.draft(numbered_corpus, chosen, index=1),
        ):
            assert not np.array_equal(other.spans, once)


@pytest.mark.parametrize(
    "changes",
    [{}, {"pair_objective": "none"}, {"pair_objective": "none", "packing": "full_sentences"}],
)
def test_a_block_gives_the_same_examples_wherever_it_stands(numbered_corpus, changes):
    chosen = drafting.options(**changes)
    block, first_token = store.block_of(numbered_corpus, 20, 40)
    assert first_token > 0 and block.sentence_starts[0] == 0
    alone = drafting.draft(block, chosen, index=2, first_document=0, num_documents=60)
    inside = drafting.draft(block, chosen, index=2, first_document=20, num_documents=60)
    np.testing.assert_array_equal(alone.spans, inside.spans)
    np.testing.assert_array_equal(alone.requests.place, inside.requests.place)
    segments = base.random_segments(numbered_corpus, inside.requests)
    spans = base.completed(inside, *segments, first_token=first_token)
    own = drafting.document_of(numbered_corpus, spans["begin_a"])
    assert set(own) <= set(range(20, 40))
    is_random = spans["label"] == sentence_pairs.IS_RANDOM
    assert (drafting.document_of(numbered_corpus, spans["begin_b"]) != own)[is_random].all()
    assert drafting.follows(spans)[~is_random & (spans["length_b"] > 0)].all()


def test_a_block_without_any_text_gives_no_examples():
    for changes in (
        {},
        {"balanced_nsp": True},
        {"pair_objective": "sop"},
        {"pair_objective": "none"},
        {"pair_objective": "none", "packing": "full_sentences"},
    ):
        chosen = drafting.options(**changes)
        drafts = drafting.draft(conftest.corpus_of([]), chosen, num_documents=9)
        assert len(drafts.spans) == len(drafts.requests.example) == 0
