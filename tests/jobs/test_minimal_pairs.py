"""Claims about minimal pairs as an evaluation set: every row once, and accuracy by group."""

import json

import numpy as np
import pytest

from bertjax.jobs import minimal_pairs
from tests import small_records

PAIRS = [
    ("w1 w2", "w3", "a", "x"),
    ("w4", "w5 w6 w7", "a", "x"),
    (" ".join(["w8"] * 15), "w9", "b", "x"),
    ("w1", "", "c", "y"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    fields = ("sentence_good", "sentence_bad", "UID", "linguistics_term")
    written = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    lines = (json.dumps(dict(zip(fields, pair, strict=True))) for pair in PAIRS)
    written.write_text("\n".join(lines))
    return written


def make(path, rows="each_token_masked", **options):
    options = {"max_length": 24, **options}
    return minimal_pairs.PairSet(path, small_records.vocabulary(), rows=rows, **options)


def rows_of(batches):
    """(record position, tokens of the row, masked place, true id), of rows that are real."""
    found = []
    for batch in batches:
        for row, place in enumerate(batch["record_positions"]):
            assert (place >= 0) == bool(batch["example_weights"][row])
            if place >= 0:
                length = batch["input_mask"][row].sum()
                tokens = batch["input_ids"][row, :length].tolist()
                asked = batch["masked_lm_positions"][row, 0], batch["masked_lm_ids"][row, 0]
                found.append((int(place), tokens, *map(int, asked)))
    return sorted(found)


def test_every_token_of_every_sentence_is_asked_for_once_in_the_order_of_the_file(path):
    known = small_records.vocabulary()
    wanted = []
    for pair in PAIRS:
        for text in pair[:2]:
            ids = known.encode(text)
            for place, token in enumerate(ids):
                hidden = [*ids[:place], known.mask_id, *ids[place + 1 :]]
                tokens = [known.cls_id, *hidden, known.sep_id]
                wanted.append((len(wanted), tokens, place + 1, token))
    assert rows_of(make(path).batches(batch_size=4, rows=None)) == wanted


def test_whole_sentences_are_a_row_each_and_an_empty_one_is_none(path):
    found = rows_of(make(path, rows="whole").batches(batch_size=4, rows=None))
    known = small_records.vocabulary()
    texts = [text for pair in PAIRS for text in pair[:2] if text]
    wanted = [[known.cls_id, *known.encode(text), known.sep_id] for text in texts]
    assert [tokens for _, tokens, *_ in found] == wanted
    # Left to right, [SEP] would be predicted and count.
    found = rows_of(make(path, rows="whole", left_to_right=True).batches(batch_size=4, rows=None))
    assert [tokens for _, tokens, *_ in found] == [tokens[:-1] for tokens in wanted]


def test_texts_with_contexts_are_refused(tmp_path):
    path = tmp_path / "comps.jsonl"
    fields = ("prefix_acceptable", "prefix_unacceptable", "property_phrase")
    path.write_text(json.dumps(dict.fromkeys(fields, "w1")))
    with pytest.raises(ValueError, match="config.evaluation.pairs_file .* have contexts"):
        make(path)


def test_hosts_read_the_rows_of_their_devices(path):
    pairs = make(path)
    whole = list(pairs.batches(batch_size=4, rows=None))
    halves = [list(pairs.batches(batch_size=4, rows=rows)) for rows in (range(2), range(2, 4))]
    for batch, first, second in zip(whole, *halves, strict=True):
        for name, values in batch.items():
            np.testing.assert_array_equal(values, np.concatenate([first[name], second[name]]))


def test_the_likelier_sentence_wins_and_paradigms_count_the_same(path):
    pairs = make(path, rows="whole")
    # Rows: a good, a bad, a good, a bad, b good, b bad, c good; c's bad one has no tokens, so 0.
    found = pairs.scores({"log_likelihood": np.array([-1, -2, -5, -4, -9, -1, -3], np.float32)})
    assert found == {
        "accuracy": pytest.approx((0.5 + 0 + 0) / 3),
        "ties": 0.0,
        "chance": 0.5,
        "accuracy_x": 0.25,
        "accuracy_y": 0.0,
    }
    # The first ones of each paradigm are taken.
    assert [pair.paradigm for pair in make(path, most_of_paradigm=1).pairs] == ["a", "b", "c"]


def test_pairs_of_the_same_tokens_are_told(path, tmp_path, caplog):
    make(path)
    assert not caplog.messages
    same = tmp_path / "same.jsonl"
    same.write_text('{"sentence_good": "w1 unknown", "sentence_bad": "w1 unheard"}')
    make(same)
    assert "1 of 1 pairs" in caplog.text and "same tokens" in caplog.text


def test_a_sentence_that_is_too_long_is_named(path):
    with pytest.raises(ValueError, match=r"pairs\.jsonl: 'w8 w8.* has 17 tokens .*at most 16"):
        make(path, max_length=16)
