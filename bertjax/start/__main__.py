"""From text to an exported model in one command: vocabulary, records, pretraining, scores, a page.

bertjax start --input='corpus/*.txt' --output=my_bert [--hours=2]

Each step is printed before it runs, as a command that one may run alone. The same command again
continues where it stopped. --config.OPTION=VALUE sets an option of the training.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import ml_collections
from absl import flags

from bertjax.cli import command_line, interruptions, program_flags, recipe_flag
from bertjax.files import tables
from bertjax.start import commands, sentences
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
            program_flags.print_report("", _OF_ADVICE)
        if not command.is_done:
            reports.append(run(command))
        commands.store(output, options)  # now: another call may correct those that made nothing
    heldout = pathlib.Path(first[-2].made or "")
    last = commands.after_training(output, config, sentences.masked(heldout, NUM_SENTENCES))
    printed = [run(command) for command in last if not command.is_done]
    return page_lib.write(output, [*first, *last], *printed[:2])


def run(command: commands.Command) -> str:
    """Prints a command, runs it, and returns what it prints."""
    program_flags.print_report(f"\n$ {command.shown}")
    lines = []
    with subprocess.Popen(command.argv, stdout=subprocess.PIPE, encoding="utf-8") as process:
        before = {
            number: signal.signal(number, lambda number, _: process.send_signal(number))
            for number in interruptions.received_signals()
        }
        # A terminal sends Ctrl-C to the command, too, which saves; this process waits for it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert process.stdout is not None
        for line in process.stdout:
            program_flags.print_report(line.removesuffix("\n"))
            lines.append(line)
    for number, handler in before.items():
        signal.signal(number, handler)
    if process.returncode:
        sys.stderr.write("bertjax: the same command continues there\n")
        sys.exit(process.returncode if process.returncode > 0 else 128 - process.returncode)
    return "".join(lines)


def _advises(report: str) -> bool:
    """Returns whether the warnings of a build's report name an option."""
    return "--" in report.partition("\nWarnings: ")[2]


def define_flags() -> None:
    """Defines the flags of `main`."""
    recipe_flag.define(default="own")
    flags.DEFINE_string("input", None, "Files and globs of text, as data_pipelines.build has them.")
    flags.DEFINE_string("output", None, "Directory for all that is made.")
    flags.DEFINE_float("hours", 0.0, "Of pretraining at most; 0: all steps of the recipe.", 0.0)
    flags.DEFINE_string("normalization", "nfc", "Of the text, as train_vocabulary has it.")
    program_flags.DEFINE_integer(
        "vocabulary_size", 0, "Entries; 0: by the length of the text.", lower_bound=0
    )
    flags.DEFINE_string("encoding", "", "Of the text, as train_vocabulary has it; empty: UTF-8.")
    flags.DEFINE_string("text_field", "", "Of tables and JSON lines; empty: text.")
    flags.DEFINE_string(
        "build_options",
        "",
        "More options of data_pipelines.build, one behind the other.",
    )
    flags.mark_flags_as_required(["input", "output"])


def main(argv: list[str]) -> None:
    """Runs the steps as the flags say."""
    del argv
    values = flags.FLAGS
    if pipes := [it for it in values.input.split(",") if it == "-" or tables.is_pipe(it)]:
        raise ValueError(
            f"--input names {pipes[0]}, but the text is read several times: write it to a file"
        )
    names = [it.partition("=")[2] for it in sys.argv if it.partition("=")[0].strip("-") == "config"]
    options = commands.Options(
        values.input,
        names[-1] if names else "own",
        values.hours,
        values.normalization,
        values.vocabulary_size,
        values.encoding,
        values.text_field,
        values.build_options,
    )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    more = tuple(it for it in sys.argv[1:] if it.lstrip("-").startswith(("config.", "noconfig.")))
    page = start(pathlib.Path(values.output), options, values.config, more)
    program_flags.print_report(f"\n{page} shows what was made")


if __name__ == "__main__":
    define_flags()
    command_line.run(main, choices=config_faults.CHOICES)
