"""Claims about directories of vectors: what they hold, how a run goes on, what is refused."""

import itertools
import json
import re
import shutil
import tracemalloc

import numpy as np
import pytest

from bertjax import encode, inference
from bertjax.data import text_lines
from bertjax.vectors import codes, encoding, store, writing
from bertjax.workdirs import ownership
from tests import small_sentences

COUNT = 30
INPUTS = {"files": []}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("sentences") / "model"
    small_sentences.write(path)
    return inference.load(path)


@pytest.fixture(scope="module")
def texts():
    return small_sentences.texts(COUNT, longest=25)


def write(model, texts, directory, *, inputs=INPUTS, choose=(), total=None, **options):
    """Writes vectors of texts, 7 in a shard."""
    lines = (text_lines.Line(0, n, f"id{n}", text) for n, text in enumerate(texts, start=1))
    chosen = encoding.choices(model, truncate=True, **dict(choose))
    options = writing.Options(**{"shard_size": 7, "batch_size": 8, **options})
    return writing.write(model, lines, directory, chosen, options, inputs=inputs, total=total)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("format", [*store.FORMATS])
@pytest.mark.parametrize("code", [*codes.CODES])
def test_a_directory_holds_the_vectors_in_the_order_of_the_lines(
    model, texts, tmp_path, monkeypatch, format, code
):
    monkeypatch.setattr(encoding, "BLOCK_SIZE", 3)
    manifest = write(model, texts, tmp_path / "v", format=format, code=code)
    assert [shard.rows for shard in manifest.shards] == [7, 7, 7, 7, 2]
    assert manifest.is_complete
    wanted = encode.encode(model, texts, truncate=True)["features"]
    stored = store.Store(tmp_path / "v")
    found, places = [], []
    for first, block in stored.blocks(4):
        assert len(block) <= 4
        places += range(first, first + len(block))
        found.append(block)
    assert places == [*range(COUNT)]
    together = np.concatenate(found)
    assert together.dtype == codes.CODES[code].dtype
    if code == "float32":
        np.testing.assert_allclose(together, wanted, atol=1e-6)
    if code == "binary":
        np.testing.assert_array_equal(together, np.packbits(wanted > 0, axis=1))
    if code == "int8":
        np.testing.assert_allclose(stored.ranges, codes.ranges(wanted[:7]), atol=1e-6)
        exact = codes.CODES["int8"].store(wanted, stored.ranges).astype(int)
        assert np.abs(together - exact).max() <= 1  # rounding at the border of a step
    lines = stored.lines([29, 0, 8])
    assert [lines[place].text for place in (29, 0, 8)] == [texts[29], texts[0], texts[8]]
    assert [lines[place].id for place in (29, 0, 8)] == ["id30", "id1", "id9"]
    cut = sum(len(text.split()) + 2 > small_sentences.MAX_LENGTH for text in texts)
    assert 0 < manifest.counts["texts_cut"] == cut


class Stopped(Exception):
    """What ends a run in the middle."""


@pytest.mark.parametrize("format", [*store.FORMATS])
@pytest.mark.parametrize("read", [10, 20])
def test_a_run_that_goes_on_leaves_what_one_that_never_stopped_leaves(
    model, texts, tmp_path, monkeypatch, caplog, format, read
):
    monkeypatch.setattr(encoding, "BLOCK_SIZE", 3)
    options = {"format": format, "code": "int8", "recall_sample": 3}
    write(model, texts, tmp_path / "never", **options)

    def until_stopped():
        yield from texts[:read]
        raise Stopped

    with pytest.raises(Stopped):
        write(model, until_stopped(), tmp_path / "v", **options)
    begun = store.Manifest.load(tmp_path / "v")
    assert 0 < len(begun.shards) < 5 and not begun.is_complete
    if read == 20:  # killed between the files of a shard and the manifest
        for path in tmp_path.joinpath("v").glob(f"vectors-{len(begun.shards):05d}*"):
            path.write_bytes(b"half a shard")
    asked = []
    encoded = encoding.vectors
    monkeypatch.setattr(
        encoding, "vectors", lambda *args, **kw: asked.append(kw["first"]) or encoded(*args, **kw)
    )
    with caplog.at_level("INFO", logger="absl"):
        write(model, texts, tmp_path / "v", total=COUNT, **options)
    assert re.search(rf"Encoded {COUNT} of {COUNT} texts, \d+ sentences/s, 00:00 left", caplog.text)
    assert min(asked) == begun.num_rows + 1  # nothing is computed twice
    assert contents(tmp_path / "v") == contents(tmp_path / "never")
    again = write(model, texts, tmp_path / "v", **options)
    assert again == store.Manifest.load(tmp_path / "never")


def test_a_run_of_something_else_is_refused_by_what_differs(model, texts, tmp_path):
    write(model, texts, tmp_path / "v")
    kept = contents(tmp_path / "v")
    small_sentences.write(tmp_path / "other", scale=1.5)
    other = inference.load(tmp_path / "other")
    cases = [
        (r"model_sha256 '\w+' there, '\w+' now", other, {}),
        ("code 'float32' there, 'int8' now", model, {"code": "int8"}),
        ("format 'npy' there, 'parquet' now", model, {"format": "parquet"}),
        ("shard_size 7 there, 8 now", model, {"shard_size": 8}),
        ("choices.pooling 'mean' .* 'max'", model, {"choose": {"pooling": "max"}}),
        ("choices.dims 0 .* size 16 there, 4 now", model, {"choose": {"dims": 4}}),
        ("inputs.files", model, {"inputs": {"files": [{"path": "a", "size": 3}]}}),
    ]
    for message, given, options in cases:
        with pytest.raises(ValueError, match=f"vectors of something else: .*{message}"):
            write(given, texts, tmp_path / "v", **options)
    assert contents(tmp_path / "v") == kept


def test_other_texts_than_those_of_a_complete_directory_are_refused(model, texts, tmp_path):
    write(model, texts, tmp_path / "v")
    before = contents(tmp_path / "v")
    with pytest.raises(ValueError, match="the first 30 texts of the input are not those"):
        write(model, [*texts[:-1], "another"], tmp_path / "v")
    with pytest.raises(ValueError, match="complete with 30 vectors, and the input has more"):
        write(model, [*texts, "another"], tmp_path / "v")
    assert contents(tmp_path / "v") == before
    assert write(model, texts, tmp_path / "v").is_complete


def test_a_directory_without_a_shard_binds_nobody(model, tmp_path):
    with pytest.raises(ValueError, match="bad"):
        write(model, broken(), tmp_path / "v")
    manifest = write(model, ["a"], tmp_path / "v", code="int8")
    assert manifest.is_complete and manifest.identity["code"] == "int8"


def broken():
    """Texts that cannot be read."""
    raise ValueError("bad")
    yield ""


def test_other_texts_than_those_of_the_whole_shards_are_refused(model, texts, tmp_path):
    manifest = write(model, texts, tmp_path / "v")
    for changed in (["w1", *texts[1:]], texts[:20]):
        store.Manifest.save(
            store.Manifest(**{**vars(manifest), "is_complete": False}), tmp_path / "v"
        )
        with pytest.raises(ValueError, match="the first 30 texts of the input are not those"):
            write(model, changed, tmp_path / "v")


def test_two_runs_at_once_are_refused(model, texts, tmp_path):
    def meanwhile():
        with pytest.raises(ownership.WorkdirInUseError, match="in use by .* another --output"):
            write(model, texts, tmp_path / "v")
        yield from texts

    assert write(model, meanwhile(), tmp_path / "v").is_complete


def test_a_directory_of_something_else_stays_as_it_is(model, texts, tmp_path):
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "letters.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds letters.txt, and no vectors"):
        write(model, texts, tmp_path / "v")
    assert contents(tmp_path / "v") == {"letters.txt": b"mine"}
    with pytest.raises(ValueError, match="is a file; give a directory"):
        write(model, texts, tmp_path / "v" / "letters.txt")
    with pytest.raises(FileNotFoundError, match="holds no manifest.json, so no vectors"):
        store.Store(tmp_path / "v")


def test_recall_is_that_of_a_direct_count(model, tmp_path):
    texts = [text for text in small_sentences.texts(60) if text]
    manifest = write(model, texts, tmp_path / "v", code="binary", recall_sample=4)
    vectors = encode.encode(model, texts, truncate=True)["features"]
    own = [0, 2, 4, 6]  # of the 7 of the first shard
    exact, signs = vectors @ vectors.T, np.where(vectors > 0, 1, -1)
    hits = 0
    for row in own:
        orders = [np.argsort(-scores[row], kind="stable") for scores in (exact, signs @ signs.T)]
        best = [[place for place in order if place != row][:10] for order in orders]
        hits += len({*best[0]} & {*best[1]})
    assert manifest.recall == {
        "queries": 4, "at": 10, "recall": hits / 40, "lost": 1 - hits / 40,
    }  # fmt: skip
    assert 0 < hits < 40
    assert not list((tmp_path / "v").glob("recall*"))


def test_a_sample_tells_the_ranges(model, texts, tmp_path):
    sample = small_sentences.texts(9, seed=5)
    lines = text_lines.numbered(sample)
    manifest = write(model, texts, tmp_path / "v", code="int8", ranges_from=lines)
    wanted = codes.ranges(encode.encode(model, sample, truncate=True)["features"])
    np.testing.assert_allclose(np.array(manifest.ranges), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recall_sample": 3}, "--recall_sample=3 measures what --quantize loses, and float32"),
        ({"ranges_from": [], "code": "binary"}, "--quantize_sample finds the ranges of int8"),
        ({"code": "int4"}, "code is 'int4', known are float32, int8, binary"),
        ({"format": "csv"}, "format is 'csv', known are npy, parquet"),
    ],
)
def test_options_that_go_together_with_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        writing.Options(**options)


def test_what_cannot_be_written_leaves_no_shard(model, tmp_path):
    with pytest.raises(ValueError, match="there are no texts"):
        write(model, [], tmp_path / "v")
    with pytest.raises(ValueError, match="holds no whole shard yet"):
        store.Store(tmp_path / "v")
    with pytest.raises(ValueError, match="pooling is 'none'"):
        write(model, ["w1"], tmp_path / "w", choose={"pooling": "none"})


def test_a_shard_that_was_altered_is_named(model, texts, tmp_path):
    write(model, texts, tmp_path / "v")
    stored = store.Store(tmp_path / "v")
    shard = tmp_path / "v" / "vectors-00001.npy"
    np.save(shard, np.load(shard)[:5])
    with pytest.raises(ValueError, match="vectors-00001 holds 5 vectors; manifest.json says 7"):
        list(stored.blocks(100))
    shard.write_bytes(shard.read_bytes()[:150])
    with pytest.raises(ValueError, match=r"vectors-00001.npy is damaged"):
        list(stored.blocks(100))
    manifest = tmp_path / "v" / "manifest.json"
    fields = json.loads(manifest.read_text())
    for wrong in ({**fields, "version": 99}, {"version": 1}):
        manifest.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match="manifest.json is"):
            store.Store(tmp_path / "v")


def test_texts_need_not_be_kept(model, texts, tmp_path):
    write(model, texts, tmp_path / "v", store_texts=False)
    line = store.Store(tmp_path / "v").lines([3])[3]
    assert (line.text, line.id, line.number) == ("", "id4", 4)


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
