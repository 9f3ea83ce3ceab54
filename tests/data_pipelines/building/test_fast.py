import os
import pathlib
import shutil
import types
from unittest import mock

import pytest

from bertjax.data import encoding
from bertjax.files import atomic
from data_pipelines import partial_output
from data_pipelines.building import blocks, builders, fast, options, shards, store
from data_pipelines.documents import sources
from tests.data_pipelines import conftest, decoded

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
        fields = {"dupe_factor": 2, "num_shards": NUM_SHARDS} | changes
        chosen = options.checked(
            conftest.options(text, vocabulary_directory, tmp_path / name, **fields)
        )
        vocabulary = blocks.Vocabulary.of(chosen.vocabulary, None)
        units = sources.units(chosen.input)
        output = partial_output.PartialOutput(chosen.output)
        output.begin({}, {})
        judged = []

        def listen(figures):
            judged.append(dict(figures))
            if judge:
                judge()

        content = fast.build(chosen, vocabulary, units, output, listen)
        return types.SimpleNamespace(content=content, judged=judged, files=files(tmp_path / name))

    return made


def files(output):
    return decoded.files(f"{output}.partial/records")


def stop_after(calls, function):
    """The function, which works that often and then not again."""
    left = iter(range(calls))

    def stopping(*args, **kwargs):
        if next(left, None) is None:
            raise Stopped
        return function(*args, **kwargs)

    return stopping


@pytest.fixture
def stopped(build, monkeypatch):
    """A function that builds until the tokens are stored, or until another function is called."""

    def run(*args, module=fast, name="_paired", calls=0, patches=(), **changes):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, stop_after(calls, getattr(module, name)))
            for patch in patches:
                patched.setattr(*patch)
            with pytest.raises(Stopped):
                build(*args, **changes)

    return run


def test_the_size_of_blocks_changes_no_token(stopped, monkeypatch, tmp_path):
    contents = []
    for size in (1_000, 10**9):
        monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", size)
        stopped(str(size))
        scratch = tmp_path / f"{size}.partial" / "scratch"
        names = (store.TOKENS, store.SENTENCES, store.DOCUMENTS)
        contents.append([(scratch / name).read_bytes() for name in names])
    assert contents[0] == contents[1]


def test_a_build_that_was_stopped_anywhere_continues(build, stopped, monkeypatch):
    whole = build("whole")
    for number, (module, name, calls) in enumerate(
        (
            (blocks, "tokenize", 3),
            (store.Store, "_write", 9),
            (shards, "pair_block", 2),
            (atomic, "write", 5),
            (shards, "write", 2),
            (encoding, "encode_batch", 3),
        )
    ):
        stopped(f"{number}", module=module, name=name, calls=calls)
        with monkeypatch.context() as patched:
            if module is shards:  # finished work is not done again
                patched.setattr(blocks, "tokenize", None)
                patched.setattr(sources, "read_unit", None)
            resumed = build(f"{number}")
        assert resumed.files == whole.files and resumed.content == whole.content
        assert resumed.judged == whole.judged


def test_stored_blocks_are_kept_as_long_as_the_text_is_theirs(
    build, stopped, monkeypatch, tmp_path, text_file
):
    text = tmp_path / "text.txt"
    documents = pathlib.Path(text_file).read_text().split("\n\n")
    # Two of four documents that fill a block each: the shorter text ends where a block does.
    blocky = [f"{word} " * 3_000 + "Kalo mi." for word in ("ka", "lo", "mi", "ren")]
    for number, (before, after) in enumerate(
        (
            (documents, [*documents[:60], "Kalo mi. Rentus.", *documents[61:]]),
            (documents, documents[:60]),
            (documents, documents[1:]),
            (blocky, blocky[:2]),
        )
    ):
        text.write_text("\n\n".join(before))
        notes = (fast, "READING_NOTES", "pairs-notes.json")
        stopped(f"{number}", text=str(text), patches=[notes])
        text.write_text("\n\n".join(after))
        tokenize = mock.Mock(wraps=blocks.tokenize)
        with monkeypatch.context() as patched:
            patched.setattr(blocks, "tokenize", tokenize)
            resumed = build(f"{number}", text=str(text))
        tokenized = {one.id for call in tokenize.call_args_list for one in call.args[0]}
        assert (f"{text}:1" in tokenized) == (after == documents[1:])
        expected = build(f"whole{number}", text=str(text))
        assert resumed.files == expected.files and resumed.content == expected.content


def test_tokens_and_notes_that_a_crash_or_a_full_disk_took_are_made_again(
    build, stopped, monkeypatch, tmp_path
):
    expected = build("whole")
    for name in (store.TOKENS, store.JOURNAL_FILE):
        stopped(name)
        path = tmp_path / f"{name}.partial" / "scratch" / name
        path.write_bytes(path.read_bytes()[:-10])
        resumed = build(name)
        assert resumed.files == expected.files and resumed.content == expected.content

    def out_of_space(number):
        raise OSError(28, "No space left on device")

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
    assert build().content == expected.content


def test_figures_are_judged_when_they_are_known_before_anything_depends_on_them(
    build, tmp_path, monkeypatch
):
    seen, sizes = [], []

    def note(chosen, num_examples, example_bytes, output):
        sizes.append(num_examples * example_bytes)
        return chosen.num_shards

    monkeypatch.setattr(builders, "num_shards", note)
    made = build(judge=lambda: seen.append(len(files(tmp_path / "out"))), short_seq_prob=0.5)
    assert seen == [0, 0] and len(made.files) == NUM_SHARDS
    first, second = made.judged
    assert first["documents"] == 120 and "examples" not in first
    assert set(first) < set(second) and second["forced_random_share"] > 0
    assert set(second) == set(made.content.statistics)
    for name in set(first) | {"examples", "forced_random_share", "dropped_pair_share"}:
        assert made.content.statistics[name] == second[name]
    # The expected size is about the real one.
    assert abs(sizes[0] / sum(map(len, made.files.values())) - 1) < 0.05


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


def test_examples_of_tokens_that_have_changed_are_made_again(
    build, stopped, text_file, tmp_path, monkeypatch
):
    # The key of the work does not know of it: a re-prepared dataset has no date.
    text = tmp_path / "text.txt"
    content = pathlib.Path(text_file).read_text()
    text.write_text(content)
    monkeypatch.setattr(sources, "units", lambda _: [sources.Unit("text", str(text), 0)])
    stopped("changed", text=str(text), module=shards, name="write", calls=2)
    text.write_text("\n\n".join(reversed(content.split("\n\n"))))
    assert build("changed", text=str(text)).files == build("fresh", text=str(text)).files
