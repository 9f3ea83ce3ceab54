import dataclasses

import numpy as np
import pytest
import regex

from bertjax.tokenization import tokenizer
from data_pipelines import build
from data_pipelines.documents import cuts
from tests import small_byte_bpe
from tests.data_pipelines import conftest

THAI = "ภาษาไทยเป็นภาษาที่ไม่มีเครื่องหมายจบประโยค แต่มีช่องว่างระหว่างวลี"
JAPANESE = "日本語の文章に句点がないまま続いていくことがあるのでここで切る必要があります"
KHMER = "ភាសាខ្មែរ\u200bគ្មាន\u200bចន្លោះ\u200bរវាង\u200bពាក្យ\u200bទេ"
EMOJI = "👩\u200d👩\u200d👧🇩🇪🇫🇷e\u0301क्षत्रिय한국어"


def of_characters(texts):
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = sorted({one for text in texts for one in text if not one.isspace()})
    entries += [*characters, *(f"##{one}" for one in characters)]
    return tokenizer.WordPieceTokenizer(entries, lowercase=False)


@pytest.mark.parametrize("text", [THAI, JAPANESE, KHMER, EMOJI], ids=["th", "ja", "km", "emoji"])
@pytest.mark.parametrize("most", [5, 13, 30])
@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_text_without_ends_is_cut_at_the_last_space_or_grapheme(text, most, kind):
    text = text * 4  # WordPiece takes 200 characters for a word at most.
    vocabulary = small_byte_bpe.vocabulary() if kind == "byte_bpe" else of_characters([text])
    ids, starts, ends = vocabulary.encode_with_offsets(text)
    documents = np.zeros(1, np.int64)
    lengths, document_of = cuts.cut([text], np.array([len(ids)]), documents, vocabulary, most)
    assert lengths.sum() == len(ids) and len(lengths) == len(document_of) > 1
    clusters = {match.end() for match in regex.finditer(r"\X", text)}
    gaps = [text[end:start] for end, start in zip(ends, starts[1:], strict=False)]
    spaces = [place for place, gap in enumerate(gaps, 1) if gap.isspace() or gap == "\u200b"]
    borders = [
        place
        for place in range(1, len(ids))
        if starts[place] in clusters and starts[place] >= ends[place - 1]
    ]
    begin = 0
    for end in np.cumsum(lengths)[:-1]:
        near = [
            [place for place in at if begin < place <= begin + most] for at in (spaces, borders)
        ]
        # Only a cluster of more tokens than `most` passes the bound.
        expected = max(near[0] or near[1] or [min(place for place in borders if place > begin)])
        assert end == expected
        begin = end
    assert lengths[-1] <= most or not any(place > begin for place in borders)


def pieces(*documents, most=8):
    """Returns the numbers of tokens of each sentence of documents, which are lists of sentences."""
    texts = [sentence for document in documents for sentence in document]
    vocabulary = of_characters(texts)
    _, lengths = vocabulary.encode_flat(texts)
    document_of = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    made, _ = cuts.cut(texts, lengths, document_of, vocabulary, most)
    return made.tolist()


def test_sentences_with_an_end_that_the_rules_know_stay_whole(monkeypatch):
    monkeypatch.setattr(cuts, "LONGEST_SENTENCE", 40)
    for sentence in (
        "a sentence that is long.",
        "a heading without an end",
        "これは長い文章ですここまで。",
        "यह एक लंबा वाक्य है।”",
        "1 2 3 4 5 6 7 8 9 10",
    ):
        assert len(pieces([sentence])) == 1
    # Beyond the longest sentence there is, and where such text stands line by line.
    assert len(pieces(["word " * 11])) == 6
    assert len(pieces(["word " * 5] * 3)) == 9
    assert len(pieces(["word " * 5 + "."] * 3)) == len(pieces(*[["word " * 5]] * 3)) == 3
    assert max(pieces(["слово " * 9, "ภาษาไทย" * 3])) <= 8


def test_a_build_cuts_and_counts_unless_lines_are_sentences(tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join([THAI * 3, "ไทย", JAPANESE * 4] * 5), encoding="utf-8")
    of_characters([text.read_text(encoding="utf-8")]).save(tmp_path / "vocabulary")
    chosen = conftest.options(text, str(tmp_path / "vocabulary"), tmp_path / "out")
    statistics = build.build(chosen).statistics
    assert statistics["sentence_length"]["max"] <= 16
    assert statistics["sentences"] == 15 + statistics["sentence_cuts"] > 100
    assert f"{statistics['sentence_cuts']} cuts" in (tmp_path / "out/report.html").read_text()
    lines = dataclasses.replace(chosen, sentence_splitter="lines", output=str(tmp_path / "lines"))
    statistics = build.build(lines).statistics
    assert statistics["sentences"] == 15 and statistics["sentence_cuts"] == 0
    exact = dataclasses.replace(chosen, algorithm="exact", output=str(tmp_path / "exact"))
    assert build.build(exact).statistics["sentences"] == 15
