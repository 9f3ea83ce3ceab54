"""Is a run right? Draws runs on one page, and says in words what is off.

python -m bertjax.compare RUN [RUN ...] [--output=PAGE.html]

RUN is the workdir of a run, finished or not. A run is compared with a reference curve only if
data, vocabulary, model and number of tokens are the same.
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Compare, __doc__)

from etils import epath

from bertjax.checks import references, runs
from bertjax.cli import command_line, programs
from bertjax.compare import page
from bertjax.files import atomic


def main(options: programs.Compare) -> None:
    """Prints what is off in the runs, and writes the page."""
    output = epath.Path(options.output) if options.output else None
    if output is not None and page.is_of_others(output):
        raise ValueError(f"--output={output} exists and is not of bertjax: give another name")
    folders = [references.DIRECTORY, *([options.references] if options.references else [])]
    compared = runs.read_all(options.workdirs, references.load_all(*folders))
    command_line.print_report(page.text(compared))
    if output is not None:
        atomic.write(output, page.page(compared))
        command_line.print_report(f"{output} has the curves")


if __name__ == "__main__":
    command_line.run(main)
