"""Claims about the rules for a text: nothing is lost, one word has one form, places are right."""

import json
import random
import unicodedata

import pytest

from bertjax.tokenization import byte_bpe, normalization, offsets, sentence_piece, tokenizer
from tests import small_byte_bpe
from tests.tokenization import test_sentence_piece

# Letters with marks before and after composition, Hangul, an Indic vowel of two parts, wide and
# narrow forms, CJK, joiners, and what is invisible.
POOL = [
    *"aBé \n\u3000がｶﾞﬁ①博!",
    *("\u0301", "\u0323", "\u1100", "\u1161", "\u11a8", "각", "\u09c7", "\u09be", "\u0928\u093c"),
    *("\u200c", "\u200d", "\u200b", "\u00ad", "\ufeff", "\x00", "\x0c", "\u0600", "\u00b4"),
]


def drawn(count):
    rng = random.Random(0)
    return ["".join(rng.choices(POOL, k=rng.randrange(1, 16))) for _ in range(count)]


def tokenizers_of(name):
    characters = {c for one in POOL for c in unicodedata.normalize("NFKC", one) + one}
    letters = sorted(c for c in characters if c.strip())
    entries = [*(f"[{role}]" for role in ("PAD", "UNK", "CLS", "SEP", "MASK")), *letters]
    entries += [f"##{letter}" for letter in letters]
    model = test_sentence_piece.model(
        **test_sentence_piece.BERT, normalization_rule_name=sentence_piece.IDENTITY
    )
    plain = small_byte_bpe.vocabulary()
    return (
        tokenizer.WordPieceTokenizer(entries, normalization=name),
        sentence_piece.SentencePieceTokenizer(model, normalization=name),
        byte_bpe.ByteBpeTokenizer(plain.vocabulary, plain.merges, normalization=name),
    )


def test_places_are_those_of_the_characters_that_a_form_makes():
    for name in normalization.FORMS:
        for text in drawn(400):
            placed = normalization.placed(name, text)
            assert "".join(one for one, _, _ in placed) == normalization.applied(name, text)
            spans = [(start, end) for _, start, end in placed]
            assert all(0 <= start < end <= len(text) for start, end in spans)
            assert spans == sorted(spans)
    placed = offsets.composed(offsets.placed("xe\u0323\u0301 \u1100\u1161\u11a8"), "NFC")
    assert placed == [("x", 0, 1), ("ẹ", 1, 4), ("\u0301", 1, 4), (" ", 4, 5), ("각", 5, 8)]


@pytest.mark.parametrize("name", normalization.FORMS)
def test_tokens_stand_at_their_characters_and_files_keep_the_rule(tmp_path, name):
    for known in tokenizers_of(name):
        for text in drawn(100):
            ids, starts, ends = known.encode_with_offsets(text)
            assert ids.tolist() == known.encode(text), ascii(text)
            assert (starts <= ends).all() and ends.max(initial=0) <= len(text)
            if name != "none":
                decomposed = unicodedata.normalize("NFD", text)
                assert known.encode(decomposed) == known.encode(text), ascii(text)
        known.save(tmp_path / known.kind)
        again = tokenizer.load(tmp_path / known.kind)
        assert again.describe() == known.describe()
        is_of_bytes = known.kind == "byte_bpe"
        assert known.describe().get("normalization") == (
            None if is_of_bytes and name == "none" else name
        )


def test_joiners_stay_and_what_nobody_sees_goes():
    for name in normalization.FORMS:
        assert normalization.applied(name, "می\u200cخواهم \u200dक्\u200dष") == (
            "می\u200cخواهم \u200dक्\u200dष"
        )
        assert (
            normalization.applied(name, "a\u00ad\ufeff\u202eb\x00\u200bc\x0cd\u0085e") == "ab c d e"
        )
    assert normalization.applied("nfkc", "ｶﾞ①ﬁ") == "ガ1fi"
    assert normalization.applied("nfc", "ｶﾞ①ﬁ") == "ｶﾞ①ﬁ"


def test_rules_that_do_not_go_together_are_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    for fields, message in (
        ({"normalization": "nfd"}, "vocab.txt.*normalization is 'nfd'; known are none, nfc, nfkc"),
        ({"normalization": "nfc", "do_lower_case": True}, "'nfc' keeps both"),
        ({"do_lower_case": True, "lowercase_language": "de"}, "'de'; it must be tr or az"),
        ({"do_lower_case": False, "lowercase_language": "tr"}, "'tr'.*case and accents must go"),
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))
        with pytest.raises(ValueError, match=message):
            tokenizer.load(tmp_path)


def test_the_log_says_by_which_rule_a_bare_vocabulary_is_read(tmp_path, caplog):
    caplog.set_level("INFO", logger="absl")
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    tokenizer.load(path)
    assert "lower-cased and loses its accents" in caplog.text and "do_lower_case" in caplog.text
    caplog.clear()
    tokenizer.load(path, lowercase=False)
    assert not caplog.text
