import bz2
import gzip
import sys
import tracemalloc
from xml.sax import saxutils

import pytest

from data_pipelines.documents import sources
from data_pipelines.formats import base, input_files, wikipedia

ARTICLE = """{{Short description|Made-up river}}
{{Infobox river
| name   = Lomi
| image  = [[File:Lomi.jpg|thumb|A {{convert|3|km}} bend]]
| length = {{convert|120|km|mi|abbr=on}}
}}
<!-- A comment with a [[link]] and
two lines -->
__NOTOC__
The '''Lomi''' ({{lang-xx|Lo-mi}}; {{IPA|/lo/}}) is a ''very'' long [[river]] of
[[Kalo (state)|Kalo]].<ref>{{cite book|title=Rivers}} See also [[A]].</ref><ref name="b" />
It flows for {{convert|120|km|mi|abbr=on}} from the [[mountain]]s.{{citation needed|date=May 2020}}
Its water is [https://example.org/cold very cold] &amp; clear &ndash; see https://example.org and [http://x.org].

[[File:Map.png|thumb|right|upright=1.2|Map of the [[Lomi]], with {{legend|red|dams}} in red]]
== History <!-- old --> ==
{| class="wikitable"
! Year !! Flood
|-
| 1900 || {{yes}} [[big flood|big]]
|}
In {{circa|1850}} a bridge<ref group="n">Of wood</ref> was built:
* first of ''wood'',
** with [[oak]] pillars
* then of {{nowrap|grey stone}}.
# Numbered
; Term : its definition
It fell in 1901 (<math>x_1 < 2</math>), H<sub>2</sub>O and all.<br />Nobody was hurt.
<gallery>
File:A.jpg|A bridge
</gallery>
<blockquote>A river is a promise.</blockquote>
<div class="x">Inside a box.</div>
{{quote|text=Nothing positional}} <nowiki>[[not a link]]</nowiki>
<syntaxhighlight lang="python">print("no")</syntaxhighlight>
== See also ==
* [[Other river]]
=== Deeper ===
* [[Still left out]]
== Legacy ==
The [[:Category:Rivers|rivers]] remain.
== References ==
{{reflist}}
[[Category:Rivers|Lomi]]
[[de:Lomi]]
"""

PROSE = """The Lomi (Lo-mi) is a very long river of Kalo. It flows for 120 km from the mountains. \
Its water is very cold & clear – see and.
In c. 1850 a bridge was built:
first of wood,
with oak pillars
then of grey stone.
Numbered
Term
its definition
It fell in 1901, H2O and all. Nobody was hurt.
A river is a promise.
Inside a box.
not a link
The rivers remain."""


def page(title, text="Text.", *, namespace=0, inside="", model="wikitext"):
    return (
        f"<page><title>{saxutils.escape(title)}</title><ns>{namespace}</ns><id>1</id>{inside}"
        f"<revision><id>2</id><model>{model}</model>"
        f'<text xml:space="preserve">{saxutils.escape(text)}</text></revision></page>\n'
    )


HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
<siteinfo><namespaces><namespace key="-2">Medium</namespace><namespace key="0" />
<namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace></namespaces>
</siteinfo>
"""
PAGES = (
    page("Lomi", ARTICLE),
    page("Talk:Lomi", namespace=1),
    page("Template:Lomi", namespace=10),
    page("Lomi river", "#REDIRECT [[Lomi]]", inside='<redirect title="Lomi" />'),
    page("Lomi.css", model="css"),
    page("Q&A", "A [[Datei:x.jpg|mini|Bild]]b. [[kategorie : Y]]"),
)


@pytest.fixture
def dump(tmp_path) -> str:
    """A dump of several compressed streams, as Wikipedia publishes them."""
    path = tmp_path / "dewiki-latest-pages-articles-multistream.xml.bz2"
    path.write_bytes(
        b"".join(bz2.compress(part.encode()) for part in (HEAD, *PAGES, "</mediawiki>"))
    )
    return str(path)


def test_prose_is_the_article_word_for_word():
    assert wikipedia.prose(ARTICLE) == PROSE


def test_broken_wikitext_never_raises_and_leaves_no_brackets():
    for wikitext in (
        "{{Infobox\n| a = 1\nText.",
        "{| class=x\n|-\n| cell\nText.",
        "A <ref>unclosed",
        "'''''Bold'' text",
        "[[Unclosed link",
        "</div></ref><br>A",
        "{{" * 300 + "x" + "}}" * 300,
        "[[a|" * 200,
        "<b>" * 500,
        "&#x110000; &nonesuch; &lt;b&gt;",
    ):
        text = wikipedia.prose(wikitext)
        assert text is not None
        pairs = {text[i : i + 2] for i in range(len(text))}
        assert not {"{{", "}}", "[[", "]]", "{|", "''"} & pairs


def test_articles_are_pages_of_namespace_0_without_redirects(dump):
    log = input_files.Log()
    found = list(wikipedia.read(dump, base.Reading(), log))
    assert [title for title, _ in found] == ["Lomi", "Q&A"]
    assert found[0][1] == ARTICLE
    assert not log.counts
    assert wikipedia.prose(found[1][1]) == "A b."
    documents = list(sources.documents(dump))
    assert [document.id for document in documents] == ["Lomi", "Q&A"]
    assert sources.prose(documents[0]) == PROSE


def test_a_dump_may_be_compressed_otherwise_or_not_at_all(tmp_path):
    data = "".join([HEAD, *PAGES, "</mediawiki>"]).encode()
    for name in ("a.xml", "a.xml.gz", "wiki-articles1.xml-p1p41242"):
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        documents = sources.documents(str(tmp_path / name))
        assert [document.markup for document in documents] == ["wikipedia", "wikipedia"]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_dump(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text(HEAD + page("T", "text " * 2000) * 500 + page("T" * 99, namespace=1) * 20_000)
    with path.open("a") as file:
        file.write("</mediawiki>")
    tracemalloc.start()
    count = sum(1 for _ in wikipedia.read(str(path), base.Reading(), input_files.Log()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 500
    assert peak < 2_000_000


def test_a_dump_that_ends_early_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text(HEAD + PAGES[0])
    with pytest.raises(ValueError, match="a.xml is damaged"):
        list(wikipedia.read(str(path), base.Reading(), input_files.Log()))
    path.write_text("<html></html>")
    with pytest.raises(ValueError, match="a.xml is XML, but does not begin like a Wikipedia dump"):
        wikipedia.check(str(path), base.Reading())


def test_a_page_that_cannot_be_parsed_is_empty_and_counted(monkeypatch):
    class ParserError(Exception):
        pass

    def parse(*_, **__):
        raise ParserError

    monkeypatch.setattr(wikipedia, "_parse", lambda: (parse, ParserError))
    log = input_files.Log()
    assert sources.prose(sources.Document("Lomi", "text", "wikipedia"), log) == ""
    assert log.first_places == {"unparsable_pages": ["Lomi"]}


def test_without_the_parser_the_error_tells_how_to_install_it(dump, monkeypatch):
    wikipedia._parse.cache_clear()
    monkeypatch.setitem(sys.modules, "mwparserfromhell", None)
    with pytest.raises(ValueError, match="pip install"):
        wikipedia.check(dump, base.Reading())
