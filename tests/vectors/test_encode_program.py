"""Claims about `python -m bertjax.encode` with --output and --vectors, as a user sees it."""

import io
import json

import numpy as np
import pytest

import bertjax
from bertjax import encode, inference
from bertjax.vectors import store
from tests import programs, small_sentences

ENCODE = "bertjax.encode"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model of sentence-transformers, a file of lines, one of objects, and vectors of both."""
    root = tmp_path_factory.mktemp("program")
    small_sentences.write(root / "model")
    texts = small_sentences.texts(12, longest=25)
    (root / "a.txt").write_text("".join(f"{text}\n" for text in texts[:8]))
    objects = [{"_id": f"d{n}", "body": text} for n, text in enumerate(texts[8:])]
    (root / "b.jsonl").write_text("".join(json.dumps(each) + "\n" for each in objects))
    done = programs.succeed(
        *(ENCODE, f"--checkpoint={root / 'model'}", f"--output={root / 'vectors'}"),
        *(f"--input={root / 'a.txt'},{root / 'b.jsonl'}", "--shard_size=5", "--batch_size=8"),
        *("--text_column=body", "--id_column=_id"),
    )
    assert done.output.decode() == f"{root / 'vectors'}: 12 vectors in 3 shards\n"
    return root, texts


def cosines(root, texts, queries):
    """The cosine of each query with each text."""
    model = inference.load(root / "model")
    documents = encode.encode(model, texts, truncate=True)["features"]
    asked = encode.encode(model, queries, prompt="w9 ", truncate=True)["features"]
    return asked @ documents.T


def test_the_nearest_are_printed_with_file_line_id_and_text(place):
    root, texts = place
    queries = [texts[10], "w1 w2"]
    flags = (f"--checkpoint={root / 'model'}", f"--vectors={root / 'vectors'}", "--top_k=12")
    done = programs.succeed(ENCODE, *flags, *(f"--search={query}" for query in queries), "--json")
    scores = cosines(root, texts, queries)
    for row, (found, query) in enumerate(zip(done.lines, queries, strict=True)):
        assert found["query"] == query
        assert [each["rank"] for each in found["found"]] == [*range(1, 13)]
        places = [texts.index(each["text"]) for each in found["found"]]
        assert sorted(places) == [*range(12)]
        assert (np.diff(scores[row, places]) < 1e-5).all()  # from the nearest on
        for each, n in zip(found["found"], places, strict=True):
            file, line = ("a.txt", n + 1) if n < 8 else ("b.jsonl", n - 7)
            assert (each["file"], each["line"]) == (str(root / file), line)
            assert each["id"] == ("" if n < 8 else f"d{n - 8}")
            assert each["score"] == pytest.approx(scores[row, n], abs=1e-5)
    of_stdin = programs.succeed(ENCODE, *flags, "--json", lines=tuple(queries))
    assert of_stdin.output == done.output
    plain = programs.succeed(ENCODE, *flags, f"--search={queries[0]}").output.decode().splitlines()
    first = done.lines[0]["found"][0]
    where = f"{first['file']}:{first['line']}"
    columns = ["1", f"{first['score']:.4f}", where, first["id"], first["text"]]
    assert plain[0] == queries[0] and len(plain) == 13
    assert plain[1].split("\t") == [column for column in columns if column]


def test_quantized_vectors_of_standard_input_tell_their_recall(place, tmp_path):
    root, texts = place
    done = programs.succeed(
        *(ENCODE, f"--checkpoint={root / 'model'}", f"--output={tmp_path / 'v'}"),
        *("--quantize=int8", "--recall_sample=3", "--format=parquet"),
        lines=tuple(texts),
    )
    told = store.Manifest.load(tmp_path / "v").recall
    lines = done.output.decode().splitlines()
    assert lines[1] == (
        f"int8: recall@10 is {told['recall']:.4f} of float32's, {told['lost']:.4f} lost "
        "(3 texts as queries)"
    )
    assert 0.8 < told["recall"] <= 1
    flags = (f"--checkpoint={root / 'model'}", f"--vectors={tmp_path / 'v'}", "--json")
    (found,) = programs.succeed(ENCODE, *flags, "--search=w1 w2", "--top_k=3").lines
    assert len(found["found"]) == 3
    best = found["found"][0]
    assert best["file"] == "" and texts[best["line"] - 1] == best["text"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input=a.txt"], "--input goes with --output=DIR, which is not given"),
        (["--quantize=int8"], "--quantize goes with --output=DIR"),
        (["--search=a"], "--search goes with --vectors=DIR, which is not given"),
        (["--output=a", "--vectors=b"], "give one of the two"),
        (["--vectors=b", "--pooling=max"], "--pooling is that of --vectors=b; leave it out"),
        (["--vectors=nowhere"], "nowhere holds no manifest.json"),
        (["--output={new}", "--input=missing.txt"], "missing.txt: no such file; --input names"),
        (["what?"], "'what[?]' is no flag; a question is --search='what[?]'"),
        (["--pooling=median"], "--pooling=median"),
    ],
)
def test_wrong_flags_end_in_one_line(place, tmp_path, flags, message):
    root, _ = place
    flags = [flag.format(new=tmp_path / "new") for flag in flags]
    done = programs.run(ENCODE, f"--checkpoint={root / 'model'}", *flags)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(done.error)
    assert "\n" not in done.error


def test_vectors_of_another_model_are_not_searched(place, tmp_path):
    root, _ = place
    small_sentences.write(tmp_path / "other", scale=1.5)
    done = programs.run(
        ENCODE, f"--checkpoint={tmp_path / 'other'}", f"--vectors={root / 'vectors'}", "--search=a"
    )
    assert "holds vectors of another model" in done.error
    assert str(root / "model") in done.error and str(tmp_path / "other") in done.error


def test_an_archive_has_the_same_vectors_and_python_too(place):
    root, texts = place
    flags = (f"--checkpoint={root / 'model'}", "--truncate", "--dims=5", "--prompt=w3 ")
    done = programs.succeed(ENCODE, *flags, lines=tuple(texts))
    with np.load(io.BytesIO(done.output)) as archive:
        features = archive["features"]
    found = bertjax.load(root / "model").encode(texts, truncate=True, dims=5, prompt="w3 ")
    np.testing.assert_allclose(features, found["features"], atol=1e-6)
    assert features.shape == (12, 5)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-6)
