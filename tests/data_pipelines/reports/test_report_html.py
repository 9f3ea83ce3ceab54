import dataclasses
import re
from xml.etree import ElementTree

from data_pipelines.reports import health, report, report_html
from tests import small_records

MANIFEST = small_records.manifest(
    tokenizer={"vocab_size": 100, "kind": "wordpiece", "lowercase": True},
    max_seq_length=128,
    max_predictions_per_seq=20,
    pair_objective="nsp",
    arguments={"input": "<text>.txt", "dupe_factor": 10},
    statistics={
        "documents": 1200,
        "unknown_rate": 0.08,
        "sentence_length": {"mean": 9, "median": 8, "max": 70}
        | {"from": [1, 2, 4], "counts": [1, 2, 1]},
        "example_length": {"mean": 9.0, "from": [120, 124, 128], "counts": [5, 0, 995]},
        "most_frequent_tokens": [["<b>", 0.5], ["&", 0.25]],
    },
)
EXAMPLE = report.DecodedExample(
    segments=(
        (report.Piece("<i>"), report.Piece("cat", "mask"), report.Piece("s", "kept", joined=True)),
        (report.Piece("was", "random", "<u>"),),
    ),
    label="random",
    length=9,
)


def read(page):
    """The elements of a page, which must all be closed in order."""
    return ElementTree.fromstring(re.sub(r"<meta[^>]*>", "", page.partition("\n")[2]))


def test_the_page_is_well_formed_and_loads_nothing():
    page = report_html.page(MANIFEST, [EXAMPLE])
    assert page == report_html.page(MANIFEST, [EXAMPLE])
    elements = list(read(page).iter())
    assert not any({"href", "src"}.intersection(element.keys()) for element in elements)
    assert not {"script", "u"} & {element.tag for element in elements}
    assert "http" not in page and "url(" not in page
    # Text of the corpus is never markup.
    texts = list(read(page).itertext())
    assert {"<b>", "→<u>", '"<text>.txt"'} <= set(texts)
    assert any("<i> " in text for text in texts)
    # Hidden tokens say what the model sees.
    words = '&lt;i&gt; <mark class="mask" title="{mask}">cat</mark>'
    words += '<mark class="kept" title="{kept}">s</mark>'
    assert words.format(**report_html.HIDDEN_TITLES) in page
    assert "second segment: <b>random</b>" in page


def test_every_bin_has_a_bar_of_its_share():
    page = report_html.page(MANIFEST, [])
    bars = re.findall(r'title="([^"]+)"><th>[^<]+</th><td><i style="width:([\d.]+)%"', page)
    assert bars == [
        ("120 to 123 tokens: 5 examples", "0.5"),
        ("124 to 127 tokens: 0 examples", "0.0"),
        ("128 tokens: 995 examples", "100.0"),
        ("1 tokens: 1 sentences", "50.0"),
        ("2 to 3 tokens: 2 sentences", "100.0"),
        ("4 to 70 tokens: 1 sentences", "50.0"),
    ]
    assert page.count("<td>25.00%</td>") == 3


def test_warnings_stand_before_the_figures():
    page = report_html.page(MANIFEST, [EXAMPLE])
    assert page.index("unknown tokens</b> 8.0%") < page.index("Length of sentences")
    named = report_html.page(MANIFEST, [], [health.Warning("a_thing", "is <off>")])
    assert "<b>a thing</b> is &lt;off&gt;" in named
    assert "No warnings" in report_html.page(MANIFEST, [], [])


def test_a_manifest_with_few_figures_has_a_page():
    for statistics in ({}, {"unigram_entropy": 5.0}):
        manifest = dataclasses.replace(MANIFEST, statistics=statistics, arguments={})
        page = report_html.page(manifest, [])
        read(page)
        assert "bars" not in page.partition("<body>")[2] and "How it was made" not in page
