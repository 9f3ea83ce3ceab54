import dataclasses
import gzip
import json
import pathlib
import pickle
import re

import pyarrow
import pytest
from pyarrow import parquet

from data_pipelines.documents import sources
from data_pipelines.formats import base, text_files


def write(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return str(folder / "*.txt")


@pytest.fixture
def mixed(tmp_path):
    """A source of every format of files, and the texts in it."""
    (tmp_path / "b.txt").write_text("one\n\ntwo")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"three"))
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": "four"}))
    parquet.write_table(pyarrow.table({"text": ["five", "six"]}), tmp_path / "d.parquet")
    return f"{tmp_path}/*.txt*,{tmp_path}/?.*", ["three", "one", "two", "four", "five", "six"]


def test_formats_mix_in_the_order_of_the_source_and_no_file_comes_twice(mixed, monkeypatch):
    source, texts = mixed
    log = sources.Log()
    assert [document.text for document in sources.documents(source, log=log)] == texts
    assert log.bytes_read == sum(unit.bytes for unit in sources.units(source))
    documents = [("name", "built in")]
    row = dataclasses.replace(sources.FORMATS["documentation"], read=lambda *_: iter(documents))
    monkeypatch.setitem(sources.FORMATS, "documentation", row)
    both = sources.documents(f"documentation,{source}")
    assert [document.text for document in both] == ["built in", *texts]


def test_one_file_by_two_names_comes_once_with_a_warning(tmp_path, monkeypatch, caplog):
    write(tmp_path, a="one", b="two")
    monkeypatch.chdir(tmp_path)
    units = sources.units(f"b.txt,./b.txt,{tmp_path}/*.txt")
    assert [unit.location for unit in units] == ["b.txt", f"{tmp_path}/a.txt"]
    assert f"names ./b.txt, {tmp_path}/b.txt more than once; each is read once" in caplog.text
    caplog.clear()
    sources.units("a.txt,b.txt")
    assert not caplog.text


def test_units_read_one_by_one_are_the_documents_of_the_whole(mixed):
    source, _ = mixed
    reading = sources.Reading(split="train", heldout_fraction=0.4)
    apart = [
        document
        for unit in sources.units(source)
        for document in sources.read_unit(pickle.loads(pickle.dumps(unit)), reading, sources.Log())
    ]
    assert apart == list(sources.documents(source, reading))


def held_out_texts(source, **reading):
    options = {"split": "heldout", "heldout_fraction": 0.3} | reading
    return sorted(document.text for document in sources.documents(source, base.Reading(**options)))


def test_the_split_does_not_depend_on_how_a_path_is_written_or_where_the_files_lie(
    tmp_path, monkeypatch
):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    texts = [f"text {number}" for number in range(60)]
    write(corpus, a="\n\n".join(texts[:40]), b="\n\n".join(texts[40:]))
    monkeypatch.chdir(tmp_path)
    expected = held_out_texts("corpus/*.txt")
    assert 8 <= len(expected) <= 30
    for spelling in (
        "./corpus/*.txt",
        f"{corpus}/?.txt",
        "corpus/../corpus/a.txt,corpus/b.txt",
        f"{tmp_path}/**/*.txt",
    ):
        assert held_out_texts(spelling) == expected, spelling
    moved = corpus.rename(tmp_path / "moved")
    assert held_out_texts("moved/*.txt") == expected
    # Another order, another file, another format.
    (moved / "a.txt").unlink()
    write(moved, b="\n\n".join(reversed(texts[20:])))
    (moved / "c.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts[:20]))
    assert held_out_texts("moved/*") == expected


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_the_parts_of_a_long_document_stay_on_one_side(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(text_files, "LONGEST_DOCUMENT", 60)
    monkeypatch.setattr(text_files, "LONGEST_LINE_BYTES", 64)
    documents = [[f"{name} paragraph {n}" for n in range(12)] for name in "abcdefgh"]
    # A name of its own each time would at times put all on one side.
    monkeypatch.chdir(tmp_path)
    path = pathlib.Path(f"long{suffix}")
    if suffix == ".txt":
        path.write_text("\n\n".join("\n".join(one) for one in documents) + "\n")
    else:
        path.write_text("".join(json.dumps({"text": "\n".join(one)}) + "\n" for one in documents))
    sides = {}
    for split in ("train", "heldout"):
        found = held_out_texts(str(path), split=split, heldout_fraction=0.5)
        assert len(found) % 3 == 0 < len(found)  # each document is three parts
        sides[split] = {text[0] for text in found}
    assert not sides["train"] & sides["heldout"]
    assert sides["train"] | sides["heldout"] == set("abcdefgh")


def test_copies_are_on_one_side_and_articles_keep_theirs_when_a_word_changes(tmp_path):
    twice = write(tmp_path, a="\n\n".join([f"text {number % 30}" for number in range(60)]))
    found = held_out_texts(twice)
    assert {found.count(text) for text in found} == {2}
    named = [name for name, form in sources.FORMATS.items() if form.names_documents]
    assert named == ["wikipedia", "tfds", "documentation"]


def test_the_split_of_a_document_depends_on_its_key_alone():
    # Fixed values: a change would move documents between training and evaluation.
    fates = [sources.is_heldout(f"document {number}", 0.5) for number in range(8)]
    assert fates == [True, True, True, False, False, False, True, True]
    assert not sources.is_heldout("anything", 0.0)


def test_a_reading_that_cannot_be_is_an_error():
    for options, message in (
        ({"split": "test"}, "all, train, heldout"),
        ({"heldout_fraction": 1.0}, "heldout_fraction is 1.0"),
        ({"text_field": "a..b"}, "text_field is 'a..b'"),
        ({"delimiter": ";;"}, "delimiter is ';;'; it must be auto, tab or one character"),
        ({"encoding": "cp12"}, "encoding is 'cp12'; it must be an encoding of text"),
        ({"encoding": "rot13"}, "encoding is 'rot13'; it must be an encoding of text"),
    ):
        with pytest.raises(ValueError, match=message):
            sources.Reading(**options)
    assert sources.prose(sources.Document("name", "'''one'''")) == "'''one'''"
    with pytest.raises(ValueError, match="markup of document 'name' is 'html'"):
        sources.prose(sources.Document("name", "", "html"))


RUSSIAN, GREEK = "Все люди рождаются свободными\n" * 20, "Όλοι οι άνθρωποι γεννιούνται\n" * 20
# The content of files, the number of those that are wrong, what is advised and what is not.
ENCODINGS = [
    ((RUSSIAN.encode("cp1251"),) * 2 + (b"plain\n",), 2, "give --encoding=cp1251, or convert each"),
    ((RUSSIAN.encode("cp1251"), RUSSIAN.encode()), 1, "convert each .* -f cp1251 -t utf-8"),
    ((RUSSIAN.encode("cp1251"), GREEK.encode("cp1253")), 2, "convert each .* -f ENCODING -t utf-8"),
]


def test_all_files_in_other_encodings_are_named_with_a_remedy_that_fits_them_together(tmp_path):
    for contents, wrong, remedy in ENCODINGS:
        for number, content in enumerate(contents):
            (tmp_path / f"{number}.txt").write_bytes(content)
        source = ",".join(str(tmp_path / f"{number}.txt") for number in range(len(contents)))
        with pytest.raises(ValueError) as caught:
            sources.documents(source)
        first, *files = str(caught.value).split("\n")
        assert re.match(f"{wrong} of {len(contents)} files are not UTF-8; {remedy}", first)
        assert [f"{number}.txt: it looks like cp125" in it for number, it in enumerate(files)] == (
            [True] * wrong
        )
        assert ("--encoding" in first) == remedy.startswith("give")


def test_bad_input_is_named_before_anything_is_read(tmp_path):
    write(tmp_path, a="text")
    for name in ("c.gz", "g.parquet.gz"):
        (tmp_path / name).write_text("not what it seems")
    for source, error, message in (
        ("{}/none*.txt", FileNotFoundError, "none*.txt"),
        ("{}/a.txt,{}", ValueError, "is a directory"),
        ("{}/a.txt,{}/c.gz", ValueError, "c.gz is damaged or not what"),
        ("{}/a.txt,{}/g.parquet.gz", ValueError, "unpack it"),
        ("{}/a.txt,tfds:no_such_dataset", ValueError, "tfds:no_such_dataset"),
    ):
        with pytest.raises(error) as caught:
            sources.documents(source.format(tmp_path, tmp_path))
        assert message in str(caught.value)
