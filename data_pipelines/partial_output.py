"""The place where records are made before they are complete: what may be kept, and the final move.

A build leaves `OUTPUT.partial` behind when it dies. Beside its work lie two files that say what the
work was for: a later build keeps the tokens if they are those that it needs, and the shards if
they are too.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import logging
from etils import epath

from bertjax.files import atomic, directories, json_text

TOKENS_KEY, EXAMPLES_KEY = "tokens.json", "examples.json"
# Directory of the work -> patterns of the names in it. Other names are someone else's.
NAMES = {
    "scratch": (
        *(TOKENS_KEY, EXAMPLES_KEY, "reading.json", "blocks.jsonl", "pairs-*.npy", "pairs-*.json"),
        *("tokens.bin", "sentence_starts.bin", "document_starts.bin", "*.tfrecord-*.json", "beam"),
    ),
    "records": (
        *("*.tfrecord-*-of-*", "manifest.json", "contents.npz", "features.json", "report.html"),
        *("dataset_info.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("added_tokens.json", "donors.npz"),
    ),
    "input": ("[0-9]*-*",),  # copies of pipes
}
ADVICE = "give another --output, or remove it by hand"


class PartialOutput:
    """The directories of a build under way: `records` becomes the output, `scratch` is thrown away.

    A context, in which no other build may write the same output or scratch directory. A link as
    output stands for what it points to.

    Raises:
      FileExistsError: if the output exists and is not to be overwritten.
      directories.NotOursError: if something would be lost that no build has written.
      ValueError: if the output is not on this machine and no local scratch directory is given.
    """

    def __init__(self, output: epath.PathLike, *, scratch: str = "", overwrite: bool = False):
        if not scratch and "://" in str(output):
            raise ValueError(
                f"output {output} is not on this machine; give --scratch, a local directory for "
                "the tokenized corpus (about half the size of the text, and more for examples)"
            )
        self._output = directories.real_path(output)
        self._overwrite = overwrite
        self._partial = self._output.parent / f"{self._output.name}.partial"
        self.records = self._partial / "records"
        self.input = self._partial / "input"
        # On another machine only for Beam, whose workers see no local one.
        # A directory of its own even where one was given: it is thrown away in the end.
        directory = scratch and directories.real_path(scratch) / _scratch_name(self._output)
        self.scratch = epath.Path(directory or self._partial / "scratch")
        self._check_output()
        self._check_partial()
        self._locks = contextlib.ExitStack()

    def __enter__(self) -> PartialOutput:
        with contextlib.ExitStack() as locks:
            for directory in self._roots():
                self._lock(locks, directory)
                directories.claim(directory, "build", (), advice=ADVICE)
            self._locks = locks.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        ours = {directories.LOCK_FILE, directories.MARKER, self.input.name}
        for directory in self._roots():
            if directory.exists() and {path.name for path in directory.iterdir()} <= ours:
                directory.rmtree()  # Nothing was begun.
        self._locks.close()

    def begin(self, tokens_key: Mapping[str, Any], examples_key: Mapping[str, Any]) -> None:
        """Makes the directories; throws away what was begun for other tokens or other examples.

        Raises:
          FileExistsError: if finished shards would be lost, without `overwrite`.
        """
        for directory in self._roots():
            directories.claim(directory, "build", (), advice=ADVICE)
        same_tokens = self._compare(TOKENS_KEY, tokens_key)
        same_examples = same_tokens and self._compare(EXAMPLES_KEY, examples_key)
        if not same_examples:
            self.discard_examples()
        if not same_tokens:
            _clear(self.scratch)
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
        self._check_output()  # again: a build takes hours
        directories.replace(self.records, self._output, "records")
        _clear(self.scratch)
        for directory in reversed(self._roots()):
            if strangers := self._strangers(directory):
                logging.warning("%s is left: it holds %s", directory, ", ".join(strangers))
            else:
                directory.rmtree()

    def _roots(self) -> list[epath.Path]:
        """Returns the directories that are marked and locked; a scratch may be inside of both."""
        is_inside = self._partial in self.scratch.parents
        return [self._partial] if is_inside else [self._partial, self.scratch]

    @staticmethod
    def _lock(locks: contextlib.ExitStack, directory: epath.Path) -> None:
        try:
            is_locked = locks.enter_context(directories.lock(directory))
        except BlockingIOError as error:
            raise FileExistsError(
                f"another build is writing {directory}; wait for its end or choose another --output"
            ) from error
        if not is_locked and "://" not in str(directory):
            logging.warning("%s has no locks: let no other build write there meanwhile", directory)

    def _check_output(self) -> None:
        directories.finish_replacing(self._output)
        if not self._output.exists():
            return
        if not self._overwrite:
            raise FileExistsError(
                f"output {self._output} exists; choose another name or replace it with --overwrite"
            )
        # Overwriting deletes, and a mistyped output might be a home directory.
        directories.check_replaceable(self._output, "records", advice=ADVICE)

    def _check_partial(self) -> None:
        """Raises a NotOursError if the directories of the work hold something else."""
        for directory in self._roots():
            if not directory.exists():
                continue
            strangers = self._strangers(directory)
            if strangers and directories.format_of(directory) == "build":
                raise directories.NotOursError(
                    f"{directory} is of an unfinished build and holds files that it did not write: "
                    f"{directories.described(strangers)}. Nothing was changed; move them away"
                )
            names = {path.name for path in directory.iterdir() if not atomic.is_draft(path.name)}
            if names := names - {directories.LOCK_FILE}:
                directories.check_free(directory, "build", names, advice=ADVICE)

    def _strangers(self, directory: epath.Path) -> list[str]:
        """Returns the names in a directory of the work that are not of a build."""
        if directory == self.scratch:
            return _strangers(directory, NAMES["scratch"])
        inside = [
            f"{name}/{stranger}"
            for name, patterns in NAMES.items()
            if (directory / name).is_dir()
            for stranger in self._strangers_inside(directory / name, patterns)
        ]
        return sorted(inside + _strangers(directory, NAMES))

    def _strangers_inside(self, directory: epath.Path, patterns: Iterable[str]) -> Iterator[str]:
        for name in _strangers(directory, patterns):
            # Records in several languages have a directory of each, finished or not.
            kind = directories.format_of(directory / name) if directory == self.records else ""
            if kind == "records":
                inside = directories.strangers(directory / name, kind)
            else:
                inside = self._strangers(directory / name) if kind == "build" else [""]
            yield from (f"{name}/{it}" if it else name for it in inside)

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

    def discard_examples(self) -> None:
        """Throws away the examples and shards that were made of other tokens."""
        if self.records.exists():
            self.records.rmtree()
        self.records.mkdir(parents=True)
        for pattern in ("pairs-*", "*tfrecord*"):
            for path in self.scratch.glob(pattern):
                path.unlink()


def _scratch_name(output: epath.Path) -> str:
    """Returns a name that outputs with the same last part do not share."""
    digest = hashlib.sha256(str(output).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{output.name}.{digest[:12]}.scratch"


def _strangers(directory: epath.Path, patterns: Iterable[str]) -> list[str]:
    """Returns the names in a directory that fit no pattern, without drafts, lock and mark."""
    ours = (*patterns, directories.LOCK_FILE, directories.MARKER)
    return [
        path.name
        for path in directory.iterdir()
        if not atomic.is_draft(path.name)
        and not any(fnmatch.fnmatchcase(path.name, pattern) for pattern in ours)
    ]


def _clear(directory: epath.Path) -> None:
    """Removes the work in a scratch directory, but for its lock and its mark."""
    kept = {directories.LOCK_FILE, directories.MARKER}
    if directory.exists():
        kept |= {*_strangers(directory, NAMES["scratch"])}
    for path in directory.iterdir() if directory.exists() else ():
        if path.name in kept:
            continue
        if path.is_dir() and not os.path.islink(path):
            path.rmtree()
        else:
            path.unlink()
