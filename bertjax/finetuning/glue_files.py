"""The nine tasks of GLUE and its diagnostic set, from the official TSV files or from TFDS.

It also reads the seven tasks of GLUE and SuperGLUE of the BabyLM challenge, as JSON lines.

The differences between tasks are in one table, `TASKS`. Predictions for the server belong to
`glue_submission`.

Source: gluebenchmark.com (files, scores); Wang et al. 2019, table 1.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from bertjax.data import tfds_datasets
from bertjax.files import tables
from bertjax.finetuning import example_files, feature_sets

TFDS_PREFIX = "tfds:"
TFDS_GLUE = TFDS_PREFIX + "glue"  # all tasks, each a dataset

# The score of two sentences that mean the same (STS-B); 0 is for nothing in common.
HIGHEST_SCORE = 5.0

_SPLITS = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
_MNLI_SPLITS = ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
_ENTAILMENT = ("entailment", "not_entailment")
_DIAGNOSTIC = ("contradiction", "entailment", "neutral")


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of GLUE; without labels it is a regression.

    `texts` and `label` are columns; `labels` are the classes as the files and the server write
    them, in the order of the released code, `label_names` (the names of TFDS) what they mean.
    `scores` are the leaderboard's, `submissions` the server's file of each test split.
    """

    folder: str
    texts: tuple[str, ...]
    scores: tuple[str, ...]
    submissions: Mapping[str, str]
    label: str = "label"
    labels: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    files: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(_SPLITS))
    # Columns of files that have no header, all but the tests.
    columns: tuple[str, ...] = ()
    # Written by crowds, hundreds of thousands of rows: empty texts are read, rows with a wrong
    # number of columns left out of training, and the log has their number.
    has_flaws: bool = False
    # Names of the texts in TFDS, where they are others.
    tfds_texts: tuple[str, ...] = ()
    # How the texts are made of the fields of JSON lines, whose labels are numbers.
    templates: tuple[str, ...] = ()

    @property
    def is_regression(self) -> bool:
        """Whether the label is a number from 0 to `HIGHEST_SCORE`."""
        return not self.labels

    @property
    def evaluation_splits(self) -> tuple[str, ...]:
        """The splits with labels that scores are made of."""
        return tuple(split for split in self.files if split.startswith("dev"))


def _binary(zero: str, one: str) -> dict[str, Any]:
    return {"labels": ("0", "1"), "label_names": (zero, one)}


def _named(names: tuple[str, ...]) -> dict[str, Any]:
    return {"labels": names, "label_names": names}


_PAIR = ("sentence1", "sentence2")


def _official(folder: str, texts: tuple[str, ...], *scores: str, **fields: Any) -> Task:
    """Returns a task whose server takes one file, with the name of the folder."""
    return Task(folder, texts, scores, {"test": f"{folder}.tsv"}, **fields)


def _of_babylm(
    name: str,
    templates: Mapping[str, str],
    label_names: tuple[str, ...] = ("false", "true"),
    scores: tuple[str, ...] = ("accuracy",),
) -> Task:
    """Returns a task in the files of the BabyLM challenge; `templates` are by the texts' names."""
    return Task(
        folder="",
        texts=tuple(templates),
        scores=scores,
        submissions={},
        labels=tuple(map(str, range(len(label_names)))),
        label_names=label_names,
        files={"train": f"{name}.train.jsonl", "dev": f"{name}.valid.jsonl"},
        templates=tuple(templates.values()),
    )


def _same(*names: str) -> dict[str, str]:
    return {name: f"{{{name}}}" for name in names}


_WITH_F1 = ("accuracy", "f1")
_EQUIVALENT = ("not_equivalent", "equivalent")
_DUPLICATE = ("not_duplicate", "duplicate")
_QUESTIONS = ("question1", "question2")
_WSC = 'Does "{span2_text}" refer to "{span1_text}" in this passage?'
_MULTIRC = "Question: {question} Answer: {answer}"

# Source: babylm-org/babylm-eval, strict/evaluation_pipeline/finetune/dataset.py (texts) and
# strict/scripts/eval_finetuning.sh (scores); the order of the classes: GLUE and SuperGLUE of
# huggingface/datasets.
_BABYLM = {
    "boolq": _of_babylm("boolq", _same("question", "passage")),
    "mnli": _of_babylm(
        "mnli", _same("premise", "hypothesis"), ("entailment", "neutral", "contradiction")
    ),
    "mrpc": _of_babylm("mrpc", _same(*_PAIR), _EQUIVALENT, _WITH_F1),
    "multirc": _of_babylm("multirc", {"question": _MULTIRC, **_same("paragraph")}),
    "qqp": _of_babylm("qqp", _same(*_QUESTIONS), _DUPLICATE, _WITH_F1),
    "rte": _of_babylm("rte", _same(*_PAIR), _ENTAILMENT),
    "wsc": _of_babylm("wsc", {"question": _WSC, **_same("text")}),
}

# Source: the headers of the official files; google-research/bert, run_classifier.py (classes).
TASKS: dict[str, Task] = {
    "cola": _official(
        "CoLA",
        ("sentence",),
        "matthews_correlation",
        columns=("source", "label", "star", "sentence"),
        **_binary("unacceptable", "acceptable"),
    ),
    "sst2": _official("SST-2", ("sentence",), "accuracy", **_binary("negative", "positive")),
    "mrpc": _official(
        "MRPC",
        ("#1 String", "#2 String"),
        *_WITH_F1,
        label="Quality",
        tfds_texts=_PAIR,
        **_binary(*_EQUIVALENT),
    ),
    "stsb": _official("STS-B", _PAIR, "pearson", "spearman", label="score"),
    "qqp": _official(
        "QQP", _QUESTIONS, *_WITH_F1, label="is_duplicate", has_flaws=True, **_binary(*_DUPLICATE)
    ),
    "mnli": Task(
        "MNLI",
        _PAIR,
        ("accuracy",),
        {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"},
        label="gold_label",
        files={split: f"{split}.tsv" for split in _MNLI_SPLITS},
        has_flaws=True,
        tfds_texts=("premise", "hypothesis"),
        **_named(_DIAGNOSTIC),
    ),
    "qnli": _official("QNLI", ("question", "sentence"), "accuracy", **_named(_ENTAILMENT)),
    "rte": _official("RTE", _PAIR, "accuracy", **_named(_ENTAILMENT)),
    "wnli": _official("WNLI", _PAIR, "accuracy", **_binary("not_entailment", "entailment")),
    # The diagnostic set: predictions of a model of MNLI, no labels.
    "ax": Task(
        "diagnostic",
        _PAIR,
        ("matthews_correlation",),
        {"test": "AX.tsv"},
        files={"test": "diagnostic.tsv"},
        tfds_texts=("premise", "hypothesis"),
        **_named(_DIAGNOSTIC),
    ),
    **{f"babylm_{name}": task for name, task in _BABYLM.items()},
}

# MRPC as Microsoft gave it out: the training file also holds the dev set, which this file lists.
_MRPC_ORIGINAL = {
    "train": "msr_paraphrase_train.txt",
    "dev": "msr_paraphrase_train.txt",
    "test": "msr_paraphrase_test.txt",
}
_MRPC_DEV_IDS = "dev_ids.tsv"
_MRPC_IDS = ("#1 ID", "#2 ID")


def task_named(name: str) -> Task:
    """Returns the task."""
    if name not in TASKS:
        raise ValueError(f"GLUE has no task {name!r}; its tasks are {', '.join(TASKS)}")
    return TASKS[name]


def read_split(location: str, name: str, split: str) -> list[feature_sets.TextExample]:
    """Returns the examples of a split in the order of the file; test examples have no labels.

    `location` is the directory of GLUE, which holds RTE/train.tsv and so on, the task's own
    folder, or "tfds:glue", "tfds:glue/rte" or "tfds:DIRECTORY" of a prepared dataset of TFDS.
    """
    task = task_named(name)
    if split not in task.files:
        raise ValueError(f"task {name} has no split {split!r}; it has {', '.join(task.files)}")
    faults, flaws = example_files.Faults(), example_files.Faults()
    # A test needs a prediction for each of its rows, so all of them are read.
    broken = flaws if task.has_flaws and split == "train" else faults
    examples: list[feature_sets.TextExample] = []
    for source, row in _rows(location, name, split, broken):
        if not all(row[column].strip() for column in task.texts):
            (flaws if task.has_flaws else faults).add(source, "a text is empty")
        try:
            label = None if split in task.submissions else _label(task, row[task.label])
        except ValueError as error:
            faults.add(source, str(error))
            continue
        texts = tuple(row[column] for column in task.texts)
        examples.append(feature_sets.TextExample(texts, label, source))
    faults.check()
    if len(flaws):
        logging.warning("%s of %s, flaws of the official file: %s", split, name, flaws.summary())
    if not examples:
        raise ValueError(f"{split} of task {name} in {location} holds no examples")
    return examples


def _label(task: Task, value: Any) -> int | float:
    if not task.is_regression:
        if value not in task.labels:
            raise ValueError(f"label {value!r} is unknown; labels are {', '.join(task.labels)}")
        return task.labels.index(value)
    try:
        score = float(value)
    except ValueError:
        score = float("nan")
    if not 0 <= score <= HIGHEST_SCORE:
        raise ValueError(f"{task.label} is {value!r}; it must be a number from 0 to 5")
    return score


def _rows(
    location: str, name: str, split: str, broken: example_files.Faults
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields ("file:line", {column: value}); rows of TFDS get the official names and labels."""
    task = TASKS[name]
    if task.templates:
        return _json_rows(_file(location, name, split), task, broken)
    if location.startswith(TFDS_PREFIX):
        return _tfds_rows(location.removeprefix(TFDS_PREFIX), name, split)
    path = _file(location, name, split)
    label = () if split in task.submissions else (task.label,)
    if path.name in _MRPC_ORIGINAL.values():
        return _mrpc_rows(path, split, (*task.texts, *label), broken)
    header = task.columns if label else ()
    return _tsv_rows(path, header, (*task.texts, *label), broken)


def _file(location: str, name: str, split: str) -> epath.Path:
    task = TASKS[name]
    directory = epath.Path(location)
    files = [task.files[split], *([_MRPC_ORIGINAL[split]] if name == "mrpc" else [])]
    folders = dict.fromkeys((directory / task.folder, directory))
    paths = [folder / file for folder in folders for file in files]
    for path in paths:
        if path.exists():
            return path
    raise FileNotFoundError(
        f"there is no {' and no '.join(map(str, paths))}; give the directory of "
        + (
            "BabyLM's files (glue_filtered)"
            if task.templates
            else "the official files of GLUE (https://gluebenchmark.com/tasks), or "
            f"{TFDS_PREFIX}glue/{name}"
        )
    )


def _json_rows(
    path: epath.Path, task: Task, broken: example_files.Faults
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields the texts that the task's templates make of JSON lines, and the label as text."""
    fields = [
        field for it in task.templates for _, field, _, _ in string.Formatter().parse(it) if field
    ]
    required = [*fields, task.label]
    rules = tables.Rules(names_fault=lambda names: example_files.missing_columns(names, required))
    for source, row in example_files.rows(path, broken, rules):
        texts = [template.format_map(row) for template in task.templates]
        label = row[task.label]
        made = dict(zip(task.texts, texts, strict=True))
        yield source, made | {task.label: str(int(label) if isinstance(label, bool) else label)}


def _tsv_rows(
    path: epath.Path, header: Sequence[str], required: Sequence[str], broken: example_files.Faults
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields the rows of a file whose quotes are characters like others.

    Without a `header`, the first line is one.
    """
    rules = tables.Rules(
        blank_lines=True,
        names=tuple(header),
        names_fault=lambda names: example_files.missing_columns(names, required),
        delimiter="\t",
    )
    return example_files.rows(path, broken, rules, suffix=".tsv")


def _mrpc_rows(
    path: epath.Path, split: str, required: Sequence[str], broken: example_files.Faults
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields the rows of Microsoft's files that GLUE has in the split."""
    rows = _tsv_rows(path, (), (*_MRPC_IDS, *required), broken)
    if split == "test":
        return rows
    listed = path.parent / _MRPC_DEV_IDS
    if not listed.exists():
        raise FileNotFoundError(
            f"{listed} does not exist; it tells which rows of {path.name} are GLUE's dev set: "
            "download it with GLUE, or give train.tsv, dev.tsv and test.tsv"
        )
    dev = set(example_files.lines(listed))
    return (
        (source, row)
        for source, row in rows
        if ("\t".join(row[name] for name in _MRPC_IDS) in dev) == (split == "dev")
    )


def _tfds_rows(dataset: str, name: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ("dataset:split:index", {column: value}) in the order of the official files.

    `dataset` is "glue", "glue/rte" or the directory of a prepared dataset of TFDS. `split` is named
    as the official files are: "dev_matched" is validation_matched of TFDS.
    """
    task = TASKS[name]
    columns = dict(zip(task.texts, task.tfds_texts or task.texts, strict=True))
    label_of = dict(zip(task.label_names, task.labels, strict=True))
    builder = tfds_datasets.builder(
        f"glue/{name}" if dataset == "glue" else dataset,
        hint=f"give tfds:glue/{name}, or a directory that holds its dataset_info.json",
    )
    tfds_datasets.prepare(builder, hint="give the directory of the official files of GLUE instead")
    split = split.replace("dev", "validation")
    if split not in builder.info.splits:
        known = ", ".join(sorted(builder.info.splits))
        raise ValueError(f"tfds:{dataset} has no split {split!r}; it has {known}")
    features = builder.info.features
    required = [*columns.values(), "idx", "label"]
    if fault := example_files.missing_columns(sorted(features), required):
        raise ValueError(f"tfds:{dataset}: {fault}")
    names = getattr(features["label"], "names", None) or []
    if label_of and sorted(names) != sorted(label_of):
        raise ValueError(
            f"tfds:{dataset} has the classes {', '.join(names) or '(none)'}; task {name} has "
            f"{', '.join(label_of)}: give the dataset of this task"
        )
    examples = sorted(tfds_datasets.examples(builder, split), key=lambda one: int(one["idx"]))
    for example in examples:
        row = {column: example[key].decode() for column, key in columns.items()}
        value = example["label"]
        if not label_of:
            label = float(value)
        else:  # a number without a name is an unknown label; labels of tests are not read
            label = label_of[names[value]] if 0 <= value < len(names) else str(value)
        yield f"tfds:{dataset}:{split}:{example['idx']}", {**row, task.label: label}
