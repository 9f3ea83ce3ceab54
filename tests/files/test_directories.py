"""Claims about directories: which are ours, and who may write in them."""

import pytest
from etils import epath

from bertjax.files import directories
from tests.files import test_output

ADVICE = "give another --output"


def test_a_directory_is_claimed_if_nothing_is_in_the_way_and_then_stays_claimed(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "log.txt").write_text("mine")
    directories.claim(out, "run", ["config.json", "metrics.jsonl"], advice=ADVICE)
    (out / "config.json").touch()
    (out / ".nfs000").touch()
    directories.claim(out, "run", ["config.json", "metrics.jsonl"], advice=ADVICE)
    assert (out / "log.txt").read_text() == "mine"
    test_output.downloaded(tmp_path / "weights")
    before = test_output.files(tmp_path)
    for path, format, names in (
        (tmp_path / "weights", "run", ["config.json", "metrics.jsonl"]),
        (out, "vectors", []),
    ):
        with pytest.raises(directories.NotOursError, match=ADVICE):
            directories.claim(path, format, names, advice=ADVICE)
    assert test_output.files(tmp_path) == before


def test_a_lock_excludes_others_and_outlives_the_removal_of_its_file(tmp_path):
    with directories.lock(tmp_path):
        with pytest.raises(BlockingIOError, match="lock"), directories.lock(tmp_path):
            pass
        (tmp_path / directories.LOCK_FILE).unlink()
        with (
            directories.lock(tmp_path),
            pytest.raises(BlockingIOError),
            directories.lock(tmp_path),
        ):
            pass


def test_a_directory_is_removed_with_its_mark_last(tmp_path, monkeypatch):
    directories.mark(tmp_path / "out", "build")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "out" / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "out" / "deep" / "er").mkdir(parents=True)
    real, left = type(epath.Path(tmp_path)).rmtree, []

    def rmtree(path, **options):
        left.append([it.name for it in (tmp_path / "out").iterdir()])
        real(path, **options)

    monkeypatch.setattr(type(epath.Path(tmp_path)), "rmtree", rmtree)
    directories.remove(epath.Path(tmp_path / "out"))
    assert left[-1] == [directories.MARKER] and not (tmp_path / "out").exists()
    assert (tmp_path / "mine" / "thesis.tex").exists()
