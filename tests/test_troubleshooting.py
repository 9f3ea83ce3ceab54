"""Every message that docs/troubleshooting.md explains is one that the code can say."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
OF_LIBRARIES = ("RESOURCE_EXHAUSTED",)
GAP = "\N{HORIZONTAL ELLIPSIS}"  # a value in a message


def rows():
    return re.findall(r"^\| (`.+`)(?: \(of \w+\))? \| (.+) \|$", PAGE.read_text(), re.MULTILINE)


@functools.cache
def said():
    """Returns all texts in the source, with GAP in place of values."""
    texts = []
    for folder in ("bertjax", "data_pipelines"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(re.sub(r"%[\d.]*[sdrfg]", GAP, node.value))
                elif isinstance(node, ast.JoinedStr):
                    parts = [getattr(part, "value", None) for part in node.values]
                    texts.append("".join(x if isinstance(x, str) else GAP for x in parts))
    texts += [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("launch/*.sh"))]
    return "\n".join(re.sub(r"\\\n\s*|\" \"|\"\s+\\\s*\"", "", text) for text in texts)


def is_said(message):
    """Returns whether one text of the source has the parts of a message, in their order."""
    parts = [re.escape(part.strip()) for part in message.split("...") if len(part.strip()) > 2]
    return re.search("[^\n]*?".join(parts), said()) is not None


@pytest.mark.parametrize("message", [message.strip("`") for message, _ in rows()])
def test_a_message_that_is_explained_is_said_somewhere(message):
    assert message in OF_LIBRARIES or is_said(message)


def test_what_is_said_nowhere_is_found():
    assert len(rows()) > 45
    assert not is_said("the moon is ... full")
    assert not is_said("is no flag. Did you ... meen")
