r"""Reference curves of finished runs: mean and spread over seeds, for `bertjax.compare`.

    python -m benchmarks.reference_curves --name=bert runs/bert_0 runs/bert_1 [--output=DIR]

The runs have one config and differ in `config.seed`. NAME.json goes into the package's folder
(`bertjax/checks/curves`), or into --output, which `bertjax.compare --references=DIR` reads.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence

from bertjax.checks import references, runs
from bertjax.cli import command_line


def of_runs(name: str, workdirs: Sequence[pathlib.Path]) -> references.Reference:
    """Returns the reference curve of finished runs.

    Raises:
      ValueError: if a run is not finished, or they differ in more than the seed.
    """
    by_seed = {}
    for workdir in workdirs:
        run = runs.read(workdir)
        if not run.is_finished:
            raise ValueError(f"{workdir} is at step {run.step}: give finished runs of pretraining")
        by_seed[run.options["seed"]] = run
    first = next(iter(by_seed.values()))
    for run in by_seed.values():
        if run.key != first.key or references.compared(run.options) != references.compared(
            first.options
        ):
            raise ValueError(
                f"{run.name} has other data or options than {first.name}: give runs that differ in "
                "config.seed alone"
            )
    lines = {seed: run.lines for seed, run in by_seed.items()}
    return references.make(name, first.key, lines, first.options)


def main() -> None:
    """Writes the reference of the command line's runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--name", required=True, help="of the curve and of its file")
    parser.add_argument("--output", default=references.DIRECTORY, help="folder of the file")
    parser.add_argument("workdirs", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    path = references.save(of_runs(options.name, options.workdirs), options.output)
    command_line.print_report(str(path))


if __name__ == "__main__":
    main()
