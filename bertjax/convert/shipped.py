"""Models that come with bertjax, by name: small ones, to try everything without a training."""

from __future__ import annotations

from etils import epath

DIRECTORY = epath.Path(__file__).parent.parent / "weights"


def located(path: epath.PathLike) -> epath.Path:
    """Returns the directory of the model of that name, or the path if it names none.

    What lies at the path goes first. docs/results.md has the scores of each model.
    """
    path = epath.Path(path)
    named = DIRECTORY / path.name
    is_name = path.name == str(path) and named.is_dir()
    return named if is_name and not path.exists() else path
