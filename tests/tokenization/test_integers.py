"""A vocabulary of integers: what it reads and answers, and what it refuses."""

import json

import pytest

from bertjax.tokenization import tokenizer

FIELDS = {"vocab_size": 30, "pad_id": 0, "cls_id": 26, "sep_id": 27, "mask_id": 29}


def saved(directory, **changes):
    directory.mkdir(exist_ok=True)
    fields = {name: value for name, value in (FIELDS | changes).items() if value is not None}
    (directory / "integers.json").write_text(json.dumps(fields))
    return directory


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return tokenizer.load(saved(tmp_path_factory.mktemp("integers")))


def test_ids_are_read_as_they_are_without_padding(vocabulary):
    assert vocabulary.encode(" 5 17\t3 0 0\n") == [5, 17, 3]
    assert vocabulary.encode_with_masks("5 [MASK] 3[MASK]") == [5, 29, 3, 29]
    assert vocabulary.split_at_masks("5 [MASK] 3") == ["5 ", " 3"]
    ids, lengths = vocabulary.encode_flat(["5 6", "", "7"])
    assert ids.tolist() == [5, 6, 7] and lengths.tolist() == [2, 0, 1]
    ids, starts, ends = vocabulary.encode_with_offsets("5  17 0 3")
    assert list(zip(ids, starts, ends, strict=True)) == [(5, 0, 1), (17, 3, 5), (3, 8, 9)]
    assert all(len(each) == 0 for each in vocabulary.encode_with_offsets(""))


def test_answers_are_ids(vocabulary):
    assert vocabulary.decode([5, 26, 3]) == "5 26 3"
    assert [vocabulary.surface(token_id) for token_id in (5, 29)] == ["5", "29"]
    assert [vocabulary.token(token_id) for token_id in (5, 0, 29)] == ["5", "[PAD]", "[MASK]"]
    assert vocabulary.special_ids == (0, 26, 27, 29) and vocabulary.unk_id == -1
    assert not vocabulary.continues_word.any() and len(vocabulary.continues_word) == 30
    assert tokenizer.export_fault(vocabulary) == "it has no tokenizer of integers"


def test_a_saved_vocabulary_is_the_same_and_others_are_not(vocabulary, tmp_path):
    vocabulary.save(tmp_path / "new")
    assert tokenizer.load(tmp_path / "new").describe() == vocabulary.describe()
    vocabulary.save(tmp_path)
    again = tokenizer.load(tmp_path / "integers.json")
    assert again.describe() == vocabulary.describe() and again.special_ids == vocabulary.special_ids
    assert {"kind", "sha256", "vocab_size"} <= vocabulary.describe().keys()
    for changes in ({"vocab_size": 31}, {"pad_id": 1}, {"unk_id": 3}):
        other = tokenizer.load(saved(tmp_path, **changes))
        assert other.describe()["sha256"] != vocabulary.describe()["sha256"]
    assert other.unk_id == 3 and other.special_ids == (0, 3, 26, 27, 29)


def test_what_is_no_vocabulary_is_refused(tmp_path):
    for changes, message in (
        ({"mask_id": None}, "lacks mask_id"),
        ({"bos_id": 2}, "has bos_id, which means nothing"),
        ({"sep_id": 30}, "sep_id is 30; it must be a whole number from 0 to 29"),
        ({"sep_id": 26}, "two roles share one of the ids"),
        ({"vocab_size": "30"}, "vocab_size is '30'"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"pad_id": True}, "pad_id is True"),
    ):
        with pytest.raises(ValueError, match=f"not a vocabulary of integers.*{message}"):
            tokenizer.load(saved(tmp_path, **changes))


def test_what_is_no_id_is_refused(vocabulary):
    for text, message in (
        ("5 Hello 3", "'Hello' is not an id"),
        ("5 30", "the id 30 is not among the 30"),
        ("5 -1", "the id -1 is not among"),
        ("1.5", "'1.5' is not an id"),
    ):
        with pytest.raises(ValueError, match=message):
            vocabulary.encode(text)
