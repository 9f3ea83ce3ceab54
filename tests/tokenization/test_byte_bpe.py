import functools
import json
import pickle
import random

import numpy as np
import pytest
import tokenizers

from bertjax.tokenization import added_tokens, byte_bpe, tokenizer
from tests import small_byte_bpe

POOL = [
    *" \n\t\u3000\xa0therunglinéÉA博推ﬁ½İΣ\u0301각①!,'\u2028\x1c\x85\U0001f600",
    "the ",
    " runn",
    "'s ",
]


@pytest.fixture(scope="module")
def known() -> byte_bpe.ByteBpeTokenizer:
    return small_byte_bpe.vocabulary()


def texts(number: int = 200) -> list[str]:
    """Texts of characters that rules treat differently, and of random bytes and code points."""
    rng = random.Random(0)
    found = ["", " ", "  ", "a", " a"]
    for _ in range(number):
        found.append("".join(rng.choices(POOL, k=rng.randrange(20))))
        found.append(rng.randbytes(rng.randrange(30)).decode("utf-8", "replace"))
        points = (rng.randrange(0x110000) for _ in range(rng.randrange(10)))
        found.append("".join(chr(p) for p in points if not 0xD800 <= p < 0xE000))
    return found


@pytest.mark.parametrize("prefix", [False, True])
def test_ids_are_those_of_the_library(tmp_path, prefix):
    known = small_byte_bpe.vocabulary(add_prefix_space=prefix)
    known.save(tmp_path)
    files = (str(tmp_path / name) for name in ("vocab.json", "merges.txt"))
    theirs = tokenizers.ByteLevelBPETokenizer(*files, add_prefix_space=prefix)
    expected = [theirs.encode(text).ids for text in texts()]
    assert [known.encode(text) for text in texts()] == expected
    assert known.encode_batch(texts()) == expected
    ids, lengths = known.encode_flat(texts())
    assert ids.dtype == lengths.dtype == np.int32
    assert ids.tolist() == [token_id for text in expected for token_id in text]
    assert lengths.tolist() == list(map(len, expected))
    assert any(len(text) > 1 and known.token(text[0]).startswith("Ġr") for text in expected)


def test_every_text_comes_back_and_becomes_no_special_token(known):
    assert not set(known.encode("<s> <mask>[MASK] </s><pad><unk>")) & set(known.special_ids)
    assert known.decode(known.encode("a\ud800b")) == "a\ufffdb"  # half of a surrogate pair
    assert known.encode_with_offsets("a\ud800b")[2].max() == 3
    for text in texts():
        assert known.decode(known.encode(text)) == text
    prefixed = small_byte_bpe.vocabulary(add_prefix_space=True)
    for text in texts():
        blank = "" if text.startswith(" ") or not text else " "
        assert prefixed.decode(prefixed.encode(text)) == blank + text


def test_offsets_stand_beside_the_same_ids_and_cover_the_text(known):
    for text in texts():
        ids, starts, ends = known.encode_with_offsets(text)
        assert ids.dtype == starts.dtype == ends.dtype == np.int32
        assert ids.tolist() == known.encode(text)
        assert (starts <= ends).all() and (np.diff(starts) >= 0).all()
        held = {place for span in zip(starts, ends, strict=True) for place in range(*span)}
        inner = {place for place, c in enumerate(text) if not c.isspace()}
        assert inner <= held <= set(range(len(text)))
        for start, end in zip(starts, ends, strict=True):
            assert text[start:end] == text[start:end].strip()


@pytest.mark.parametrize("prefix", [False, True])
def test_tokens_hold_their_original_characters(prefix):
    known = small_byte_bpe.vocabulary(add_prefix_space=prefix)
    for text, expected in (
        (" the runner", ["the", "runner"]),
        ("the\n the", ["the", "", "the"]),
        (" 家", ["", "家", "家", "家"]),  # not merged: each byte has all of its place
        ("\xa0x", ["", "", "x"]),
        ("", []),
    ):
        _, starts, ends = known.encode_with_offsets(text)
        held = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        # A prefix is a token of its own where it is merged with nothing; it has no place.
        assert [h for h in held if h or not prefix] == [e for e in expected if e or not prefix]


@pytest.mark.parametrize("prefix", [False, True])
def test_a_mask_takes_the_space_before_it(prefix):
    known = small_byte_bpe.vocabulary(add_prefix_space=prefix)
    text = "the <mask> ran\n<mask><mask>home <mask>"
    # The library's own: its added token has lstrip.
    expected = known.library().encode(text, add_special_tokens=False).ids
    for name in ("<mask>", "[MASK]"):
        assert known.encode_with_masks(text.replace("<mask>", name)) == expected
    assert known.split_at_masks(text) == ["the", " ran", "", "home", ""]
    the, ran, _, home, _ = map(known.encode, known.split_at_masks(text))
    mask = [known.mask_id]
    assert expected == [*the, *mask, *ran, *mask, *mask, *home, *mask]


def test_words_begin_at_spaces_and_at_punctuation(known):
    for text, words in (
        ("the runners ran", ["the", " runners", " ran"]),
        (" ran, the", [" ran", ",", " the"]),
        ("(the other", ["(the", " other"]),  # what follows a mark without a space goes with it
        ("the\nother", ["the", "\nother"]),
        ("a家b", ["a家b"]),  # bytes of a part of a character
    ):
        groups: list[list[int]] = []
        for token_id in known.encode(text):
            if groups and known.continues_word[token_id]:
                groups[-1].append(token_id)
            else:
                groups.append([token_id])
        assert [known.decode(group) for group in groups] == words


def test_an_entry_continues_a_word_by_the_character_that_it_begins_with(known):
    entries = {"推": False, "é": True, "é,": True, ",é": False, " ": False, "\u3000a": False}
    characters = {byte: character for character, byte in byte_bpe.BYTES.items()}
    for entry, continues in entries.items():
        spelled = "".join(characters[byte] for byte in entry.encode())
        vocabulary = [*dict.fromkeys([*known.vocabulary, spelled])]
        made = byte_bpe.ByteBpeTokenizer(vocabulary, known.merges)
        assert made.continues_word[made.vocabulary.index(spelled)] == continues
        assert made.surface(made.vocabulary.index(spelled)) == entry


@pytest.mark.parametrize("prefix", [False, True])
def test_a_saved_vocabulary_loads_as_the_same_from_any_of_its_files(tmp_path, prefix):
    known = small_byte_bpe.vocabulary(add_prefix_space=prefix)
    known.save(tmp_path)
    assert tokenizer.load(tmp_path).describe() == known.describe()
    assert tokenizer.load(tmp_path / "tokenizer.json").describe() == known.describe()
    for gone in ("tokenizer.json", None):
        if gone:
            (tmp_path / gone).unlink()
        assert tokenizer.load(tmp_path / "vocab.json").describe() == known.describe()
    known.save(tmp_path)
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).unlink()
    loaded = tokenizer.load(tmp_path)
    assert loaded.describe() == known.describe()
    assert pickle.loads(pickle.dumps(loaded)).encode("the runner") == known.encode("the runner")


def test_merges_are_read_in_the_old_form_of_the_library_too(tmp_path, known):
    known.save(tmp_path)
    fields = json.loads((tmp_path / "tokenizer.json").read_text())
    fields["model"]["merges"] = [" ".join(pair) for pair in known.merges]
    assert byte_bpe.of_fields(fields).describe() == known.describe()


def test_the_hash_covers_entries_merges_and_prefix(known):
    merges = known.merges
    others = [
        byte_bpe.ByteBpeTokenizer(known.vocabulary, merges, add_prefix_space=True),
        byte_bpe.ByteBpeTokenizer(known.vocabulary, merges[:-1]),
        byte_bpe.ByteBpeTokenizer([*known.vocabulary, "x" * 9], merges),
    ]
    assert len({each.describe()["sha256"] for each in (known, *others)}) == 4


def test_a_damaged_file_is_named_with_its_fault(tmp_path, known):
    for file, change, message in (
        ("vocab.json", '{"<s>": 0, "a": 2}', "ids of its entries are not 0, 1, 2"),
        ("vocab.json", '{"<s>": 0, "a": 1}', "lacks <pad> or .PAD., <unk>"),
        ("vocab.json", '{"<s>": "x"}', "whole numbers"),
        ("merges.txt", "#version: 0.2\nt h e\n", "merge 2 is 't h e'"),
        ("merges.txt", "xx yy\n", "merges do not fit"),
        ("merges.txt", None, "no merges.txt in its directory"),
    ):
        known.save(tmp_path)
        (tmp_path / file).unlink()
        if change is not None:
            (tmp_path / file).write_text(change)
        with pytest.raises(ValueError, match=f"vocab.json.*{message}"):
            tokenizer.load(tmp_path)


def test_a_tokenizer_that_does_something_else_is_read_by_the_library(tmp_path, known):
    known.save(tmp_path)
    with pytest.raises(ValueError, match="keeps the case"):
        tokenizer.load(tmp_path, lowercase=True)
    assert tokenizer.load(tmp_path, lowercase=False).describe() == known.describe()
    content = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "vocab.json").unlink()
    for *path, name, value in (
        ("normalizer", {"type": "Lowercase"}),
        ("pre_tokenizer", "use_regex", False),
        ("pre_tokenizer", {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}),
        ("model", "byte_fallback", True),
    ):
        fields = json.loads(content)
        functools.reduce(dict.get, path, fields)[name] = value
        (tmp_path / "tokenizer.json").write_text(json.dumps(fields))
        loaded = tokenizer.load(tmp_path)
        theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        assert loaded.kind == "tokenizers"
        for text in filter(lambda text: "<" not in text, texts(20)):
            assert loaded.encode(text) == theirs.encode(text, add_special_tokens=False).ids, name
    fields = json.loads(content)
    fields["model"]["continuing_subword_prefix"] = "##"  # the library panics
    (tmp_path / "tokenizer.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match="`tokenizers` does not read it"):
        tokenizer.load(tmp_path)


def test_added_tokens_take_the_blanks_that_they_are_to_take(known):
    size = known.vocab_size
    tokens = [
        added_tokens.AddedToken("<url>", size, lstrip=True, normalized=False),
        added_tokens.AddedToken("<x>", size + 1, rstrip=True),
    ]
    ours = added_tokens.attach(known, tokens)
    library = known.library()
    for token in tokens:
        flags = {"lstrip": token.lstrip, "rstrip": token.rstrip, "normalized": token.normalized}
        library.add_tokens([tokenizers.AddedToken(token.content, **flags)])
    for text in ("the <url> ran", "the<url>ran", "the <x> ran <x>\n<url>", "<url> <x> the"):
        assert ours.encode(text) == library.encode(text, add_special_tokens=False).ids
    assert ours.decode(ours.encode("the<url> ran")) == "the<url> ran"
    assert ours.pair_separators == 2 and ours.keeps_blanks
    assert ours.surface(size) == "<url>" and ours.surface(known.encode(" the")[0]) == " the"


def test_a_vocabulary_without_some_bytes_is_told(known, caplog):
    entries = [entry for entry in known.vocabulary if entry != "~"]
    byte_bpe.ByteBpeTokenizer(entries, known.merges)
    assert "no entries for 1 of the 256 bytes" in caplog.text
