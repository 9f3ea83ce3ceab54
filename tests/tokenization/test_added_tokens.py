"""Claims about added tokens: found as the library `tokenizers` finds them, read and kept."""

import dataclasses
import json
import pickle
import random

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bertjax.convert import huggingface_tokenizer
from bertjax.convert.families import bert
from bertjax.tokenization import added_tokens, tokenizer
from tests.tokenization import test_sentence_piece

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789[]<>_.,é中文CAFÉW"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENTRIES = [*SPECIALS, "[unused1]", *dict.fromkeys(LETTERS), *(f"##{c}" for c in "abcdeurlstw12é")]
SIZE = len(ENTRIES)
Token = added_tokens.AddedToken
# Raw and normalized ones, alone and inside words, one in another, and an entry made special.
TOKENS = [
    Token("[E1]", SIZE),
    Token("[E2]", SIZE + 1),
    Token("<url>", SIZE + 2, normalized=False),
    Token("Wé", SIZE + 3, single_word=True),
    Token("ab", SIZE + 4, normalized=False),
    Token("abc", SIZE + 5, normalized=False, special=True),
    Token("bcd", SIZE + 6, normalized=False),
    Token("Café 中", SIZE + 7),
    Token("qq", SIZE + 8, single_word=True, normalized=False, lstrip=True, rstrip=True),
    Token("[unused1]", 5, normalized=False, special=True),
]
TEXTS = [
    "",
    "[E1] state [E2] <url>",
    "[e1]state[E2]<URL> <url>x",
    "abcd abd xabcx bcd aBc",
    "we wé. WÉ! xwe we1 we_ w\u00e9\u0302 we\u0903",
    "cafe 中 CAFE\u0301  中 café中",
    "a qq b qqqq qq.qq \u00a0qq_q qq",
    "[unused1] [UNUSED1] x[unused1]x",
    "nothing of it",
]


def ours(lowercase=True, tokens=TOKENS):
    base = tokenizer.WordPieceTokenizer(ENTRIES, lowercase=lowercase)
    return added_tokens.attach(base, tokens)


def theirs(lowercase=True):
    """The tokenizer of transformers with these tokens added to the vocabulary in their order."""
    ids = {entry: token_id for token_id, entry in enumerate(ENTRIES)}
    made = tokenizers.Tokenizer(
        models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=200)
    )
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for token in TOKENS:
        flags = {name: getattr(token, name) for name in huggingface_tokenizer.ADDED_FLAGS}
        made.add_tokens([tokenizers.AddedToken(token.content, **flags)])
    return made


def drawn(count):
    rng = random.Random(0)
    parts = [*(token.content for token in TOKENS), *LETTERS, " ", " ", "\t", "\u0301", "\u200b"]
    return ["".join(rng.choices(parts, k=8)) for _ in range(count)]


@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_and_places_are_those_of_tokenizers(lowercase):
    known, reference = ours(lowercase), theirs(lowercase)
    texts = [*TEXTS, *drawn(200)]
    assert known.encode_batch(texts) == [reference.encode(text).ids for text in texts]
    for text in texts:
        wanted = reference.encode(text)
        ids, starts, ends = known.encode_with_offsets(text)
        assert ids.tolist() == wanted.ids == known.encode(text), ascii(text)
        for token_id, start, end, span in zip(ids, starts, ends, wanted.offsets, strict=True):
            if token_id >= SIZE:  # theirs takes white space and accents along
                assert span[0] <= start < span[1], ascii(text)
                same = known.base.normalized(text[start:end]).split()
                assert (
                    same == known.base.normalized(known.token(int(token_id))).split()
                    or not lowercase
                )


def test_the_example_of_the_issue_loses_no_token():
    assert ours().encode("[E1] state [E2] <url>")[:1] == [SIZE]
    assert [ours().token(i) for i in (SIZE, SIZE + 1, SIZE + 2)] == ["[E1]", "[E2]", "<url>"]
    assert ours().decode(ours().encode("[e1] a <url>")) == "[E1] a <url>"
    assert not ours().continues_word[SIZE:].any()
    assert len(ours().continues_word) == ours().vocab_size == SIZE + len(TOKENS) - 1


def test_without_added_tokens_nothing_is_different():
    base = tokenizer.WordPieceTokenizer(ENTRIES)
    of_special = [Token(name, number, normalized=False) for number, name in enumerate(SPECIALS)]
    assert added_tokens.attach(base, of_special) is base
    flat, lengths = ours().encode_flat(["a b", "", "c"])
    wanted_flat, wanted_lengths = base.encode_flat(["a b", "", "c"])
    np.testing.assert_array_equal(flat, wanted_flat)
    np.testing.assert_array_equal(lengths, wanted_lengths)


def assert_same(got, wanted):
    assert got.describe() == wanted.describe()
    assert got.encode_batch(TEXTS) == wanted.encode_batch(TEXTS)


def test_they_are_saved_loaded_and_sent_to_other_processes(tmp_path):
    ours().save(tmp_path)
    assert_same(tokenizer.load(tmp_path), ours())
    assert_same(pickle.loads(pickle.dumps(ours())), ours())
    plain = tokenizer.WordPieceTokenizer(ENTRIES).describe()
    others = [ours(tokens=TOKENS[:2]), ours(tokens=[dataclasses.replace(TOKENS[0], special=True)])]
    assert len({made.describe()["sha256"] for made in (ours(), *others)} | {plain["sha256"]}) == 4


def write(directory, **files):
    (directory / "vocab.txt").write_text("".join(f"{entry}\n" for entry in ENTRIES))
    for name, fields in files.items():
        (directory / f"{name}.json").write_text(json.dumps(fields))
    return directory


FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
LISTED = [
    {"id": SIZE + place, "content": name, "normalized": True, **FLAGS}
    for place, name in enumerate(("[E1]", "<url>"))
]
# Files in which they stand.
WAYS = (
    {"added_tokens": {token["content"]: token["id"] for token in LISTED}},
    {"tokenizer_config": {"added_tokens_decoder": {str(it["id"]): it for it in LISTED}}},
    {"tokenizer": {"added_tokens": LISTED}},
    {"special_tokens_map": {"additional_special_tokens": ["[E1]", "<url>"]}},
)


def test_every_file_in_which_they_stand_is_read(tmp_path):
    for number, files in enumerate(WAYS):
        (tmp_path / f"{number}").mkdir()
        made = tokenizer.load(write(tmp_path / f"{number}", **files))
        assert made.vocab_size == SIZE + 2
        assert made.encode("[E1] <url>") == [SIZE, SIZE + 1]
        # Special ones are found as they are written.
        assert (made.encode("[e1]") == [SIZE]) == ("special_tokens_map" not in files)
    names = {"additional_special_tokens": ["[unused1]"]}  # an entry of the vocabulary
    made = tokenizer.load(write(tmp_path, special_tokens_map=names))
    assert made.vocab_size == SIZE and made.encode("[unused1]") == [5]


def test_a_tokenizer_json_alone_keeps_them_beside_its_entries(tmp_path):
    theirs().save(str(tmp_path / "tokenizer.json"))
    read = huggingface_tokenizer.read_tokenizer(tmp_path, bert.TOKENIZER)
    for text in [*TEXTS, *drawn(100)]:
        assert read.encode(text) == ours().encode(text), ascii(text)


@pytest.mark.slow
@pytest.mark.parametrize("lowercase", [True, False])
def test_what_is_written_for_transformers_finds_them_as_we_do(tmp_path, lowercase):
    known = ours(lowercase)
    huggingface_tokenizer.write_tokenizer(known, tmp_path, bert.TOKENIZER, max_length=40)
    made = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*TEXTS, *drawn(200)]:
        found = made.encode(text, add_special_tokens=False).ids
        assert found == known.encode(text), ascii(text)
    assert_same(huggingface_tokenizer.read_tokenizer(tmp_path, bert.TOKENIZER), known)
    special = json.loads((tmp_path / "special_tokens_map.json").read_text())
    assert special["additional_special_tokens"] == ["[unused1]", "abc"]


def test_ids_that_fit_no_vocabulary_and_other_tokenizations_are_refused(tmp_path):
    for tokens, message in (
        ({"x1": SIZE + 1}, f"have the ids .{SIZE + 1}.; they must go on .* at {SIZE}, without"),
        ({"a": SIZE}, "'a' has the id .* entries it is 6"),
        ({"x1": 3}, "'x1' has the id 3; .* it is not there"),
        ({"[CLS]": SIZE}, r"'\[CLS\]' has the id .*; in the vocabulary it is 2"),
        ({" ": SIZE}, "is ' ': empty"),
        ({"x": "y"}, "is not an added token with a content and an id"),
        ([], "added_tokens.json holds a list"),
    ):
        with pytest.raises(ValueError, match=message):
            tokenizer.load(write(tmp_path, added_tokens=tokens))
    (tmp_path / "added_tokens.json").unlink()
    for fields, message in (
        ({"do_basic_tokenize": False}, "has do_basic_tokenize false"),
        ({"never_split": ["<url>"]}, r"has never_split .'<url>'., which is not supported: make"),
        ({"tokenizer_class": "BertweetTokenizer"}, "of the class BertweetTokenizer, whose rules"),
    ):
        with pytest.raises(ValueError, match=message):
            tokenizer.load(write(tmp_path, tokenizer_config=fields))
    write(tmp_path, tokenizer_config={"do_basic_tokenize": True, "never_split": None})
    assert tokenizer.load(tmp_path).vocab_size == SIZE


def test_a_sentencepiece_model_has_them_too(tmp_path):
    model = test_sentence_piece.model(**test_sentence_piece.BERT)
    base = tokenizer.SentencePieceTokenizer(model, lowercase=True)
    known = added_tokens.attach(base, [Token("<url>", base.vocab_size)])
    text = "he said <URL> so"
    wanted = [*base.encode("he said"), base.vocab_size, *base.encode("so")]
    assert known.encode(text) == wanted
    ids, starts, ends = known.encode_with_offsets("he <url>so")
    place = ids.tolist().index(base.vocab_size)
    assert "he <url>so"[starts[place] : ends[place]] == "<url>"
    # A token of white space alone is empty, also at the end of the text.
    ids, starts, ends = known.encode_with_offsets("he <URL>\x85")
    assert ids[-1] == base.unk_id and starts[-1] == ends[-1] == 9
    known.save(tmp_path)
    assert tokenizer.load(tmp_path).describe() == known.describe()
