"""The built-in corpus: the documentation that comes with Python and its installed packages.

Real English without a download, for the quickstart and for trying things out. Packages are never
imported: their source files are parsed, and docstrings become prose by dropping what is code,
table or markup. Its documents reach other programs through `sources`.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pathlib
import pydoc_data.topics
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator

from absl import logging

from data_pipelines.formats import base, input_files

# Brought by `pip install -e .`, directly or by its dependencies. The order is the corpus's order.
PACKAGES = (
    *("PIL", "absl", "etils", "flax", "fsspec", "google.protobuf", "grpc", "h5py"),
    *("huggingface_hub", "jax", "keras", "matplotlib", "ml_collections", "mpl_toolkits", "numpy"),
    *("opt_einsum", "optax", "optree", "orbax", "requests", "scipy", "tensorboardX"),
    *("tensorflow", "tensorflow_datasets", "tokenizers", "tqdm", "treescope"),
)
LEFT_OUT_FOLDERS = {"test", "tests", "testing", "site-packages", "_vendor", "idlelib", "lib2to3"}
# An old copy of keras, whose texts would stand in the corpus twice with small changes.
LEFT_OUT_MODULE = "tensorflow.python.keras"

MINIMUM_WORDS = 20
MAXIMUM_REPEATED_SHARE = 0.5
MINIMUM_PARAGRAPH_WORDS = 5
# A paragraph of prose still names parameters, numbers and formulas; code and tables name more.
MINIMUM_PLAIN_SHARE = 0.6

PROSE_DIRECTIVES = {
    *("note", "warning", "deprecated", "versionadded", "versionchanged", "seealso"),
    *("admonition", "tip", "important", "hint", "attention", "caution"),
}
LEFT_OUT_SECTIONS = {"see also", "references", "methods", "attributes"}

_DIRECTIVE = re.compile(r"\.\.(?:\s+([\w-]+)::)?(?:\s|$)")
_RULE = re.compile(r"([-=~^*#\"'+:_])\1{2,}$")
_TABLE_RULE = re.compile(r"=+(\s+=+)+$")
_NUMPY_PARAMETER = re.compile(r"[*\w.]+(, [*\w.]+)* : ")
_FIELD = re.compile(r":(\w+)[^:]*:\s*")
_GOOGLE_PARAMETER = re.compile(r"[*\w.`]+(?: \([^)]*\))?: +(?=\S)")
_SECTION = re.compile(r"\w+( \w+)?:$")
_BULLET = re.compile(r"([-*+•]|\d+[.)]|\(?[a-z]\))\s+")
_PLAIN_WORD = re.compile(r"[(\"']?[A-Za-z][a-z]*(?:[-'/][A-Za-z]+)*[)\"']?[.,;:!?]?[)\"']?$")

_INLINE = (
    (re.compile(r":math:`[^`]*\\[^`]*`|\$[^$\n]*\\[^$\n]*\$"), ""),
    (re.compile(r":[\w:+-]+:`[~!]?([^`<]*?)\s*(?:<[^`>]*>)?`"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`>]+>`_{0,2}"), r"\1"),
    (re.compile(r"`+([^`]+)`+_{0,2}"), r"\1"),
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
    (re.compile(r"\s*\[[\w#*]+\]_"), ""),
    (re.compile(r"<?\b(?:https?|ftp)://\S*[\w/]>?"), ""),
    (re.compile(r"\*\*(\S[^*]*)\*\*|(?<![\w*])\*(\w[^*]*)\*(?![\w*])"), r"\1\2"),
    (re.compile(r"~\.?(?=[A-Za-z])"), ""),
    (re.compile(r"\s+"), " "),
)


def read(location: str, reading: base.Reading, log: input_files.Log) -> Iterator[tuple[str, str]]:
    """Yields (qualified name, paragraphs one per line) in a fixed order, each name once.

    Objects documented mostly by paragraphs that came before (wrappers, older copies) are left
    out. The order and the texts depend only on the installed versions.
    """
    del location, reading, log  # The installed packages are the only source.
    seen_names: set[str] = set()
    seen_paragraphs: set[str] = set()
    for name, text in _raw_documents():
        paragraphs = prose(text)
        words = sum(len(paragraph.split()) for paragraph in paragraphs)
        repeated = sum(len(paragraph) for paragraph in paragraphs if paragraph in seen_paragraphs)
        is_copy = repeated > MAXIMUM_REPEATED_SHARE * sum(map(len, paragraphs))
        if words < MINIMUM_WORDS or is_copy or name in seen_names:
            continue
        seen_names.add(name)
        seen_paragraphs.update(paragraphs)
        yield name, "\n".join(paragraphs)


def prose(docstring: str) -> list[str]:
    """Returns the paragraphs of running text in a docstring, without markup."""
    lines = _running_lines(inspect.cleandoc(docstring).splitlines())
    paragraphs = (_plain(paragraph) for paragraph in _joined(lines))
    return [paragraph for paragraph in paragraphs if _reads_as_prose(paragraph)]


def docstrings(source: bytes, module: str) -> Iterator[tuple[str, str]]:
    """Yields (qualified name, docstring) of a module's objects, in the order of the file.

    Also the texts that numpy and scipy attach to compiled functions by `add_newdoc` calls.
    """
    with warnings.catch_warnings():
        # Other people's invalid escapes are not our business.
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    yield from _object_docstrings(tree, module)


def _raw_documents() -> Iterator[tuple[str, str]]:
    for topic, text in sorted(pydoc_data.topics.topics.items()):
        yield f"python.topics.{topic}", text
    yield from _folder_docstrings(pathlib.Path(sysconfig.get_path("stdlib")), "python")
    for package in PACKAGES:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            logging.warning("documentation corpus: package %s is not installed", package)
            continue
        for folder in sorted(spec.submodule_search_locations or []):
            yield from _folder_docstrings(pathlib.Path(folder), package)


def _folder_docstrings(folder: pathlib.Path, package: str) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        is_test = any(part.startswith("test_") or part.endswith("_test") for part in parts)
        if is_test or LEFT_OUT_FOLDERS.intersection(parts):
            continue
        module = ".".join((package, *(part for part in parts if part != "__init__")))
        source = path.read_bytes()
        if b'"""' not in source or module.startswith(LEFT_OUT_MODULE):
            continue
        try:
            yield from docstrings(source, module)
        except (SyntaxError, ValueError):
            # It is a template or a file of another Python version, which the corpus can spare.
            logging.info("documentation corpus: %s cannot be parsed", path)


def _object_docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield name, text
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for child in getattr(node, "body", []):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _object_docstrings(child, f"{name}.{child.name}")
        elif isinstance(child, ast.If | ast.Try):
            yield from _object_docstrings(child, name)
        elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
            yield from _attached_docstring(child.value, name)


def _attached_docstring(call: ast.Call, module: str) -> Iterator[tuple[str, str]]:
    if not isinstance(call.func, ast.Name) or "newdoc" not in call.func.id:
        return
    literals = [
        node.value
        for argument in call.args
        for node in ast.walk(argument)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    if len(literals) > 1:
        yield ".".join((module, *literals[:-1])), literals[-1]


def _running_lines(lines: list[str]) -> Iterator[str]:
    """Yields the lines outside code, tables, headings and directives; "" between paragraphs."""
    skip_deeper_than = None
    skip_until_blank = in_fence = in_left_out_section = False
    for index, line in enumerate(lines):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith("```"):
            in_fence = not in_fence
            yield ""
        elif in_fence:
            continue
        elif not text:
            skip_until_blank = False
            yield ""
        elif skip_until_blank or (skip_deeper_than is not None and indent > skip_deeper_than):
            continue
        elif _RULE.match(text):
            yield ""
        elif index + 1 < len(lines) and text and _RULE.match(lines[index + 1].strip()):
            skip_deeper_than = None
            in_left_out_section = text.lower() in LEFT_OUT_SECTIONS
            yield ""
        elif in_left_out_section:
            continue
        elif text.startswith((">>>", "In [", "+-", "|")) or _TABLE_RULE.match(text):
            skip_until_blank = True
            yield ""
        elif directive := _DIRECTIVE.match(text):
            skip_deeper_than = None if directive[1] in PROSE_DIRECTIVES else indent
            yield ""
        else:
            skip_deeper_than = indent if text.endswith("::") else None
            yield line


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Yields paragraphs: lines joined, list items and parameter descriptions apart."""
    paragraph: list[str] = []
    first_indent = 0
    for line in lines:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        text, starts = _without_label(text, indent)
        deeper = bool(paragraph) and indent > first_indent and paragraph[-1].endswith(":")
        if not text or starts or indent < first_indent or deeper:
            yield " ".join(paragraph)
            paragraph, first_indent = [], indent
        if text:
            first_indent = first_indent if paragraph else indent
            paragraph.append(text)
    yield " ".join(paragraph)


def _without_label(text: str, indent: int) -> tuple[str, bool]:
    """Returns a line without parameter name, field or bullet, and whether it had one."""
    if _NUMPY_PARAMETER.match(text) or _SECTION.match(text):
        return "", True
    if field := _FIELD.match(text):
        is_type = field[1] in ("type", "rtype")
        # A role such as :class:`x` at the start of a line is not a field.
        if not text[field.end() :].startswith("`"):
            return ("" if is_type else text[field.end() :]), True
    if bullet := _BULLET.match(text):
        text = text[bullet.end() :]
        label = _GOOGLE_PARAMETER.match(text)
        return (text[label.end() :] if label else text), True
    if indent and (label := _GOOGLE_PARAMETER.match(text)):
        return text[label.end() :], True
    return text, False


def _plain(paragraph: str) -> str:
    for pattern, replacement in _INLINE:
        paragraph = pattern.sub(replacement, paragraph)
    paragraph = re.sub(r" ([.,;:])(?=\s|$)", r"\1", paragraph.replace("::", ":"))
    return paragraph.strip()


def _reads_as_prose(paragraph: str) -> bool:
    words = paragraph.split()
    plain = sum(1 for word in words if _PLAIN_WORD.match(word))
    return len(words) >= MINIMUM_PARAGRAPH_WORDS and plain >= MINIMUM_PLAIN_SHARE * len(words)
