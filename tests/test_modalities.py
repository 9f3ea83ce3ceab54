"""Embeddings, objectives and readers alone know the kind of a row, and nothing between them."""

import ast
import pathlib
import re

import bertjax

ROOT = pathlib.Path(bertjax.__file__).parent
ROOMS = ("training", "jobs", "workdirs", "devices", "train.py")
# "table" alone is also one of embeddings, and one of rules.
IN_NAMES = {
    *("series", "image", "images", "pixel", "pixels", "tabular"),
    *("protein", "proteins", "dna", "genome", "modality", "modalities"),
}
AS_STRINGS = IN_NAMES | {"table", "tables", "text", "texts"}


def files():
    for room in ROOMS:
        path = ROOT / room
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def words(name):
    return {*re.split(r"[_\W]+", name)}


def found(tree):
    """Yields the identifiers and the strings that name what a row holds."""
    for node in ast.walk(tree):
        names = [getattr(node, field, None) for field in ("id", "attr", "arg", "name", "asname")]
        for name in names:
            if isinstance(name, str) and words(name) & IN_NAMES:
                yield node.lineno, name
        if isinstance(node, ast.Constant) and node.value in AS_STRINGS:
            yield node.lineno, node.value


def test_no_code_between_reader_and_objective_knows_what_a_row_holds():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files()
        for line, name in found(ast.parse(path.read_text()))
    ]
    assert not wrong, "\n".join(wrong)
    assert len([*files()]) > 40


def test_a_name_or_a_string_would_be_found():
    for code in ("if config.kind == 'series': pass", "image_size = 3", "def read_pixels(): pass"):
        assert [*found(ast.parse(code))]
    assert not [*found(ast.parse("rule_table = embedding_table = 'sharding rule table'"))]
