r"""Our training step and transformers' BERT in Flax and in torch: the ratio of the medians.

    benchmarks/setup_peer.sh DIR
    python benchmarks/train_step.py --peer_python=DIR/bin/python \
        [--peers=flax,torch] [--cases=32x128,8x512] [--rounds=7] [--steps_per_round=10] \
        [option of peer_step.py for all, such as --dtype=bfloat16 --num_layers=12]
    python benchmarks/train_step.py --peer_python=DIR/bin/python --peers=torch --objective=electra

peer_objectives.py has the peer's loss for each objective of the family. With --fill=0.6 that share
of a row is tokens on average, and the rest padding: the output has real tokens a second, too.

All get the same batch, sizes (BERT-mini), precision, dropout and device. Each is a child process
that waits at a pipe while another computes (see peer_step.py for the protocol), and they take turns
round by round, so that a busy minute of the machine is a busy minute for all.

Counted is the update with a batch that is on the device already: forward, backward, clipping and
optimizer. Compilation is not, nor is reading data (see streams.py and host_overhead.py).
"""

from __future__ import annotations

import argparse
import ast
import atexit
import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import peer_objectives
import peer_step
import tpu_peer

PEER = pathlib.Path(__file__).with_name("peer_step.py")
SERVE = "serve"  # the first argument of a process of this file that times our steps
OURS = "bertjax"
NUM_STEPS = 1_000_000  # long enough that the learning rate stays as good as constant


# Objective of peer_objectives.py -> the options that make it of BERT's config. Sizes that the job
# gives stay the job's.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {
        "model.position_offset": 2,
        "model.type_vocab_size": 1,
        "model.layer_norm_eps": 1e-5,
        "pretraining.pair_loss": "none",
    },
    "modernbert": {
        "model.hidden_dropout_prob": 0.0,
        "model.attention_probs_dropout_prob": 0.0,
        "model.type_vocab_size": 0,
        "model.layer": "pre_norm",
        "model.feed_forward": "gated",
        "model.norm": "scale_only",
        "model.layer_norm_eps": 1e-5,
        "model.use_bias": False,
        "model.position_embedding": "rotary",
        "model.rotary_base": 160_000.0,
        "model.local_rotary_base": 10_000.0,
        "model.window": 64,
        "model.global_every": 3,
        "pretraining.pair_loss": "none",
    },
    "albert": {
        "model.embedding_size": peer_objectives.ALBERT_EMBEDDING_SIZE,
        "model.num_hidden_groups": 1,
        "model.hidden_act": "gelu_tanh",
        "pretraining.pair_loss": "sop",
    },
    "electra": {"pretraining.objective": "replaced_tokens", "pretraining.pair_loss": "none"},
    "spanbert": {
        "pretraining.objective": "span_boundary",
        "pretraining.pair_loss": "none",
        "model.type_vocab_size": 1,
    },
    "left_to_right": {
        "model.left_to_right": True,
        "pretraining.objective": "next_token",
        "pretraining.masking": "none",
        "pretraining.max_predictions_per_seq": 0,
        "pretraining.pair_loss": "none",
    },
    "distilbert": {"model.type_vocab_size": 0, "pretraining.pair_loss": "none"},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One batch shape, written `batch`x`length`."""

    batch: int
    length: int

    @property
    def predictions(self) -> int:
        """The masked tokens of a sequence: 20 at 128, 77 at 512."""
        from bertjax.data import masking

        return masking.default_max_predictions(self.length, 0.15)

    def __str__(self) -> str:
        return f"{self.batch}x{self.length}"


def job_of_size(size: str, case: Case, framework: str = OURS, *, layers: int = 0) -> peer_step.Job:
    """Returns the step of a size of BERT in bfloat16; 0 layers: the size's own number."""
    num_layers, hidden_size, num_heads, intermediate_size = tpu_peer.SIZES[size]
    return peer_step.Job(
        framework=framework,
        hidden_size=hidden_size,
        num_layers=layers or num_layers,
        num_heads=num_heads,
        intermediate_size=intermediate_size,
        vocab_size=tpu_peer.VOCAB_SIZE,
        batch=case.batch,
        length=case.length,
        predictions=case.predictions,
        dtype="bfloat16",
    )


def add_settings(parser: argparse.ArgumentParser, option: str, help_text: str) -> None:
    """Adds an option that may be repeated and collects (name, value) pairs."""

    def setting(text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
        return name, value

    parser.add_argument(option, action="append", type=setting, default=[], help=help_text)


def set_options(config: Any, settings: Mapping[str, str]) -> None:
    """Sets options of a config by their dotted names; values are written as in Python.

    Raises:
      ValueError: listing every name that is not an option.
    """
    from bertjax import config as config_lib

    known = dict(config_lib.flatten(config))
    if unknown := [name for name in settings if name not in known]:
        raise ValueError(f"--set names {', '.join(unknown)}; options are {', '.join(known)}")
    for name, text in settings.items():
        value: Any = text
        with contextlib.suppress(ValueError, SyntaxError):
            value = ast.literal_eval(text)
        config.update_from_flattened_dict({name: value})


def build(
    job: peer_step.Job, batch: peer_step.Batch, settings: Mapping[str, str] | None = None
) -> peer_step.Trainer:
    """Returns our step as `python -m bertjax.train` compiles it, for a child process.

    `settings` are options of the config, as `set_options` takes them.
    """
    import jax

    from bertjax import train
    from bertjax.devices import sharding

    config = step_config(job)
    set_options(config, settings or {})
    run_parts = train.prepare(config, workdir="not-written")
    rows = {name: batch[name] for name in batch if name != "next_sentence_labels"}
    rows["next_sentence_labels"] = batch["next_sentence_labels"][:, 0]
    rows["example_weights"] = batch["masked_lm_weights"][:, 0] * 0 + 1
    with jax.set_mesh(run_parts.mesh):
        placed = jax.tree.map(lambda leaf: leaf.sharding, run_parts.abstract_state)
        state = jax.jit(run_parts.learner.init, out_shardings=placed)()
        inputs = sharding.to_devices(rows, run_parts.mesh, job.batch)
    objectives = run_parts.job.task.objectives

    def run(steps: int) -> float:
        nonlocal state
        report = None
        with jax.set_mesh(run_parts.mesh):
            for _ in range(steps):
                state, report = run_parts.train_step(state, inputs, run_parts.step_inputs)
        jax.block_until_ready(state)
        if report is None:
            return float("nan")
        return sum(weight * report.means[name].value() for name, weight in objectives.items())

    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return peer_step.Trainer(
        run, parameters, peer_step.versions("bertjax", "jax", "jaxlib", "flax", "optax")
    )


def step_config(job: peer_step.Job) -> Any:
    """Returns the config of the job's step; what the job does not name stays at its default."""
    from bertjax import config as config_lib

    config = config_lib.default_config()
    config.data.source = "synthetic"
    config.seed = job.seed
    config.global_batch_size = job.batch
    config.phases.phase1.num_steps = NUM_STEPS
    config.phases.phase1.max_seq_length = job.length
    config.pretraining.max_predictions_per_seq = job.predictions
    config.schedule.peak_learning_rate = peer_step.LEARNING_RATE
    config.schedule.warmup_steps = 0
    model = config.model
    model.vocab_size = job.vocab_size
    model.hidden_size = job.hidden_size
    model.num_hidden_layers = job.num_layers
    model.num_attention_heads = job.num_heads
    model.intermediate_size = job.intermediate_size
    model.max_position_embeddings = max(512, job.length)
    model.hidden_dropout_prob = model.attention_probs_dropout_prob = job.dropout
    model.dtype = job.dtype
    config.update_from_flattened_dict(OBJECTIVES[job.objective])
    if job.objective == "distilbert":
        model.num_hidden_layers //= 2
        config.distillation.teacher = _write_teacher(job)
    return config


def _write_teacher(job: peer_step.Job) -> str:
    """Writes a random BERT of the job's sizes, and returns where it is until the process ends."""
    import numpy as np

    from bertjax import models
    from bertjax.convert import formats, heads, pretrained

    directory = tempfile.mkdtemp(prefix="teacher")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    sizes = models.EncoderConfig(**step_config(dataclasses.replace(job, objective="bert")).model)
    rng = np.random.default_rng(job.seed)
    params = {
        path: rng.normal(0, 0.02, shape).astype(np.float32)
        for path, shape in pretrained.shapes(sizes).items()
        if heads.is_of_class(path, "masked_lm")
    }
    weights = pretrained.Pretrained(
        config=sizes, params=params, vocabulary=None, head="masked_lm", labels={}, source="-"
    )
    formats.write(weights, pathlib.Path(directory) / "teacher", format="bertjax")
    return f"{directory}/teacher"


class Child:
    """A process that times steps on demand; `ready` is the first line that it writes.

    Raises:
      RuntimeError: with the end of its error output, if it stops before it answers.
    """

    def __init__(self, python: str, arguments: Sequence[str]):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  until `close`
        self._command = [python, *arguments]
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        )
        self.ready: dict[str, Any] = json.loads(self._answer("READY"))

    def milliseconds(self, steps: int) -> float:
        """Returns the time of one step, measured over `steps`."""
        self._say(f"STEP {steps}")
        return 1e3 * float(self._answer("SECONDS")) / steps

    def close(self) -> None:
        """Ends the process."""
        if self._process.poll() is None:
            self._say("QUIT")
        self._process.wait()
        self._errors.close()

    def _say(self, line: str) -> None:
        if self._process.stdin is None:
            raise RuntimeError(f"{self._command} has no standard input")
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _answer(self, keyword: str) -> str:
        # A library may greet on standard output; only lines of the protocol count.
        for line in self._process.stdout or ():
            if line.startswith(keyword + " "):
                return line.removeprefix(keyword + " ")
        self._process.wait()
        self._errors.seek(0)
        raise RuntimeError(
            f"{' '.join(self._command)} stopped with code {self._process.returncode} before it "
            f"said {keyword}:\n{self._errors.read()[-2000:]}"
        )


def measure(
    children: Mapping[str, Child], *, rounds: int, steps_per_round: int
) -> dict[str, list[float]]:
    """Returns the milliseconds per step of every round; in each round each child runs once.

    Every other round goes backwards, so that none always follows the same other.
    """
    times: dict[str, list[float]] = {name: [] for name in children}
    order = list(children)
    for _ in range(rounds):
        for name in order:
            times[name].append(children[name].milliseconds(steps_per_round))
        order.reverse()
    return times


def report(times: Mapping[str, Sequence[float]], *, positions: int, real_tokens: int) -> list[str]:
    """Returns the medians, and our time over each peer's: of the medians, and round by round.

    A step reads `positions` positions; `real_tokens` of them hold tokens, the others padding.
    """
    lines = []
    for name, values in times.items():
        median = statistics.median(values)
        lines.append(
            f"  {name:8}{median:9.1f} ms a step, median of {len(values)} rounds "
            f"({min(values):.1f} to {max(values):.1f}); {1e3 * positions / median:,.0f} positions "
            f"and {1e3 * real_tokens / median:,.0f} real tokens a second"
        )
    ours = times[OURS]
    for name, theirs in times.items():
        if name != OURS:
            ratio = statistics.median(ours) / statistics.median(theirs)
            rounds = [mine / other for mine, other in zip(ours, theirs, strict=True)]
            lines.append(
                f"  {OURS} / {name}: {ratio:.3f} (round by round {min(rounds):.3f} to "
                f"{max(rounds):.3f})"
            )
    return lines


def run_case(case: Case, options: argparse.Namespace, extra: Sequence[str]) -> None:
    """Starts the children of a case one after the other, measures them and prints."""
    sizes = [
        f"--batch={case.batch}",
        f"--length={case.length}",
        f"--predictions={case.predictions}",
    ]
    children: dict[str, Child] = {}
    try:
        for name in (OURS, *options.peers):
            python = sys.executable if name == OURS else options.peer_python
            program = [__file__, SERVE] if name == OURS else [str(PEER)]
            children[name] = Child(python, [*program, *extra, f"--framework={name}", *sizes])
        print(f"{case}, {case.predictions} predictions a sequence")
        for name, child in children.items():
            ready = child.ready
            versions = ", ".join(f"{package} {v}" for package, v in ready["versions"].items())
            print(
                f"  {name:8}{ready['parameters']:,} parameters, {ready['dtype']}, loss "
                f"{ready['loss']:.3f} after {peer_step.WARM_UP_STEPS} steps; {versions}"
            )
        times = measure(children, rounds=options.rounds, steps_per_round=options.steps_per_round)
        mask = peer_step.random_batch(job_of(children[OURS].ready))["input_mask"]
        told = report(times, positions=mask.size, real_tokens=int(mask.sum()))
        print("\n".join(told), flush=True)
    finally:
        for child in children.values():
            child.close()


def job_of(ready: Mapping[str, Any]) -> peer_step.Job:
    """Returns the job that a child says it has."""
    return peer_step.Job(
        **{field.name: ready[field.name] for field in dataclasses.fields(peer_step.Job)}
    )


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Returns our options, and the others, which every child gets."""
    parser = argparse.ArgumentParser(description="Our training step beside transformers' BERT.")
    parser.add_argument("--peer_python", help="python of setup_peer.sh's environment")
    parser.add_argument("--peers", default="flax,torch", help="of flax and torch; may be empty")
    parser.add_argument("--cases", default="32x128,8x512", help="BATCHxLENGTH, comma-separated")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each")
    parser.add_argument("--steps_per_round", type=int, default=10, help="steps of one turn")
    options, extra = parser.parse_known_args(argv)
    options.peers = [name for name in options.peers.split(",") if name]
    if options.peers and not options.peer_python:
        parser.error("--peer_python is missing: make the environment with benchmarks/setup_peer.sh")
    if options.rounds < 1 or options.steps_per_round < 1:
        parser.error("--rounds and --steps_per_round must be at least 1")
    try:
        options.cases = [parse_case(text) for text in options.cases.split(",")]
    except ValueError as error:
        parser.error(str(error))
    return options, extra


def parse_case(text: str) -> Case:
    """Returns the case that `text` writes as BATCHxLENGTH."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise ValueError(f"case {text!r} is not BATCHxLENGTH, such as 32x128")
    return Case(int(match[1]), int(match[2]))


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every case and prints."""
    options, extra = parse(argv)
    print(f"{platform.machine()}, {os.cpu_count()} CPU cores, python {platform.python_version()}")
    for case in options.cases:
        run_case(case, options, extra)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        sys.exit(peer_step.main(sys.argv[2:], {OURS: build}))
    sys.exit(main())
