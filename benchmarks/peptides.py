r"""Peptides that are antimicrobial or not: features of our encoder, counts, descriptors.

    python benchmarks/peptides.py --peptides=amp_or_not.csv --encoders=RUN,OTHER_RUN

The file has a row for each peptide, `SEQUENCE, LABEL`, behind a first line; of copies one stays. A
fifth is held out, by one draw for each seed, with as many of each label; logistic regression on
scaled features is fitted on the rest, its strength chosen by five folds of the rest. Prints mean
and deviation over the seeds of the accuracy and the area under the ROC curve, in percent.
`pip install modlamp scikit-learn` gives the peers.
"""

from __future__ import annotations

import collections
import csv
from collections.abc import Sequence

import numpy as np
from absl import app, flags
from modlamp import descriptors  # pyright: ignore[reportMissingImports]
from sklearn import linear_model, model_selection, pipeline, preprocessing

import bertjax

LETTERS = "ACDEFGHIKLMNPQRSTVWY"
WINDOW = 7  # of the correlations of modlamp's scale pepcats, as in its own example
HELD_OUT = 0.2
FOLDS = 5
STRENGTHS = 10.0 ** np.arange(-4, 3)

_PEPTIDES = flags.DEFINE_string("peptides", None, "Peptides and labels, in CSV.", required=True)
_ENCODERS = flags.DEFINE_list("encoders", [], "Runs that were pretrained on proteins.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "Number of draws of the held-out fifth.")


def read(path: str) -> tuple[list[str], np.ndarray]:
    """Returns distinct peptides and their labels, 1 for antimicrobial.

    A peptide with both labels is left out.
    """
    labels: dict[str, set[int]] = collections.defaultdict(set)
    with open(path, newline="", encoding="utf-8") as file:
        for sequence, label in list(csv.reader(file, skipinitialspace=True))[1:]:
            labels[sequence].add(int(label))
    kept = {sequence: min(found) for sequence, found in labels.items() if len(found) == 1}
    return [*kept], np.array([*kept.values()])


def counts(sequences: Sequence[str]) -> np.ndarray:
    """Returns the share of each letter, and the length."""
    shares = [[it.count(letter) / len(it) for letter in LETTERS] for it in sequences]
    return np.concatenate([shares, np.array([[len(it)] for it in sequences])], axis=1)


def described(sequences: Sequence[str]) -> np.ndarray:
    """Returns modlamp's ten global descriptors, and the correlations of its scale pepcats."""
    of_all = descriptors.GlobalDescriptor([*sequences])
    of_all.calculate_all(amide=False)
    of_scale = descriptors.PeptideDescriptor([*sequences], "pepcats")
    of_scale.calculate_crosscorr(WINDOW)
    return np.concatenate([of_all.descriptor, of_scale.descriptor], axis=1)


def scores(features: np.ndarray, labels: np.ndarray, seed: int) -> tuple[float, float]:
    """Returns accuracy and area under the ROC curve of the held-out peptides, in percent."""
    train, held_out = model_selection.train_test_split(
        np.arange(len(labels)), test_size=HELD_OUT, stratify=labels, random_state=seed
    )
    search = model_selection.GridSearchCV(
        pipeline.make_pipeline(
            preprocessing.StandardScaler(), linear_model.LogisticRegression(max_iter=500)
        ),
        {"logisticregression__C": STRENGTHS},
        scoring="roc_auc",
        cv=FOLDS,
    )
    search.fit(features[train], labels[train])
    right = search.best_estimator_.score(features[held_out], labels[held_out])
    return 100 * right, 100 * search.score(features[held_out], labels[held_out])


def main(argv: Sequence[str]) -> None:
    """Prints a row for each kind of features."""
    del argv
    sequences, labels = read(_PEPTIDES.value)
    print(f"{len(sequences):,} peptides, {labels.mean():.1%} antimicrobial")
    features = {"counts of letters": counts(sequences), "modlamp": described(sequences)}
    for run in _ENCODERS.value:
        states = bertjax.load(run).encode([*sequences], pooling="mean")  # of the last layer
        features[run] = states["features"]
    if _ENCODERS.value:
        last = features[_ENCODERS.value[-1]]
        features["modlamp and the last encoder"] = np.concatenate(
            [features["modlamp"], last], axis=1
        )
    for name, columns in features.items():
        found = np.array([scores(columns, labels, seed) for seed in range(_SEEDS.value)])
        (accuracy, area), (spread, of_area) = found.mean(axis=0), found.std(axis=0)
        print(
            f"{name:40} {columns.shape[1]:4} features: accuracy {accuracy:.2f} ± {spread:.2f}, "
            f"ROC AUC {area:.2f} ± {of_area:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
