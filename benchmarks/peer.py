"""Another process, often in an environment of its own, that answers in lines of JSON.

It calls `tell`, or `serve` to answer requests; who started it has it as `Peer`, and waits while it
works. The standard library alone, as the peers import this.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

RESULT = "RESULT "  # begins an answer; libraries print other lines


def tell(**values: Any) -> None:
    """Prints an answer."""
    print(RESULT + json.dumps(values), flush=True)


def serve(answer: Callable[[Any], dict[str, Any]]) -> None:
    """Answers requests until the input ends."""
    for line in sys.stdin:
        tell(**answer(json.loads(line)))


class Peer:
    """A running process; a context that ends it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None):
        self._command = [*map(str, command)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  until `__exit__`
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **(environment or {})},
        )
        self.pid = self._process.pid

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, which `serve` ends with
        self._errors.close()

    def answers(self) -> Iterator[Any]:
        """Yields the answers until the process ends.

        Raises:
          RuntimeError: with the end of its error output, if it failed.
        """
        for line in self._process.stdout or ():
            if line.startswith(RESULT):
                yield json.loads(line.removeprefix(RESULT))
        if self._process.wait():
            raise RuntimeError(self._failure(f"stopped with code {self._process.returncode}"))

    def answer(self) -> Any:
        """Returns the next answer.

        Raises:
          RuntimeError: with the end of its error output, if there is none.
        """
        for found in self.answers():
            return found
        raise RuntimeError(self._failure("ended without an answer"))

    def ask(self, request: Any) -> Any:
        """Returns the answer to a request."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` says why it has ended
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self.answer()

    def _failure(self, what: str) -> str:
        self._errors.seek(0)
        return f"{' '.join(self._command)} {what}:\n{self._errors.read()[-3000:]}"


def answers(command: Sequence[str]) -> Iterator[Any]:
    """Yields what a process tells that is asked nothing."""
    with Peer(command) as process:
        yield from process.answers()
