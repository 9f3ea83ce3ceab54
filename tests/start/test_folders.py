"""A folder stands for the texts in it, however it is called; the other files are listed."""

import pytest

from bertjax.start import folders
from data_pipelines.documents import sources


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text\n")
    return folder


def test_a_folder_stands_for_its_texts_at_every_depth(tmp_path):
    texts = ("a.txt", "deep/er/B.TXT", "deep/c.jsonl.gz", "deep/d.csv")
    folder = make(tmp_path / "my [old] texts", *texts, "x.docx", "deep/y.pdf", ".git/z.txt")
    paths, others = folders.expanded(f"{folder},{tmp_path}/more.txt")
    *patterns, last = paths.split(",")
    assert last == f"{tmp_path}/more.txt"
    found = {it.location for pattern in patterns for it in sources.units(pattern)}
    assert found == {str(folder / it) for it in texts}
    assert others == [str(folder / it) for it in ("deep/y.pdf", "x.docx")]
    assert "2 files" in folders.left_out(others) and "x.docx" in folders.left_out(others)


def test_files_globs_and_the_word_of_a_source_stay_as_they_are(tmp_path, monkeypatch):
    folder = make(tmp_path, "a,b.txt", "c.txt", "documentation/d.txt")
    monkeypatch.chdir(folder)
    assert folders.expanded("documentation") == ("documentation", [])
    assert folders.expanded("./documentation")[0].endswith("*.txt")
    for paths in (f"{folder}/a,b.txt", f"{folder}/*.txt", f"{folder}/c.txt,gs://b/*.txt"):
        assert folders.expanded(paths) == (paths, [])
    assert folders.left_out([]) == ""


def test_a_folder_without_text_is_named_with_what_it_has(tmp_path):
    with pytest.raises(ValueError, match=r"--input=.*; it has .*x\.docx"):
        folders.expanded(str(make(tmp_path, "x.docx")))
