import pickle
import random

import numpy as np
import pytest

from bertjax.tokenization import tokenizer, wordpiece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def known_by(*entries, **options):
    return wordpiece.WordPieceTokenizer([*SPECIALS, *entries], **options)


def pieces(text, known):
    return [known.token(token_id) for token_id in known.encode(text)]


def characters(**options):
    """A vocabulary of single characters, which shows how text is cleaned and split."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZäéıßøσςι博推豈[]!?'.,$`+-°¿"
    letters += "\u2044\ue000\U0001faf6\u0915\u093f\u093e"
    return known_by(*letters, *(f"##{letter}" for letter in letters), **options)


# Source of the cases: google-research/bert, tokenization_test.py; transformers,
# tests/models/bert/test_tokenization_bert.py.
RELEASED = ["want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]


def test_longest_piece_first_or_unknown():
    known = known_by(*RELEASED)
    for text, expected in (
        ("UNwant\u00e9d,running", ["un", "##want", "##ed", ",", "runn", "##ing"]),
        ("unwantedX running", ["[UNK]", "runn", "##ing"]),
        ("[UNK]", ["[UNK]"] * 3),
    ):
        assert pieces(text, known) == expected
    first = len(SPECIALS)
    assert known.encode("unwanted,") == [first + place for place in (4, 1, 2, 7)]


# Every expected text is what the released code (google-research/bert @eedf5716, Python 3.11) makes
# of it with this vocabulary; strip_accents apart from case is not in the released code.
GOLDEN = [
    (" \tHeLLo!how  \n Are yoU?  ", {}, "hello ! how are you ?"),
    (" \tHeLLo!how  \n Are yoU?  ", {"lowercase": False}, "HeLLo ! how Are yoU ?"),
    (" \tHäLLo!how  \n Are yoU?  ", {"strip_accents": False}, "hällo ! how are you ?"),
    ("HäLLo", {"lowercase": False, "strip_accents": True}, "HaLLo"),
    ("HäLLo", {"lowercase": False}, "HäLLo"),
    ("H\u00e9llo", {}, "hello"),
    ("ah\u535a\u63a8zz", {}, "ah 博 推 zz"),
    ("a\n'll !!to?'d of, can't.", {}, "a ' ll ! ! to ? ' d of , can ' t ."),
    ("a$b`c-d+e", {}, "a $ b ` c - d + e"),
    ("¿a°b", {}, "¿ a°b"),  # Punctuation by category, but a symbol only in ASCII.
    ("a\u00a0b\u0005c\u00add", {}, "a bcd"),
    ("\u200e\u200f", {}, ""),
    # Dropped as control characters, although Python's split would split there.
    ("a\x0bb\x0cc\x1cd\x1de\x1ef\x1fg\x85h", {}, "abcdefgh"),
    ("a\x00b\ufffdc\u200dd\ufeffe", {}, "abcde"),
    ("a\u2028b\u2029c\u3000d\u1680e", {}, "a b c d e"),
    # Python's lower() knows the sigma that ends a word.
    ("ΣΙΣ Σ", {}, "σις σ"),
    ("ΣΙΣ!Σ\u535aΣ", {}, "σις ! σ 博 σ"),
    ("İı ẞ Ø", {}, "iı ß ø"),
    ("e\u0301\u0323", {}, "e"),
    ("e\u0301", {"lowercase": False}, "[UNK]"),  # Nothing composes it.
    ("\uf900", {}, "豈"),  # A compatibility character is set apart, then decomposed.
    ("a\uf900b", {"lowercase": False}, "a [UNK] b"),
    ("a\u2044b", {}, "a\u2044b"),  # A mathematical symbol is not punctuation.
    ("a\ue000b", {}, "a\ue000b"),  # Private characters stay.
    ("a\u0378b", {}, "[UNK]"),  # So do those that are not assigned.
    ("a\U0001faf6b", {}, "a\U0001faf6b"),  # Younger than many Unicode tables.
    ("\u0915\u093f\u0902", {}, "\u0915\u093f"),  # A spacing mark stays, another goes.
    ("a\u061db", {}, "a [UNK] b"),  # Punctuation since Unicode 14.
]


def test_text_is_cleaned_and_split_as_released():
    for text, options, expected in GOLDEN:
        known = characters(**options)
        assert known.decode(known.encode(text)) == expected, text


def test_a_word_is_unknown_from_201_characters_on():
    known = known_by("x", "##x")
    assert len(known.encode("x" * 200)) == 200
    assert known.encode("x" * 201) == [known.unk_id]
    assert known.encode("x" * 150 + "!" + "x" * 60)[150] == known.unk_id


def test_a_long_word_is_cut_where_the_vocabulary_says_so(tmp_path):
    letters = ["x", "##x", "##xy", "y", "##y", "y\u0301", "##\u0301"]
    for rules in ({"normalization": "nfc"}, {"lowercase": True}, {"lowercase": False}):
        known = known_by(*letters, cuts_long_words=True, **rules)
        for word in ("xy" * 100, "xy" * 100 + "x", "xy" * 330, "y\u0301x" * 200, "xy" * 20_000):
            whole = "".join(wordpiece.split_words(word, **known.rules))
            parts = [whole[start : start + 200] for start in range(0, len(whole), 200)]
            ids, starts, ends = known.encode_with_offsets(f" {word}, {word}?")
            one = [token_id for part in parts for token_id in known.encode(part)]
            assert ids.tolist() == [*one, known.unk_id] * 2 == known.encode(f"{word}, {word}?")
            assert starts[0] == 1 and ends[len(one) - 1] == 1 + len(word)
            assert (starts[1:] >= ends[:-1]).all()
        # An unknown character takes its part with it, not the rest.
        assert known.encode("x" * 200 + "z" + "x" * 300) == [
            *known.encode("x" * 200), known.unk_id, *known.encode("x" * 101)
        ]  # fmt: skip
        known.save(tmp_path)
        assert tokenizer.load(tmp_path).describe() == known.describe()
        assert pickle.loads(pickle.dumps(known)).describe() == known.describe()
        assert known.describe()["cuts_long_words"] is True
        assert known.describe()["sha256"] != known_by(*letters, **rules).describe()["sha256"]


def nasty_texts(seed: int, number: int, more: str = "") -> list[str]:
    rng = random.Random(seed)
    pool = [chr(rng.randrange(0x110000)) for _ in range(60)]
    pool += [chr(rng.randrange(0x3000)) for _ in range(200)]
    pool += list(" \t\n\x0b\x1c\x85\u2028\u0301.,aAé\u03a3\u535a\ufffd") * 12
    pool += list(more) * 20
    return ["".join(rng.choices(pool, k=rng.randrange(25))) for _ in range(number)]


def without_cache(text, known):
    words = wordpiece.split_words(
        text, lowercase=known.lowercase, strip_accents=known.strip_accents
    )
    return [token_id for word in words for token_id in known.pieces(word)]


@pytest.mark.parametrize("options", [{}, {"lowercase": False}, {"strip_accents": False}], ids=str)
def test_chunks_kept_or_forgotten_give_the_ids_of_whole_texts(monkeypatch, options):
    texts = ["", " \n", *nasty_texts(seed=1, number=200)]
    expected = [without_cache(text, characters(**options)) for text in texts]
    for remembered, window in ((2**21, 2**18), (100, 50), (0, 1)):
        monkeypatch.setattr(wordpiece, "MAX_REMEMBERED", remembered)
        monkeypatch.setattr(wordpiece, "WINDOW_CHARACTERS", window)
        known = characters(**options)
        for _ in range(2):
            ids, lengths = known.encode_flat(texts)
            assert ids.dtype == lengths.dtype == np.int32
            assert ids.tolist() == [token_id for text in expected for token_id in text]
            assert lengths.tolist() == [len(text) for text in expected]
        assert known.encode_batch(texts) == expected
        assert [known.encode(text) for text in texts[:50]] == expected[:50]
        assert known.encode_flat([])[0].shape == (0,)
        # Memory is bounded: a text is not divided.
        assert len(known._chunks._ids) <= remembered + window + 150


@pytest.mark.slow
def test_every_character_stands_alone_or_inside_a_word_as_in_whole_texts():
    # Neighbours may only matter within a chunk: all white space and dropped controls are in here.
    known = characters()
    code_points = [*range(0x3100), *range(0x3100, 0x110000, 997)]
    texts = [f"a{chr(code)}b {chr(code)} Σ{chr(code)}" for code in code_points]
    assert known.encode_batch(texts) == [without_cache(text, known) for text in texts]


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({}, 2**17),
        ({"lowercase": False}, 3),
        ({"strip_accents": False}, 2**17),
        ({"lowercase": False, "strip_accents": True}, 3),
    ],
    ids=str,
)
def test_offsets_stand_beside_the_same_ids_and_hold_each_word(monkeypatch, options, bound):
    monkeypatch.setattr(wordpiece, "MAX_REMEMBERED_OFFSETS", bound)
    known = characters(**options)
    casing = {"lowercase": known.lowercase, "strip_accents": known.strip_accents}
    hard = "각ﬁ½İ\u0344\U0001d165\u302e\u0301\u0323a".replace("a", "aaΣ") * 2
    for text in [*nasty_texts(seed=2, number=150), *nasty_texts(seed=3, number=60, more=hard)]:
        ids, starts, ends = known.encode_with_offsets(text)
        assert ids.dtype == starts.dtype == ends.dtype == np.int32
        assert ids.tolist() == known.encode(text)
        assert (starts < ends).all()
        place = 0
        for word in wordpiece.split_words(text, **casing):
            last = place + len(known.pieces(word)) - 1
            held = text[starts[place : last + 1].min() : ends[place : last + 1].max()]
            # Cut out, a sigma may end the word that it stood in.
            held = "".join(wordpiece.split_words(held, **casing)).replace("ς", "σ")
            assert held == word.replace("ς", "σ"), (text, word)
            place = last + 1
    assert bound > 3 or len(known._chunk_offsets) < 3 + 25


def test_tokens_hold_their_original_characters():
    for text, options, expected in (
        (" HäLLo  you!\n", {}, ["H", "ä", "L", "L", "o", "y", "o", "u", "!"]),
        ("cafe\u0301 e\u0301x", {}, ["c", "a", "f", "e\u0301", "e\u0301", "x"]),
        ("cafe\u0301!", {"lowercase": False}, ["cafe\u0301", "!"]),  # one [UNK]
        ("a\u200db\u00ad c\x1cd\x0b", {}, ["a", "b", "c", "d"]),
        ("\x05a \x00", {}, ["a"]),
        ("a\u535a\u63a8b", {}, ["a", "\u535a", "\u63a8", "b"]),
        ("İıa", {}, ["İ", "ı", "a"]),  # lower case is "i" and a dot
        ("\u1100각", {"strip_accents": False}, ["\u1100각"]),
        ("", {}, []),
        (" \u0301 ", {}, []),
    ):
        _, starts, ends = characters(**options).encode_with_offsets(text)
        held = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        assert held == expected, text
    known = known_by("\u1100", "##\u1161", "##\u11a8x", "##x")  # a syllable comes apart
    ids, starts, ends = known.encode_with_offsets("x 각x")
    entries = list(map(known.token, ids.tolist()))
    assert entries == ["[UNK]", "\u1100", "##\u1161", "##\u11a8x"]
    assert starts.tolist() == [0, 2, 2, 2] and ends.tolist() == [1, 3, 3, 4]


@pytest.mark.slow
def test_every_character_has_its_offset_as_in_whole_texts():
    known = characters()
    texts = [f"b {chr(code)}a" for code in [*range(0x3100), *range(0xE000, 0x110000, 9973)]]
    for text, expected in zip(texts, known.encode_batch(texts), strict=True):
        ids, starts, ends = known.encode_with_offsets(text)
        assert ids.tolist() == expected
        assert ends[-1] == 4 and text[starts[0]] == "b", text


def test_a_literal_mask_is_text_unless_masks_are_asked_for():
    known = characters()
    assert pieces("[MASK]", known) == ["[", "m", "##a", "##s", "##k", "]"]
    ids = known.encode_with_masks("a [MASK] b[MASK].")
    assert [known.token(token_id) for token_id in ids] == ["a", "[MASK]", "b", "[MASK]", "."]
    assert known.encode_with_masks("[SEP]") == known.encode("[SEP]")
    assert known.encode_with_masks("") == []


def test_special_ids_come_from_the_vocabulary():
    known = wordpiece.WordPieceTokenizer(["a", *reversed(SPECIALS), "b"])
    assert (known.mask_id, known.sep_id, known.cls_id) == (1, 2, 3)
    assert (known.unk_id, known.pad_id) == (4, 5)
    assert known.special_ids == (5, 4, 3, 2, 1)
    assert known.vocab_size == 7


def test_the_hash_tells_entries_order_and_casing_apart():
    variants = [
        known_by("a", "b"),
        known_by("b", "a"),
        known_by("a"),
        known_by("a", "b", lowercase=False),
        known_by("a", "b", strip_accents=False),
    ]
    assert len({known.describe()["sha256"] for known in variants}) == len(variants)
    assert known_by("a", "b").describe() == known_by("a", "b", strip_accents=True).describe()
