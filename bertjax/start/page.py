"""The page of what `bertjax start` made: scores, curves, faults, filled masks, what to do next."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from html import escape

from bertjax.checks import runs
from bertjax.compare import page as compare_page
from bertjax.files import atomic
from bertjax.start import commands

FILE = "index.html"


def write(
    output: pathlib.Path, done: Sequence[commands.Command], scores: str, filled: str
) -> pathlib.Path:
    """Writes the page and returns its path; `scores` and `filled` are what the programs printed."""
    reports = sorted(path.relative_to(output) for path in output.glob("*/report.html"))
    run, exported = output / "run", output / "exported"
    training = runs.read(run)
    content = [
        "<h2>Is the run right?</h2>",
        _steps(training),
        compare_page.findings(training),
        "<h2>Scores on held-out documents</h2>",
        _block(scores),
        "<p>The model has learnt something if mlm_loss is below unigram_loss, the loss of a model "
        "that only knows how frequent each token is.</p>",
        '<img src="run/curves.png" alt="Loss, accuracy, learning rate and speed">',
        "<h2>Filled masks</h2>",
        _block(filled),
        "<h2>The text</h2>",
        *(
            f'<p><a href="{escape(str(path))}">The report of {escape(str(path.parent))}</a></p>'
            for path in reports
        ),
        "<h2>What next</h2>",
        _block("\n".join(_next(run, exported))),
        "<h2>How it was made</h2>",
        _block("\n".join(command.shown for command in done)),
    ]
    path = output / FILE
    atomic.write(path, compare_page.html(output.name, content))
    return path


def _steps(run: runs.Run) -> str:
    """Returns a paragraph on the steps that the hours left out, "" if there are none."""
    decisions = run.options["budget.decisions"]
    planned = sum(decisions[0][1:]) if decisions else 0
    if run.step >= planned:
        return ""
    return f"<p>--hours left {run.step:,} of {planned:,} steps that suit the text.</p>"


def _next(run: pathlib.Path, exported: pathlib.Path) -> list[str]:
    return [
        "# other sentences",
        f'python -m bertjax.fill_mask --checkpoint={run} "TEXT with [MASK]"',
        "# finetune it on a table with the columns text and label",
        f"python -m bertjax.train --config=classification --config.init_from={run} "
        "--workdir=DIR --config.finetuning.train_file=FILE",
        "# features of texts",
        f"python -m bertjax.encode --checkpoint={run} --pooling=mean --input=FILE --output=DIR",
        "# in transformers",
        f"AutoModelForMaskedLM.from_pretrained({str(exported)!r})",
    ]


def _block(text: str) -> str:
    return f"<pre>{escape(text.strip())}</pre>"
