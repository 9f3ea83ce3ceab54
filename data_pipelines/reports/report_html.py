"""The health report as one HTML page: no scripts, nothing loaded from elsewhere, equal bytes.

Plots are tables of bars, without a plotting library: the browser's fonts show the tokens of any
script, and the bytes depend on no version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from bertjax.data import records
from data_pipelines.reports import health, report

# Histograms of the statistics: name, title, the measure, the items counted.
PLOTS = (
    ("example_length", "Length of examples", "tokens", "examples"),
    ("sentence_length", "Length of sentences", "tokens", "sentences"),
    ("sentences_per_document", "Sentences per document", "sentences", "documents"),
)
HIDDEN_TITLES = {
    "mask": "to be predicted; the model sees [MASK]",
    "random": "to be predicted; the model sees the other token",
    "kept": "to be predicted; the model sees the token itself",
}


def page(
    manifest: records.Manifest,
    examples: Sequence[report.DecodedExample],
    warnings: Sequence[health.Warning] | None = None,
) -> str:
    """Returns the report of a record directory as a page of its own.

    `warnings` default to the warnings of the manifest.
    """
    arguments = sorted(
        (name, json.dumps(value, ensure_ascii=False)) for name, value in manifest.arguments.items()
    )
    content = [
        "<h1>Health report</h1>",
        _warnings(health.of_manifest(manifest) if warnings is None else warnings),
        '<section class="columns">',
        *(f"<div><h2>{title}</h2>{_table(rows)}</div>" for title, rows in report.groups(manifest)),
        *_plots(report.shown_statistics(manifest)),
        "</section>",
        _examples(examples),
    ]
    if arguments:
        content.append(f"<details><summary>How it was made</summary>{_table(arguments)}</details>")
    return _PAGE.replace("{content}", "\n".join(content))


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{''.join(cells)}</table>"


def _warnings(warnings: Sequence[health.Warning]) -> str:
    if not warnings:
        return '<p class="fine">No warnings: no figure is out of its usual range.</p>'
    items = "".join(
        f"<li><b>{escape(warning.name.replace('_', ' '))}</b> {escape(warning.text)}</li>"
        for warning in warnings
    )
    return f'<h2>Warnings</h2>\n<ul class="warnings">{items}</ul>'


def _plots(statistics: Mapping[str, Any]) -> Iterator[str]:
    for name, title, measured, counted in PLOTS:
        figures = statistics.get(name)
        if figures and figures["counts"]:
            yield _bars(title, _bins(figures, measured, counted))
    if frequent := statistics.get("most_frequent_tokens"):
        rows = ((token, share, "") for token, share in frequent)
        yield _bars("Most frequent tokens to be predicted", rows)


def _bins(
    figures: Mapping[str, Any], measured: str, counted: str
) -> Iterator[tuple[str, float, str]]:
    starts, counts = figures["from"], figures["counts"]
    ends = [*(start - 1 for start in starts[1:]), figures.get("max", starts[-1])]
    for start, end, count in zip(starts, ends, counts, strict=True):
        lengths = f"{start:,}" if end == start else f"{start:,} to {end:,}"
        yield lengths, count / sum(counts), f"{lengths} {measured}: {count:,} {counted}"


def _bars(title: str, bars: Iterable[tuple[str, float, str]]) -> str:
    """Returns a table of (name, share, what the mouse shows), the bars relative to the longest."""
    rows = list(bars)
    most = max(share for _, share, _ in rows)
    cells = "".join(
        f'<tr title="{text}"><th>{escape(name)}</th>'
        f'<td><i style="width:{share / most:.1%}"></i></td><td>{share:.2%}</td></tr>'
        for name, share, text in rows
    )
    return f'<div><h2>{title}</h2><table class="bars">{cells}</table></div>'


def _examples(examples: Sequence[report.DecodedExample]) -> str:
    if not examples:
        return ""
    legend = (
        f"{_piece(report.Piece('hidden', 'mask'))} by [MASK], "
        f"{_piece(report.Piece('hidden', 'random', 'shown'))} by another token, "
        f"{_piece(report.Piece('shown', 'kept'))} as it is: these are to be predicted."
    )
    articles = "".join(_example(example) for example in examples)
    return f"<h2>Examples</h2>\n<p>{legend}</p>\n{articles}"


def _example(example: report.DecodedExample) -> str:
    title = example.title
    if example.label:
        title += f", second segment: <b>{escape(example.label)}</b>"
    segments = (
        "".join(f"{'' if piece.joined else ' '}{_piece(piece)}" for piece in pieces).strip()
        for pieces in example.segments
    )
    paragraphs = "".join(f'<p dir="auto">{segment}</p>' for segment in segments)
    return f"<article><small>{title}</small>{paragraphs}</article>"


def _piece(piece: report.Piece) -> str:
    text = escape(piece.text)
    if not piece.hidden:
        return text
    if piece.hidden == "random":
        text = f"{text}<i>→{escape(piece.shown)}</i>"
    return f'<mark class="{piece.hidden}" title="{HIDDEN_TITLES[piece.hidden]}">{text}</mark>'


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Health report</title>
<style>
body{margin:0 auto;max-width:1080px;padding:20px;font:15px/1.5 system-ui,sans-serif;color:#1c2430}
h2{font-size:17px;margin:28px 0 8px}small,th{color:#5b6675}
.warnings{list-style:none;padding:0}.warnings li,.fine{padding:9px 14px;margin:8px 0}
.warnings li{background:#fff6e3}.warnings b{display:block}.fine{background:#eaf6ee}
.columns{columns:2 420px;column-gap:44px}.columns div{break-inside:avoid;padding-top:1px}
table{width:100%;border-collapse:collapse;font-size:14px}
th,td{text-align:left;vertical-align:top;padding:4px 10px 4px 0;border-bottom:1px solid #e3e7ec;
overflow-wrap:anywhere}
th{font-weight:400;width:11.5em}
.bars th{width:7em;text-align:right}.bars td:last-child{width:4.5em;text-align:right}
.bars th,.bars td{border:0;padding:0 8px 0 0;vertical-align:middle}
.bars i{display:block;height:13px;background:#3b6fb6;min-width:1px}
article{border:1px solid #e3e7ec;padding:10px 16px;margin:10px 0;overflow-wrap:anywhere}
mark{color:inherit}mark.mask{background:#ffdf8a}mark.random{background:#f9c9c4}
mark.kept{background:none;box-shadow:inset 0 -2px #3d9a5f}
</style>
</head>
<body>
{content}
</body>
</html>
"""
