"""From text to an exported model in one command: vocabulary, records, pretraining, scores, a page.

bertjax start --input='corpus/*.txt' --output=my_bert [--hours=2]

Each step is printed before it runs, as a command that you may also run alone. The same command
again continues where it stopped. --config.OPTION=VALUE sets an option of the training.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Start, __doc__)

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import ml_collections

from bertjax.cli import command_line, interruptions, programs, recipe_flag
from bertjax.files import opening
from bertjax.start import commands, folders, sentences
from bertjax.start import page as page_lib
from bertjax.training import config_faults
from bertjax.workdirs import ownership

NUM_SENTENCES = 3
_OF_ADVICE = (
    "The reports above advise options of data_pipelines.build. bertjax start takes them in one "
    "option, --build_options='--NAME=VALUE --NAME=VALUE', with another --output."
)


def start(
    output: pathlib.Path,
    options: commands.Options,
    config: ml_collections.ConfigDict,
    more: tuple[str, ...] = (),
) -> pathlib.Path:
    """Runs all commands that are not done, and returns the page that shows what they made.

    `config` is the recipe of the options; `more` are further options of the training.
    """
    commands.begin(output, options)
    with ownership.Ownership(output, option="--output"):
        return _run_all(output, options, config, more)


def _run_all(
    output: pathlib.Path,
    options: commands.Options,
    config: ml_collections.ConfigDict,
    more: tuple[str, ...],
) -> pathlib.Path:
    first = commands.before_training(output, options, config)
    first.append(commands.training(output, options, config, more))
    reports = []
    for command in first:
        if command == first[-1] and any(map(_advises, reports)):
            command_line.print_report("", _OF_ADVICE)
        if not command.is_done:
            reports.append(run(command))
        commands.store(output, options)  # now: another call may correct those that made nothing
    heldout = pathlib.Path(first[-2].made or "")
    last = commands.after_training(output, config, sentences.masked(heldout, NUM_SENTENCES))
    printed = [run(command) for command in last if not command.is_done]
    return page_lib.write(output, [*first, *last], *printed[:2])


def run(command: commands.Command) -> str:
    """Prints a command, runs it, and returns what it prints."""
    command_line.print_report(f"\n$ {command.shown}")
    lines = []
    with subprocess.Popen(command.argv, stdout=subprocess.PIPE, encoding="utf-8") as process:
        before = {
            number: signal.signal(number, lambda number, _: process.send_signal(number))
            for number in interruptions.received_signals()
        }
        # A terminal also sends Ctrl-C to the command, which saves; this process waits for it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert process.stdout is not None
        for line in process.stdout:
            command_line.print_report(line.removesuffix("\n"))
            lines.append(line)
    for number, handler in before.items():
        signal.signal(number, handler)
    if process.returncode:
        if process.returncode != 1:  # a mistake, which the command has named
            sys.stderr.write("bertjax: the same command continues there\n")
        sys.exit(process.returncode if process.returncode > 0 else 128 - process.returncode)
    return "".join(lines)


def _advises(report: str) -> bool:
    """Returns whether the warnings of a build's report name an option."""
    return "--" in report.partition("\nWarnings: ")[2]


def main(values: programs.Start) -> None:
    """Runs the steps as the options say."""
    if pipes := [it for it in values.input.split(",") if it == "-" or opening.is_pipe(it)]:
        raise ValueError(
            f"--input names {pipes[0]}, but the text is read several times: write it to a file"
        )
    text, others = folders.expanded(values.input)
    if sentence := folders.left_out(others):
        command_line.print_report(sentence)
    (recipe,) = recipe_flag.names() or ["own"]
    names = [it.name for it in dataclasses.fields(commands.Options) if it.name != "recipe"]
    given: dict[str, Any] = {name: getattr(values, name) for name in names}
    options = commands.Options(**{**given, "recipe": recipe, "input": text})
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    more = tuple(it for it in sys.argv[1:] if it.lstrip("-").startswith(("config.", "noconfig.")))
    page = start(pathlib.Path(values.output), options, values.config, more)
    command_line.print_report(f"\n{page} shows what was made")


if __name__ == "__main__":
    command_line.run(main, choices=config_faults.CHOICES)
