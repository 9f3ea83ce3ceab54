"""The place where records are made before they are complete: what may be kept, and the final move.

A build leaves `OUTPUT.partial` behind when it dies. Beside its work lie two files that say what the
work was for: a later build keeps the tokens if they are those that it needs, and the shards if
they are as well. The mark of bertjax makes `OUTPUT.partial` a build's own: all of it is thrown away
in the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from absl import logging
from etils import epath

from bertjax.files import atomic, directories, json_text, output

TOKENS_KEY, EXAMPLES_KEY = "tokens.json", "examples.json"
ADVICE = "give another --output, or remove it by hand"


class PartialOutput:
    """The directories of a build under way: `records` becomes the output, `scratch` is thrown away.

    A context, in which no other build may write the same output or scratch directory. A link as
    output stands for what it points to. Unless it `keeps_work`, a build that fails leaves nothing
    behind, and one that was killed is begun anew by the next.
    """

    def __init__(
        self,
        path: epath.PathLike,
        *,
        scratch: str = "",
        overwrite: bool = False,
        keeps_work: bool = True,
    ):
        if not scratch and atomic.is_remote(path):
            remedy = (
                "give --scratch, a local directory for the tokenized corpus (about half the size "
                "of the text, and more for examples)"
            )
            remedy = remedy if keeps_work else "build into a local directory, and copy that there"
            raise ValueError(f"output {path} is not on this machine; {remedy}")
        self._output = output.Output(path, "records", overwrite=overwrite)
        self._overwrite, self._keeps_work = overwrite, keeps_work
        path = self._output.path
        self._partial = path.parent / f"{path.name}.partial"
        self.records = self._partial / "records"
        self.input = self._partial / "input"  # copies of pipes
        self.scratch, self._roots = self._partial / "scratch", [self._partial]
        if scratch:
            # A directory of its own even where one was given: it is thrown away in the end. On
            # another machine only for Beam, whose workers see no local one.
            self.scratch = directories.real_path(scratch) / _scratch_name(path)
            if self._partial not in self.scratch.parents:
                self._roots.append(self.scratch)
        for root in self._roots:
            directories.check_free(root, "build", None, advice=ADVICE)
        self._locks = contextlib.ExitStack()

    def __enter__(self) -> PartialOutput:
        with contextlib.ExitStack() as locks:
            for root in self._roots:
                self._lock(locks, root)
            self._claim()
            self._locks = locks.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        ours = {directories.LOCK_FILE, directories.MARKER, self.input.name}
        with self._locks:  # given back also where this is interrupted
            for root in self._roots:
                if not root.exists():
                    continue
                has_begun = not {path.name for path in root.iterdir()} <= ours
                if not (has_begun and self._keeps_work):
                    directories.remove(root)

    def begin(self, tokens_key: Mapping[str, Any], examples_key: Mapping[str, Any]) -> None:
        """Makes the directories; throws away work that was for other tokens or other examples.

        Without `overwrite`, finished shards are not thrown away: a FileExistsError.
        """
        self._claim()
        same_tokens = self._compare(TOKENS_KEY, tokens_key)
        same_examples = same_tokens and self._compare(EXAMPLES_KEY, examples_key)
        if not (same_examples and self._keeps_work):
            self.discard_examples()
        if not same_tokens:
            directories.clear(self.scratch)
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
        self._output.publish(self.records)
        for root in reversed(self._roots):
            directories.remove(root)

    def discard_examples(self) -> None:
        """Throws away the examples and shards that were made of other tokens."""
        if self.records.exists():
            self.records.rmtree()
        self.records.mkdir(parents=True)
        for pattern in ("pairs-*", "*tfrecord*"):
            for path in self.scratch.glob(pattern):
                path.unlink()

    def _claim(self) -> None:
        for root in self._roots:
            directories.claim(root, "build", None, advice=ADVICE)

    @staticmethod
    def _lock(locks: contextlib.ExitStack, directory: epath.Path) -> None:
        try:
            is_locked = locks.enter_context(directories.lock(directory))
        except BlockingIOError as error:
            raise FileExistsError(
                f"another build is writing {directory}; wait for its end or choose another --output"
            ) from error
        if not is_locked and not atomic.is_remote(directory):
            logging.warning("%s has no locks: let no other build write there meanwhile", directory)

    def _compare(self, name: str, key: Mapping[str, Any]) -> bool:
        """Returns whether unfinished work is of the same key; says what differs if it is not."""
        path = self.scratch / name
        if not path.exists():
            return False
        try:
            before = json_text.read_object(path)
        except ValueError as error:
            logging.warning("unfinished work is thrown away, its options are lost: %s", error)
            return False
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


def _scratch_name(output: epath.Path) -> str:
    """Returns a name that outputs with the same last part do not share."""
    digest = hashlib.sha256(str(output).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{output.name}.{digest[:12]}.scratch"
