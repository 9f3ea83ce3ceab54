r"""Scores on tables: the published parts, CatBoost and FT-Transformer, and those of our runs.

    PEERS/bin/python -m benchmarks.value_tables prepare --data=DATA --output=DIR
    PEERS/bin/python -m benchmarks.value_tables peer --table=DIR/california.csv --model=catboost
    python -m benchmarks.value_tables scores RUN [RUN ...]

PEERS is an environment with scikit-learn, catboost, torch and rtdl_revisiting_models. `prepare`
writes a file for each table, whose column `part` data_pipelines.build_tables reads; DATA has
california_housing.csv.gz, and UCI's Adult as adult-train.csv.gz and adult-test.csv.gz. RUN are
finetuned runs of benchmarks/tables.sh.
Source: puhsu/tabular-dl-pretrain-objectives, bin/datasets.py.
"""

# The peers are in an environment of their own.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import copy
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


def parts_of(path: pathlib.Path) -> tuple[dict[str, Any], str]:
    """Returns (features, labels) of each part, and "rmse" or "roc_auc"."""
    import pandas as pd

    table, label = pd.read_csv(path, keep_default_na=False, na_values=[""]), LABELS[path.stem]
    metric = "rmse" if table[label].dtype.kind == "f" else "roc_auc"
    labels = table[label] if metric == "rmse" else (table[label] == ">50K").astype(int)
    features = table.drop(columns=[label, "part"])
    rows = {part: table.part == part for part in PARTS}
    return {part: (features[it], labels[it].to_numpy()) for part, it in rows.items()}, metric


def score(metric: str, labels: np.ndarray, outputs: np.ndarray) -> float:
    """Returns the root of the mean square of the error, or the area under the ROC curve."""
    from sklearn import metrics

    if metric == "rmse":
        return float(np.sqrt(np.mean((labels - outputs) ** 2)))
    return float(metrics.roc_auc_score(labels, outputs))


def catboost(parts: Mapping[str, Any], metric: str, seed: int) -> dict[str, float]:
    """Returns the scores of up to 4,000 trees of CatBoost's depth; the heldout part stops them."""
    import catboost as library

    categories = [*parts["train"][0].select_dtypes(exclude="number")]
    kind = library.CatBoostRegressor if metric == "rmse" else library.CatBoostClassifier
    model = kind(
        **{"iterations": 4_000, "learning_rate": 0.05, "early_stopping_rounds": 100},
        **{"random_seed": seed, "cat_features": categories, "thread_count": 2},
        **{"verbose": False, "allow_writing_files": False},
    )
    model.fit(*parts["train"], eval_set=parts["heldout"])
    predict = model.predict if metric == "rmse" else lambda it: model.predict_proba(it)[:, 1]
    found = {it: score(metric, parts[it][1], predict(parts[it][0])) for it in PARTS[1:]}
    return found | {"trees": float(model.tree_count_)}


def ft_transformer(parts: Mapping[str, Any], metric: str, seed: int) -> dict[str, float]:
    """Returns the scores of rtdl's FTTransformer by its default parameters, in batches of 128.

    Numbers are normal quantiles, 0 where there is none. It stops after 16 epochs without a better
    score of the heldout part, and is scored as it was best.
    """
    import rtdl_revisiting_models as rtdl
    import torch
    from torch.nn import functional

    torch.manual_seed(seed)
    torch.set_num_threads(2)
    data, categories = _tensors({part: features for part, (features, _) in parts.items()})
    model = rtdl.FTTransformer(
        n_cont_features=data["train"][0].shape[1],
        **{"cat_cardinalities": categories, "d_out": 1},
        **rtdl.FTTransformer.get_default_kwargs(n_blocks=3),
    )
    optimizer = torch.optim.AdamW(model.make_parameter_groups(), lr=1e-4, weight_decay=1e-5)
    loss, labels, sign = functional.binary_cross_entropy_with_logits, parts["train"][1], 1
    mean, deviation = 0.0, 1.0
    if metric == "rmse":
        loss, mean, deviation, sign = functional.mse_loss, labels.mean(), labels.std(), -1
    targets = torch.tensor((labels - mean) / deviation, dtype=torch.float32)

    def outputs(part: str, rows: Any) -> Any:
        return model(*(None if it is None else it[rows] for it in data[part]))[:, 0]

    def scored(part: str) -> float:
        model.eval()
        true = parts[part][1]
        with torch.inference_mode():
            found = [outputs(part, rows) for rows in torch.arange(len(true)).split(1024)]
        return score(metric, true, torch.cat(found).numpy() * deviation + mean)

    best, best_epoch, epoch, state = -np.inf, 0, 0, {}
    while epoch < best_epoch + 16:
        epoch += 1
        model.train()
        for rows in torch.randperm(len(targets)).split(128):
            optimizer.zero_grad()
            loss(outputs("train", rows), targets[rows]).backward()
            optimizer.step()
        now = sign * scored("heldout")
        if now > best:
            best, best_epoch, state = now, epoch, copy.deepcopy(model.state_dict())
    model.load_state_dict(state)
    return {"heldout": sign * best, "test": scored("test"), "epochs": float(best_epoch)}


def _tensors(features: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Returns (numbers, codes or None) of each part, and the number of codes of each category."""
    import torch
    from sklearn import preprocessing

    train = features["train"]
    numeric = [*train.select_dtypes("number")]
    codes = {
        name: {it: at + 1 for at, it in enumerate(train[name].unique())}
        for name in train.columns.difference(numeric)
    }
    quantiles = preprocessing.QuantileTransformer(
        output_distribution="normal", subsample=None, random_state=0
    ).fit(train[numeric])
    data = {}
    for part, table in features.items():
        numbers = np.nan_to_num(quantiles.transform(table[numeric])).astype(np.float32)
        of_texts = [table[name].map(codes[name]).fillna(0).astype(int) for name in codes]
        stacked = torch.tensor(np.stack(of_texts, axis=1)) if codes else None
        data[part] = torch.tensor(numbers), stacked
    return data, [len(it) + 1 for it in codes.values()]


# The name of a peer -> its scores of a seed.
PEERS = {"catboost": catboost, "ft_transformer": ft_transformer}


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


def peer(options: argparse.Namespace) -> None:
    """Prints the scores of each seed of a peer, then mean and deviation of the test scores."""
    parts, metric = parts_of(options.table)
    found = []
    for seed in range(options.seeds):
        found.append(PEERS[options.model](parts, metric, seed))
        line = {"model": options.model, "seed": seed, "metric": metric, **found[-1]}
        print(json.dumps(line), flush=True)
    print(spread([it["test"] for it in found]))


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
    program.add_argument("--model", choices=PEERS, required=True)
    program.add_argument("--seeds", type=int, default=5)
    program.set_defaults(run=peer)
    program = programs.add_parser("scores", help="read the scores of our runs")
    program.add_argument("runs", type=pathlib.Path, nargs="+")
    program.set_defaults(run=scores)
    options = parser.parse_args(argv)
    options.run(options)


if __name__ == "__main__":
    main()
