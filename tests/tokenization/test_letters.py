"""Letters and k-mers as vocabularies: proteins and DNA."""

import json

import numpy as np
import pytest

from bertjax.tokenization import letters, library_tokenizer, token_ids, tokenizer
from tests import small_records

ESM2 = letters.ALPHABETS["esm2"]


def made(alphabet, **options):
    return library_tokenizer.of_letters(letters.entries(alphabet, "ACD"), {}, **options)


def test_esm2_has_its_33_letters_and_unknown_ones_are_unknown():
    known = made("esm2")
    assert known.vocab_size == 33 and known.special_ids == (1, 3, 0, 2, 32)
    assert [known.token(i) for i in (4, 23, 28, 31)] == ["L", "C", "O", "<null_1>"]
    assert known.encode("LAGC J") == [4, 5, 6, 23, 3]
    assert known.encode_with_masks("LA<mask>G[MASK]") == [4, 5, 32, 6, 32]
    assert known.decode([4, 5, 6]) == "LAG" and not known.continues_word.any()


def test_kmers_stand_one_after_the_other_and_letters_where_none_fits():
    known = made("dna_6mers", tokenizer_class=token_ids.LIBRARY_CLASS)
    assert known.vocab_size == 4107
    spelled = [known.token(i) for i in known.encode("acgtacGNACGTACG")]
    assert spelled == ["ACGTAC", "G", "N", "ACGTAC", "G"]
    ids, starts, ends = known.encode_with_offsets("acgtac GA")
    assert [known.token(int(i)) for i in ids] == ["ACGTAC", "G", "A"]
    assert (starts.tolist(), ends.tolist()) == ([0, 7, 8], [6, 8, 9])


@pytest.mark.parametrize("alphabet", [letters.TEXT, *letters.ALPHABETS])
@pytest.mark.parametrize("written", ["  1 acAC ac\n  9 a*", "ACACACA", "acacaca**", "1ACACACA *\r"])
def test_a_sequence_is_read_by_the_same_rules_with_every_alphabet(alphabet, written):
    kind = letters.CLASS if alphabet == "esm2" else token_ids.LIBRARY_CLASS
    known = made(alphabet, tokenizer_class=kind)
    assert known.encode(written) == known.encode("ACACACA") != []
    assert letters.cleaned(written) == "ACACACA"
    ids, starts, _ = known.encode_with_offsets(written)
    assert ids.tolist() == known.encode(written)
    assert [written[place].upper() for place in starts] == [known.token(int(i))[0] for i in ids]


def test_a_vocabulary_with_small_letters_or_digits_keeps_them():
    known = library_tokenizer.of_letters(
        ["<cls>", "<pad>", "<eos>", "<unk>", "Ma", "M1", "<mask>"], {}
    )
    assert known.encode("Ma M1") == [4, 5] == known.encode("MaM1*")
    assert letters.cleaned("Ma M1*", known.letters) == "MaM1"


def test_masks_stay_and_letters_without_an_entry_are_counted():
    known = made("esm2")
    assert letters.cleaned("mk<mask>a[MASK] *") == "MK<mask>A[MASK]"
    assert known.encode_with_masks("mk<mask>a[MASK] *") == known.encode_with_masks(
        "MK<mask>A<mask>"
    )
    assert letters.unknown("MKJj*T*", known) == {"J": 2, "*": 1}
    assert letters.table({"J": 2, "*": 1000}) == "'*' 1,000, 'J' 2"
    assert not letters.unknown("MKJ", small_records.vocabulary())


@pytest.mark.parametrize("alphabet", [letters.TEXT, *letters.ALPHABETS])
def test_files_make_the_same_tokenizer(tmp_path, alphabet):
    for kind in (letters.CLASS, token_ids.LIBRARY_CLASS):
        known = made(alphabet, tokenizer_class=kind)
        known.save(tmp_path / kind)
        again = tokenizer.load(tmp_path / kind)
        assert again.describe() == known.describe() and again.vocabulary == known.vocabulary
        assert again.encode("ACCDN") == known.encode("ACCDN")


def test_a_vocab_txt_of_esm2_is_read_by_its_class(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(ESM2))
    names = {"cls_token": "<cls>", "eos_token": "<eos>", "mask_token": "<mask>"}
    config = {"tokenizer_class": letters.CLASS, **names}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    read = tokenizer.load(tmp_path)
    assert read.special_ids == (1, 3, 0, 2, 32) and read.encode("MK") == [20, 15]
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text('{"model_type": "esm"}')
    assert tokenizer.load(tmp_path).describe()["sha256"] == read.describe()["sha256"]
    (tmp_path / "vocab.txt").write_text("\n".join(ESM2[1:]))
    with pytest.raises(ValueError, match="lacks <cls> or <eos>"):
        tokenizer.load(tmp_path)


def test_a_token_of_a_word_level_model_is_a_word():
    assert made("text").continues_word.dtype == np.bool_
    assert not made("text").continues_word.any()
