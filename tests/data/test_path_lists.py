"""Claims about lists of paths: a comma separates unless only a name with it is there."""

import pytest

from bertjax.data import path_lists


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
