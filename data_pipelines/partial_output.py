"""The place where records are made before they are complete: what may be kept, and the final move.

A build leaves `OUTPUT.partial` behind when it dies. Beside its work lie two files that say what the
work was for: a later build keeps the tokens if they are those that it needs, and the shards if
they are too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from absl import logging
from etils import epath

from bertjax.data import atomic, mounts, records

TOKENS_KEY, EXAMPLES_KEY = "tokens.json", "examples.json"
LOCK_FILE = "lock"


class PartialOutput:
    """The directories of a build under way: `records` becomes the output, `scratch` is thrown away.

    A context, in which no other build may write the same output (if it is on this machine).

    Raises:
      FileExistsError: if the output exists and is not to be overwritten.
      ValueError: if the output is not on this machine and no local scratch directory is given.
    """

    def __init__(self, output: epath.PathLike, *, scratch: str = "", overwrite: bool = False):
        self._output = epath.Path(output)
        self._overwrite = overwrite
        self._partial = self._output.parent / f"{self._output.name}.partial"
        self.records = self._partial / "records"
        if not scratch and "://" in str(output):
            raise ValueError(
                f"output {output} is not on this machine; give --scratch, a local directory for "
                "the tokenized corpus (about half the size of the text, and more for examples)"
            )
        # On another machine only for Beam, whose workers see no local one.
        # A directory of its own even where one was given: it is thrown away in the end.
        directory = scratch and epath.Path(scratch) / f"{self._output.name}.scratch"
        self.scratch = epath.Path(directory or self._partial / "scratch")
        self._check_output()
        self._lock: Any = None

    def __enter__(self) -> PartialOutput:
        if "://" not in str(self._partial):
            self._partial.mkdir(parents=True, exist_ok=True)
            lock = (self._partial / LOCK_FILE).open("w")
            try:
                is_locked = mounts.lock(lock)
            except BlockingIOError as error:
                lock.close()
                raise FileExistsError(
                    f"another build is writing {self._partial}; wait for its end or choose another "
                    "--output"
                ) from error
            if not is_locked:
                logging.warning(
                    "%s has no locks: let no other build write there meanwhile", self._partial
                )
            self._lock = lock
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is None:
            return
        if self._partial.exists() and [one.name for one in self._partial.iterdir()] == [LOCK_FILE]:
            self._partial.rmtree()  # Nothing was begun.
        self._lock.close()

    def begin(self, tokens_key: Mapping[str, Any], examples_key: Mapping[str, Any]) -> None:
        """Makes the directories; throws away what was begun for other tokens or other examples.

        Raises:
          FileExistsError: if finished shards would be lost, without `overwrite`.
        """
        same_tokens = self._compare(TOKENS_KEY, tokens_key)
        same_examples = same_tokens and self._compare(EXAMPLES_KEY, examples_key)
        if not same_examples:
            self.discard_examples()
        if not same_tokens:
            _remove(self.scratch)
        for directory in (self.scratch, self.records):
            directory.mkdir(parents=True, exist_ok=True)
            atomic.remove_drafts(directory)  # of a build that was killed
        for name, key in ((TOKENS_KEY, tokens_key), (EXAMPLES_KEY, examples_key)):
            # On a full disk, half a key would make all work useless.
            atomic.write(self.scratch / name, json.dumps(key, sort_keys=True))

    def publish(self) -> None:
        """Gives the finished records their name and removes everything else."""
        # A worker of Beam leaves drafts if its work was given to another one.
        atomic.remove_drafts(self.records)
        atomic.replace_directory(self.records, self._output)
        _remove(self._partial)
        _remove(self.scratch)

    def _check_output(self) -> None:
        if not self._output.exists():
            return
        if not self._overwrite:
            raise FileExistsError(
                f"output {self._output} exists; choose another name or replace it with --overwrite"
            )
        # Overwriting deletes, and a mistyped output might be a home directory.
        is_records = (self._output / records.MANIFEST_FILE).exists()
        if not is_records and (not self._output.is_dir() or any(self._output.iterdir())):
            raise FileExistsError(
                f"output {self._output} is not a record directory (it has no "
                f"{records.MANIFEST_FILE}) and is not overwritten; choose another name"
            )

    def _compare(self, name: str, key: Mapping[str, Any]) -> bool:
        """Returns whether unfinished work is of the same key; says what differs if it is not."""
        path = self.scratch / name
        if not path.exists():
            return False
        before = json.loads(path.read_text())
        now = json.loads(json.dumps(key))
        if before == now:
            return True
        differing = ", ".join(
            f"{option} {before.get(option)!r}, now {now.get(option)!r}"
            for option in sorted({*before, *now})
            if before.get(option) != now.get(option)
        )
        if self.records.exists() and any(self.records.iterdir()) and not self._overwrite:
            raise FileExistsError(
                f"{self._partial} holds finished shards of a build that differs ({differing}); "
                "finish that one with its own options, or give --overwrite to begin anew"
            )
        logging.warning("unfinished work is thrown away, its options differ: %s", differing)
        return False

    def discard_examples(self) -> None:
        """Throws away the examples and shards that were made of other tokens."""
        if self.records.exists():
            self.records.rmtree()
        self.records.mkdir(parents=True)
        for pattern in ("pairs-*", "*tfrecord*"):
            for path in self.scratch.glob(pattern):
                path.unlink()


def _remove(directory: epath.Path) -> None:
    if directory.exists():
        directory.rmtree()
