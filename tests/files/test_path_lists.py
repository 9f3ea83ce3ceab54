"""Claims about lists of paths: a comma separates unless only a name with it is there."""

import os

import pytest

from bertjax.files import path_lists


@pytest.mark.parametrize(
    ("text", "there", "found"),
    [
        ("a,b", {"a", "b", "a,b"}, ["a", "b"]),
        ("a,b", {"a,b"}, ["a,b"]),
        ("x,a,b,c", {"x", "a,b", "c"}, ["x", "a,b", "c"]),
        ("a,b,c", {"a,b,c"}, ["a,b,c"]),
        ("a,,b", {"a,,b"}, ["a,,b"]),
        ("a,b", set(), ["a", "b"]),
        ("a,", {"a"}, ["a", ""]),
    ],
)
def test_a_comma_belongs_to_a_name_if_nothing_else_is_there(text, there, found):
    assert path_lists.rejoined(text.split(","), lambda path: path in there) == found


def test_a_file_whose_name_begins_with_that_of_another_one_is_ambiguous(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "x,y", "b,c,d"):
        (tmp_path / name).touch()
    is_there = os.path.exists
    assert path_lists.rejoined(["a", "x", "y", "b"], is_there) == ["a", "x,y", "b"]
    for parts in (["b", "c", "d"], ["x", "y", "b", "c", "d"]):
        with pytest.raises(ValueError, match="'b,c,d' may mean the file of .* 'b', and both"):
            path_lists.rejoined(parts, is_there)
