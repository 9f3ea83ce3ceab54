"""Where several processes stop: all at one moment, once any of them was told to.

JAX's preemption service does the same and is not used: it counts by the last number that anybody
gave it, and orbax gives it the step at every save. In a resumed run that is far ahead of the count
of moments, so the run went on for as many steps as it had made before.
Source: ComputeSyncCallCounter in xla/tsl/distributed_runtime/preemption/preemption_sync_manager.cc.
"""

from __future__ import annotations

import itertools
import math
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
from absl import logging
from jax._src import distributed  # its client has no public name

POLL_SECONDS = 0.5
TOLD = "bertjax/told/"  # below it, the processes that were told to stop
_CLOSING = 0  # no signal has this number
_TELLING = frozenset({signal.SIGTERM, signal.SIGINT})


class KeyValues(Protocol):
    """What all processes can read: the part of JAX's distributed client that is needed here."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None: ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...


class Agreement:
    """The moment at which every process stops, from the first time that one is told to.

    A thread listens in every process. Once it learns that any was told, it writes down how many
    moments its process has reached, and lets it reach no other before all have written theirs.
    The moment after the largest is the one. No thread waits for a process at work: a step that
    compiles delays nothing.
    """

    _numbers = itertools.count()  # every process makes its agreements in the same order

    def __init__(self, client: KeyValues, process: int, count: int, number: int):
        self._client = client
        self._process, self._count = process, count
        self._moments = f"bertjax/moments_{number}/"
        self._moment, self._last = 0, math.inf
        self._lock = threading.Lock()
        self._mouth, self._ear = socket.socketpair()
        self._mouth.setblocking(False)
        self._ear.settimeout(POLL_SECONDS)
        self._thread = threading.Thread(target=self._listen, name="agreement", daemon=True)

    @classmethod
    def of_run(cls) -> Agreement:
        """Returns the agreement of this process with the others of `jax.distributed`."""
        client: Any = distributed.global_state.client
        return cls(client, jax.process_index(), jax.process_count(), next(cls._numbers))

    def __enter__(self) -> Agreement:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._mouth.send(bytes([_CLOSING]))
        self._thread.join(timeout=10)  # a lost process 0 would leave it waiting
        if not self._thread.is_alive():
            self._mouth.close()
            self._ear.close()

    def fileno(self) -> int:
        """Returns what `signal.set_wakeup_fd` takes: a signal tells even while a step runs."""
        return self._mouth.fileno()

    def tell(self) -> None:
        """Says that this process was told to stop."""
        self._mouth.send(bytes([signal.SIGTERM]))

    def reached(self) -> bool:
        """Counts a moment; returns whether it is the one to stop at, or a later one."""
        with self._lock:
            self._moment += 1
            return self._moment >= self._last

    def _listen(self) -> None:
        while True:
            heard = self._heard()
            if not _TELLING.isdisjoint(heard):
                self._set(f"{TOLD}{self._process}", "")
            if _CLOSING in heard:
                with self._lock:
                    self._write_moment()  # or the others would wait for it
                return
            if self._all_below(TOLD):
                self._agree()
                return

    def _heard(self) -> bytes:
        try:
            return self._ear.recv(64)
        except TimeoutError:
            return b""

    def _agree(self) -> None:
        with self._lock:
            self._write_moment()
            while len(moments := self._all_below(self._moments)) < self._count:
                time.sleep(POLL_SECONDS / 10)
            self._last = max(map(int, moments)) + 1

    def _write_moment(self) -> None:
        self._set(f"{self._moments}{self._process}", str(self._moment))

    def _set(self, key: str, value: str) -> None:
        self._again(lambda: self._client.key_value_set(key, value, allow_overwrite=True))

    def _all_below(self, directory: str) -> list[str]:
        found = self._again(lambda: self._client.key_value_dir_get(directory))
        return [value for _, value in found]

    def _again(self, call: Callable[[], Any]) -> Any:
        """Returns what a call of the service returns, once it answers.

        Where it never does, JAX ends the process, which has lost its heartbeat.
        """
        while True:
            try:
                return call()
            except jax.errors.JaxRuntimeError as error:
                logging.warning("Process 0 does not answer; asking again: %s", error)
                time.sleep(POLL_SECONDS)
