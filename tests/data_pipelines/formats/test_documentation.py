import itertools

import pytest

from data_pipelines.formats import base, documentation, input_files


def read():
    return documentation.read("documentation", base.Reading(), input_files.Log())


NUMPY_DOCSTRING = """
    Return the frobnication of an array, computed along `axis` with care.

    Parameters
    ----------
    x : array_like, optional
        The values that are to be frobnicated
        in the order given.
    *args : tuple

    Returns
    -------
    out : ndarray
        The frobnicated values, in an array of their own.

    See Also
    --------
    defrobnicate : The inverse of this function for all the values.
    Many other functions of this kind are listed in the index.

    Notes
    -----
    Use :func:`~numpy.sum` where ``x`` is short, as said in [1]_ before.

    .. math:: a = b + c and many more symbols than this

    .. note:: ignored argument
       The body of a note is prose and is kept here.

    >>> frobnicate([1, 2])
    this output is not English prose at all

    ====== ======
    table  rows of a table are not prose
    ====== ======

    For example, the following is code::

        this literal block looks like prose but is code

    After the block the text goes on as before.
"""


def test_prose_keeps_sentences_and_drops_markup_code_and_tables():
    assert documentation.prose(NUMPY_DOCSTRING) == [
        "Return the frobnication of an array, computed along axis with care.",
        "The values that are to be frobnicated in the order given.",
        "The frobnicated values, in an array of their own.",
        "Use numpy.sum where x is short, as said in before.",
        "The body of a note is prose and is kept here.",
        "For example, the following is code:",
        "After the block the text goes on as before.",
    ]


def test_argument_names_and_fences_of_google_docstrings_are_dropped():
    text = """Compute one thing out of another.

    Args:
      values: The values that are wanted by the caller
        of this function.
      other (int): Another argument of the same function.
    This line stands right before a fence.
    ```
    this code block is left out of the text

    with all that the code block holds
    ```
    """
    assert documentation.prose(text) == [
        "Compute one thing out of another.",
        "The values that are wanted by the caller of this function.",
        "Another argument of the same function.",
        "This line stands right before a fence.",
    ]


def test_docstrings_of_modules_classes_methods_and_attached_ones_are_found():
    source = b'''"""Module."""
if True:
    class Thing:
        """Class."""
        def act(self):
            """Method."""
add_newdoc("numpy", "ndarray", ("real", """Attached."""))
'''
    assert dict(documentation.docstrings(source, "m")) == {
        "m": "Module.",
        "m.Thing": "Class.",
        "m.Thing.act": "Method.",
        "m.numpy.ndarray.real": "Attached.",
    }


@pytest.mark.slow
def test_corpus_is_the_same_each_time_and_reads_as_prose():
    first, second = (list(itertools.islice(read(), 120)) for _ in range(2))
    assert first == second
    assert len({name for name, _ in first}) == 120
    for name, text in first:
        assert len(text.split()) >= documentation.MINIMUM_WORDS, name
        assert ">>>" not in text and "```" not in text, name
        assert all(line.strip() == line and line for line in text.split("\n")), name


def test_copies_of_a_text_are_left_out(monkeypatch):
    text = "This sentence has been written to be ten words long. " * 3
    pairs = [("a", text), ("b", text), ("a", text.upper()), ("c", text.replace("ten", "ten odd"))]
    monkeypatch.setattr(documentation, "_raw_documents", lambda: iter(pairs))
    assert [name for name, _ in read()] == ["a", "c"]
