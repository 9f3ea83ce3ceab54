"""Claims about a vocabulary that is extended by the words of a domain."""

import json
import re

import pytest

from bertjax.tokenization import tokenizer
from data_pipelines import train_vocabulary
from tests import small_byte_bpe, small_records

PIECES = [*"abcdefghijklmnoprstuvxyz.", *(f"##{one}" for one in "abcdefghijklmnoprstuvxyz")]
UNUSED = [f"[unused{number}]" for number in range(3)]
ENTRIES = ["[PAD]", *UNUSED[:2], *small_records.SPECIALS[1:], "the", *PIECES, UNUSED[2], "heart"]
TEXT = (
    ["the stenosis of the heart."] * 30
    + ["the ablation of the stenosis."] * 20
    + ["a bit of the cusp"] * 7
    + ["the Q wave"] * 3
    + ["once myxoma"]
)


def extended(tmp_path, size, *, lowercase=True, save=True, **options):
    source, text = tmp_path / "source", tmp_path / "text.txt"
    if save:
        known = tokenizer.WordPieceTokenizer(ENTRIES, lowercase=lowercase, cuts_long_words=False)
        known.save(source)
    text.write_text("\n\n".join(TEXT))
    given = {"input": str(text), "output": str(tmp_path / "made"), "extend": str(source)}
    given |= {"size": size, "heldout_fraction": 0.0} | options
    return train_vocabulary.train_vocabulary(train_vocabulary.Options(**given))[0]


def slow_order(known):
    """The words that are cut, by the tokens that they cost in all texts together, beyond one."""
    words = re.findall(r"\w+|\.", " ".join(TEXT).lower())
    cost = {}
    for word in {it for it in words if words.count(it) > 1 and it not in ENTRIES}:
        cost[word] = words.count(word) * max(len(known.encode(word)) - 1, 1)
    return sorted(cost, key=lambda word: (-cost[word], word))


@pytest.mark.parametrize("size", [len(ENTRIES), len(ENTRIES) + 2, 1000])
def test_words_that_are_cut_most_fill_unused_slots_then_follow_at_the_end(size, tmp_path):
    made = extended(tmp_path, size)
    known = tokenizer.load(tmp_path / "source")
    order = slow_order(known)
    assert order[:2] == ["stenosis", "ablation"] and "q" in order and "myxoma" not in order
    expected = list(ENTRIES)
    for slot, word in zip(UNUSED, order, strict=False):
        expected[expected.index(slot)] = word
    expected += order[len(UNUSED) :][: size - len(ENTRIES)]
    assert list(made.vocabulary) == expected
    assert [made.token(it) for it in made.encode("the Stenosis")] == ["the", "stenosis"]
    loaded = tokenizer.load(tmp_path / "made")
    assert loaded.describe() == made.describe()
    rules = [it.describe() | {"sha256": "", "vocab_size": 0} for it in (known, made)]
    assert rules[0] == rules[1]


def test_added_tokens_keep_their_ids(tmp_path):
    extended(tmp_path, len(ENTRIES))
    added = {"<url>": len(ENTRIES)}
    (tmp_path / "source" / "added_tokens.json").write_text(json.dumps(added))
    made = extended(tmp_path, 1000, save=False, output=str(tmp_path / "other"))
    assert made.vocab_size == len(ENTRIES) + 1 and made.token(len(ENTRIES)) == "<url>"
    assert [made.token(it) for it in made.encode("<url> stenosis")] == ["<url>", "stenosis"]
    assert tokenizer.load(tmp_path / "other").vocabulary == made.vocabulary


def test_what_cannot_be_extended_is_refused_before_anything_is_written(tmp_path):
    small_byte_bpe.vocabulary().save(tmp_path / "bytes")
    full = tokenizer.WordPieceTokenizer([it for it in ENTRIES if it not in UNUSED])
    full.save(tmp_path / "full")
    for options, expected in [
        ({"normalization": "nfkc", "keep_marks": True}, "out --normalization, --keep_marks"),
        ({"extend": str(tmp_path / "bytes")}, "kind byte_bpe.*config.exchange_vocabulary=True"),
        ({"extend": str(tmp_path / "full"), "size": 40}, "without unused.*a larger --size"),
    ]:
        with pytest.raises(ValueError, match=expected):
            extended(tmp_path, **{"size": 1000} | options)
    (tmp_path / "whole.txt").write_text("the heart. the heart.")
    with pytest.raises(ValueError, match="cuts no word"):
        extended(tmp_path, 1000, input=str(tmp_path / "whole.txt"))
    assert not (tmp_path / "made").exists()
