"""The output during a run: its writers, a progress line, curves.png.

Scalars are named `train/loss`, `train/mlm_accuracy`, `perf/tokens_per_second`,
`eval/<name>/<metric>`. Values and steps belong to the loop, the writers to `run_writers`.
"""

from __future__ import annotations

import io
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

import matplotlib
import numpy as np
from etils import epath
from matplotlib import colormaps, figure

from bertjax.data import progress
from bertjax.files import atomic
from bertjax.scores import baselines
from bertjax.training import preemption, run_writers
from bertjax.training.run_writers import base
from bertjax.workdirs import scalars

CURVES_FILE = "curves.png"
MAX_LEGEND_ROWS = 30  # of the legend for several runs

# The scalars of the progress line, in its order: name, then how the value is shown.
PROGRESS: dict[str, Callable[[float], str]] = {
    "train/loss": lambda value: f"loss {value:.3f}",
    "train/accuracy": lambda value: f"acc {value:.3f}",
    "train/mlm_accuracy": lambda value: f"mlm acc {value:.3f}",
    "train/lm_accuracy": lambda value: f"lm acc {value:.3f}",
    "train/nsp_accuracy": lambda value: f"nsp acc {value:.3f}",
    "train/sop_accuracy": lambda value: f"sop acc {value:.3f}",
    "train/sbo_accuracy": lambda value: f"sbo acc {value:.3f}",
    "train/replaced_share": lambda value: f"replaced {value:.3f}",
    "train/discriminator_loss": lambda value: f"discriminator {value:.3f}",
    "train/discriminator_recall": lambda value: f"recall {value:.3f}",
    "train/discriminator_auc": lambda value: f"auc {value:.3f}",
    "train/epochs": lambda value: f"epoch {value:.2f}",
    "train/words": lambda value: f"{_thousands(value)} words",
    "perf/tokens_per_second": lambda value: f"{_thousands(value)} tokens/s",
    "perf/real_tokens_per_second": lambda value: f"{_thousands(value)} real",
    "perf/model_flop_utilization": lambda value: f"MFU {value:.1%}",
}

SCORES_PANEL = "accuracy and other scores"  # fractions; those in percent have an axis of their own

# The scores of a model that learnt nothing, drawn as dashed lines.
CHANCE = re.compile(rf"eval/.+/({'|'.join(baselines.NAMES)})")

# Names are drawn as they are: matplotlib would read mathematics between two dollar signs.
_PLAIN = matplotlib.rc_context({"text.parse_math": False})

OF_MEAN = "eval/mean/"  # the scores of several sets together

# The panels of curves.png: title, then the names of the scalars in it. The last ones are drawn
# where there is something to draw.
PANELS = {
    "loss (nats)": re.compile(r"(train|eval/.+)/(m?lm_|unigram_)?loss"),
    SCORES_PANEL: re.compile(
        r"(train|eval/(?!pairs/).+)/(\w+_)?(accuracy|f1|exact_match|exact|matthews_correlation)"
        r"|eval/.+/(pearson|spearman|pearson_spearman)"
    ),
    "learning rate": re.compile(r"train/learning_rate"),
    "tokens per second": re.compile(r"perf/(real_)?tokens_per_second"),
    "minimal pairs: accuracy": re.compile(r"eval/pairs/(accuracy(_\w+)?|chance)"),
    "values: loss": re.compile(
        r"(train|eval/.+)/(value|category|replaced)_loss"
        r"|eval/.+/(mean|last_value|interpolation|frequencies|always_no)_loss"
    ),
    "values: errors": re.compile(r"eval/.+/((naive|mean)_)?r?mse"),
    "discriminator: loss (nats)": re.compile(r"(train|eval/.+)/(discriminator|share)_loss"),
    "discriminator: shares of tokens": re.compile(
        r"(train|eval/.+)/(replaced_share|discriminator_(precision|recall|auc))"
    ),
}
ALWAYS_DRAWN = 4


class RunWriter:
    """Writes what one run reports, into its working directory and onto the terminal.

    A run that resumes forgets what was reported after the step it resumes from, so that the files
    read as if it had never stopped. Use it as a context manager, or call `close`.

    Args:
      workdir: the directory of the run; made if missing. Where it is remote (gs://...), the files
        are kept on this machine and copied at every `curves`, `keep` and at `close`.
      total_steps: the last step of the run.
      start_step: the step whose checkpoint the run resumes from, 0 for a new run.
      evaluates_again: whether the evaluation of that step is repeated; its earlier scalars go.
      enabled: False on every process but the first: nothing is then written or shown.
      log_every_seconds: least time between two progress lines where there is no terminal.
      kinds: keys of `run_writers.WRITERS`; metrics.jsonl is written besides.
      config: the options by their dotted names, for writers that show them.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        *,
        total_steps: int,
        start_step: int = 0,
        evaluates_again: bool = False,
        enabled: bool = True,
        log_every_seconds: float = 10.0,
        kinds: Sequence[str] = ("tensorboard",),
        config: Mapping[str, Any] | None = None,
    ):
        self._enabled = enabled
        if not enabled:
            return
        self._mirror = _Mirror(workdir) if atomic.is_remote(workdir) else None
        self._directory = self._mirror.local if self._mirror else Path(workdir)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._metrics = self._directory / scalars.FILE
        sent = None
        if services := run_writers.keeping(kinds):
            sent = base.update_sent(workdir, services, scalars.read(self._metrics))
        run = base.Run(
            name="/".join(epath.Path(workdir).absolute().parts[-2:]),
            identity=sent.identity if sent else "",
            directory=self._directory,
            config=config or {},
            start_step=start_step,
            evaluates_again=evaluates_again,
        )
        self._writers = run_writers.open_all(kinds, run, sent)
        self._lines = scalars.read(self._metrics)  # of the steps that a resumed run goes on from
        self._progress = progress.Progress(
            "step", total_steps, start=start_step, log_every_seconds=log_every_seconds
        )

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(_outcome(kind))

    def scalars(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """Gives the scalars to every writer: at once, one line of metrics.jsonl."""
        if not self._enabled:
            return
        numbers = {name: float(value) for name, value in values.items()}
        self._lines.append({"step": step, **numbers})
        for writer in self._writers:
            writer.scalars(step, numbers)

    def lines(self) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl, none on other processes than the first."""
        return self._lines if self._enabled else []

    def progress(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """Shows how far the run is: a bar on a terminal, else a log line every few seconds."""
        if self._enabled:
            self._progress.show(step, lambda: progress_text(values))

    def set_total(self, step: int) -> None:
        """Takes another last step of the run."""
        if self._enabled:
            self._progress.set_total(step)

    def note(self, text: str) -> None:
        """Shows a note where there are no scalars yet; "" takes it off the bar."""
        if self._enabled:
            self._progress.note(text)

    def curves(self) -> None:
        """Redraws curves.png from metrics.jsonl; a reader sees the old picture or the new one."""
        if not self._enabled:
            return
        picture = draw_curves(scalars.read(self._metrics))
        with atomic.writing(self._directory / CURVES_FILE) as file:
            picture.savefig(file, format="png", dpi=120)
        for writer in self._writers:
            writer.picture(self._directory / CURVES_FILE)
        self._copy()

    def keep(self) -> None:
        """Makes sure that the workdir, also a remote one, has the scalars of all steps so far.

        Before a checkpoint is saved: a run that resumes from it knows no other copy of them.
        """
        if self._enabled:
            self._copy()

    def close(self, outcome: base.Outcome = "finished") -> None:
        """Finishes the progress line and the writers; nothing is written afterwards."""
        if not self._enabled:
            return
        self._enabled = False
        self._progress.close()
        for writer in self._writers:
            writer.close(outcome)
        self._copy()
        if self._mirror:
            self._mirror.close()

    def _copy(self) -> None:
        if self._mirror:
            self._mirror.upload()


def _outcome(error: type[BaseException] | None) -> base.Outcome:
    """Returns how a run ended, by the kind of error that ended it, None for none."""
    if error is None:
        return "finished"
    return "stopped" if issubclass(error, (preemption.Preempted, KeyboardInterrupt)) else "failed"


def progress_text(values: Mapping[str, SupportsFloat]) -> str:
    """Returns the scalars of `PROGRESS` that are there, on one line."""
    shown = [show(float(values[name])) for name, show in PROGRESS.items() if name in values]
    return ", ".join(shown)


def _thousands(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"


class _Mirror:
    """A local directory whose files are copied to a remote one, which cannot append."""

    def __init__(self, remote: str | os.PathLike[str]):
        self._remote = epath.Path(remote)
        self.local = Path(tempfile.mkdtemp(prefix="bertjax_run_"))
        metrics = self._remote / scalars.FILE
        if metrics.exists():
            (self.local / scalars.FILE).write_bytes(metrics.read_bytes())

    def upload(self) -> None:
        for path in sorted(self.local.rglob("*")):
            if path.is_file():
                target = self._remote / path.relative_to(self.local).as_posix()
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())

    def close(self) -> None:
        shutil.rmtree(self.local)


class Band(NamedTuple):
    """A range of values at each place, as around a reference curve."""

    name: str
    places: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@_PLAIN
def draw_curves(entries: Sequence[Mapping[str, Any]]) -> figure.Figure:
    """Returns the picture of a run: loss, accuracy, learning rate and speed against the step."""
    panels = {
        title: scalars_by_name
        for number, (title, pattern) in enumerate(PANELS.items())
        if (scalars_by_name := _by_name(entries, pattern)) or number < ALWAYS_DRAWN
    }
    rows = math.ceil(len(panels) / 2)
    # The object interface: pyplot would keep every figure of the process and may ask for a display.
    picture = figure.Figure(figsize=(12, 4 * rows), layout="constrained")
    grid = [*picture.subplots(rows, 2).flat]
    for empty in grid[len(panels) :]:
        empty.remove()
    for axes, (title, scalars_by_name) in zip(grid, panels.items(), strict=False):
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
        lines, percent = [], None
        has_mean = any(name.startswith(OF_MEAN) for name in scalars_by_name)
        for name, (steps, values) in scalars_by_name.items():
            where = axes
            if title == SCORES_PANEL and any(abs(value) > 1 for value in values):
                where = percent = percent or axes.twinx()
                percent.set(ylabel="percent")
            marker = "o" if name.startswith("eval/") or len(steps) == 1 else ""
            style = {"marker": marker, "markersize": 3, "linewidth": 1, "color": f"C{len(lines)}"}
            if CHANCE.fullmatch(name):
                if has_mean and not name.startswith(OF_MEAN):
                    continue  # a line of each language would hide the curves
                # The same at every evaluation, and a line where there has been only one.
                lines.append(where.axhline(values[-1], label=name, ls="--", lw=1, color="grey"))
                continue
            lines += where.plot(steps, values, label=name, **style)
        if lines:
            # Many names would hide what they name.
            small = {"fontsize": "xx-small", "ncols": 2, "framealpha": 0.5}
            style = {"fontsize": "small"} if len(lines) <= 6 else small
            (percent or axes).legend(handles=lines, **style)
    return picture


def draw_trials(curves: Mapping[str, Sequence[Mapping[str, Any]]], score: str) -> figure.Figure:
    """Returns the picture of several runs: their training losses and one score, by their names."""
    return draw_runs(curves, (("train/loss", "step"), (score, "step")))


@_PLAIN
def draw_runs(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    panels: Sequence[tuple[str, str]],
    bands: Mapping[tuple[str, str], Sequence[Band]] | None = None,
) -> figure.Figure:
    """Returns the picture of several runs, by their names: a panel for each (scalar, horizontal).

    Both are names in the entries. `bands` are drawn behind the curves of a panel.
    """
    rows = math.ceil(len(panels) / 2)
    picture = figure.Figure(figsize=(14, 5 * rows), layout="constrained")
    grid = [*picture.subplots(rows, 2, squeeze=False).flat]
    for empty in grid[len(panels) :]:
        empty.remove()
    # A colour for each: the usual ones repeat after ten.
    colours = dict(zip(curves, colormaps["turbo"](np.linspace(0, 1, len(curves))), strict=True))
    lines: dict[str, Any] = {}
    for axes, (name, horizontal) in zip(grid, panels, strict=False):
        axes.set(title=name, xlabel=horizontal)
        axes.grid(alpha=0.3)
        for band in (bands or {}).get((name, horizontal), ()):
            lines[band.name] = axes.fill_between(band.places, band.low, band.high, alpha=0.25,
                                                 color="grey", label=band.name)  # fmt: skip
        for run, entries in curves.items():
            for places, values in _by_name(
                entries, re.compile(re.escape(name)), horizontal
            ).values():
                (lines[run],) = axes.plot(
                    places, values, marker="o", markersize=3, linewidth=1, color=colours[run]
                )
    picture.legend(
        list(lines.values()),
        list(lines),
        loc="outside right upper",
        fontsize="x-small",
        ncols=math.ceil(len(lines) / MAX_LEGEND_ROWS) or 1,
    )
    return picture


def save_picture(picture: figure.Figure, path: epath.Path) -> None:
    """Writes a picture as PNG, to a disk or a store."""
    content = io.BytesIO()
    picture.savefig(content, format="png", dpi=120)
    atomic.write(path, content.getvalue())


def _by_name(
    entries: Sequence[Mapping[str, Any]], pattern: re.Pattern[str], horizontal: str = "step"
) -> dict[str, tuple[list[float], list[float]]]:
    """Returns places and values by name, of the scalars whose whole name the pattern matches.

    The places are steps, or the values of another name in the same entries.
    """
    scalars_by_name: dict[str, tuple[list[float], list[float]]] = {}
    for entry in entries:
        for name, value in entry.items():
            if not pattern.fullmatch(name):
                continue
            places, values = scalars_by_name.setdefault(name, ([], []))
            places.append(entry[horizontal])
            values.append(math.nan if value is None else value)
    return scalars_by_name
