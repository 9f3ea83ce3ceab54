import json

import numpy as np
import pytest

from bertjax.tokenization import tokenizer
from data_pipelines.building import blocks
from data_pipelines.documents import sources
from data_pipelines.reports import by_script, scripts, statistics
from tests import small_byte_bpe
from tests.data_pipelines import test_train_vocabulary

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["hello", "world", "##ing", "привет", "мир", "你", "好", "1", ",", "!"]
TEXTS = [
    "hello, world!",  # 12 characters and 4 tokens of Latin
    "привет, мир! hello",  # 11 and 4 of Cyrillic, 5 and 1 of Latin
    "你好 мир",  # 2 and 2 of Han, 3 and 1 of Cyrillic
    "123",  # 3 characters, 1 unknown token
    "สวัสดี helloing",  # 6 and 1 unknown token of Thai, 8 and 2 of Latin
    "1 1 \u00a0 1",  # 3 and 3
    ", ещё 1",  # 5 and 3 of Cyrillic, 1 of them unknown
    "",
]
EXPECTED = by_script.ScriptCounts(
    characters={"Common": 6, "Cyrillic": 19, "Han": 2, "Latin": 25, "Thai": 6},
    tokens={"Common": 4, "Cyrillic": 8, "Han": 2, "Latin": 7, "Thai": 1},
    unknown_tokens={"Common": 1, "Cyrillic": 1, "Thai": 1},
)


def wordpiece():
    return tokenizer.WordPieceTokenizer([*SPECIALS, *WORDS], normalization="nfc")


def counted(vocabulary, texts, times=None):
    return by_script.counted(vocabulary, texts, *vocabulary.encode_flat(texts), times)


def sentencepiece():
    return test_train_vocabulary.trained([" ".join(WORDS * 20)], kind="sentencepiece", size=40)


def test_characters_tokens_and_unknown_ones_are_those_of_the_script(monkeypatch):
    assert counted(wordpiece(), TEXTS) == EXPECTED
    figures = EXPECTED.figures(wordpiece())
    assert [each["script"] for each in figures] == ["Latin", "Cyrillic", "Common", "Thai", "Han"]
    assert figures[1] == {
        "script": "Cyrillic",
        "character_share": 19 / 58,
        "characters_per_token": 19 / 8,
        "unknown_rate": 1 / 8,
        "vocabulary_entries": 2,
    }
    assert [each["vocabulary_entries"] for each in figures] == [3, 2, 3, 0, 2]
    assert by_script.rows(figures)[2:4] == [
        ("digits, signs", "10.34% of the characters, 1.50 per token, 25.000% [UNK], "
         "3 entries of the vocabulary"),
        ("Thai", "10.34% of the characters, 6.00 per token, 100.000% [UNK], "
         "0 entries of the vocabulary"),
    ]  # fmt: skip
    monkeypatch.setattr(by_script, "WINDOW_TEXTS", 2)
    assert counted(wordpiece(), TEXTS) == EXPECTED


def test_a_text_counts_as_often_as_it_stands_in_the_corpus():
    times = np.arange(len(TEXTS))
    repeated = [text for text, count in zip(TEXTS, times, strict=True) for _ in range(count)]
    assert counted(wordpiece(), TEXTS, times) == counted(wordpiece(), repeated)


@pytest.mark.parametrize("make", [wordpiece, sentencepiece, small_byte_bpe.vocabulary])
def test_texts_of_one_script_are_counted_as_their_tokens_one_by_one(make):
    vocabulary, expected = make(), np.zeros(len(scripts.NAMES), np.int64)
    texts = [f" {text}" if vocabulary.keeps_blanks else text for text in TEXTS]
    for text in texts:
        ids, places, _ = vocabulary.encode_with_offsets(text)
        letters = scripts.numbers(text)
        starts = np.zeros(len(text), np.int64)
        if (letters > scripts.COMMON).any():
            letters = scripts.filled(letters, starts)
        of_token = letters[np.minimum(places, len(text) - 1)] if len(text) else letters
        expected += np.bincount(np.maximum(of_token, scripts.COMMON), minlength=len(expected))
        assert len(of_token) == len(ids)
    found = counted(vocabulary, texts)
    assert found.tokens == {scripts.NAMES[n]: expected[n] for n in np.flatnonzero(expected)}
    assert sum(found.tokens.values()) == len(vocabulary.encode_flat(texts)[0])


def test_a_sample_stands_for_many_texts_of_several_scripts(monkeypatch):
    drawn = np.random.default_rng(0).integers(1, 9, 600)
    texts = ["hello мир สวัสดี!" + " 你好 helloing, " * number for number in drawn.tolist()]
    exact = counted(wordpiece(), texts)
    assert exact.unknown_tokens == {"Thai": 600}
    monkeypatch.setattr(by_script, "MOST_LOOKED_UP", 250)
    calls = []
    real = tokenizer.WordPieceTokenizer.encode_with_offsets
    monkeypatch.setattr(
        tokenizer.WordPieceTokenizer,
        "encode_with_offsets",
        lambda self, text: calls.append(text) or real(self, text),
    )
    sampled = counted(wordpiece(), texts)
    assert 0 < len(calls) < 30
    assert sampled.characters == exact.characters
    assert sum(sampled.tokens.values()) == pytest.approx(sum(exact.tokens.values()), abs=3)
    for script in exact.tokens:
        assert sampled.tokens[script] == pytest.approx(exact.tokens[script], rel=0.1)
    # Where no text with a script is looked up, it has tokens all the same.
    monkeypatch.setattr(by_script, "MOST_LOOKED_UP", 1)
    assert counted(wordpiece(), texts).tokens.keys() == exact.tokens.keys()


def test_rare_scripts_are_shown_only_if_they_are_unknown():
    many = {"Latin": 100_000, "Cyrillic": 99, "Han": 99, "Thai": 101}
    tokens = {"Latin": 20_000, "Cyrillic": 30, "Han": 30, "Thai": 20}
    counts = by_script.ScriptCounts(many, tokens, {"Han": 3, "Cyrillic": 2})
    assert [each["script"] for each in counts.figures(wordpiece())] == ["Latin", "Thai", "Han"]
    assert by_script.NONE.figures(wordpiece()) == []


def test_the_figures_of_a_corpus_are_those_of_all_blocks(tmp_path):
    wordpiece().save(tmp_path)
    how = blocks.Tokenization(blocks.Vocabulary.of(str(tmp_path), None), "lines")
    merged = statistics.CorpusTally()
    for text in TEXTS:
        block = blocks.tokenize([sources.Document("a", text)], how)
        stored = json.loads(json.dumps(block.tally.to_json()))
        merged = merged.merged(statistics.CorpusTally.from_json(stored))
    assert merged.script_statistics(wordpiece()) == {"scripts": EXPECTED.figures(wordpiece())}
    assert statistics.CorpusTally().script_statistics(wordpiece()) == {}
