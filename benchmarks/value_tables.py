r"""Scores on tables: the published parts, and the scores of CatBoost and of our runs.

    PEERS/bin/python -m benchmarks.value_tables prepare --data=DATA --output=DIR
    PEERS/bin/python -m benchmarks.value_tables peer --table=DIR/california.csv --model=catboost
    python -m benchmarks.value_tables scores RUN [RUN ...]

PEERS is an environment with scikit-learn and catboost. `prepare` writes a file for each table; its
column `part` is read by data_pipelines.build_tables. DATA has california_housing.csv.gz, and UCI's
Adult as adult-train.csv.gz and adult-test.csv.gz. RUN are finetuned runs of benchmarks/tables.sh.
Source: puhsu/tabular-dl-pretrain-objectives, bin/datasets.py.
"""

# The peers are in an environment of their own.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PARTS = ("train", "heldout", "test")
# Source: the names of the UCI repository, adult.names.
ADULT = (
    "age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,race,sex,"
    "capital_gain,capital_loss,hours_per_week,native_country,income"
)
# The table -> its label.
LABELS = {"california": "price", "adult": "income"}


def california(data: pathlib.Path) -> Any:
    """Returns scikit-learn's eight features, the price in units of 100,000 dollars, and the part.

    207 of the file's 20,640 rows have no total_bedrooms, which scikit-learn's file has: their
    bedrooms stay empty. The rows are in the same order, so the parts are the published ones.
    """
    import pandas as pd
    from sklearn import model_selection

    raw = pd.read_csv(data / "california_housing.csv.gz")
    columns = {
        "median_income": raw.median_income,
        "housing_median_age": raw.housing_median_age,
        "rooms": raw.total_rooms / raw.households,
        "bedrooms": raw.total_bedrooms / raw.households,
        "population": raw.population,
        "occupation": raw.population / raw.households,
        "latitude": raw.latitude,
        "longitude": raw.longitude,
        "price": raw.median_house_value / 100_000,
    }
    table = pd.DataFrame(columns)
    rest, test = model_selection.train_test_split(
        np.arange(len(table)), test_size=0.2, random_state=0
    )
    _, heldout = model_selection.train_test_split(rest, test_size=0.2, random_state=1)
    return _with_parts(table, heldout, test)


def adult(data: pathlib.Path) -> Any:
    """Returns the fourteen features, the income as a class, and the part; "?" is a category."""
    import pandas as pd
    from sklearn import model_selection

    read = [
        pd.read_csv(data / f"adult-{part}.csv.gz", names=ADULT.split(","), skipinitialspace=True)
        for part in ("train", "test")
    ]
    table = pd.concat(read, ignore_index=True)
    table["income"] = table.income.str.rstrip(".")  # those of the official test file end in a dot
    rows = np.arange(len(read[0]))
    _, heldout = model_selection.train_test_split(
        rows, test_size=0.2, random_state=1, stratify=table.income[rows]
    )
    return _with_parts(table, heldout, np.arange(len(rows), len(table)))


def _with_parts(table: Any, heldout: np.ndarray, test: np.ndarray) -> Any:
    parts = np.zeros(len(table), int)
    parts[heldout], parts[test] = 1, 2
    return table.assign(part=np.array(PARTS)[parts])


def prepare(options: argparse.Namespace) -> None:
    """Writes the tables."""
    options.output.mkdir(parents=True, exist_ok=True)
    for name, made in (("california", california), ("adult", adult)):
        table = made(options.data)
        table.to_csv(options.output / f"{name}.csv", index=False)
        print(name, table.shape, dict(table.part.value_counts()))


def catboost(parts: Mapping[str, Any], label: str, seed: int) -> dict[str, Any]:
    """Returns the scores of up to 4,000 trees of CatBoost's depth; the heldout part stops them.

    A score is the root of the mean square of the error, or the area under the ROC curve.
    """
    import catboost as library
    from sklearn import metrics

    features = {part: table.drop(columns=[label, "part"]) for part, table in parts.items()}
    labels = {part: table[label] for part, table in parts.items()}
    is_number = labels["train"].dtype.kind == "f"
    if not is_number:
        labels = {part: (it == ">50K").astype(int) for part, it in labels.items()}
    kind = library.CatBoostRegressor if is_number else library.CatBoostClassifier
    model = kind(
        **{"iterations": 4_000, "learning_rate": 0.05, "early_stopping_rounds": 100},
        **{"cat_features": [*features["train"].select_dtypes(exclude="number")]},
        **{"random_seed": seed, "thread_count": 2, "verbose": False},
        **{"allow_writing_files": False},
    )
    true = {part: it.to_numpy() for part, it in labels.items()}
    held_out = features["heldout"], true["heldout"]
    model.fit(features["train"], true["train"], eval_set=held_out)
    found: dict[str, Any] = {"metric": "rmse" if is_number else "roc_auc"}
    for part in PARTS[1:]:
        if is_number:
            error = true[part] - model.predict(features[part])
            found[part] = float(np.sqrt(np.mean(error**2)))
        else:
            shares = model.predict_proba(features[part])[:, 1]
            found[part] = float(metrics.roc_auc_score(true[part], shares))
    return found | {"trees": float(model.tree_count_)}


def peer(options: argparse.Namespace) -> None:
    """Prints the scores of each seed of CatBoost, then mean and deviation of the test scores."""
    import pandas as pd

    table = pd.read_csv(options.table, keep_default_na=False, na_values=[""])
    parts, found = {part: table[table.part == part] for part in PARTS}, []
    for seed in range(options.seeds):
        found.append(catboost(parts, LABELS[options.table.stem], seed))
        print(json.dumps({"model": options.model, "seed": seed, **found[-1]}), flush=True)
    print(spread([it["test"] for it in found]))


def scores(options: argparse.Namespace) -> None:
    """Prints for each seed the test score of its best heldout evaluation, and of its last one."""
    best = []
    for run in [seed for it in options.runs for seed in sorted(it.glob("seed_*")) or [it]]:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found = [it for it in lines if "eval/heldout/loss" in it]
        metric = "rmse" if "eval/heldout/rmse" in found[0] else "roc_auc"
        sign = -1 if metric == "rmse" else 1
        chosen = max(found, key=lambda it: sign * it[f"eval/heldout/{metric}"])
        best.append(chosen[f"eval/unseen/{metric}"])
        last = found[-1][f"eval/unseen/{metric}"]
        print(f"{run.name}: {metric} {best[-1]:.4f} at step {chosen['step']}, last {last:.4f}")
    print(spread(best))


def spread(values: Sequence[float]) -> str:
    """Returns mean and standard deviation, and the number of values."""
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{deviation} ({len(values)} seeds)"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one of the three parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    programs = parser.add_subparsers(required=True)
    program = programs.add_parser("prepare", help="write the tables")
    program.add_argument("--data", type=pathlib.Path, required=True, help="the files as released")
    program.add_argument("--output", type=pathlib.Path, required=True, help="directory to write")
    program.set_defaults(run=prepare)
    program = programs.add_parser("peer", help="train a peer")
    program.add_argument("--table", type=pathlib.Path, required=True, help="what prepare wrote")
    program.add_argument("--model", choices=("catboost",), required=True)
    program.add_argument("--seeds", type=int, default=5)
    program.set_defaults(run=peer)
    program = programs.add_parser("scores", help="read the scores of our runs")
    program.add_argument("runs", type=pathlib.Path, nargs="+")
    program.set_defaults(run=scores)
    options = parser.parse_args(argv)
    options.run(options)


if __name__ == "__main__":
    main()
