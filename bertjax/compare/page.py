"""The report on runs: a text for the terminal, and one HTML page with curves."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from etils import epath
from matplotlib import figure

from bertjax.checks import references, runs, table
from bertjax.files import opening
from bertjax.scores import baselines
from bertjax.training import writers

# (scalar, horizontal axis): those that a run has are drawn. "{loss}" is the loss of the objective.
PANELS = (
    ("train/{loss}", "step"),
    ("train/{loss}", "tokens"),
    ("train/{loss}", "hours"),
    ("eval/heldout/{loss}", "tokens"),
    ("train/{accuracy}", "tokens"),
    ("train/grad_norm", "step"),
    ("train/learning_rate", "step"),
    ("perf/tokens_per_second", "step"),
)
NOTHING = "nothing that the checks know is off"

_PAGE = """<!doctype html>
<html><head><meta charset="utf-8"><meta name="generator" content="bertjax">
<title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse }} td, th {{ text-align: left; padding: .2em 1em .2em 0 }}
pre {{ background: #f4f4f4; padding: .8em; overflow-x: auto; white-space: pre-wrap }}
img {{ max-width: 100% }}
</style></head><body>
<h1>{title}</h1>
{content}
</body></html>
"""


def html(title: str, content: Sequence[str]) -> str:
    """Returns a page of its own, with the parts of its body."""
    return _PAGE.format(title=escape(title), content="\n".join(content))


def is_of_others(path: epath.Path) -> bool:
    """Returns whether a file exists that is none of these pages."""
    if not path.exists():
        return False
    return opening.is_pipe(path) or b'content="bertjax"' not in path.read_bytes()[:200]


def text(compared: Sequence[runs.Run]) -> str:
    """Returns the facts of each run, and what is off."""
    lines = []
    for run in compared:
        facts = ", ".join(f"{name} {value}" for name, value in _facts(run).items())
        lines.append(f"{run.name}: {facts}")
        found = [f"{name}: {sentence}" for name, sentence in table.faults(run)]
        lines += [f"  {sentence}" for sentence in found or [NOTHING]]
    return "\n".join(lines)


def page(compared: Sequence[runs.Run]) -> str:
    """Returns the HTML page: what is off in each run, the curves, facts and options."""
    content = ["<h2>What is off</h2>"]
    for run in compared:
        content += [f"<h3>{escape(run.name)}</h3>", findings(run)]
    content += ["<h2>Curves</h2>", _image(draw(compared)), "<h2>The runs</h2>"]
    content.append(_table({run.name: _facts(run) for run in compared}))
    if options := differing_options(compared):
        content += ["<h2>Options that differ</h2>", _table(options)]
    return html(" and ".join(run.name for run in compared), content)


def findings(run: runs.Run) -> str:
    """Returns the sentences of the checks as a list of HTML."""
    items = "".join(
        f"<li><b>{escape(name)}</b>: {escape(sentence)}</li>"
        for name, sentence in table.faults(run)
    )
    return f"<ul>{items}</ul>" if items else f"<p>{NOTHING.capitalize()}.</p>"


def draw(compared: Sequence[runs.Run]) -> figure.Figure:
    """Returns the curves of the runs, with the bands of the reference curves of the first."""
    curves = {run.name: run.lines for run in compared}
    loss = compared[0].main_loss
    names = {"loss": loss, "accuracy": loss.replace("loss", "accuracy")}
    panels = [(name.format(**names), horizontal) for name, horizontal in PANELS]
    drawn = [
        (name, horizontal)
        for name, horizontal in panels
        if any(name in line and horizontal in line for lines in curves.values() for line in lines)
    ]
    bands = {
        (name, "tokens"): [_band(one, one.curves[name]) for one in compared[0].references
                           if name in one.curves]
        for name, _ in drawn
    }  # fmt: skip
    return writers.draw_runs(curves, drawn, bands)


def differing_options(compared: Sequence[runs.Run]) -> dict[str, dict[str, Any]]:
    """Returns the options that are not the same in all runs, by run; {} without any."""
    names = sorted({name for run in compared for name in run.options})
    differing = [
        name for name in names if len({str(run.options.get(name)) for run in compared}) > 1
    ]
    if not differing:
        return {}
    return {run.name: {name: run.options.get(name) for name in differing} for run in compared}


def _facts(run: runs.Run) -> dict[str, str]:
    loss = f"{runs.HELD_OUT}{run.main_loss}" if run.is_pretraining else "train/loss"
    end = f" of {run.phase_ends[-1]:,}" if run.phase_ends else ""
    facts = {
        "step": f"{run.step:,}{end}",
        "tokens": _number(run.last("tokens")),
        "hours": _number(run.last("hours"), ".2f"),
        **({} if math.isnan(run.last(loss)) else {loss: _number(run.last(loss), ".3f")}),
        "passes over the text": "unknown" if run.data.passes is None else f"{run.data.passes:.1f}",
        "reference curves": ", ".join(one.name for one in run.references) or "none of this data",
    }
    for of_set, scores in run.scores.items():
        for name, baseline in baselines.best(scores).items():
            compared = f"({baseline} {scores[baseline]:.4f})"
            facts[f"eval/{of_set}/{name}"] = f"{scores[name]:.4f} {compared}"
    return facts


def _number(value: float, form: str = ",.0f") -> str:
    return "unknown" if math.isnan(value) else format(value, form)


def _band(one: references.Reference, curve: references.Curve) -> writers.Band:
    means, spreads = curve.bands()
    low, high = means - 2 * spreads, means + 2 * spreads
    return writers.Band(f"{one.name}: mean ± 2 standard deviations", curve.tokens, [*low], [*high])


def _image(picture: figure.Figure) -> str:
    content = io.BytesIO()
    picture.savefig(content, format="png", dpi=90)
    data = base64.b64encode(content.getvalue()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="Curves of the runs">'


def _table(columns: Mapping[str, Mapping[str, Any]]) -> str:
    rows = dict.fromkeys(name for column in columns.values() for name in column)
    return "".join(["<table>", *_rows(columns, list(rows)), "</table>"])


def _rows(columns: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> Iterator[str]:
    yield "<tr><th></th>" + "".join(f"<th>{escape(it)}</th>" for it in columns) + "</tr>"
    for name in names:
        cells = "".join(f"<td>{escape(str(it.get(name, '')))}</td>" for it in columns.values())
        yield f"<tr><th>{escape(name)}</th>{cells}</tr>"
