"""Finetuning of transformers' BERT in torch on GLUE's files: the peer of `finetune.py`.

`finetune.py` starts this file in the peer's own virtual environment (see setup_peer.sh). It prints
a line `RESULT {...}` for each seed, with the predictions for the dev set, or with `--time` one with
the seconds of an epoch:

    DIR/bin/python benchmarks/peer_finetune.py --task=rte --weights=DIR --data=GLUE --seeds=0,1

The loop is the plain one of the library's users: its own tokenizer, batches padded to the longest
of their rows by its collator, BertForSequenceClassification, torch's AdamW, a linear schedule. The
module level needs NumPy alone, so that ours can import `Recipe` from here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import pathlib
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

EVALUATION_BATCH_SIZE = 64
SORTED_BATCHES = 64  # as bertjax.finetuning.batches: the window in which texts are sorted by length
WARM_UP_STEPS = 2
TIMED_STEPS = 8  # of each length, where batches of one length are timed
TRAIN, DEV = "train", "dev"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of both sides; the rest are defaults of BERT: betas 0.9, 0.999, dropout 0.1."""

    batch_size: int = 32
    max_seq_length: int = 128
    learning_rate: float = 5e-5
    warmup_share: float = 0.1
    weight_decay: float = 0.01  # off biases and LayerNorm
    eps: float = 1e-6
    clip_norm: float = 1.0


@dataclasses.dataclass(frozen=True)
class Task:
    """Where the texts and labels of a task stand; without `labels` it is a regression.

    `columns` are those of files that have no header.
    """

    folder: str
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


TASKS = {
    "rte": Task("RTE", ("sentence1", "sentence2"), "label", ("entailment", "not_entailment")),
    "stsb": Task("STS-B", ("sentence1", "sentence2"), "score"),
    "cola": Task(
        "CoLA", ("sentence",), "label", ("0", "1"), ("source", "label", "star", "sentence")
    ),
}


@dataclasses.dataclass(frozen=True)
class Split:
    """The rows of a file: token ids and segments of each, without padding, and the labels."""

    input_ids: list[list[int]]
    segment_ids: list[list[int]]
    labels: list[float]

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of every row."""
        return np.array([len(ids) for ids in self.input_ids])


def read(task: Task, data: str, name: str) -> tuple[list[list[str]], list[float]]:
    """Returns the texts of a split, a list for each place, and the labels."""
    text = (pathlib.Path(data) / task.folder / f"{name}.tsv").read_text(encoding="utf-8-sig")
    rows = [line.rstrip("\r").split("\t") for line in text.removesuffix("\n").split("\n")]
    columns = list(task.columns or rows.pop(0))
    texts = [[row[columns.index(column)] for row in rows] for column in task.texts]
    labels = [row[columns.index(task.label)] for row in rows]
    if task.labels:
        return texts, [task.labels.index(label) for label in labels]
    return texts, [float(label) for label in labels]


def tokenize(tokenizer: Any, task: Task, data: str, name: str, max_seq_length: int) -> Split:
    """Returns the rows of a split."""
    texts, labels = read(task, data, name)
    found = tokenizer(*texts, truncation="longest_first", max_length=max_seq_length, padding=False)
    return Split(found["input_ids"], found["token_type_ids"], labels)


def mismatches(split: Split, ours: str, name: str) -> dict[str, int]:
    """Returns the number of rows whose tokens, segments or labels differ from our JSON file."""
    rows = json.loads(pathlib.Path(ours).read_text())[name]
    labels = np.array(split.labels, np.float32).tolist()
    mine = [split.input_ids, split.segment_ids, labels]
    pairs = zip(zip(*mine, strict=True), rows, strict=True)
    return {"rows": len(rows), "different": sum(list(a) != b for a, b in pairs)}


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: Any, by_length: bool) -> list[Any]:
    """Returns the rows of every batch of an epoch; the last one, or one of them, is incomplete.

    By length, the permutation is sorted within windows of `SORTED_BATCHES` batches, cut, and the
    batches are permuted.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(lengths))
    if by_length:
        window = SORTED_BATCHES * batch_size
        parts = [order[start : start + window] for start in range(0, len(order), window)]
        order = np.concatenate([part[np.argsort(lengths[part])] for part in parts])
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    if by_length:
        batches = [batches[place] for place in random.permutation(len(batches))]
    return [batch.tolist() for batch in batches]


def make_model(task: Task, weights: str, seed: int) -> Any:
    """Returns the pretrained encoder and pooler with a fresh head."""
    import torch
    import transformers

    torch.manual_seed(seed)
    kind = "single_label_classification" if task.labels else "regression"
    return transformers.BertForSequenceClassification.from_pretrained(
        weights, num_labels=len(task.labels) or 1, problem_type=kind
    )


def make_optimizer(model: Any, recipe: Recipe, total_steps: int) -> tuple[Any, Any]:
    """Returns AdamW with no decay of biases and LayerNorm, and its schedule."""
    import torch
    import transformers

    named = list(model.named_parameters())
    is_free = [name.endswith(".bias") or "LayerNorm" in name for name, _ in named]
    groups = [
        {
            "params": [
                value for (_, value), free in zip(named, is_free, strict=True) if free == it
            ],
            "weight_decay": 0.0 if it else recipe.weight_decay,
        }
        for it in (False, True)
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, eps=recipe.eps, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, round(recipe.warmup_share * total_steps), total_steps
    )
    return optimizer, schedule


class Trainer:
    """A model that is being finetuned on a split."""

    def __init__(self, options: argparse.Namespace, tokenizer: Any, train: Split, seed: int):
        import transformers

        self.recipe = Recipe()
        self.options, self.train, self.seed = options, train, seed
        self.collate = transformers.DataCollatorWithPadding(tokenizer)
        self.steps_per_epoch = math.ceil(len(train.labels) / self.recipe.batch_size)
        self.total_steps = math.ceil(options.epochs * self.steps_per_epoch)
        self.model = make_model(TASKS[options.task], options.weights, seed)
        self.optimizer, self.schedule = make_optimizer(self.model, self.recipe, self.total_steps)

    def epoch(self, number: int, max_steps: int) -> float:
        """Makes the updates of an epoch, `max_steps` at most; returns the seconds they took."""
        self.model.train()
        started = time.perf_counter()
        lengths, size = self.train.lengths, self.recipe.batch_size
        seed, by_length = [self.seed, number], self.options.by_length
        for rows in epoch_batches(lengths, size, seed, by_length)[:max_steps]:
            self.step(rows)
        return time.perf_counter() - started

    def step(self, rows: Sequence[int]) -> None:
        """Makes an update."""
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        self.model(**self.inputs(self.train, rows)).loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
        self.optimizer.step()
        self.schedule.step()

    def inputs(self, split: Split, rows: Sequence[int]) -> Any:
        """Returns the rows, padded to the longest."""
        return self.collate(
            [
                {
                    "input_ids": split.input_ids[row],
                    "token_type_ids": split.segment_ids[row],
                    "attention_mask": [1] * len(split.input_ids[row]),
                    "labels": split.labels[row],
                }
                for row in rows
            ]
        )

    def predictions(self, split: Split) -> list[float]:
        """Returns the numbers of the classes, or the numbers of a regression."""
        import torch

        self.model.eval()
        order, found = np.argsort(-split.lengths), np.zeros(len(split.labels))
        with torch.no_grad():
            for start in range(0, len(order), EVALUATION_BATCH_SIZE):
                rows = order[start : start + EVALUATION_BATCH_SIZE]
                logits = self.model(**self.inputs(split, rows.tolist())).logits
                best = logits.argmax(-1) if TASKS[self.options.task].labels else logits[:, 0]
                found[rows] = best.numpy()
        return found.tolist()


def train_seeds(options: argparse.Namespace, tokenizer: Any, train: Split, dev: Split) -> None:
    """Trains with every seed and prints its predictions."""
    for seed in options.seeds:
        started = time.perf_counter()
        trainer = Trainer(options, tokenizer, train, seed)
        for number in range(math.ceil(options.epochs)):
            trainer.epoch(number, trainer.total_steps - number * trainer.steps_per_epoch)
        print_result(
            seed=seed,
            predictions=trainer.predictions(dev),
            steps=trainer.total_steps,
            seconds=time.perf_counter() - started,
            versions=versions(),
        )


def time_epoch(options: argparse.Namespace, tokenizer: Any, train: Split) -> None:
    """Prints the seconds of an epoch, and of the warm-up on the longest rows before it."""
    trainer = Trainer(options, tokenizer, train, options.seeds[0])
    trainer.model.train()
    longest = np.argsort(-train.lengths)[: trainer.recipe.batch_size].tolist()
    started = time.perf_counter()
    for _ in range(WARM_UP_STEPS):
        trainer.step(longest)
    warm_up = time.perf_counter() - started
    seconds = trainer.epoch(0, trainer.steps_per_epoch)
    batches = epoch_batches(
        train.lengths, trainer.recipe.batch_size, [trainer.seed, 0], options.by_length
    )
    padded = sum(len(rows) * int(train.lengths[rows].max()) for rows in batches)
    print_result(
        seconds=seconds,
        warm_up_seconds=warm_up,
        examples=len(train.labels),
        steps=len(batches),
        padded_tokens=padded,
        versions=versions(),
    )


def time_batches(options: argparse.Namespace, tokenizer: Any, train: Split) -> None:
    """Prints the median seconds of an update of a batch whose rows all have one length."""
    trainer, found = Trainer(options, tokenizer, train, options.seeds[0]), {}
    trainer.model.train()
    for length in options.lengths:
        rows = np.flatnonzero(train.lengths >= length)[: trainer.recipe.batch_size]
        cut = [[ids[row][:length] for row in rows] for ids in (train.input_ids, train.segment_ids)]
        trainer.train = Split(*cut, [train.labels[row] for row in rows])
        seconds = []
        for _ in range(WARM_UP_STEPS + TIMED_STEPS):
            started = time.perf_counter()
            trainer.step(range(len(rows)))
            seconds.append(time.perf_counter() - started)
        found[length] = float(np.median(seconds[WARM_UP_STEPS:]))
    print_result(lengths=found, versions=versions())


def print_result(**values: Any) -> None:
    """Prints a line for `finetune.py`."""
    print("RESULT " + json.dumps(values), flush=True)


def versions() -> dict[str, str]:
    """Returns the installed versions."""
    return {package: metadata.version(package) for package in ("transformers", "torch")}


def parse() -> argparse.Namespace:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser(description="See the head of this file.")
    parser.add_argument("--task", choices=tuple(TASKS), required=True)
    parser.add_argument("--weights", required=True, help="a directory of transformers")
    parser.add_argument("--data", required=True, help="GLUE's official folders")
    parser.add_argument("--seeds", default="0", help="comma-separated")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--by_length", action="store_true", help="batches of about equal length")
    parser.add_argument("--compare", default="", help="our token ids, as finetune.py writes them")
    parser.add_argument("--time", action="store_true", help="the seconds of an epoch, no scores")
    parser.add_argument("--lengths", default="", help="times batches of these lengths instead")
    options = parser.parse_args()
    options.lengths = [int(length) for length in options.lengths.split(",") if length]
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    return options


def main() -> None:
    """Trains, or times an epoch, as the command line says."""
    options = parse()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.weights)
    train, dev = (
        tokenize(tokenizer, TASKS[options.task], options.data, name, Recipe().max_seq_length)
        for name in (TRAIN, DEV)
    )
    if options.compare:
        compared = {
            name: mismatches(split, options.compare, name)
            for name, split in {TRAIN: train, DEV: dev}.items()
        }
        print_result(tokens=compared)
    if options.lengths:
        time_batches(options, tokenizer, train)
    elif options.time:
        time_epoch(options, tokenizer, train)
    else:
        train_seeds(options, tokenizer, train, dev)


if __name__ == "__main__":
    main()
