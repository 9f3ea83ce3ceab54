"""The training step of transformers' BERT (Flax or PyTorch), timed on demand over a pipe.

`train_step.py` starts this file in the peer's own virtual environment (see setup_peer.sh) and
times it in turn with ours, so both see the same machine in the same minutes:

    DIR/bin/python benchmarks/peer_step.py --framework=flax --batch=32 --length=128
    < READY {"framework": "flax", "parameters": 11267900, "loss": 10.99, "versions": {...}}
    > STEP 10
    < SECONDS 4.2031
    > QUIT

The step is what the library's users run: loss of its own training example over all positions with
the label -100 ignored, next-sentence loss, gradients clipped at norm 1, AdamW, dropout. The module
level needs NumPy alone, so that ours can import `Job`, `random_batch` and `serve` from here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import metadata
from typing import Any, TextIO

import numpy as np
import peer_objectives
import tpu_peer

IGNORED_LABEL = -100
FIRST_WORD_ID = 999  # ids below are [PAD], [unused] and the specials of the released vocabularies
# Objectives whose rows may have padding: both sides leave it out of their losses.
WITH_PADDING = ("bert", "roberta", "modernbert", "albert")
WARM_UP_STEPS = 3
LEARNING_RATE, WEIGHT_DECAY = tpu_peer.LEARNING_RATE, tpu_peer.WEIGHT_DECAY
CLIP_NORM = 1.0
COMPILE_MODES = ("none", "default", "max-autotune", "max-autotune-no-cudagraphs")

Batch = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Job:
    """The model and batch to time; the defaults are BERT-mini at 32 x 128.

    `fill` is the share of the positions that hold tokens, the rest being padding at the ends of the
    rows.
    """

    framework: str = "flax"
    hidden_size: int = 256
    num_layers: int = 4
    num_heads: int = 4
    intermediate_size: int = 1024
    vocab_size: int = 30522
    batch: int = 32
    length: int = 128
    predictions: int = 20
    dtype: str = "float32"
    dropout: float = 0.1
    attention: str = "sdpa"
    torch_compile: str = "none"
    objective: str = "bert"
    fill: float = 1.0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Trainer:
    """A compiled or ready step: `run(n)` makes n updates, waits for them, returns the last loss."""

    run: Callable[[int], float]
    parameters: int
    versions: dict[str, str]


def random_batch(job: Job) -> dict[str, np.ndarray]:
    """Returns a batch of random words with the feature names of BERT records, by its seed.

    Words are masked in rows of any length alike: what lies in the padding has no weight.
    """
    rng = np.random.default_rng([job.seed, job.batch, job.length])
    shape = (job.batch, job.length)
    first_word = min(FIRST_WORD_ID, job.vocab_size // 2)
    ids = rng.integers(first_word, job.vocab_size, shape)
    order = rng.permuted(np.tile(np.arange(1, job.length), (job.batch, 1)), axis=1)
    positions = np.sort(order[:, : job.predictions], axis=1)
    masked_ids = rng.integers(first_word, job.vocab_size, positions.shape)
    pair_labels = rng.integers(0, 2, (job.batch, 1))
    lengths = _lengths(job, rng)[:, None]
    mask = np.arange(job.length) < lengths
    segments = (np.arange(job.length) >= job.length // 2) & mask
    return {
        "input_ids": np.where(mask, ids, 0).astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "segment_ids": segments.astype(np.int32),
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": masked_ids.astype(np.int32),
        "masked_lm_weights": (positions < lengths).astype(np.float32),
        "next_sentence_labels": pair_labels.astype(np.int32),
    }


def _lengths(job: Job, rng: np.random.Generator) -> np.ndarray:
    """Returns the tokens of each row: as far below the mean as above it, all full where it is 1."""
    spread = min(job.fill, 1 - job.fill)
    shares = rng.permutation(np.linspace(job.fill - spread, job.fill + spread, job.batch))
    return np.clip(np.rint(shares * job.length), 2, job.length).astype(np.int32)


def dense_labels(batch: Batch) -> np.ndarray:
    """Returns a label per position [batch, length], -100 where nothing is to be predicted."""
    labels = np.full(batch["input_ids"].shape, IGNORED_LABEL, np.int32)
    asked = np.where(batch["masked_lm_weights"] > 0, batch["masked_lm_ids"], IGNORED_LABEL)
    np.put_along_axis(labels, batch["masked_lm_positions"], asked, axis=1)
    return labels


def build_flax(job: Job, batch: Batch) -> Trainer:
    """Returns the step of FlaxBertForPreTraining: one jitted call, its state donated.

    Raises:
      ValueError: if the job has another objective than BERT's.
    """
    if job.objective != "bert":
        raise ValueError(f"--objective={job.objective} needs --peers=torch: flax has BERT's alone")
    import jax
    import jax.numpy as jnp
    import optax
    import transformers

    model = transformers.FlaxBertForPreTraining(
        transformers.BertConfig(**peer_objectives.sizes_of(job)),
        input_shape=(1, job.length),
        seed=job.seed,
        dtype=jnp.dtype(job.dtype),
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(CLIP_NORM),
        optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY),
    )
    inputs = {
        "input_ids": jnp.asarray(batch["input_ids"]),
        "attention_mask": jnp.asarray(batch["input_mask"]),
        "token_type_ids": jnp.asarray(batch["segment_ids"]),
    }
    labels = jnp.asarray(dense_labels(batch))
    next_sentence_labels = jnp.asarray(batch["next_sentence_labels"][:, 0])

    def update(state, inputs, labels, next_sentence_labels):
        key, dropout_key = jax.random.split(state["key"])

        def loss_of(params):
            outputs = model(**inputs, params=params, dropout_rng=dropout_key, train=True)
            mlm, pair = tpu_peer.loss_sums(outputs, labels, next_sentence_labels)
            return mlm / (labels > 0).sum() + pair / job.batch

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        updates, opt_state = optimizer.update(gradients, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt_state": opt_state, "key": key}, loss

    state = {"params": model.params, "opt_state": optimizer.init(model.params)}
    state["key"] = jax.random.key(job.seed)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(model.params))
    step = jax.jit(update, donate_argnums=0)

    def run(steps: int) -> float:
        nonlocal state
        loss = jnp.nan
        for _ in range(steps):
            state, loss = step(state, inputs, labels, next_sentence_labels)
        jax.block_until_ready(state)
        return float(loss)

    return Trainer(run, parameters, versions("transformers", "jax", "jaxlib", "flax", "optax"))


def build_torch(job: Job, batch: Batch) -> Trainer:
    """Returns the step of transformers' models in torch, with the loss of the job's objective."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(job.seed)
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
        torch.set_float32_matmul_precision("high")
    model, loss_of = peer_objectives.OBJECTIVES[job.objective](job)
    model.to(device)
    if job.torch_compile != "none":
        model.compile(mode=None if job.torch_compile == "default" else job.torch_compile)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # On CPU the fused form and the foreach form measure alike.
    optimizer = torch.optim.AdamW(learning, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    features = {
        **batch,
        "labels": dense_labels(batch),
        "next_sentence_labels": batch["next_sentence_labels"][:, 0],
    }
    inputs = {name: torch.tensor(value, device=device).long() for name, value in features.items()}
    low_precision = torch.autocast(device, torch.bfloat16, enabled=job.dtype == "bfloat16")

    def run(steps: int) -> float:
        loss = torch.tensor(float("nan"))
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with low_precision:
                loss = loss_of(inputs)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learning, CLIP_NORM)
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return float(loss.detach())

    parameters = sum(parameter.numel() for parameter in learning)
    return Trainer(run, parameters, versions("transformers", "torch"))


FRAMEWORKS: dict[str, Callable[[Job, Batch], Trainer]] = {
    "flax": build_flax,
    "torch": build_torch,
}


def versions(*packages: str) -> dict[str, str]:
    """Returns the installed version of each package; of one on PYTHONPATH alone, "checkout"."""
    found = {package: "checkout" for package in packages}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def serve(job: Job, trainer: Trainer, requests: TextIO, replies: TextIO) -> None:
    """Warms up, says READY, then runs and times steps as asked until QUIT or the end of input.

    Raises:
      ValueError: a request that is neither `STEP n` nor `QUIT`.
    """

    def reply(line: str) -> None:
        replies.write(line + "\n")
        replies.flush()

    loss = trainer.run(WARM_UP_STEPS)
    ready: dict[str, Any] = {**dataclasses.asdict(job), "parameters": trainer.parameters}
    reply("READY " + json.dumps({**ready, "loss": loss, "versions": trainer.versions}))
    for request in requests:
        match request.split():
            case ["STEP", steps]:
                started = time.perf_counter()
                trainer.run(int(steps))
                reply(f"SECONDS {time.perf_counter() - started:.6f}")
            case ["QUIT"]:
                return
            case _:
                raise ValueError(f"request is {request!r}; it must be 'STEP n' or 'QUIT'")


def parse_job(arguments: Sequence[str], frameworks: Collection[str]) -> Job:
    """Returns the job of the command line: an option per field of `Job`."""
    parser = argparse.ArgumentParser(description="See the head of this file.")
    choices = {
        "framework": tuple(frameworks),
        "dtype": ("float32", "bfloat16"),
        "attention": ("sdpa", "eager"),
        "torch_compile": COMPILE_MODES,
        "objective": tuple(peer_objectives.OBJECTIVES),
    }
    for field in dataclasses.fields(Job):
        parser.add_argument(
            f"--{field.name}",
            type=type(field.default),
            default=field.default,
            choices=choices.get(field.name),
        )
    job = Job(**vars(parser.parse_args(arguments)))
    if not 0 < job.fill <= 1 or (job.fill < 1 and job.objective not in WITH_PADDING):
        parser.error(
            f"--fill is {job.fill}; it must be in (0, 1], and 1 unless --objective is one of "
            f"{', '.join(WITH_PADDING)}: the others' losses here do not tell padding apart"
        )
    return job


def main(
    arguments: Sequence[str],
    frameworks: Mapping[str, Callable[[Job, Batch], Trainer]] = FRAMEWORKS,
) -> None:
    """Builds the asked step and serves it on standard input and output."""
    job = parse_job(arguments, frameworks)
    trainer = frameworks[job.framework](job, random_batch(job))
    serve(job, trainer, sys.stdin, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
