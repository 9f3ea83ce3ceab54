"""Claims about directories of vectors: what they hold, how a run resumes, what is refused."""

import io
import itertools
import json
import re
import shutil
import tracemalloc

import numpy as np
import pytest

import bertjax
from bertjax import encode, inference
from bertjax.data import text_lines
from bertjax.inference import encoding, vector_files
from bertjax.workdirs import ownership
from tests import programs, small_sentences

COUNT = 30
INPUTS = {"files": []}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("sentences") / "model"
    small_sentences.write(path)
    return path


@pytest.fixture(scope="module")
def model(directory):
    return inference.load(directory)


@pytest.fixture(scope="module")
def texts():
    return small_sentences.texts(COUNT, longest=25)


def write(model, texts, directory, *, inputs=INPUTS, choose=(), total=None, **how):
    """Writes vectors of texts, 7 in a shard."""
    lines = (text_lines.Line(0, n, f"id{n}", text) for n, text in enumerate(texts, start=1))
    options = encoding.options_for(model, truncate=True, **dict(choose))
    how = {"shard_size": 7, "batch_size": 8, **how}
    return vector_files.write(model, lines, directory, options, inputs=inputs, total=total, **how)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def stored(directory):
    """The vectors [texts, size] and the columns of the lines, as any reader gets them."""
    import pyarrow.parquet as pq

    files = sorted(directory.glob("vectors-*.npy"))
    tables = [pq.read_table(path) for path in sorted(directory.glob("vectors-*.parquet"))]
    columns = {
        name: [value for table in tables for value in table[name].to_pylist()]
        for name in tables[0].column_names
    }
    vectors = columns.pop("vector", None)
    if vectors is None:
        return np.concatenate([np.load(path) for path in files]), columns
    return np.array(vectors, np.float32), columns


@pytest.mark.parametrize(("format", "store_texts"), [("npy", True), ("parquet", False)])
def test_a_directory_holds_the_vectors_in_the_order_of_the_lines(
    model, texts, tmp_path, monkeypatch, format, store_texts
):
    monkeypatch.setattr(encoding, "BLOCK_SIZE", 3)
    manifest = write(model, texts, tmp_path / "v", format=format, store_texts=store_texts)
    assert [shard.rows for shard in manifest.shards] == [7, 7, 7, 7, 2]
    assert manifest.is_complete
    vectors, columns = stored(tmp_path / "v")
    expected = encode.encode(model, texts, truncate=True)["features"]
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert columns == {
        "source": [0] * COUNT,
        "line": [*range(1, COUNT + 1)],
        "id": [f"id{n}" for n in range(1, COUNT + 1)],
        "text": texts if store_texts else [""] * COUNT,
    }
    cut = sum(len(text.split()) + 2 > small_sentences.MAX_LENGTH for text in texts)
    assert 0 < manifest.num_cut == cut


class Stopped(Exception):
    """Ends a run in the middle."""


@pytest.mark.parametrize(("format", "read"), [("npy", 10), ("npy", 20), ("parquet", 20)])
def test_a_resumed_run_leaves_what_one_that_never_stopped_leaves(
    model, texts, tmp_path, monkeypatch, caplog, format, read
):
    monkeypatch.setattr(encoding, "BLOCK_SIZE", 3)
    write(model, texts, tmp_path / "never", format=format)

    def until_stopped():
        yield from texts[:read]
        raise Stopped

    with pytest.raises(Stopped):
        write(model, until_stopped(), tmp_path / "v", format=format)
    begun = vector_files.Manifest.load(tmp_path / "v")
    assert 0 < len(begun.shards) < 5 and not begun.is_complete
    if read == 20:  # killed between the files of a shard and the manifest
        for path in tmp_path.joinpath("v").glob(f"vectors-{len(begun.shards):05d}*"):
            path.write_bytes(b"half a shard")
    firsts = []
    vectors = encoding.vectors
    monkeypatch.setattr(
        encoding, "vectors", lambda *args, **kw: firsts.append(kw["first"]) or vectors(*args, **kw)
    )
    with caplog.at_level("INFO", logger="absl"):
        write(model, texts, tmp_path / "v", total=COUNT, format=format)
    assert re.search(rf"Encoded {COUNT} of {COUNT} texts, \d+ sentences/s", caplog.text)
    assert min(firsts) == begun.num_rows + 1  # nothing is computed twice
    assert contents(tmp_path / "v") == contents(tmp_path / "never")
    again = write(model, texts, tmp_path / "v", format=format)
    assert again == vector_files.Manifest.load(tmp_path / "never")


def test_a_run_of_something_else_is_refused_by_what_differs(model, texts, tmp_path):
    write(model, texts, tmp_path / "v")
    before = contents(tmp_path / "v")
    small_sentences.write(tmp_path / "other", scale=1.5)
    other = inference.load(tmp_path / "other")
    cases = [
        (r"model_sha256 '\w+' there, '\w+' now", other, {}),
        ("format 'npy' there, 'parquet' now", model, {"format": "parquet"}),
        ("shard_size 7 there, 8 now", model, {"shard_size": 8}),
        ("options.pooling 'mean' .* 'max'", model, {"choose": {"pooling": "max"}}),
        ("options.dims 0 there, 4 now", model, {"choose": {"dims": 4}}),
        ("inputs.files", model, {"inputs": {"files": [{"path": "a", "size": 3}]}}),
    ]
    for message, given, how in cases:
        with pytest.raises(ValueError, match=f"vectors of something else: .*{message}"):
            write(given, texts, tmp_path / "v", **how)
    assert contents(tmp_path / "v") == before


def test_other_texts_than_those_of_the_shards_are_refused(model, texts, tmp_path):
    manifest = write(model, texts, tmp_path / "v")
    for is_complete in (True, False):
        fields = {**vars(manifest), "is_complete": is_complete}
        vector_files.Manifest(**fields).save(tmp_path / "v")
        before = contents(tmp_path / "v")
        for changed in (["w1", *texts[1:]], [*texts[:-1], "another"], texts[:20]):
            with pytest.raises(ValueError, match="the first 30 texts of the input are not those"):
                write(model, changed, tmp_path / "v")
        if is_complete:
            with pytest.raises(ValueError, match="complete with 30 vectors, and the input has mo"):
                write(model, [*texts, "another"], tmp_path / "v")
        assert contents(tmp_path / "v") == before
    assert write(model, texts, tmp_path / "v").is_complete


def test_a_directory_without_a_shard_takes_another_run(model, tmp_path):
    def broken():
        raise ValueError("bad")
        yield ""

    with pytest.raises(ValueError, match="bad"):
        write(model, broken(), tmp_path / "v")
    manifest = write(model, ["a"], tmp_path / "v", format="parquet")
    assert manifest.is_complete and manifest.identity["format"] == "parquet"


def test_two_runs_at_once_are_refused(model, texts, tmp_path):
    def meanwhile():
        with pytest.raises(ownership.WorkdirInUseError, match="in use by .* another --output"):
            write(model, texts, tmp_path / "v")
        yield from texts

    assert write(model, meanwhile(), tmp_path / "v").is_complete


def test_what_cannot_be_written_is_refused(model, texts, tmp_path):
    for name in ("letters.txt", "manifest.json", "chapter.draft", "owner.json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text('{"of": "others"}')
        with pytest.raises(ValueError, match=f"holds {name}, and no vectors"):
            write(model, texts, tmp_path / name)
        assert contents(tmp_path / name) == {name: b'{"of": "others"}'}
    for directory, given, how, fault in (
        ("letters.txt/letters.txt", texts, {}, "is a file; give a directory"),
        ("v", [], {}, "there are no texts"),
        ("v", ["w1"], {"choose": {"pooling": "none"}}, "pooling is 'none'"),
        ("v", ["w1"], {"format": "csv"}, "format is 'csv'; known are npy, parquet"),
    ):
        with pytest.raises(ValueError, match=fault):
            write(model, given, tmp_path / directory, **how)


@pytest.mark.parametrize("is_complete", [True, False])
def test_what_a_manifest_lists_is_compared_before_it_is_believed(
    model, texts, tmp_path, is_complete
):
    manifest = write(model, texts, tmp_path / "v")
    vector_files.Manifest(**{**vars(manifest), "is_complete": is_complete}).save(tmp_path / "v")
    before = contents(tmp_path / "v")
    name = "vectors-00002.npy"
    for changed in (before[name][:-1], before[name][:-1] + b"?", None):
        (tmp_path / "v" / name).unlink()
        if changed is not None:
            (tmp_path / "v" / name).write_bytes(changed)
        with pytest.raises(ValueError, match=rf"{name} (has|is).*\n.*encode the texts again"):
            write(model, texts, tmp_path / "v")
        (tmp_path / "v" / name).write_bytes(before[name])
    fields = json.loads(before["manifest.json"])
    shard, file = fields["shards"][0], fields["shards"][0]["files"][0]
    changes = (
        {"shards": [{**shard, "files": [{**file, "name": "../a.npy"}]}]},
        {"shards": [{**shard, "dtype": "float16"}]},
        {"shards": [{**shard, "rows": "7"}]},
        *({"shards": 3}, {"is_complete": "yes"}, {"identity": []}, {"num_cut": None}),
        {"version": 99},
    )
    for wrong in (*({**fields, **change} for change in changes), {"version": vector_files.VERSION}):
        (tmp_path / "v" / "manifest.json").write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=r"manifest\.json is"):
            write(model, texts, tmp_path / "v")


@pytest.mark.slow
def test_more_texts_need_no_more_memory(model, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "BLOCK_SIZE", 32)

    def peak(count):
        texts = itertools.islice(itertools.cycle(small_sentences.texts(50)), count)
        tracemalloc.start()
        write(model, texts, tmp_path / str(count), shard_size=512)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        shutil.rmtree(tmp_path / str(count))
        return most

    peak(128)  # compiles
    # The vectors of 6144 more have 393,216 bytes, and their texts and lines more than that.
    assert peak(8192) < peak(2048) + 250_000


def test_the_program_writes_files_of_lines_and_of_objects(directory, model, texts, tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in texts[:8]))
    objects = [{"_id": f"d{n}", "body": text} for n, text in enumerate(texts[8:12])]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(each) + "\n" for each in objects))
    done = programs.succeed(
        *("bertjax.encode", f"--checkpoint={directory}", f"--output={tmp_path / 'v'}"),
        *(f"--input={tmp_path / 'a.txt'},{tmp_path / 'b.jsonl'}", "--shard_size=5"),
        *("--text_column=body", "--id_column=_id"),
    )
    assert done.output.decode() == f"{tmp_path / 'v'}: 12 vectors in 3 shards\n"
    vectors, columns = stored(tmp_path / "v")
    expected = encode.encode(model, texts[:12], truncate=True)["features"]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert columns == {
        "source": [0] * 8 + [1] * 4,
        "line": [*range(1, 9), *range(1, 5)],
        "id": [""] * 8 + [f"d{n}" for n in range(4)],
        "text": texts[:12],
    }
    inputs = vector_files.Manifest.load(tmp_path / "v").identity["inputs"]
    paths = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    assert inputs == {
        "files": [{"path": str(path), "size": path.stat().st_size} for path in paths],
        "text_column": "body",
        "id_column": "_id",
    }


def test_wrong_flags_end_in_one_line(directory, tmp_path):
    for flags, message in (
        (["--input=a.txt"], "a.txt: no such file"),
        (["--shard_size=9"], "--shard_size goes with --output"),
        ([f"--output={tmp_path}/new", "--input=missing.txt"], "missing.txt: no such file; --inp"),
        (["what?"], "'what[?]' is not a flag"),
        (["--pooling=median"], "--pooling=median"),
    ):
        done = programs.run("bertjax.encode", f"--checkpoint={directory}", *flags)
        assert re.search(message, done.error) and "\n" not in done.error


def test_an_archive_has_the_same_vectors_and_python_too(directory, texts):
    flags = (f"--checkpoint={directory}", "--truncate", "--dims=5", "--prompt=w3 ")
    done = programs.succeed("bertjax.encode", *flags, lines=tuple(texts))
    python = bertjax.load(directory).encode(texts, truncate=True, dims=5, prompt="w3 ")
    with np.load(io.BytesIO(done.output)) as archive:
        np.testing.assert_allclose(archive["features"], python["features"], atol=1e-6)
    assert python["features"].shape == (COUNT, 5)
