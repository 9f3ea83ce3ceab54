"""Wikipedia dumps to articles, and wikitext to prose.

Articles are the pages of namespace 0 that are not redirects. Their prose is the text in sentences:
no tables and headers, as for BERT's own corpus, and none of the markup that mwparserfromhell (the
extra `wikipedia`) finds. Items of lists, which BERT left out too, are paragraphs here, except in
the sections that list sources.

Source: "Pre-training data" in section 3.1 of the BERT paper.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from bertjax.files import text_encodings
from data_pipelines.formats import base, input_files, text_files

LEFT_OUT_SECTIONS = {
    *("references", "notes", "footnotes", "citations", "sources", "bibliography", "works cited"),
    *("external links", "see also", "further reading", "notes and references", "gallery"),
}
LEFT_OUT_TAGS = {
    *("ref", "references", "table", "gallery", "math", "chem", "ce", "source", "code", "pre"),
    *("syntaxhighlight", "score", "timeline", "imagemap", "style", "templatestyles", "graph"),
    *("mapframe", "maplink", "hiero", "inputbox", "categorytree", "section", "script"),
}
BLOCK_TAGS = {"div", "p", "blockquote", "poem", "center", "hr", "ul", "ol", "dl"}
LIST_TAGS = {"li", "dt", "dd"}

# Templates of the English Wikipedia that stand for words of the sentence around them; what is put
# in front of their last, or for `_FIRST` their first, argument. All others vanish.
_LAST = {"lang": "", "transliteration": "", "transl": "", "circa": "c. ", "c.": "c. "}
_FIRST = {"nowrap": "", "nobr": "", "abbr": "", "small": "", "em": "", "strong": "", "sic": ""}
_FIRST |= {"quote": "", "blockquote": "", "cquote": "", "as of": "As of "}
_SIGNS = {"'": "'", "'s": "'s", "ndash": "–", "spaced ndash": " – ", "snd": " – ", "mdash": "—"}
_SIGNS |= {"nbsp": " ", "spaces": " ", "space": " "}

_FILES = ("file", "image", "media", "category")
_FILE_NAME = re.compile(r"\.(?:jpe?g|png|svg|gif|tiff?|webp|og[gva]|webm|pdf|djvu)\s*$", re.I)
_INTERLANGUAGE = re.compile(r"\s*[a-z]{2,3}(?:-[a-z]+)*:\S")
# Begins a line that is a paragraph, which the lines of running text are not.
_ITEM = "\x01"

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# Parsed like the rest they would take half of the time.
_REFERENCE = re.compile(r"<ref\b[^<>]*/>|<ref\b[^<>]*>.*?</ref\s*>", re.DOTALL | re.IGNORECASE)
_SWITCH = re.compile(r"__[A-Z]+__")
_REMAINS = re.compile(r"\{\{|\}\}|\{\||\|\}|\[\[|\]\]|</?[A-Za-z][^<>\n]*>|'{2,}")
_TABLE_LINE = re.compile(r"\s*(?:[|!]|\{\|)")
# A removed template leaves these remains in brackets, and in front of a mark.
_TIDYING = (
    (re.compile(r"\(\s*(?:[,;:]\s*)*"), "("),
    (re.compile(r"\s*(?:[,;]\s*)*\)"), ")"),
    (re.compile(r"\(\)|\[\]"), ""),
    (re.compile(r"\s+"), " "),
    (re.compile(r" (?=[,.)])(?!\.\d)"), ""),
    (re.compile(r",(?:\s*,)+"), ","),
)


def read(path: str, reading: base.Reading, log: input_files.Log) -> Iterator[tuple[str, str]]:
    """Yields (title, wikitext) of the articles of an XML dump, compressed or not."""
    del reading  # An article is a document, and all of its page is its text.
    has_articles = False
    links = re.compile("(?!)")
    with input_files.opened(path, log) as file:
        try:
            root = None
            for event, element in ElementTree.iterparse(file, events=("start", "end")):
                if root is None:
                    root = element
                # The XML namespace before it holds the version of the format.
                tag = element.tag.rpartition("}")[2]
                if event == "end" and tag == "namespaces":
                    links = _local_links(element)
                elif event == "end" and tag == "page":
                    if (wikitext := _article(element)) is not None:
                        has_articles = True
                        title = element.findtext("{*}title") or ""
                        wikitext = text_files.clean(wikitext, title, log)
                        yield title, links.sub("[[File:", wikitext)
                    # Both, or the root would keep a million empty pages.
                    element.clear()
                    root.clear()
        except ElementTree.ParseError as error:
            raise ValueError(
                f"{path} is damaged or no Wikipedia dump ({error}); fetch it again, or leave it "
                "out of the input"
            ) from error
    if not has_articles:
        log.problem("empty_files", path)


def check(path: str, reading: base.Reading) -> None:
    """Raises ValueError unless a file begins like a dump, and mwparserfromhell is installed."""
    del reading
    _parse()
    if b"<mediawiki" not in input_files.head(path, text_encodings.HEAD_BYTES):
        raise ValueError(
            f"{path} is XML, but does not begin like a Wikipedia dump (<mediawiki ...>); give a "
            "file named like enwiki-latest-pages-articles.xml.bz2, or convert it to JSON lines"
        )


def prose(wikitext: str) -> str | None:
    """Returns the paragraphs, separated by newlines, or None if the page cannot be parsed."""
    parse, parser_error = _parse()
    bare = _SWITCH.sub("", _REFERENCE.sub("", _COMMENT.sub("", wikitext)))
    try:
        text = "".join(_kept(parse(bare, skip_style_tags=True).nodes))
    except parser_error:
        return None
    return "\n".join(_paragraphs(text))


def _article(page: Any) -> str | None:
    """Returns the wikitext of a page, None if it is not an article."""
    if page.findtext("{*}ns") != "0" or page.find("{*}redirect") is not None:
        return None
    if page.findtext("{*}revision/{*}model") not in (None, "wikitext"):
        return None
    return page.findtext("{*}revision/{*}text")


def _local_links(namespaces: Any) -> re.Pattern[str]:
    """Returns what begins a link to a file or category in the language of the dump."""
    keys = ("-2", "6", "14")
    names = [re.escape(item.text) for item in namespaces if item.get("key") in keys and item.text]
    return re.compile(rf"\[\[\s*(?:{'|'.join(names)})\s*:", re.I) if names else re.compile("(?!)")


@functools.cache
def _parse() -> Any:
    try:
        import mwparserfromhell
    except ImportError as error:
        raise ValueError(
            "a Wikipedia dump needs the package mwparserfromhell: pip install 'bertjax[wikipedia]'"
        ) from error
    return mwparserfromhell.parse, mwparserfromhell.parser.ParserError


def _kept(nodes: list[Any]) -> Iterator[str]:
    """Yields the text of the nodes, without the sections that list sources."""
    left_out_level = 0
    for node in nodes:
        if type(node).__name__ == "Heading":
            title = "".join(_kept(node.title.nodes)).strip(" '\n").lower()
            if left_out_level and node.level > left_out_level:
                continue
            left_out_level = node.level if title in LEFT_OUT_SECTIONS else 0
            yield "\n\n"
        elif not left_out_level:
            yield _TEXTS.get(type(node).__name__, lambda node: "")(node)


def _of(wikicode: Any) -> str:
    return "" if wikicode is None else "".join(_kept(wikicode.nodes))


def _tag_text(node: Any) -> str:
    name = str(node.tag).strip().lower()
    if name in LEFT_OUT_TAGS:
        return "\n\n" if name == "table" else ""
    if name in LIST_TAGS:
        return f"\n{_ITEM}{_of(node.contents)}"
    if name == "br":
        return " "
    text = _of(node.contents)
    return f"\n\n{text}\n\n" if name in BLOCK_TAGS else text


def _link_text(node: Any) -> str:
    target = str(node.title).strip()
    prefix = target.partition(":")[0].strip().lower()
    if prefix in _FILES or _FILE_NAME.search(target):
        return ""
    if node.text is None and _INTERLANGUAGE.match(target):
        return ""
    return (_of(node.text) if node.text is not None else "") or _of(node.title).lstrip(": ")


def _template_text(node: Any) -> str:
    name = str(node.name).strip().lower()
    if name in _SIGNS:
        return _SIGNS[name]
    arguments = [argument.value for argument in node.params if not argument.showkey]
    if name == "convert" and len(arguments) >= 2:
        return f"{_of(arguments[0])} {_of(arguments[1])}"
    if arguments and (name in _LAST or name.startswith("lang-")):
        return _LAST.get(name, "") + _of(arguments[-1])
    if arguments and name in _FIRST:
        before = _FIRST[name].lower() if node.has("lc") else _FIRST[name]
        return before + _of(arguments[0])
    return ""


def _paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of text whose lines are joined until a blank line or a list item."""
    running: list[str] = []
    for line in [*text.split("\n"), ""]:
        is_item = line.startswith(_ITEM)
        if is_item or not line.strip():
            yield from _tidied(" ".join(running))
            running = []
        if is_item:
            yield from _tidied(line.replace(_ITEM, " "))
        elif line.strip() and not _TABLE_LINE.match(line):
            running.append(line)


def _tidied(paragraph: str) -> Iterator[str]:
    paragraph = html.unescape(_REMAINS.sub("", paragraph))
    for pattern, replacement in _TIDYING:
        paragraph = pattern.sub(replacement, paragraph)
    # Dashes and dots alone are what remains of a table or template.
    if any(character.isalnum() for character in paragraph):
        yield paragraph.strip()


_TEXTS = {
    "Text": lambda node: node.value,
    "HTMLEntity": lambda node: node.normalize(),
    "Tag": _tag_text,
    "Wikilink": _link_text,
    "ExternalLink": lambda node: _of(node.title) if node.brackets else "",
    "Template": _template_text,
}
