import os
import pathlib
import shutil
import types

import pytest

from bertjax.data import atomic, records
from data_pipelines import blocks, builders, fast, options, partial_output, shards, sources, store

NUM_SHARDS = 4


class Stopped(BaseException):
    """Stands for whatever ends a process in the middle."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """About six blocks of the test corpus."""
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 8_000)


@pytest.fixture
def build(text_file, vocabulary_directory, tmp_path):
    """A function that builds into a directory and returns content, files and the judged figures.

    As `build.build`, but that it neither publishes nor writes a manifest.
    """

    def made(name="out", *, judge=None, text=text_file, **changes):
        fields = {"max_seq_length": 32, "dupe_factor": 2, "num_shards": NUM_SHARDS} | changes
        chosen = options.checked(
            options.Options(
                input=text,
                vocabulary=vocabulary_directory,
                output=str(tmp_path / name),
                **({"num_workers": 1} | fields),
            )
        )
        vocabulary = blocks.Vocabulary.of(chosen.vocabulary, None)
        units = sources.units(chosen.input)
        output = partial_output.PartialOutput(chosen.output)
        output.begin({}, {})
        judged = []

        def listen(figures):
            judged.append(dict(figures))
            if judge:
                judge(len(judged))

        content = fast.build(chosen, vocabulary, units, output, listen)
        return types.SimpleNamespace(
            content=content, judged=judged, files=files(tmp_path / name), output=output
        )

    return made


def files(output):
    directory = pathlib.Path(f"{output}.partial") / "records"
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def stop_after(calls, function):
    """The function, which works that often and then not again."""
    left = [calls]

    def stopping(*args, **kwargs):
        if not left[0]:
            raise Stopped
        left[0] -= 1
        return function(*args, **kwargs)

    return stopping


def out_of_space(number):
    raise OSError(28, "No space left on device")


def recording(seen, tokenize):
    """The function, whose documents are kept in a list."""

    def recorded(block, how):
        seen.extend(block)
        return tokenize(block, how)

    return recorded


def test_the_size_of_blocks_changes_no_token(build, monkeypatch, tmp_path):
    monkeypatch.setattr(fast, "_paired", stop_after(0, fast._paired))
    found = []
    for size in (1_000, 10**9):
        monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", size)
        with pytest.raises(Stopped):
            build(str(size))
        scratch = tmp_path / f"{size}.partial" / "scratch"
        names = (store.TOKENS, store.SENTENCES, store.DOCUMENTS)
        found.append([(scratch / name).read_bytes() for name in names])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("module", "name", "calls"),
    [
        (blocks, "tokenize", 3),
        (store.Store, "_write", 9),
        (shards, "pair_block", 2),
        (atomic, "write", 5),
        (shards, "write", 2),
        (records, "encode_batch", 3),
    ],
)
def test_a_build_that_was_stopped_anywhere_continues(build, monkeypatch, module, name, calls):
    whole = build("whole")
    with monkeypatch.context() as patched:
        patched.setattr(module, name, stop_after(calls, getattr(module, name)))
        with pytest.raises(Stopped):
            build()
    resumed = build()
    assert resumed.files == whole.files and resumed.content == whole.content
    assert resumed.judged == whole.judged


def test_finished_work_is_not_done_again(build, monkeypatch, tmp_path):
    with monkeypatch.context() as patched:
        patched.setattr(shards, "write", stop_after(2, shards.write))
        with pytest.raises(Stopped):
            build()
    before = {
        path.name: path.stat().st_mtime_ns
        for path in (tmp_path / "out.partial" / "records").iterdir()
    }
    assert list(before) == [records.shard_name(index, NUM_SHARDS) for index in range(2)]

    def never(*args, **kwargs):
        raise AssertionError("done again")

    monkeypatch.setattr(blocks, "tokenize", never)
    monkeypatch.setattr(sources, "read_unit", never)
    build()
    for name, time in before.items():
        assert (tmp_path / "out.partial" / "records" / name).stat().st_mtime_ns == time


def test_stored_blocks_are_kept_as_long_as_the_text_is_theirs(
    build, monkeypatch, tmp_path, text_file
):
    text = tmp_path / "text.txt"
    documents = pathlib.Path(text_file).read_text().split("\n\n")
    for changed in (
        [*documents[:60], "Kalo mi. Rentus.", *documents[61:]],
        documents[:60],
        [*documents, *documents[:30]],
        documents[1:],
    ):
        text.write_text("\n\n".join(documents))
        with monkeypatch.context() as patched:
            patched.setattr(fast, "READING_NOTES", "notes of a process that died before")
            patched.setattr(fast, "_paired", stop_after(0, fast._paired))
            with pytest.raises(Stopped):
                build(text=str(text))
        text.write_text("\n\n".join(changed))
        tokenized = []
        with monkeypatch.context() as patched:
            patched.setattr(blocks, "tokenize", recording(tokenized, blocks.tokenize))
            made = build(text=str(text))
        assert (f"{text}:1" in {one.id for one in tokenized}) == (changed == documents[1:])
        wanted = build("wanted", text=str(text))
        assert made.files == wanted.files and made.content == wanted.content
        for name in ("out", "wanted"):
            shutil.rmtree(tmp_path / f"{name}.partial")


def test_blocks_beyond_the_end_of_a_shorter_text_are_forgotten(build, monkeypatch, tmp_path):
    # Documents that fill a block each, so that the shorter text ends where a block does.
    documents = [f"{word} " * 3_000 + "Kalo mi." for word in ("ka", "lo", "mi", "ren")]
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(documents))
    with monkeypatch.context() as patched:
        patched.setattr(fast, "READING_NOTES", "notes of a process that died before")
        patched.setattr(fast, "_paired", stop_after(0, fast._paired))
        with pytest.raises(Stopped):
            build(text=str(text))
    text.write_text("\n\n".join(documents[:2]))
    assert build(text=str(text)).content.statistics["documents"] == 2


@pytest.mark.parametrize("name", [store.TOKENS, store.JOURNAL_FILE])
def test_tokens_that_a_crash_of_the_machine_took_are_made_again(build, monkeypatch, tmp_path, name):
    with monkeypatch.context() as patched:
        patched.setattr(fast, "_paired", stop_after(0, fast._paired))
        with pytest.raises(Stopped):
            build()
    path = tmp_path / "out.partial" / "scratch" / name
    path.write_bytes(path.read_bytes()[:-10])
    made, wanted = build(), build("wanted")
    assert made.files == wanted.files and made.content == wanted.content


def test_notes_that_a_full_disk_cut_short_are_made_again(build, monkeypatch, tmp_path):
    def full(path, content):
        if path.name == fast.READING_NOTES:
            content = content[:5]
            patched.setattr(os, "fsync", out_of_space)
        write(path, content)

    write = atomic.write
    with monkeypatch.context() as patched:
        patched.setattr(atomic, "write", full)
        with pytest.raises(OSError, match="No space"):
            build()
    assert build().content == build("wanted").content


def test_figures_are_judged_when_they_are_known_before_anything_depends_on_them(build, tmp_path):
    seen = []

    def look(number):
        found = files(tmp_path / "out")
        seen.append(len(found))

    made = build(judge=look)
    assert seen == [0, 0] and len(made.files) == NUM_SHARDS
    first, second = made.judged
    assert first["documents"] == 120 and "examples" not in first
    assert set(first) < set(second) and second["forced_random_share"] > 0
    assert set(second) == set(made.content.statistics)
    for name in set(first) | {"examples", "forced_random_share", "dropped_pair_share"}:
        assert made.content.statistics[name] == second[name]


def test_a_disk_that_is_too_small_is_noticed_before_a_shard_is_written(
    build, monkeypatch, tmp_path
):
    usage = shutil.disk_usage(tmp_path)._replace(free=20_000)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(OSError, match="GB more.*--output.*--dupe_factor"):
            build()
    assert not files(tmp_path / "out")
    size = sum(map(len, build().files.values()))
    # With what is finished on the disk, the rest needs no room.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert sum(map(len, build().files.values())) == size


def test_the_expected_size_is_about_the_real_one(build, monkeypatch):
    said = []

    def note(chosen, num_examples, example_bytes, output):
        said.append(num_examples * example_bytes)
        return chosen.num_shards

    monkeypatch.setattr(builders, "num_shards", note)
    made = build(short_seq_prob=0.5)
    assert abs(said[0] / sum(map(len, made.files.values())) - 1) < 0.05


def test_examples_of_tokens_that_have_changed_are_made_again(
    build, text_file, tmp_path, monkeypatch
):
    # The key of the work does not know of it: a re-prepared dataset has no date.
    text = tmp_path / "text.txt"
    content = pathlib.Path(text_file).read_text()
    text.write_text(content)
    monkeypatch.setattr(sources, "units", lambda _: [sources.Unit("text", str(text), 0)])
    with monkeypatch.context() as patched:
        patched.setattr(shards, "write", stop_after(2, shards.write))
        with pytest.raises(Stopped):
            build("changed", text=str(text))
    text.write_text("\n\n".join(reversed(content.split("\n\n"))))
    assert build("changed", text=str(text)).files == build("fresh", text=str(text)).files
