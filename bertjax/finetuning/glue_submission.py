"""Predictions for the test sets of GLUE as its server takes them: a file each, zipped.

A file is "index<tab>prediction", then a row for each row of the test set, in its order. The server
takes a zip that holds all eleven files and nothing else.

Source: gluebenchmark.com, FAQ and its sample submission.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence

import numpy as np
from etils import epath

from bertjax.finetuning import example_files, glue_files

HEADER = "index\tprediction"

# Rows of the test sets. Counted in the official files, but MRPC, QQP and MNLI: the sizes that
# tensorflow-datasets lists in its catalog (glue/mrpc, glue/qqp, glue/mnli).
TEST_ROWS = {
    **{"CoLA.tsv": 1063, "SST-2.tsv": 1821, "MRPC.tsv": 1725, "STS-B.tsv": 1379},
    **{"QQP.tsv": 390965, "MNLI-m.tsv": 9796, "MNLI-mm.tsv": 9847, "QNLI.tsv": 5463},
    **{"RTE.tsv": 3000, "WNLI.tsv": 146, "AX.tsv": 1104},
}

_TASK_OF = {file: task for task in glue_files.TASKS.values() for file in task.submissions.values()}

# The same predictions give the same zip, byte for byte: the earliest time that zip knows.
_DATE = (1980, 1, 1, 0, 0, 0)


def prediction_file(name: str, predictions: Sequence[int] | Sequence[float] | np.ndarray) -> str:
    """Returns the content of the server's file `name`, such as "RTE.tsv".

    `predictions` are the places of the classes in `Task.labels`; for STS-B scores, of which those
    below 0 become 0 and those above 5 become 5.
    """
    task = _TASK_OF[name]
    values = np.asarray(predictions)
    if values.shape != (TEST_ROWS[name],):
        raise ValueError(
            f"predictions for {name} have shape {values.shape}; the test set has "
            f"{TEST_ROWS[name]} rows"
        )
    if task.is_regression:
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise ValueError(f"the prediction for row {row} of {name} is {values[row]}, no number")
        words = [f"{value:.3f}" for value in np.clip(values, 0, glue_files.HIGHEST_SCORE).tolist()]
    else:
        words = _labels(name, task, values)
    return column(words)


def column(words: Sequence[str]) -> str:
    """Returns "index<tab>prediction" lines under such a header."""
    return "".join([HEADER + "\n", *(f"{index}\t{word}\n" for index, word in enumerate(words))])


def pack_submission(directory: epath.PathLike, path: epath.PathLike) -> None:
    """Writes a zip of the prediction files in a directory, once all of them are complete."""
    files = check_submission(directory)
    path = epath.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _DATE), files[name], zipfile.ZIP_DEFLATED)


def check_submission(directory: epath.PathLike) -> dict[str, str]:
    """Returns name and content of all prediction files after checking every line of them."""
    directory = epath.Path(directory)
    if not directory.exists():
        raise FileNotFoundError(f"{directory} does not exist; give a directory of predictions")
    files = {
        file.name: file.read_bytes().decode("utf-8", errors="replace")
        for file in directory.iterdir()
        if file.name.endswith(".tsv")
    }
    faults = example_files.Faults()
    for name, content in sorted(files.items()):
        source = f"{directory}/{name}"
        if name not in TEST_ROWS:
            faults.add(source, f"it is none of the server's files: {', '.join(TEST_ROWS)}")
            continue
        for line, fault in _faults(name, content):
            faults.add(f"{source}:{line}", fault)
    if missing := [name for name in TEST_ROWS if name not in files]:
        faults.add(str(directory), f"{', '.join(missing)} are missing: the server needs all files")
    faults.check()
    return files


def _labels(name: str, task: glue_files.Task, values: np.ndarray) -> list[str]:
    if values.dtype.kind not in "iu":
        raise ValueError(
            f"predictions for {name} have dtype {values.dtype}; they must be classes, integers "
            f"below {len(task.labels)} (the place of the highest logit)"
        )
    wrong = np.flatnonzero((values < 0) | (values >= len(task.labels)))
    if wrong.size:
        raise ValueError(
            f"the prediction for row {wrong[0]} of {name} is {values[wrong[0]]}; classes are 0 to "
            f"{len(task.labels) - 1} ({', '.join(task.labels)})"
        )
    return [task.labels[value] for value in values.tolist()]


def _faults(name: str, content: str) -> Iterator[tuple[int, str]]:
    """Yields (line, what is wrong there) of a file."""
    task = _TASK_OF[name]
    header, *rows = content.removesuffix("\n").split("\n")
    if header != HEADER:
        yield 1, f"the header is {header!r}; it must be {HEADER!r}"
    if len(rows) != TEST_ROWS[name]:
        yield len(rows) + 1, f"there are {len(rows)} rows; the test set has {TEST_ROWS[name]}"
    if not rows:
        return
    indices, _, predictions = zip(*(row.partition("\t") for row in rows), strict=True)
    # Each word once: QQP has two of them in 390,965 rows.
    wrong = {word for word in set(predictions) if not _is_prediction(task, word)}
    allowed = ", ".join(task.labels) or f"a number from 0 to {glue_files.HIGHEST_SCORE:g}"
    for index, (first, word) in enumerate(zip(indices, predictions, strict=True)):
        if first != str(index):
            yield index + 2, f"the index is {first!r}; it must be {index}"
        elif word in wrong:
            yield index + 2, f"the prediction is {word!r}; it must be one of {allowed}"


def _is_prediction(task: glue_files.Task, text: str) -> bool:
    if not task.is_regression:
        return text in task.labels
    try:
        return 0 <= float(text) <= glue_files.HIGHEST_SCORE
    except ValueError:
        return False
