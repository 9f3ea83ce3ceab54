"""Claims about outputs: what is replaced, what a stop leaves, and that others lose nothing."""

import contextlib
import os
import re

import pytest
from etils import epath

from bertjax.files import directories, output


def replace(draft, target, overwrite=True):
    output.Output(target, "records", overwrite=overwrite).publish(epath.Path(draft))


def files(directory):
    """The content of all files, links as what they point to."""
    return {
        path.relative_to(directory).as_posix(): os.readlink(path)
        if path.is_symlink()
        else path.read_text()
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def made(directory, content="old", format="records"):
    """A directory of ours that is complete."""
    (directory / "inner").mkdir(parents=True)
    for name in ("a", "inner/b"):
        (directory / name).write_text(content)
    directories.mark(directory, format, ["a", "inner/b"])
    return directory


def downloaded(directory):
    (directory / ".git").mkdir(parents=True)
    for name in ("manifest.json", "config.json", ".git/HEAD"):
        (directory / name).write_text("{}")


def with_link(directory):
    made(directory)
    (directory / "inner" / "b").unlink()
    (directory / "inner" / "b").symlink_to("/etc")
    (directory / "up").symlink_to("..")


# The directory at the target, and the words of the refusal; "" if it is replaced.
CASES = {
    "ours": (made, ""),
    "empty": (lambda path: path.mkdir(), ""),
    "missing": (lambda path: None, ""),
    "of another format": (lambda path: made(path, format="run"), "is a directory of runs of bert"),
    "with a note": (lambda path: (made(path) / "note.txt").touch(), "did not write: note.txt"),
    "with a folder": (lambda path: (made(path) / "kept").mkdir(), "did not write: kept/"),
    "with a link": (with_link, "did not write: up"),
    "downloaded": (downloaded, "holds .git, config.json, manifest.json, and no records"),
    "a mark that is no JSON": (
        lambda path: (made(path) / directories.MARKER).write_text("records"),
        "holds a, bertjax.json, inner, and no records",
    ),
    "of a later version": (
        lambda path: (made(path) / directories.MARKER).write_text(
            '{"format": "records", "version": 9, "files": []}'
        ),
        "and no records",
    ),
    "a file": (lambda path: path.write_text("mine"), "is a file"),
}


@pytest.mark.parametrize("case", CASES)
def test_only_what_is_ours_in_full_is_replaced_and_the_refusal_lists_the_rest(tmp_path, case):
    make, message = CASES[case]
    make(tmp_path / "out")
    before = files(tmp_path)
    if message:
        with pytest.raises(directories.NotOursError, match=re.escape(message)):
            output.Output(tmp_path / "out", "records", overwrite=True)
        assert files(tmp_path) == before
        return
    target = output.Output(tmp_path / "out", "records", overwrite=True)
    with target.draft() as draft:
        draft.mkdir()
        (draft / "new").write_text("new")
        target.publish(draft)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"new", directories.MARKER}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    target.check()
    with pytest.raises(directories.ExistsError, match="out exists; give another --to"):
        output.Output(tmp_path / "out", "records", overwrite=False, option="--to")


def test_many_files_of_others_are_counted(tmp_path):
    for number in range(25):
        (tmp_path / f"{number:02}").touch()
    with pytest.raises(directories.NotOursError, match="08, 09 and 15 more, .*another --output"):
        output.Output(tmp_path, "weights", overwrite=True)


@pytest.mark.parametrize("stopped_at", range(6))
def test_a_replaced_directory_is_the_old_or_the_new_one_wherever_it_stops(
    tmp_path, monkeypatch, stopped_at
):
    """It takes two renames and the removal, the mark last; the last case is not stopped."""
    made(tmp_path / "target")
    made(tmp_path / "draft", "new")
    # Names that look a little like ours, of others.
    others = [".target.bertjax_old", ".target.old.bertjax_old", "target.replaced"]
    for name in others:
        made(tmp_path / name, "theirs")
    actions, path_class = [], type(epath.Path(tmp_path))

    def stopping(original):
        def action(*arguments, **options):
            if len(actions) == stopped_at:
                raise KeyboardInterrupt
            actions.append(original.__name__)
            return original(*arguments, **options)

        return action

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        for name in ("rename", "rmtree", "unlink"):
            patch.setattr(path_class, name, stopping(getattr(path_class, name)))
        replace(tmp_path / "draft", tmp_path / "target")
    assert len(actions) == min(stopped_at, 5)
    output.Output(tmp_path / "target", "records", overwrite=True)
    assert (tmp_path / "target" / "a").read_text() == ("old" if stopped_at < 2 else "new")
    left = ["draft"] if stopped_at < 2 else []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, *left, "target"])


def test_what_came_into_the_old_directory_meanwhile_is_left_aside(tmp_path, monkeypatch, caplog):
    made(tmp_path / "target")
    draft = made(tmp_path / "draft", "new")
    target = output.Output(tmp_path / "target", "records", overwrite=True)
    (tmp_path / "target" / "note.txt").write_text("mine")  # after the last check
    monkeypatch.setattr(target, "check", lambda: None)
    target.publish(epath.Path(draft))
    (aside,) = set(tmp_path.iterdir()) - {tmp_path / "target"}
    assert (aside / "note.txt").read_text() == "mine" and f"{aside} is left" in caplog.text


def test_a_draft_of_a_killed_process_is_removed_and_one_in_use_is_not(tmp_path):
    killed = tmp_path / f".out.{32 * 'a'}.bertjax_draft"
    made(killed)
    (killed / directories.LOCK_FILE).touch()
    with output.drafting(epath.Path(tmp_path / "out")) as first:
        assert not killed.exists()
        first.mkdir()
        with output.drafting(epath.Path(tmp_path / "out")) as second:
            assert first.exists() and second.parent != first.parent
    assert not list(tmp_path.iterdir())


def test_where_the_disk_has_no_locks_no_draft_is_removed(tmp_path, monkeypatch):
    other = tmp_path / f".out.{32 * 'a'}.bertjax_draft"
    made(other)
    (other / directories.LOCK_FILE).touch()
    monkeypatch.setattr(directories.mounts, "lock", lambda file: False)
    with output.drafting(epath.Path(tmp_path / "out")):
        assert (other / "a").exists()
    assert [path.name for path in tmp_path.iterdir()] == [other.name]
