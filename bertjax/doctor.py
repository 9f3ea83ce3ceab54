"""Is this machine fit to train on? Devices, versions, disk, workdir and speed, on one screen.

python -m bertjax.doctor --workdir=gs://BUCKET/runs

Each line says what was found, what was expected, and ok, slow or fault. The exit code is 1 if there
is a fault, else 0. Nothing hangs: each probe runs in a process of its own, with a time limit. What
is printed holds no names of directories, buckets or hosts: paste it into an issue.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator

from absl import flags

from bertjax import command_line
from bertjax.checkup import probes
from bertjax.checkup.findings import Finding


def lines(found: Iterable[Finding]) -> Iterator[str]:
    """Yields a line for each finding, then one that counts them."""
    counts = {"ok": 0, "slow": 0, "fault": 0}
    for it in found:
        counts[it.status] += 1
        expected = f"   (expected: {it.expected})" if it.expected else ""
        yield f"{it.status:<6} {it.what:<17} {it.found}{expected}"
    yield ", ".join(f"{count} {status}" for status, count in counts.items())


def define_flags() -> None:
    """Defines the flags of `main`; importing this module defines none."""
    flags.DEFINE_string("workdir", ".", "Where a run would write: a directory or gs://BUCKET/DIR.")
    flags.DEFINE_bool("json", False, "One JSON object a line.")


def main(argv: list[str]) -> None:
    """Prints what the probes find, each when it is found; exits with 1 if one is a fault."""
    if len(argv) > 1:
        raise ValueError(f"{argv[1]!r} is no flag; --help lists the flags")
    found = []

    def kept() -> Iterator[Finding]:
        for it in probes.all_findings(flags.FLAGS.workdir):
            found.append(it)
            yield it

    if flags.FLAGS.json:
        for it in kept():
            print(json.dumps(dataclasses.asdict(it)), flush=True)
    else:
        for line in lines(kept()):
            print(line, flush=True)
    if any(it.status == "fault" for it in found):
        sys.exit(1)


if __name__ == "__main__":
    define_flags()
    command_line.run(main)
