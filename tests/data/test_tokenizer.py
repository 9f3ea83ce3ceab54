import json

import pytest

from bertjax.data import tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece(*entries, **options):
    return tokenizer.WordPieceTokenizer([*SPECIALS, *entries], **options)


def pieces(text, known):
    return [known.token(token_id) for token_id in known.encode(text)]


def characters(**options):
    """A vocabulary of single characters, which shows how text is cleaned and split."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZäéı博推[]!?'.,$`+-"
    return wordpiece(*letters, *(f"##{letter}" for letter in letters), **options)


# Source of the cases: google-research/bert, tokenization_test.py; transformers,
# tests/models/bert/test_tokenization_bert.py.
RELEASED = ["want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]


def test_the_released_example_sentence():
    known = wordpiece(*RELEASED)
    text = "UNwant\u00e9d,running"
    assert pieces(text, known) == ["un", "##want", "##ed", ",", "runn", "##ing"]
    first = len(SPECIALS)
    assert known.encode(text) == [first + place for place in (4, 1, 2, 7, 5, 6)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("unwanted running", ["un", "##want", "##ed", "runn", "##ing"]),
        ("unwantedX running", ["[UNK]", "runn", "##ing"]),
        ("[UNK]", ["[UNK]"] * 3),
    ],
)
def test_longest_piece_first_or_unknown(text, expected):
    assert pieces(text, wordpiece(*RELEASED)) == expected


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (" \tHeLLo!how  \n Are yoU?  ", {}, "hello ! how are you ?"),
        (" \tHeLLo!how  \n Are yoU?  ", {"lowercase": False}, "HeLLo ! how Are yoU ?"),
        (" \tHäLLo!how  \n Are yoU?  ", {"strip_accents": False}, "hällo ! how are you ?"),
        ("HäLLo", {"lowercase": False, "strip_accents": True}, "HaLLo"),
        ("H\u00e9llo", {}, "hello"),
        ("ah\u535a\u63a8zz", {}, "ah 博 推 zz"),
        ("a\n'll !!to?'d of, can't.", {}, "a ' ll ! ! to ? ' d of , can ' t ."),
        ("a$b`c-d+e", {}, "a $ b ` c - d + e"),
        ("a\u00a0b\u0005c\u00add", {}, "a bcd"),
        ("\u200e\u200f", {}, ""),
    ],
)
def test_text_is_cleaned_and_split_as_released(text, options, expected):
    known = characters(**options)
    assert known.decode(known.encode(text)) == expected


def test_a_word_is_unknown_from_201_characters_on():
    known = wordpiece("x", "##x")
    assert len(known.encode("x" * 200)) == 200
    assert known.encode("x" * 201) == [known.unk_id]


def test_a_literal_mask_is_text_unless_masks_are_asked_for():
    known = characters()
    assert pieces("[MASK]", known) == ["[", "m", "##a", "##s", "##k", "]"]
    ids = known.encode_with_masks("a [MASK] b[MASK].")
    assert [known.token(token_id) for token_id in ids] == ["a", "[MASK]", "b", "[MASK]", "."]
    assert known.encode_with_masks("[SEP]") == known.encode("[SEP]")
    assert known.encode_with_masks("") == []


def test_a_batch_is_encoded_as_its_texts():
    known = wordpiece(*RELEASED)
    texts = ["", "unwanted running", "wa, wa"]
    assert known.encode_batch(texts) == [known.encode(text) for text in texts]


def test_special_ids_come_from_the_vocabulary():
    known = tokenizer.WordPieceTokenizer(["a", *reversed(SPECIALS), "b"])
    assert (known.mask_id, known.sep_id, known.cls_id, known.unk_id, known.pad_id) == (
        1,
        2,
        3,
        4,
        5,
    )
    assert known.special_ids == (5, 4, 3, 2, 1)
    assert known.vocab_size == 7


@pytest.mark.parametrize("options", [{}, {"lowercase": False}, {"strip_accents": False}], ids=str)
def test_a_saved_tokenizer_loads_as_the_same(tmp_path, options):
    known = characters(**options)
    known.save(tmp_path / "tokenizer")
    loaded = tokenizer.load(tmp_path / "tokenizer")
    assert loaded.describe() == known.describe()
    assert loaded.encode("Hällo 博!") == known.encode("Hällo 博!")


def test_the_saved_config_speaks_of_casing_as_transformers_does(tmp_path):
    characters(lowercase=False).save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["do_lower_case"] is False
    assert config["strip_accents"] is None


def test_given_casing_wins_over_the_directory_and_a_bare_file_is_lowercase(tmp_path):
    characters(lowercase=False).save(tmp_path)
    assert tokenizer.load(tmp_path).describe()["lowercase"] is False
    assert tokenizer.load(tmp_path, lowercase=True).describe() == characters().describe()
    assert tokenizer.load(tmp_path / "vocab.txt").describe() == characters().describe()


def test_the_hash_tells_entries_order_and_casing_apart():
    variants = [
        wordpiece("a", "b"),
        wordpiece("b", "a"),
        wordpiece("a"),
        wordpiece("a", "b", lowercase=False),
        wordpiece("a", "b", strip_accents=False),
    ]
    assert len({known.describe()["sha256"] for known in variants}) == len(variants)
    assert wordpiece("a", "b").describe() == wordpiece("a", "b", strip_accents=True).describe()


def test_only_newlines_end_an_entry(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join([*SPECIALS, "\u2028", "a", ""]).encode())
    known = tokenizer.load(path)
    assert known.vocab_size == len(SPECIALS) + 2
    assert known.token(known.encode("a")[0]) == "a"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        ("\n".join([*SPECIALS, "a", "b", "a"]).encode(), "'a' stands at id 5 and again at 7"),
        (b"[PAD]\n[UNK]\n[CLS]\na\n", r"lacks \[SEP\], \[MASK\]"),
        (b"\xff\xfe[PAD]", "utf-8"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_named_with_its_fault(tmp_path, content, message):
    path = tmp_path / "broken.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"broken.txt.*{message}"):
        tokenizer.load(path)


def test_a_missing_vocabulary_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"vocab\.txt"):
        tokenizer.load(tmp_path)


def test_a_config_with_another_tokenization_is_refused(tmp_path):
    characters().save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenize_chinese_chars": false}')
    with pytest.raises(ValueError, match="tokenize_chinese_chars"):
        tokenizer.load(tmp_path)
