"""Embeddings trained by sentence-transformers on STS-B: the peer of `embeddings.py`.

`embeddings.py` starts this file in the peer's own virtual environment (see setup_peer.sh), which
needs sentence-transformers. It prints a line `RESULT {...}` before training and for each seed:

    DIR/bin/python benchmarks/peer_embeddings.py --weights=DIR --data=GLUE --seeds=0,1

The loop is the library's own (`old_fit`, which needs neither datasets nor accelerate), with random
batches padded to their longest row. The module level needs NumPy alone, so that ours can import
`Recipe` from here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import time
from typing import Any

from peer_finetune import DEV, TASKS, TRAIN
from peer_finetune import read as read_texts

HIGHEST_SCORE = 5.0


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What both sides do for an epoch; the rest are defaults of both: betas, decay, clipping."""

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
    return Split(*texts, scores)


def cosines(model: Any, split: Split) -> list[float]:
    """Returns the cosine of each pair."""
    first, second = (
        model.encode(texts, batch_size=64, normalize_embeddings=True, show_progress_bar=False)
        for texts in (split.first, split.second)
    )
    return (first * second).sum(axis=1).tolist()


def train(model: Any, split: Split, recipe: Recipe, seed: int) -> float:
    """Trains an epoch and returns its seconds."""
    import torch
    from sentence_transformers import InputExample, losses

    torch.manual_seed(seed)
    pairs = zip(split.first, split.second, split.scores, strict=True)
    examples = [InputExample(texts=[a, b], label=score / HIGHEST_SCORE) for a, b, score in pairs]
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


def parse() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_recipe(parser)
    parser.add_argument("--weights", required=True, help="a directory of sentence-transformers")
    parser.add_argument("--data", required=True, help="GLUE's official files")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def main() -> None:
    """Prints the cosines of the dev set before training and after that of each seed."""
    import sentence_transformers
    import torch

    options = parse()
    recipe = recipe_of(options)
    torch.set_num_threads(options.threads)
    training, dev = read(options.data, TRAIN), read(options.data, DEV)

    def load() -> Any:
        model = sentence_transformers.SentenceTransformer(options.weights, device="cpu")
        model.max_seq_length = recipe.max_seq_length
        return model

    versions = {it.__name__: it.__version__ for it in (sentence_transformers, torch)}
    before = cosines(load(), dev)
    print("RESULT", json.dumps({"seed": None, "cosines": before, "versions": versions}), flush=True)
    for seed in map(int, options.seeds.split(",")):
        model = load()
        seconds = train(model, training, recipe, seed)
        result = {"seed": seed, "cosines": cosines(model, dev), "seconds": seconds}
        print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
