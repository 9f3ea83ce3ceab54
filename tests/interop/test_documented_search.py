"""docs/embeddings.md shows how faiss searches written vectors: its programs, run as they stand."""

import pathlib
import re
import warnings

import numpy as np
import pytest

from bertjax import encode, inference
from tests import programs, small_sentences

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "embeddings.md"
QUESTION = "How do I cancel?"


@pytest.fixture(scope="module", autouse=True)
def libraries():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, about theirs
        pytest.importorskip("faiss")
        pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def shown():
    section = PAGE.read_text(encoding="utf-8").partition("### Search and quantization\n")[2]
    return re.findall(r"^```python\n(.*?)^```$", section.partition("\n## ")[0], re.M | re.S)


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Texts whose vectors were written where the page has them."""
    texts = small_sentences.texts(40, longest=18)
    small_sentences.write(tmp_path / "runs" / "sentences")
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    monkeypatch.chdir(tmp_path)
    programs.succeed(
        *("bertjax.encode", "--checkpoint=runs/sentences", "--output=vectors"),
        *("--input=texts.txt", "--shard_size=15"),
    )
    return texts


def test_the_nearest_texts_are_printed(shown, texts, capsys):
    program = shown[0].replace(QUESTION, "w1 w2 w3").replace('"query: "', '"w9 "')
    assert program.count("w9 ") == 1
    exec(compile(program, str(PAGE), "exec"), {})
    model = inference.load("runs/sentences")
    documents = encode.encode(model, texts)["features"]
    (question,) = encode.encode(model, ["w1 w2 w3"], prompt="w9 ")["features"]
    cosines = documents @ question
    printed = [line.split(" ", 3) for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == 5
    for place, (score, source, line, text) in zip(np.argsort(-cosines), printed, strict=False):
        assert float(score) == pytest.approx(cosines[place], abs=1e-3)
        assert (source, texts[int(line) - 1]) == ("0", text)
        assert cosines[int(line) - 1] == pytest.approx(cosines[place], abs=1e-5)


def test_the_recall_of_bits_is_printed(shown, texts, capsys):
    names = {}
    exec(compile(shown[1], str(PAGE), "exec"), names)
    vectors = encode.encode(inference.load("runs/sentences"), texts)["features"]
    np.testing.assert_array_equal(names["bits"], np.packbits(vectors > 0, axis=1))
    hits = [
        len({*found} & {*near})
        for found, near in zip(names["found"], names["nearest"], strict=True)
    ]
    label, recall = capsys.readouterr().out.split()
    assert (label, float(recall)) == ("recall@10:", pytest.approx(np.mean(hits) / 10, abs=1e-12))
