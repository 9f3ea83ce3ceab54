import importlib.metadata
import itertools
import pathlib
import sys
import tempfile

import numpy as np
import pytest

from bertjax import config as config_lib
from bertjax.data import records, streams
from bertjax.jobs import pretraining_data
from bertjax.tokenization import tokenizer
from data_pipelines import build, train_vocabulary
from data_pipelines.building import options
from data_pipelines.documents import segmenters
from data_pipelines.reports import report
from tests.data_pipelines import conftest, decoded

CHINESE = "我来到北京清华大学，hello world。"
THAI = "ภาษาไทยง่ายนิดเดียว hello"


def words(name: str, text: str) -> list[str]:
    starts = sorted({*segmenters.segmenter(name)(text), len(text)})
    return [text[begin:end] for begin, end in zip(starts, starts[1:], strict=False)]


def test_words_are_those_of_each_library():
    for name, text, expected in (
        ("characters", "北京abc1 d，ที่ हिन्दी", "北/京/abc1/ /d/，/ที่/ /हिन्दी"),
        ("jieba", CHINESE, "我/来到/北京/清华大学/，/hello/ /world/。"),
        ("fugashi", "東京大学で 学ぶ。", "東京/大学/で/ /学ぶ/。"),
        ("pythainlp", THAI, "ภาษาไทย/ง่าย/นิดเดียว/ /hello"),
        ("icu", f"😀 𠀀{THAI}", "😀/ /𠀀/ภาษา/ไทย/ง่าย/นิด/เดียว/ /hello"),
        ("icu", "ខ្មែរភាសា", "ខ្មែរ/ភាសា"),
        ("icu", "", ""),
    ):
        assert "/".join(words(name, text)) == expected, name


def test_a_package_that_is_missing_is_an_error(monkeypatch):
    segmenters.segmenter.cache_clear()
    monkeypatch.setitem(sys.modules, "icu4py.breakers", None)
    with pytest.raises(ValueError, match=r"needs icu4py.*pip install 'bertjax\[icu\]'"):
        options.checked(conftest.options("a", "b", "c", segmenter="icu"))


def test_no_file_of_others_decides_the_words(monkeypatch, tmp_path):
    (tmp_path / "jieba.cache").write_bytes(b"of someone else")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    segmenters.segmenter.cache_clear()
    assert words("jieba", CHINESE)[3] == "清华大学"
    assert [path.name for path in tmp_path.iterdir()] == ["jieba.cache"]


# No two of these words have a character in common, so that each tells its word and its place in it.
WORDS = ("甲乙", "丙丁戊", "己", "庚辛壬癸", "子丑寅卯辰", "巳午")
PLACES = {one: (word, place) for word in WORDS for place, one in enumerate(word)}


@pytest.fixture
def corpus(tmp_path, monkeypatch) -> pathlib.Path:
    """A corpus of these words, its vocabulary of characters, and the segmenter `firsts`."""

    def starts(text):
        return [at for at, one in enumerate(text) if PLACES.get(one, ("", 0))[1] == 0]

    firsts = segmenters.Segmenter(lambda: starts)
    monkeypatch.setattr(segmenters, "SEGMENTERS", segmenters.SEGMENTERS | {"firsts": firsts})
    rng = np.random.default_rng(1)
    lines = ["".join(rng.choice(WORDS, size=rng.integers(3, 12))) + "。" for _ in range(400)]
    documents = ["\n".join(lines[begin : begin + 10]) for begin in range(0, 400, 10)]
    (tmp_path / "zh.txt").write_text("\n\n".join(documents), encoding="utf-8")
    entries = [*["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "。"], *PLACES]
    (tmp_path / "vocab.txt").write_text("".join(f"{one}\n" for one in entries), encoding="utf-8")
    return tmp_path


def built(corpus, **changes) -> records.RecordSet:
    output = corpus / "_".join(map(str, changes.values()))
    changes = {"max_seq_length": 64, "num_shards": 2, "dupe_factor": 2} | changes
    build.build(conftest.options(corpus / "zh.txt", str(corpus / "vocab.txt"), output, **changes))
    return records.open(output)


def halves(record_set, batches) -> tuple[int, float]:
    """The number of words that are masked in part, and the share of masked tokens."""
    entries = tokenizer.load(record_set.directory).vocabulary
    word = np.array([WORDS.index(PLACES[it][0]) if it in PLACES else -1 for it in entries])
    place = np.array([PLACES[it][1] if it in PLACES else 0 for it in entries])
    in_part = masked = tokens = 0
    for batch in batches:
        assert records.WORDS_FEATURE not in batch
        ids, used = decoded.restored(batch), batch["masked_lm_weights"] > 0
        is_masked = np.zeros(ids.shape, bool)
        is_masked[np.nonzero(used)[0], batch["masked_lm_positions"][used]] = True
        masked, tokens = masked + used.sum(), tokens + batch["input_mask"].sum()
        goes_on = (word[ids[:, 1:]] == word[ids[:, :-1]]) & (
            place[ids[:, 1:]] == place[ids[:, :-1]] + 1
        )
        in_part += (goes_on & (is_masked[:, 1:] != is_masked[:, :-1])).sum()
    return in_part, masked / tokens


@pytest.mark.parametrize(
    ("mask", "packing"), [("whole_word", "doc_sentences"), ("none", "best_fit")]
)
def test_words_are_masked_whole_where_they_are_stored(corpus, mask, packing):
    chosen = config_lib.default_config().pretraining
    chosen.masking, chosen.mask_strategy = "dynamic", "whole_word"
    rows = []
    for segmenter in ("firsts", segmenters.BY_VOCABULARY):
        record_set = built(corpus, mask=mask, packing=packing, segmenter=segmenter)
        rows.append(decoded.restored(decoded.read(record_set.directory)))
        is_stored = segmenter == "firsts"
        assert (records.WORDS_FEATURE in record_set.manifest.features) == is_stored
        draw = pretraining_data.draw_masks(record_set, chosen)
        batches = streams.evaluation_batches(record_set, batch_size=16, draw_masks=draw)
        in_part, share = halves(record_set, batches)
        assert (in_part == 0) == is_stored
        assert 0.13 < share < 0.16
        trained = streams.train_batches(record_set, streams.Order(16, 0), draw_masks=draw)
        assert (halves(record_set, itertools.islice(trained, 8))[0] == 0) == is_stored
    np.testing.assert_array_equal(*rows)  # a segmenter changes no token


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_no_piece_of_a_vocabulary_reaches_over_the_end_of_a_word(corpus, model_type):
    trained = {}
    for segmenter in ("none", "firsts"):
        chosen = train_vocabulary.Options(
            **{"input": str(corpus / "zh.txt"), "output": str(corpus / model_type / segmenter)},
            **{"kind": "sentencepiece", "model_type": model_type, "size": 120},
            segmenter=segmenter,
        )
        trained[segmenter], _, _ = train_vocabulary.train_vocabulary(chosen)

    def crossing(name):
        pieces = (piece.removeprefix("▁") for piece in trained[name].vocabulary)
        return [it for it in pieces if any(PLACES.get(one, ("", 1))[1] == 0 for one in it[1:])]

    assert crossing("none") and not crossing("firsts")
    text = (corpus / "zh.txt").read_text().split()[0]
    known = trained["firsts"]
    assert "".join(known.surface(it) for it in known.encode(text)).replace("▁", "") == text


def test_records_tell_the_version_of_what_found_the_words(corpus):
    jieba = importlib.metadata.version("jieba")
    record_set = built(corpus, mask="none", segmenter="jieba")
    assert record_set.manifest.statistics["segmenter"] == {"jieba": jieba}
    assert ("segmenter", f"jieba (jieba {jieba})") in report.groups(record_set.manifest)[0][1]
