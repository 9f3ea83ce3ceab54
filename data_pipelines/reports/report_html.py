"""The health report as one HTML page: no scripts, nothing loaded from elsewhere, equal bytes.

The plots are written as SVG here rather than by a plotting library: bars are all there is, the
tokens of any script are shown by the browser's fonts, and the bytes depend on no version.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax.data import records
from data_pipelines.reports import health, report

# Of a plot, in units that are about pixels on a phone.
WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 420, 210, 44, 14, 38, 12
MAX_LABELS = 9

# Histograms of the statistics: name, title, what is measured, what is counted.
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

    `warnings` are those of the manifest unless they are given.
    """
    content = "\n".join(
        [
            _header(manifest),
            _warnings(health.of_manifest(manifest) if warnings is None else warnings),
            f'<section class="grid">{"".join(_plots(manifest.statistics))}</section>',
            f'<section class="columns">{"".join(_tables(manifest))}</section>',
            _examples(examples),
            _arguments(manifest.arguments),
        ]
    )
    return _PAGE.replace("{style}", _STYLE).replace("{content}", content)


def _header(manifest: records.Manifest) -> str:
    statistics = manifest.statistics
    tiles = [
        (name, wording.format(statistics[key]))
        for name, key, wording in (
            ("documents", "documents", "{:,}"),
            ("tokens of text", "tokens", "{:,}"),
            ("examples", "examples", "{:,}"),
            ("fill", "fill", "{:.1%}"),
            ("unknown tokens", "unknown_rate", "{:.3%}"),
            ("random pairs", "random_pair_share", "{:.1%}"),
            ("masked", "masked_share", "{:.1%}"),
            ("unigram entropy, nats", "unigram_entropy", "{:.3f}"),
        )
        if key in statistics
    ]
    shown = "".join(f"<div><b>{value}</b>{_escape(name)}</div>" for name, value in tiles)
    source = _escape(str(manifest.arguments.get("input", "")))
    of_what = f" of <code>{source}</code>" if source else ""
    return f'<h1>Health report{of_what}</h1>\n<section class="tiles">{shown}</section>'


def _warnings(warnings: Sequence[health.Warning]) -> str:
    if not warnings:
        return '<p class="fine">No warnings: no figure is out of its usual range.</p>'
    items = "".join(
        f"<li><b>{_escape(warning.name.replace('_', ' '))}</b> {_escape(warning.text)}</li>"
        for warning in warnings
    )
    return f'<h2>Warnings</h2>\n<ul class="warnings">{items}</ul>'


def _plots(statistics: Mapping[str, Any]) -> Iterator[str]:
    for name, title, measured, counted in PLOTS:
        figures = statistics.get(name)
        if figures and figures["counts"]:
            plot = _histogram(figures, measured, counted)
            yield f"<figure><figcaption>{title}</figcaption>{plot}</figure>"
    frequent = statistics.get("most_frequent_tokens")
    if frequent:
        most = frequent[0][1]
        bars = "".join(
            f"<tr><th>{_escape(token)}</th><td><i style='width:{share / most:.1%}'></i></td>"
            f"<td>{share:.2%}</td></tr>"
            for token, share in frequent
        )
        title = "Most frequent tokens to be predicted"
        yield (
            f'<figure><figcaption>{title}</figcaption><table class="bars">{bars}</table></figure>'
        )


def _histogram(figures: Mapping[str, Any], measured: str, counted: str) -> str:
    """Returns an SVG of bars of equal width, whatever the width of their bins."""
    starts, counts = figures["from"], figures["counts"]
    ends = [*(start - 1 for start in starts[1:]), figures.get("max", starts[-1])]
    total, step, base = sum(counts), (WIDTH - LEFT - RIGHT) / len(counts), HEIGHT - BOTTOM
    scale = (base - TOP) * total / max(counts)
    every = -(-len(counts) // MAX_LABELS)
    parts = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base - level * scale:.1f}" '
        f'y2="{base - level * scale:.1f}"/><text class="y" x="{LEFT - 6}" '
        f'y="{base - level * scale + 4:.1f}">{100 * level:g}%</text>'
        for level in _levels(max(counts) / total)
    ]
    for index, (start, end, count) in enumerate(zip(starts, ends, counts, strict=True)):
        x, height = LEFT + index * step, count / total * scale
        lengths = f"{start:,}" if end == start else f"{start:,} to {end:,}"
        parts.append(
            f'<rect x="{x + step * 0.06:.1f}" y="{base - height:.1f}" width="{step * 0.88:.1f}" '
            f'height="{height:.1f}"><title>{lengths} {measured}: {count:,} {counted}, '
            f"{count / total:.2%}</title></rect>"
        )
        # Counted from the last bin: that of the full examples is the one to look at.
        if (len(counts) - 1 - index) % every == 0:
            parts.append(f'<text x="{x + step / 2:.1f}" y="{base + 15}">{start:,}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 5}">{measured}</text>')
    label = f"{counted} by number of {measured}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def _levels(largest: float) -> list[float]:
    """Returns two to five round shares for the lines of a plot, from 0 up to the largest one."""
    step = next(
        unit * factor
        for unit in (1e-4, 1e-3, 1e-2, 1e-1)
        for factor in (1, 2, 5)
        if largest / (unit * factor) < 5
    )
    return [index * step for index in range(int(largest / step) + 1)]


def _tables(manifest: records.Manifest) -> Iterator[str]:
    for title, rows in report.groups(manifest):
        cells = "".join(
            f"<tr><th>{_escape(label)}</th><td>{_escape(text)}</td></tr>" for label, text in rows
        )
        yield f"<div><h2>{title}</h2><table>{cells}</table></div>"


def _examples(examples: Sequence[report.DecodedExample]) -> str:
    if not examples:
        return ""
    legend = (
        f"{_piece(report.Piece('hidden', 'mask'))} by [MASK], "
        f"{_piece(report.Piece('hidden', 'random', 'shown'))} by another token, "
        f"{_piece(report.Piece('shown', 'kept'))} as it is: these are to be predicted."
    )
    articles = "".join(_example(example) for example in examples)
    return f'<h2>Examples</h2>\n<p class="legend">{legend}</p>\n{articles}'


def _example(example: report.DecodedExample) -> str:
    title = example.title
    if example.label:
        title += f", second segment: <b>{_escape(example.label)}</b>"
    segments = "".join(f'<p dir="auto">{_segment(pieces)}</p>' for pieces in example.segments)
    return f"<article><small>{title}</small>{segments}</article>"


def _segment(pieces: Sequence[report.Piece]) -> str:
    return "".join(f"{'' if piece.joined else ' '}{_piece(piece)}" for piece in pieces).strip()


def _piece(piece: report.Piece) -> str:
    text = _escape(piece.text)
    if not piece.hidden:
        return text
    if piece.hidden == "random":
        text = f"{text}<i>→{_escape(piece.shown)}</i>"
    return f'<mark class="{piece.hidden}" title="{HIDDEN_TITLES[piece.hidden]}">{text}</mark>'


def _arguments(arguments: Mapping[str, Any]) -> str:
    shown = {name: json.dumps(value, ensure_ascii=False) for name, value in arguments.items()}
    rows = "".join(
        f"<tr><th>{_escape(name)}</th><td>{_escape(value)}</td></tr>"
        for name, value in sorted(shown.items())
    )
    if not rows:
        return ""
    return f"<details><summary>How it was made</summary><table>{rows}</table></details>"


def _escape(text: str) -> str:
    return html.escape(text)


_STYLE = """\
:root{color-scheme:light;--ink:#1c2430;--soft:#5b6675;--line:#e3e7ec;--blue:#3b6fb6}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:28px 20px 60px;background:#fff;color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:26px;margin:0 0 18px;overflow-wrap:anywhere}h2{font-size:17px;margin:30px 0 8px}
code{font-size:.82em;font-weight:500;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(116px,1fr));gap:10px}
.tiles div{background:#f5f7fa;border-radius:8px;padding:10px 12px;color:var(--soft);font-size:13px}
.tiles b{display:block;color:var(--ink);font-size:19px;font-variant-numeric:tabular-nums}
.warnings{list-style:none;margin:0;padding:0}
.warnings li{background:#fff6e3;border-left:4px solid #e0a021;border-radius:4px;padding:9px 14px;
margin:8px 0}
.warnings b{display:block}.fine{background:#eaf6ee;border-left:4px solid #3d9a5f;border-radius:4px;
padding:9px 14px}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:0 44px}
.columns{columns:2 420px;column-gap:44px}.columns div{break-inside:avoid;padding-top:1px}
figure{margin:24px 0 0}figcaption{font-weight:600;margin-bottom:6px}
svg{display:block;width:100%;height:auto}svg rect{fill:var(--blue)}svg rect:hover{fill:#1f4a86}
svg line{stroke:var(--line)}svg text{fill:var(--soft);font-size:12px;text-anchor:middle}
svg .y{text-anchor:end}
table{width:100%;border-collapse:collapse;font-size:14px}
th,td{text-align:left;vertical-align:top;padding:5px 10px 5px 0;border-bottom:1px solid var(--line);
overflow-wrap:anywhere}
th{font-weight:400;color:var(--soft);width:11.5em}
.bars th{width:6em;color:var(--ink);text-align:right}.bars td:last-child{width:4.5em;
text-align:right}.bars th,.bars td{border:0;padding:1px 8px 1px 0;vertical-align:middle;
font-variant-numeric:tabular-nums}
.bars i{display:block;height:15px;background:var(--blue);min-width:1px}
article{border:1px solid var(--line);border-radius:8px;padding:10px 16px;margin:10px 0}
article p{margin:6px 0;overflow-wrap:anywhere}small{color:var(--soft)}
article p+p{border-top:1px dashed var(--line);padding-top:6px}
mark{border-radius:3px;padding:0 3px;color:inherit}
mark.mask{background:#ffdf8a}mark.random{background:#f9c9c4}
mark.kept{background:none;box-shadow:inset 0 -2px #3d9a5f;padding:0 1px}
mark i{color:#8f2318}
details{margin-top:30px}summary{cursor:pointer;font-size:17px;font-weight:600}"""

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Health report</title>
<style>
{style}
</style>
</head>
<body>
{content}
</body>
</html>
"""
