"""Claims about the exchange of a vocabulary: which old rows each new row begins as."""

import functools
import itertools
import pathlib
import tempfile

import numpy as np
import pytest

from bertjax.tokenization import (
    added_tokens,
    integers,
    library_tokenizer,
    tokenizer,
    vocabulary_exchange,
)
from tests import small_records, small_tokenizers
from tests.data_pipelines import test_train_vocabulary

ROLES = ("pad_id", "unk_id", "cls_id", "sep_id", "mask_id")


def trained(kind, size, **rules):
    lines = small_tokenizers.LINES * 5
    return test_train_vocabulary.trained(lines, kind=kind, size=size, **rules)


def of_shape(shape):
    with tempfile.TemporaryDirectory() as directory:
        small_tokenizers.write(pathlib.Path(directory), shape)
        return tokenizer.load(directory)


def with_added():
    base = trained("wordpiece", 250)
    tokens = [added_tokens.AddedToken(name, base.vocab_size + n) for n, name in enumerate(ADDED)]
    return tokenizer.added_tokens.attach(base, tokens)


ADDED = ("water", "[E1]")
VOCABULARIES = {
    "wordpiece": lambda: trained("wordpiece", 260),
    "uncased": lambda: trained("wordpiece", 300, normalization="bert_uncased"),
    "sentencepiece": lambda: trained("sentencepiece", 200),
    "xlm-roberta": lambda: trained("sentencepiece", 170, special_tokens="xlm-roberta"),
    "byte_bpe": lambda: trained("byte_bpe", 400, normalization="none"),
    "smaller byte_bpe": lambda: trained("byte_bpe", 330, normalization="nfc"),
    "added": with_added,
    **{name: functools.partial(of_shape, name) for name in ("ModernBERT", "multilingual-e5")},
    "bytes of sentencepiece": lambda: of_shape("ModernBERT-Ja"),
}


WHOLE_WORDS = {word for line in small_tokenizers.LINES for word in line.split()}
WORDS = sorted({word[:end] for word in WHOLE_WORDS for end in range(1, len(word) + 1)})


@functools.cache
def vocabulary(name):
    return VOCABULARIES[name]()


@functools.cache
def encoded_words(name):
    """The ids of each of WORDS, as they stand within a text."""
    known = vocabulary(name)
    return known.encode_batch([" " * known.keeps_blanks + word for word in WORDS])


def rows_of(exchange):
    ends = np.cumsum(exchange.counts)
    return [part.tolist() for part in np.split(exchange.ids, ends[:-1])]


def slow_wordpiece(old, new, token_id):
    """The old rows of an entry, by the words of the issue alone."""
    entry = new.token(token_id)
    for role in ROLES:
        if getattr(new, role) == token_id:
            return [getattr(old, role)]
    ids = {entry: number for number, entry in enumerate(old.vocabulary)}
    if entry in ids:
        return [ids[entry]]
    rest = entry.removeprefix("##")
    prefix = "##" if entry != rest else ""
    found = []
    while rest:
        for end in range(len(rest), 0, -1):
            if prefix + rest[:end] in ids:
                break
        else:
            return []
        found.append(ids[prefix + rest[:end]])
        rest, prefix = rest[end:], "##"
    return found


@pytest.mark.parametrize("seed", range(5))
def test_wordpieces_begin_as_the_mean_of_what_the_old_vocabulary_cuts_them_into(seed):
    rng = np.random.default_rng(seed)
    words = ["".join(word) for n in (1, 2, 3, 4) for word in itertools.product("abq", repeat=n)]

    def drawn(size):
        chosen = rng.choice([*words, *(f"##{word}" for word in words)], size, replace=False)
        entries = [*small_records.SPECIALS, "a", "q", *chosen, "[unused1]", "b"]
        return tokenizer.WordPieceTokenizer(list(dict.fromkeys(rng.permutation(entries).tolist())))

    old, new = drawn(40), drawn(80)
    exchange = vocabulary_exchange.between(old, new)
    slow = [slow_wordpiece(old, new, token_id) for token_id in range(new.vocab_size)]
    assert rows_of(exchange) == slow
    table = rng.normal(size=(old.vocab_size, 3)).astype(np.float32)
    whole = table.astype(np.float64)
    expected = [(whole[ids] if ids else whole).mean(axis=0) for ids in slow]
    np.testing.assert_array_equal(exchange.rows(table), np.array(expected, np.float32))
    assert any(not ids for ids in slow) and any(len(ids) > 1 for ids in slow)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_word_that_is_one_new_token_begins_as_its_old_tokens_in_any_kind(name):
    old, single = vocabulary(name), 0
    old_pieces = list(vocabulary_exchange.pieces(old))
    for other in ("uncased", "xlm-roberta", "byte_bpe", "added", "ModernBERT"):
        new = vocabulary(other)
        rows = rows_of(vocabulary_exchange.between(old, new))
        pieces = list(vocabulary_exchange.pieces(new))
        for role in ROLES:
            assert rows[getattr(new, role)] == [getattr(old, role)]
        encoded = zip(WORDS, encoded_words(name), encoded_words(other), strict=True)
        for word, theirs, ours in encoded:
            whole = vocabulary_exchange.Piece(word.encode(), vocabulary_exchange.START)
            if len(ours) == 1 and pieces[ours[0]] == whole:  # and no rule changes the word
                single += 1
                known = [it for it in theirs if it != old.unk_id and old.token(it) != "▁"]
                found = [it for it in rows[ours[0]] if old.token(it) != "▁"]
                assert found == known or old_pieces[found[0]] == whole, word
    assert single > 60


def test_a_piece_inside_a_word_is_not_taken_for_one_at_its_start():
    cases = [
        ("wordpiece", "sentencepiece", "the", ["##t", "##he"]),
        ("sentencepiece", "wordpiece", "##nn", ["n", "n"]),
        ("byte_bpe", "wordpiece", "##nn", ["n", "n"]),
        ("byte_bpe", "wordpiece", "##パ", ["ãĥ", "ĳ"]),
        ("wordpiece", "sentencepiece", ",", [","]),
        ("bytes of sentencepiece", "byte_bpe", "©ãĥ", ["<0xA9>", "<0xE3>", "<0x83>"]),
        ("smaller byte_bpe", "byte_bpe", "à¹Ħ", ["à", "¹", "Ħ"]),
        ("added", "uncased", "water", ["water"]),
    ]
    for old, new, entry, expected in cases:
        known = vocabulary(new)
        rows = rows_of(vocabulary_exchange.between(vocabulary(old), known))
        ids = rows[known.vocabulary.index(entry)]
        assert [vocabulary(old).token(it) for it in ids] == expected, (old, new, entry)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_an_exchange_for_the_same_vocabulary_is_bit_equal(name, monkeypatch):
    monkeypatch.setattr(vocabulary_exchange, "CHUNK", 50)
    known = vocabulary(name)
    exchange = vocabulary_exchange.between(known, known)
    assert exchange.is_kept.all()
    rng = np.random.default_rng(0)
    for shape in ((known.vocab_size,), (known.vocab_size, 4)):
        table = rng.normal(size=shape).astype(np.float32) * 1e-30
        table[::3] = -0.0
        assert exchange.rows(table).tobytes() == table.tobytes()


def test_of_two_equal_entries_each_keeps_its_row():
    entries = [*small_records.SPECIALS, "twice", "once", "twice"]
    known = tokenizer.WordPieceTokenizer(entries)
    assert rows_of(vocabulary_exchange.between(known, known)) == [[i] for i in range(8)]
    moved = tokenizer.WordPieceTokenizer([*small_records.SPECIALS, "once", "twice"])
    assert rows_of(vocabulary_exchange.between(known, moved))[5:] == [[6], [7]]


def test_entries_that_show_where_words_end_have_the_strings_of_whole_words():
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    letters = [f"{one}{end}" for one in "akot" for end in ("", "</w>")]
    entries = [*specials, *letters, "ko", "kot", "kot</w>"]
    merges = [("k", "o"), ("ko", "t</w>"), ("ko", "t")]
    ids = {entry: number for number, entry in enumerate(entries)}
    ended = library_tokenizer.of_word_ends(ids, merges, {})
    same = vocabulary_exchange.between(ended, ended)
    assert rows_of(same) == [[number] for number in range(len(entries))] and same.is_kept.all()
    plain = tokenizer.WordPieceTokenizer([*small_records.SPECIALS, "kot", "kota", "##ta", "k"])
    rows = rows_of(vocabulary_exchange.between(ended, plain))
    expected = [["kot</w>"], ["kot", "a</w>"], ["t", "a</w>"], ["k</w>"]]
    assert [[ended.token(it) for it in ids] for ids in rows[5:]] == expected
    rows = rows_of(vocabulary_exchange.between(plain, ended))
    assert rows[entries.index("kot")] == rows[entries.index("kot</w>")] == [5]


def test_integers_have_no_strings_to_exchange():
    fields = {"vocab_size": 9, "pad_id": 0, "cls_id": 1, "sep_id": 2, "mask_id": 3}
    numbers = integers.IntegerTokenizer(fields)
    assert "no strings" in vocabulary_exchange.fault(numbers, vocabulary("wordpiece"))
    assert "kind wordpiece" in vocabulary_exchange.fault(vocabulary("wordpiece"), numbers)
    assert not vocabulary_exchange.fault(vocabulary("wordpiece"), vocabulary("byte_bpe"))
