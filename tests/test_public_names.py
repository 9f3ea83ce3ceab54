"""Claims about docs/python.md: its tables of public names, programs and formats are the code's."""

import importlib
import pathlib
import re
import runpy
import types

import pytest

import bertjax
from bertjax import __main__ as console
from bertjax.data import records
from bertjax.files import directories
from bertjax.inference import vector_files
from bertjax.models import weight_masks

DOCS = pathlib.Path(__file__).parents[1] / "docs"
PAGE = DOCS / "python.md"
SITE = types.SimpleNamespace(**runpy.run_path(str(DOCS / "site_pages.py")))
FORMATS = {
    "records": ("format_version", records.MANIFEST_FILE, records.FORMAT_VERSION),
    "vectors of `bertjax.encode`": ("version", vector_files.MANIFEST_FILE, vector_files.VERSION),
    "finished outputs": ("version", directories.MARKER, directories.VERSION),
    "checkpoints": ("attention_masks", "meta", weight_masks.VERSION),
}


def rows(header):
    """The cells of the table with a header, a list for each row, by the first cell."""
    section = PAGE.read_text("utf-8").partition("## Public names")[2].partition("\n## ")[0]
    _, _, table = section.partition(f"| {header} |")
    lines = table.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


MODULES = {name.strip("`"): cells[0] for name, cells in rows("module | public names").items()}


def public(module):
    if module == "bertjax.pictures":  # an attribute of bertjax, and no module of this name
        return bertjax.pictures
    return importlib.import_module(module)


@pytest.mark.parametrize("module", MODULES)
def test_the_public_names_of_a_module_are_those_of_the_table(module):
    listed = re.findall(r"`(\w+)`", MODULES[module])
    names = public(module).__all__
    assert sorted(listed) == sorted(names) and len(names) == len({*names})
    assert [name for name in names if not hasattr(public(module), name)] == []


def test_every_public_name_has_a_docstring_and_a_page_of_the_api():
    pages = {name: path for path, (_, modules) in SITE.API.items() for name in modules}
    for module in {*MODULES} - {"bertjax"}:  # its names have pages of their own
        found = public(module)
        assert found.__name__ in pages
        assert SITE.public_names(found.__name__) == found.__all__
        assert [it for it in found.__all__ if not getattr(found, it).__doc__] == []


def test_every_public_module_has_a_row():
    modules = [name for name in bertjax.__all__ if hasattr(getattr(bertjax, name), "__path__")]
    modules += ["pictures", "recipes"]
    assert {f"bertjax.{name}" for name in modules} | {"bertjax"} <= {*MODULES}


def test_the_programs_are_those_of_the_table():
    table = rows("package | programs")
    listed = {
        program: f"{package.strip('`')}.{program}"
        for package, (programs,) in table.items()
        for program in re.findall(r"`(\w+)`", programs)
    }
    assert listed == console.programs()


def test_the_numbers_of_formats_are_those_of_the_table():
    table = rows("format | its number | | what 0.x promises")
    assert {*table} == {*FORMATS}
    for name, (where, number, promise) in table.items():
        field, file, expected = FORMATS[name]
        assert {field, file} <= {*re.findall(r"`([\w.]+)`", where)}
        assert int(number) == expected and promise.endswith(".")
