"""The rows of GLUE as tensorflow-datasets has them, under the names of the official files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.data import tfds_datasets
from bertjax.finetuning import example_files

COLLECTION = "glue"


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A dataset of TFDS for a task: "glue", "glue/rte" or the directory of a prepared one.

    `columns` maps official columns to features, `label_of` the names of classes to official ones;
    it is empty where labels are numbers. `label` is the official column of both.
    """

    name: str
    task: str
    columns: Mapping[str, str]
    label: str
    label_of: Mapping[str, str]


def rows(dataset: Dataset, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ("dataset:split:index", {column: value}) in the order of the official files.

    `split` is named as the official files are: "dev_matched" is validation_matched of TFDS.

    Raises:
      ValueError: if there is no such dataset, split or feature, or a file is damaged.
    """
    name = f"{COLLECTION}/{dataset.task}"
    builder = tfds_datasets.builder(
        name if dataset.name == COLLECTION else dataset.name,
        hint=f"give tfds:{name}, or a directory that holds its dataset_info.json",
    )
    tfds_datasets.prepare(builder, hint="give the directory of the official files of GLUE instead")
    split = split.replace("dev", "validation")
    if split not in builder.info.splits:
        raise ValueError(
            f"tfds:{dataset.name} has no split {split!r}; it has "
            f"{', '.join(sorted(builder.info.splits))}"
        )
    features = builder.info.features
    wanted = [*dataset.columns.values(), "idx", "label"]
    if fault := example_files.missing_columns(sorted(features), wanted):
        raise example_files.FaultyFile(f"tfds:{dataset.name}: {fault}")
    if dataset.label_of:
        _check_classes(dataset, features["label"])
    examples = sorted(tfds_datasets.examples(builder, split), key=lambda one: int(one["idx"]))
    for example in examples:
        row = {name: example[key].decode() for name, key in dataset.columns.items()}
        label = _label(dataset, features["label"], example["label"])
        yield f"tfds:{dataset.name}:{split}:{example['idx']}", {**row, dataset.label: label}


def _label(dataset: Dataset, feature: Any, value: Any) -> Any:
    if not dataset.label_of:
        return float(value)
    # What has no name stays a number, which is an unknown label; those of tests are not looked at.
    is_class = 0 <= value < feature.num_classes
    return dataset.label_of[feature.int2str(int(value))] if is_class else str(value)


def _check_classes(dataset: Dataset, feature: Any) -> None:
    names = getattr(feature, "names", None) or []
    if sorted(names) != sorted(dataset.label_of):
        raise ValueError(
            f"tfds:{dataset.name} has the classes {', '.join(names) or '(none)'}; task "
            f"{dataset.task} has {', '.join(dataset.label_of)}: give the dataset of this task"
        )
