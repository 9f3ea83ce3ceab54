"""Claims about files that a manifest lists: every change is seen, and no name leaves."""

import dataclasses
import re

import pytest

from bertjax.files import hashed_files


def test_a_file_that_is_missing_longer_or_of_another_content_is_told_and_others_are_not(tmp_path):
    for name in ("same", "gone", "longer", "other"):
        (tmp_path / name).write_bytes(b"content of " + name.encode())
    listed = [hashed_files.HashedFile.of(path) for path in sorted(tmp_path.iterdir())]
    assert list(hashed_files.faults(tmp_path, listed)) == []
    (tmp_path / "gone").unlink()
    (tmp_path / "longer").write_bytes(b"content of longer, and more")
    (tmp_path / "other").write_bytes(b"Content of other")
    faults = list(hashed_files.faults(tmp_path, listed))
    for fault, (name, what) in zip(
        faults,
        (("gone", "missing"), ("longer", "27 bytes, .* says 17"), ("other", "another content")),
        strict=True,
    ):
        assert str(tmp_path / name) in fault
        assert re.search(what, fault)


def test_entries_of_other_types_and_names_that_leave_the_directory_are_refused(tmp_path):
    (tmp_path / "a").touch()
    fields = dataclasses.asdict(hashed_files.HashedFile.of(tmp_path / "a"))
    assert hashed_files.HashedFile.from_json(fields) == hashed_files.HashedFile.of(tmp_path / "a")
    for wrong in (
        *({**fields, "name": name} for name in ("../a", "/etc/passwd", "b/a", "..", "", "a\0", 3)),
        *({**fields, "bytes": size} for size in ("0", 0.0, True, None)),
        *({}, [], None, "a", {**fields, "more": 1}),
    ):
        with pytest.raises(ValueError, match="must be the name of a file|is no file with name"):
            hashed_files.HashedFile.from_json(wrong)
