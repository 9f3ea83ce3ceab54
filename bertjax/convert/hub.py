"""Pushes a directory of weights to the Hugging Face Hub, as one commit, by the official client.

The token is the client's: HF_TOKEN, or the one that `hf auth login` stored. HF_ENDPOINT names
another server than huggingface.co.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import re
from typing import Any

from absl import logging
from etils import epath

from bertjax.files import atomic
from bertjax.options import faults

MAIN = "main"  # the branch that every repository has
# In a revision: the step of the checkpoint, and the mark of words that it reached.
STEP, WORDS = "{step}", "{words}"

_NAME = r"[A-Za-z0-9][\w.-]*"
_WHAT_TO_DO = {
    401: "the token is not valid: `hf auth login`, or set HF_TOKEN",
    403: "the token may not write there: make one with the right to write at "
    "https://huggingface.co/settings/tokens, or name another repository",
}


@dataclasses.dataclass(frozen=True)
class Destination:
    """A repository of models, ORG/NAME, and the branch that the commit goes to.

    `{step}` in `revision` stands for the step of a workdir's checkpoint, `{words}` for the words at
    which it was kept. A missing repository is made, with `private` a private one; an existing one
    keeps its visibility.
    """

    repository: str
    revision: str = MAIN
    private: bool = False


def check(destination: Destination, target: epath.PathLike) -> None:
    """Raises a ValueError if a push would fail; sends nothing."""
    misfits: list[ValueError | str] = []
    if not re.fullmatch(f"{_NAME}/{_NAME}", destination.repository):
        misfits.append(faults.wrong("--push_to", destination.repository, "ORG/NAME"))
    if not re.fullmatch(r"[\w./-]+", revision_of(destination, 0, "1M")):
        misfits.append(
            faults.wrong("--revision", destination.revision, "a branch, such as step-100000")
        )
    if atomic.is_remote(target):
        must = "a directory of this machine with --push_to"
        misfits.append(faults.wrong("--to", str(target), must))
    if importlib.util.find_spec("huggingface_hub") is None:
        misfits.append("--push_to needs the package huggingface_hub: pip install 'bertjax[hub]'")
    elif not _client().get_token():
        misfits.append("--push_to needs a token: `hf auth login`, or set HF_TOKEN")
    faults.check("nothing can be pushed", misfits)


def revision_of(destination: Destination, step: int | None, words: str = "") -> str:
    """Returns the branch of a commit; `step` is the checkpoint's, None without one.

    `words` is the name of the mark at which the checkpoint was kept, "" without one.
    """
    if WORDS in destination.revision and not words:
        raise ValueError(
            f"--revision={destination.revision} has the words of a checkpoint in it that was kept "
            "by config.checkpoint.save_at_words, and this one was not: give --all_words or the "
            "--step of one, or write the name out"
        )
    if STEP in destination.revision and step is None:
        raise ValueError(
            f"--revision={destination.revision} has the step of a workdir's checkpoint in it, and "
            "--from is not a workdir: write the name out"
        )
    return destination.revision.replace(STEP, str(step)).replace(WORDS, words)


def push(directory: epath.PathLike, destination: Destination, *, revision: str, title: str) -> str:
    """Sends the files of a directory as one commit, and returns its address.

    Nothing is visible before the commit, which has all files or none. If it fails, a new branch is
    deleted. Files of the repository that the directory lacks stay.
    """
    client = _client()
    api, errors = client.HfApi(), client.errors
    root = pathlib.Path(directory)
    additions = [
        client.CommitOperationAdd(path.relative_to(root).as_posix(), str(path))
        for path in sorted(root.rglob("*"))
        if path.is_file()
    ]
    repository, branch_is_new = destination.repository, False
    try:
        api.create_repo(repository, private=destination.private, exist_ok=True)
        branch_is_new = revision != MAIN and _is_made(api, repository, revision)
        commit = api.create_commit(repository, additions, commit_message=title, revision=revision)
    except (errors.HTTPError, OSError, RuntimeError, ValueError) as error:
        left = _left(api, repository, revision, branch_is_new)
        remedy = _WHAT_TO_DO.get(_code(error) or 0)
        reason = str(error.__cause__ or error).strip().partition("\n")[0].rstrip(".")
        reason = f"{reason}; {remedy}" if remedy else reason
        raise ValueError(
            f"{directory} is written, but not pushed to {repository}: {reason}. {left} "
            f"`hf upload {repository} {directory} --revision={revision}` pushes it later"
        ) from error
    logging.info("Pushed to %s, revision %s: %s", repository, revision, commit.commit_url)
    return str(commit.commit_url)


def _client() -> Any:
    import huggingface_hub
    import huggingface_hub.errors

    return huggingface_hub


def _is_made(api: Any, repository: str, branch: str) -> bool:
    """Makes a branch if it is missing; returns whether it was made."""
    try:
        api.create_branch(repository, branch=branch)
    except _client().errors.HfHubHTTPError as error:
        if _code(error) == 409:
            return False
        raise
    return True


def _left(api: Any, repository: str, branch: str, is_new: bool) -> str:
    """Deletes an empty branch; returns a sentence about the state of the repository."""
    if not is_new:
        return "Nothing of it is there."
    try:
        api.delete_branch(repository, branch=branch)
    except (_client().errors.HTTPError, OSError):
        return f"The branch {branch} was made for it, and holds what {MAIN} holds."
    return "Nothing of it is there."


def _code(error: BaseException) -> int | None:
    """Returns the HTTP status of an error of the client, None without an answer."""
    return getattr(getattr(error, "response", None), "status_code", None)
