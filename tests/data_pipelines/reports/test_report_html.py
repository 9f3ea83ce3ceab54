import dataclasses
import html.parser
import re

import pytest

from bertjax.data import records
from data_pipelines.reports import health, report, report_html

MANIFEST = records.Manifest(
    tokenizer={"vocab_size": 100, "kind": "wordpiece", "lowercase": True},
    max_seq_length=128,
    max_predictions_per_seq=20,
    masked_lm_prob=0.15,
    pair_objective="nsp",
    shards=(),
    seed=0,
    arguments={"input": "<text>.txt", "dupe_factor": 10},
    statistics={
        "documents": 1200,
        "unknown_rate": 0.08,
        "sentence_length": {
            "mean": 9,
            "median": 8,
            "max": 70,
            "from": [1, 2, 4],
            "counts": [1, 2, 1],
        },
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


class Reader(html.parser.HTMLParser):
    """Collects tags and text, and that all tags are closed in order."""

    VOID = ("meta", "line")

    def __init__(self):
        super().__init__()
        self.open_tags, self.tags, self.texts, self.links = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("href", "src")]
        if tag not in self.VOID:
            self.open_tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    assert reader.open_tags == []
    return reader


def test_the_page_is_well_formed_and_loads_nothing():
    page = report_html.page(MANIFEST, [EXAMPLE])
    reader = read(page)
    assert reader.links == [] and "script" not in reader.tags
    assert "http" not in page and "url(" not in page


def test_text_of_the_corpus_is_never_markup():
    reader = read(report_html.page(MANIFEST, [EXAMPLE]))
    assert "u" not in reader.tags
    assert {"<b>", "→<u>", "<text>.txt"} <= set(reader.texts)
    assert any("<i> " in text for text in reader.texts)


def test_equal_records_have_equal_pages():
    assert report_html.page(MANIFEST, [EXAMPLE]) == report_html.page(MANIFEST, [EXAMPLE])


def test_hidden_tokens_say_what_the_model_sees():
    page = report_html.page(MANIFEST, [EXAMPLE])
    words = '&lt;i&gt; <mark class="mask" title="{mask}">cat</mark>'
    words += '<mark class="kept" title="{kept}">s</mark>'
    assert words.format(**report_html.HIDDEN_TITLES) in page
    assert "second segment: <b>random</b>" in page


def test_every_bin_has_a_bar_of_its_height():
    page = report_html.page(MANIFEST, [])
    assert "<title>1 tokens: 1 sentences, 25.00%</title>" in page
    assert "<title>2 to 3 tokens: 2 sentences, 50.00%</title>" in page
    assert "<title>4 to 70 tokens: 1 sentences, 25.00%</title>" in page
    assert "<title>128 tokens: 995 examples, 99.50%</title>" in page
    heights = re.findall(r'height="([\d.]+)"><title>', page)
    full = report_html.HEIGHT - report_html.TOP - report_html.BOTTOM
    assert list(map(float, heights)) == [0.8, 0, full, full / 2, full, full / 2]


def test_warnings_stand_before_the_figures():
    page = report_html.page(MANIFEST, [EXAMPLE])
    assert page.index("unknown tokens</b> 8.0%") < page.index("<svg")
    told = report_html.page(MANIFEST, [], [health.Warning("a_thing", "is <off>")])
    assert "<b>a thing</b> is &lt;off&gt;" in told
    assert "No warnings" in report_html.page(MANIFEST, [], [])


@pytest.mark.parametrize("statistics", [{}, {"unigram_entropy": 5.0}])
def test_a_manifest_with_few_figures_has_a_page(statistics):
    manifest = dataclasses.replace(MANIFEST, statistics=statistics, arguments={})
    page = report_html.page(manifest, [])
    read(page)
    assert "<svg" not in page and "How it was made" not in page


@pytest.mark.parametrize("largest", [0.021, 0.1, 0.33, 0.5, 1.0])
def test_a_plot_has_a_few_lines_at_round_shares(largest):
    levels = report_html._levels(largest)
    assert 2 <= len(levels) <= 5 and levels[0] == 0
    assert largest / 2 < levels[-1] <= largest
