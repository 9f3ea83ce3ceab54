r"""Our training step and transformers' BERT in Flax and in torch: the ratio of the medians.

    benchmarks/setup_peer.sh DIR
    python benchmarks/train_step.py --peer_python=DIR/bin/python \
        [--peers=flax,torch] [--cases=32x128,8x512] [--rounds=7] [--steps_per_round=10] \
        [option of peer_step.py for all, such as --dtype=bfloat16 --num_layers=12]
    python benchmarks/train_step.py --peer_python=DIR/bin/python --peers=torch --objective=electra

peer_step.py has the peer's loss for each objective of the family. With --fill=0.6 that share of a
row is tokens on average, and the rest padding: the output has real tokens a second, too.

All get the same batch, sizes (BERT-mini), precision, dropout and device. Each is a child process
that waits while another computes, and they take turns round by round, so that a busy minute of the
machine is a busy minute for all.

Counted is the update with a batch that is on the device already: forward, backward, clipping and
optimizer. Compilation is not, nor is reading data (see streams.py and host_overhead.py).
"""

from __future__ import annotations

import argparse
import ast
import atexit
import contextlib
import dataclasses
import functools
import pathlib
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import peer
import peer_step
import report

SERVE = "serve"  # the first argument of a process of this file that times our steps
OURS = "bertjax"
NUM_STEPS = 1_000_000  # long enough that the learning rate stays as good as constant

WITHOUT_PAIRS = {"pretraining.pair_loss": "none"}
# Objective of peer_step.py -> the options that make it of BERT's config. Sizes that the job gives
# stay the job's.
OBJECTIVES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": WITHOUT_PAIRS
    | {"model.position_offset": 2, "model.type_vocab_size": 1, "model.layer_norm_eps": 1e-5},
    "modernbert": WITHOUT_PAIRS
    | {
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
    },
    "deberta": WITHOUT_PAIRS
    | {
        "model.relative": "disentangled",
        "model.position_embedding": "none",
        "model.type_vocab_size": 0,
        "model.layer_norm_eps": 1e-7,
    },
    "albert": {
        "model.embedding_size": peer_step.ALBERT_EMBEDDING_SIZE,
        "model.num_hidden_groups": 1,
        "model.hidden_act": "gelu_tanh",
        "pretraining.pair_loss": "sop",
    },
    "electra": WITHOUT_PAIRS | {"pretraining.objective": "replaced_tokens"},
    "spanbert": WITHOUT_PAIRS
    | {"pretraining.objective": "span_boundary", "model.type_vocab_size": 1},
    "left_to_right": WITHOUT_PAIRS
    | {
        "model.left_to_right": True,
        "pretraining.objective": "next_token",
        "pretraining.masking": "none",
        "pretraining.max_predictions_per_seq": 0,
    },
    "distilbert": WITHOUT_PAIRS | {"model.type_vocab_size": 0},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One batch shape, written `batch`x`length`."""

    batch: int
    length: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """Returns the case that `text` writes as BATCHxLENGTH."""
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if not match:
            raise argparse.ArgumentTypeError(f"case {text!r} is not BATCHxLENGTH, such as 32x128")
        return cls(int(match[1]), int(match[2]))

    @property
    def predictions(self) -> int:
        """The masked tokens of a sequence: 20 at 128, 77 at 512."""
        from bertjax.data import masking

        return masking.default_max_predictions(self.length, 0.15)

    def __str__(self) -> str:
        return f"{self.batch}x{self.length}"


def job_of_size(size: str, case: Case, *, layers: int = 0) -> peer_step.Job:
    """Returns our step of a size of BERT in bfloat16; 0 layers: the size's own number."""
    num_layers, hidden_size, num_heads, intermediate_size = peer_step.SIZES[size]
    return peer_step.Job(
        framework=OURS,
        hidden_size=hidden_size,
        num_layers=layers or num_layers,
        num_heads=num_heads,
        intermediate_size=intermediate_size,
        batch=case.batch,
        length=case.length,
        predictions=case.predictions,
        dtype="bfloat16",
    )


def cases_of(text: str) -> list[Case]:
    """Returns the cases of an option, with commas between them."""
    return [Case.parse(it) for it in text.split(",")]


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
    job: peer_step.Job, batch: peer_step.Batch, settings: Mapping[str, str]
) -> peer_step.Trainer:
    """Returns our step as `python -m bertjax.train` compiles it; `settings`: see `set_options`."""
    import jax

    from bertjax import train
    from bertjax.devices import sharding

    config = step_config(job)
    set_options(config, settings)
    run_parts = train.prepare(config, workdir="not-written")
    rows = dict(batch)
    rows["next_sentence_labels"] = batch["next_sentence_labels"][:, 0]
    rows["example_weights"] = batch["masked_lm_weights"][:, 0] * 0 + 1
    with jax.set_mesh(run_parts.mesh):
        placed = jax.tree.map(lambda leaf: leaf.sharding, run_parts.abstract_state)
        state = jax.jit(run_parts.learner.init, out_shardings=placed)()
        inputs = sharding.to_devices(rows, run_parts.mesh, job.batch)
    objectives = run_parts.job.task.objectives

    def run(steps: int) -> float:
        nonlocal state
        step_report = None
        with jax.set_mesh(run_parts.mesh):
            for _ in range(steps):
                state, step_report = run_parts.train_step(state, inputs, run_parts.step_inputs)
        jax.block_until_ready(state)
        if step_report is None:
            return float("nan")
        return sum(weight * step_report.means[name].value() for name, weight in objectives.items())

    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return peer_step.Trainer(
        run, parameters, report.versions("bertjax", "jax", "jaxlib", "flax", "optax")
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
    config.model.update(
        vocab_size=job.vocab_size,
        hidden_size=job.hidden_size,
        num_hidden_layers=job.num_layers,
        num_attention_heads=job.num_heads,
        intermediate_size=job.intermediate_size,
        max_position_embeddings=max(512, job.length),
        hidden_dropout_prob=job.dropout,
        attention_probs_dropout_prob=job.dropout,
        dtype=job.dtype,
    )
    config.update_from_flattened_dict(OBJECTIVES[job.objective])
    if job.objective == "distilbert":
        config.model.num_hidden_layers //= 2
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


def command(
    python: str, framework: str, flags: Sequence[str], settings: Mapping[str, str] | None = None
) -> list[str]:
    """Returns what starts a process that times the steps of a framework."""
    program = [python, peer_step.__file__]
    if framework == OURS:
        program = [sys.executable, __file__, SERVE]
        program += [f"--set={name}={value}" for name, value in (settings or {}).items()]
    return [*program, *flags, f"--framework={framework}"]


def serve(arguments: Sequence[str]) -> None:
    """Times our steps as peer_step.py times theirs."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_settings(parser, "--set", "NAME=VALUE of our config; may be repeated")
    options, rest = parser.parse_known_args(arguments)
    peer_step.main(rest, {OURS: functools.partial(build, settings=dict(options.set))})


def run_case(case: Case, options: argparse.Namespace, extra: Sequence[str]) -> None:
    """Starts the children of a case one after the other, measures them and prints."""
    flags = [*extra, f"--batch={case.batch}", f"--length={case.length}"]
    flags.append(f"--predictions={case.predictions}")
    steps = options.steps_per_round
    with contextlib.ExitStack() as running:
        children, ready = {}, {}
        for name in (OURS, *options.peers):
            child = peer.Peer(command(options.peer_python, name, flags))
            children[name] = running.enter_context(child)
            ready[name] = child.answer()
        print(f"{case}, {case.predictions} predictions a sequence")
        for name, it in ready.items():
            print(
                f"  {name:8}{it['parameters']:,} parameters, {it['dtype']}, loss {it['loss']:.3f} "
                f"after {peer_step.WARM_UP_STEPS} steps; {report.named(it['versions'])}"
            )
        times = report.take_turns(
            {
                name: lambda child=child: 1e3 * child.ask(steps)["seconds"] / steps
                for name, child in children.items()
            },
            options.rounds,
        )
    job = {field.name: ready[OURS][field.name] for field in dataclasses.fields(peer_step.Job)}
    mask = peer_step.random_batch(peer_step.Job(**job))["input_mask"]
    for name, values in times.items():
        seconds = statistics.median(values) / 1e3
        print(
            f"  {name:8}{report.median(values, unit=' ms')} a step, median of {len(values)} rounds;"
            f" {mask.size / seconds:,.0f} positions and {mask.sum() / seconds:,.0f} real tokens a "
            "second"
        )
    for name in options.peers:
        print(f"  {OURS} / {name}: {report.ratio(times[OURS], times[name])}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures every case and prints."""
    parser = argparse.ArgumentParser(description="Our training step beside transformers' BERT.")
    parser.add_argument("--peer_python", help="python of setup_peer.sh's environment")
    parser.add_argument("--peers", default="flax,torch", help="of flax and torch; may be empty")
    parser.add_argument("--cases", type=cases_of, default="32x128,8x512", help="BATCHxLENGTH, ...")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each")
    parser.add_argument("--steps_per_round", type=int, default=10, help="steps of one turn")
    options, extra = parser.parse_known_args(argv)
    options.peers = [name for name in options.peers.split(",") if name]
    if options.peers and not options.peer_python:
        parser.error("--peer_python is missing: make the environment with benchmarks/setup_peer.sh")
    if min(options.rounds, options.steps_per_round) < 1:
        parser.error("--rounds and --steps_per_round must be at least 1")
    print(report.machine())
    for case in options.cases:
        run_case(case, options, extra)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        sys.exit(serve(sys.argv[2:]))
    sys.exit(main())
