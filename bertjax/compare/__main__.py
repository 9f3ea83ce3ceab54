"""Is a run right? Draws runs on one page, and says in words what is off.

python -m bertjax.compare RUN [RUN ...] [--output=PAGE.html]

RUN is the workdir of a run, finished or not. Each check is a row of `bertjax.compare.checks`. A
reference curve speaks where data, vocabulary, model and number of tokens are its own.
"""

from __future__ import annotations

from absl import flags
from etils import epath

from bertjax.cli import command_line, program_flags
from bertjax.compare import page, references, runs
from bertjax.files import atomic


def define_flags() -> None:
    """Defines the flags of `main`."""
    flags.DEFINE_string("output", "", "HTML page to write; empty: none.")
    flags.DEFINE_string("references", "", "Folder of further reference curves of yours.")


def main(argv: list[str]) -> None:
    """Prints what is off in the runs, and writes the page."""
    options = flags.FLAGS
    output = epath.Path(options.output) if options.output else None
    if output is not None and page.is_of_others(output):
        raise ValueError(f"--output={output} is there and no page of bertjax: give a new name")
    folders = [references.DIRECTORY, *([options.references] if options.references else [])]
    compared = runs.read_all(argv[1:], references.load_all(*folders))
    program_flags.print_report(page.text(compared))
    if output is not None:
        atomic.write(output, page.page(compared))
        program_flags.print_report(f"{output} has the curves")


if __name__ == "__main__":
    define_flags()
    command_line.run(main)
