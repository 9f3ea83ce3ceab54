"""Directories that several files or processes need, made once in a session: read them only.

A test that changes one copies it first. The processes of pytest-xdist find what another has made,
and wait for what it makes.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable

VARIABLE = "BERTJAX_TESTS_MADE_ONCE"  # where they lie; set by conftest.py


def directory(name: str, make: Callable[[pathlib.Path], object], /, **options) -> pathlib.Path:
    """Returns the directory that `make` wrote for these options, calling it if there is none yet.

    `make` gets a path that does not exist, the one where tests read it. `options` only tell
    directories of one name apart.
    """
    if options:
        spelled = json.dumps(options, sort_keys=True, default=str)
        name += "_" + hashlib.sha256(spelled.encode()).hexdigest()[:12]
    root = pathlib.Path(os.environ[VARIABLE])
    target, is_made = root / name, root / f"{name}.made"
    with _locked(root / f"{name}.lock"):
        if not is_made.exists():
            shutil.rmtree(target, ignore_errors=True)  # of a test that failed
            make(target)
            is_made.touch()
    return target


@contextlib.contextmanager
def _locked(path):
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
