"""The table of what the doctor looks at, each in a process that may hang, with a time limit."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection

from bertjax.checkup import findings, machine, speed, storage
from bertjax.checkup.findings import Finding


@dataclasses.dataclass(frozen=True)
class Probe:
    """`find` takes the workdir; `seconds` is the time limit; `hint` says why it may hang.

    After one of them hangs or dies, those that need devices are left out if it did, too.
    """

    find: Callable[[str], Iterator[Finding]]
    seconds: float
    needs_devices: bool = False
    hint: str = ""


_TPU = "a TPU serves one process: end the other one (lsof /dev/accel* /dev/vfio/*)"
_STORE = "the store does not answer: see the network and the rights of this machine"

PROBES: dict[str, Probe] = {
    "python": Probe(machine.python, 60),
    "packages": Probe(machine.packages, 60),
    "devices": Probe(machine.devices, 120, needs_devices=True, hint=_TPU),
    "matmul": Probe(speed.matmul, 180, needs_devices=True, hint=_TPU),
    "attention": Probe(speed.attention_kernel, 180, needs_devices=True, hint=_TPU),
    "disk": Probe(storage.disk, 30, hint=_STORE),
    "workdir": Probe(storage.reach, 60, hint=_STORE),
    "storage": Probe(storage.rate, 120, hint=_STORE),
}


def all_findings(workdir: str, probes: Mapping[str, Probe] | None = None) -> Iterator[Finding]:
    """Yields what every probe finds; one that fails, hangs or kills its process is a fault."""
    probes = PROBES if probes is None else probes
    left = dict(probes)
    while left:
        devices_failed = False
        with _Worker(left, workdir) as worker:
            for name, probe in list(left.items()):
                del left[name]
                found, is_gone = worker.answer(name, probe)
                yield from found
                if is_gone:
                    devices_failed = probe.needs_devices
                    break
        if devices_failed:
            for name in [name for name, probe in left.items() if probe.needs_devices]:
                yield Finding(name, "not looked at, as the devices did not answer", status="fault")
                del left[name]


class _Worker:
    """A process that runs probes in their order and sends what each finds."""

    def __init__(self, probes: Mapping[str, Probe], workdir: str):
        context = multiprocessing.get_context("spawn")
        self._directory = tempfile.TemporaryDirectory(prefix="bertjax_doctor_")
        self._said = pathlib.Path(self._directory.name, "stderr")
        self._received, sent = context.Pipe(duplex=False)
        arguments = (dict(probes), workdir, str(self._said), sent)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        sent.close()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._directory.cleanup()

    def answer(self, name: str, probe: Probe) -> tuple[list[Finding], bool]:
        """Returns what the next probe finds, and whether its process is of no more use."""
        hint = f"; {probe.hint}" if probe.hint else ""
        if not self._received.poll(probe.seconds):
            return [Finding(name, f"no answer in {probe.seconds:.0f} s{hint}", "", "fault")], True
        try:
            return self._received.recv(), False
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            said = self._last_words()
            found = f"its process ended with {code}{f': {said}' if said else ''}{hint}"
            return [Finding(name, found, "", "fault")], True

    def _last_words(self) -> str:
        lines = self._said.read_text(errors="replace").split("\n") if self._said.exists() else []
        shown = [line.strip() for line in lines if line.strip()]
        return shown[-1][: findings.MOST_CHARACTERS] if shown else ""


def _work(
    probes: Mapping[str, Probe], workdir: str, said: str, sent: connection.Connection
) -> None:
    """Runs the probes, and keeps what libraries print off the screen."""
    file = os.open(said, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    for name, probe in probes.items():
        found: list[Finding] = []
        try:
            found.extend(probe.find(workdir))
        except Exception as error:  # Whatever it is, it is what the doctor was asked for.
            found.append(Finding(name, findings.told(error, workdir), "", "fault"))
        sent.send(found)
