"""Claims about lines of a file, and faults that one error lists."""

import pytest

from bertjax.finetuning import example_files


def test_the_first_ten_faults_are_told():
    faults = example_files.Faults()
    faults.check()
    faults.add("file:1", "wrong")
    with pytest.raises(ValueError, match=r"^file:1: wrong$"):
        faults.check()
    for line in range(2, 13):
        faults.add(f"file:{line}", "wrong")
    with pytest.raises(ValueError, match=r"^12 faults, the first 10:\nfile:1: ") as caught:
        faults.check()
    assert "file:10:" in str(caught.value)
    assert "file:11:" not in str(caught.value)
