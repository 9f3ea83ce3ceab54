"""The log of a run's start and end: its sizes and phases, and where its model is.

Events in between are logged where they happen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import jax
import ml_collections
from absl import logging
from etils import epath

from bertjax import config as config_lib
from bertjax import finetuning, jobs, tasks
from bertjax.checks import runs, table
from bertjax.convert import families, heads
from bertjax.data import mixtures
from bertjax.devices import sharding
from bertjax.models import encoder, encoder_config, parameters, placement
from bertjax.tokenization import tokenizer
from bertjax.training import planned, program, schedules
from bertjax.workdirs import reader, scalars


def start(run: program.Program, workdir: epath.Path) -> None:
    """Logs the config, mesh, parameters and phases of a run, with warnings."""
    changes = config_lib.changes(run.config.to_dict())
    logging.info(
        "What differs from the defaults (every option is in %s):\n  %s",
        workdir / reader.CONFIG_FILE, "\n  ".join(changes),
    )  # fmt: skip
    shapes, placed = run.abstract_state, jax.tree.map(lambda x: x.sharding, run.abstract_state)
    kind = run.mesh.devices.flat[0].device_kind
    mesh = dict(run.mesh.shape)
    is_split = run.config.split_kernels and mesh[sharding.DATA] > 1
    split = ", kernels split over data" if is_split else ""
    logging.info("Mesh: %s of %s, sharding %s%s", mesh, kind, run.config.sharding, split)
    if is_split and "fsdp" not in run.config.sharding:
        for advice in whole_table(run.config.model.vocab_size, mesh[sharding.DATA]):
            logging.warning("%s", advice)
    for name, tree in shapes.params.items():
        count = sum(leaf.size for leaf in jax.tree.leaves(tree))
        logging.info("Parameters of %s: %s", name, f"{count:,}")
    params_bytes = sharding.bytes_per_device(shapes.params, placed.params)
    optimizer_bytes = sharding.bytes_per_device(
        (shapes.opt_state, shapes.ema), (placed.opt_state, placed.ema)
    )
    logging.info(
        "Bytes per device: parameters %s, optimizer %s", f"{params_bytes:,}", f"{optimizer_bytes:,}"
    )
    for phase in run.job.phases:
        tokens = phase.global_batch_size * phase.max_seq_length
        logging.info(
            "%s: steps %d to %d, %d sequences x %d tokens = %s tokens per step, %.3g model "
            "FLOPs%s",
            phase.title, phase.first_step, phase.end_step, phase.global_batch_size,
            phase.max_seq_length, f"{tokens:,}", jobs.train_flops(run.job, phase),
            f", {phase.details}" if phase.details else "",
        )  # fmt: skip
        data = run.job.data.of_phase(phase)
        epochs = data.epochs(phase.num_steps, phase.global_batch_size)
        if epochs and run.config.task == "pretraining":  # a finetuning has logged its own
            logging.info(
                "%s: %s examples: %.3g epochs", phase.title, f"{data.num_examples:,}", epochs
            )
        if phase.is_last and len(read := data.languages) > 1:
            listed = "\n  ".join(f"{name}: {part}" for name, part in read.items())
            logging.info("%s: languages:\n  %s", phase.name, listed)
            if fault := mixtures.warning(read):
                logging.warning("%s: %s", phase.name, fault)
    if run.config.model.embeddings in encoder_config.OF_TOKENS:
        for obstacle in _of_run(run):
            logging.warning("transformers will not load this model: %s", obstacle)
    if (step := schedules.last_step_before_decay(run.step_inputs.schedule)) is not None:
        logging.info(
            "The learning rate decays from step %d on; the checkpoint of that step is kept", step
        )
    for name, sentence in table.faults(runs.of_config(run.config, run.job.phases), table.BEFORE):
        logging.warning("%s: %s", name, sentence)


def _of_run(run: program.Program) -> list[str]:
    """Returns the `obstacles` of a run."""
    paths = parameters.flat(run.abstract_state.params)
    return obstacles(run.config, run.job.data.vocabulary, paths)


def obstacles(
    config: ml_collections.ConfigDict,
    vocabulary: tokenizer.Tokenizer | None,
    paths: Collection[str] = (),
) -> list[str]:
    """Returns a sentence for each part of a resolved config's model that cannot be exported.

    `paths` are the paths of its parameters.
    """
    faults = []
    if vocabulary is not None and (why := tokenizer.export_fault(vocabulary)):
        faults.append(f"the vocabulary is of the kind {vocabulary.kind}: {why}")
    try:
        families.holding(encoder.EncoderConfig(**config.model), heads.of_paths(paths), vocabulary)
    except ValueError as error:
        faults.append(str(error))
    if config.task == "finetuning":
        faults.append(finetuning.head_task(config).export_fault)
    return [each for each in faults if each]


def whole_table(entries: int, devices: int) -> Iterator[str]:
    """Yields what to do about a large table of words that the devices of `data` do not divide."""
    if entries >= placement.LARGE_TABLE and entries % devices:
        divided = math.lcm(devices, 128)
        yield (
            f"config.model.vocab_size is {entries}, which {devices} data devices do not divide, so "
            "each of them updates the whole table of words. Rows that no entry uses cost less: "
            f"--config.model.vocab_size={-(-entries // divided) * divided}"
        )


def end(run: program.Program, workdir: epath.Path, *, is_new: bool) -> None:
    """Logs where the model is, and what to do next."""
    for line in planned.lines(workdir, run):
        logging.info("%s", line)
    if faults := list(_faults(workdir)):
        logging.warning(
            "Faults of this run (python -m bertjax.compare %s draws it):\n  %s",
            workdir, "\n  ".join(faults),
        )  # fmt: skip
    done = "Finished" if is_new else "This run was finished already, nothing was trained"
    following = ""
    if not (workdir.parent / reader.START_FILE).exists():  # whose page goes on
        commands = (f"\n  python -m bertjax.{it}" for it in _next_commands(run, workdir))
        following = f"\nWhat next:{''.join(commands)}"
    logging.info("%s: the model of step %d is in %s%s", done, run.job.last_step, workdir, following)


def _faults(workdir: epath.Path) -> Iterator[str]:
    """Yields what the checks say of a run that has ended, without what `start` has logged."""
    if not scalars.read(workdir / scalars.FILE):
        return
    run = runs.read(workdir)
    left_out = table.BEFORE
    if not run.options["plateau.check_step"]:
        left_out += table.MEANWHILE
    for name, sentence in table.faults(run):
        if name not in left_out:
            yield f"{name}: {sentence}"


# config.finetuning.dataset -> the program that uses such a model; other models predict.
_USES = {
    "embeddings": "encode --checkpoint={} < LINES > VECTORS.npz",
    "sequences": "generate --checkpoint={} < LINES",
    "values": "predict --checkpoint={} --records=RECORDS",
}


def _next_commands(run: program.Program, workdir: epath.Path) -> list[str]:
    """Returns commands of bertjax that a model of this run is for."""
    config, vocabulary = run.config, run.job.data.vocabulary
    reads_tokens = config.model.embeddings in encoder_config.OF_TOKENS
    left_to_right = config.model.left_to_right
    exports = [f"convert --from={workdir} --to=DIR   (for transformers)"]
    if config.task == "finetuning":
        use = _USES.get(config.finetuning.dataset, "predict --checkpoint={} < EXAMPLES.jsonl")
        return [use.format(workdir), *(exports if reads_tokens else [])]
    # Few families have models that read from left to right, or no tokens.
    if (left_to_right or not reads_tokens) and _of_run(run):
        exports = []
    if config.model.replaced_head == "with_first":  # a discriminator of no class there
        exports = [it.replace("--to", "--head=none --to") for it in exports]
    evaluation = f"evaluate --checkpoint={workdir} --data={config.data.eval_dir or 'RECORDS'}"
    finetune = f"train --config={{}} --config.init_from={workdir} --workdir=DIR "
    finetune += f"--config.finetuning.train_file={'FILE' if reads_tokens else 'RECORDS'}"
    if not reads_tokens:
        return [evaluation, *exports, finetune.format("values")]
    if tasks.OBJECTIVES[config.pretraining.objective].reads_sequences:
        return [evaluation, *exports, finetune.format("bert2bert")]
    if vocabulary is None:
        return [evaluation, *exports]
    has_languages = config.model.language_embeddings > 0
    model = f"--checkpoint={workdir}{' --language=NAME' * has_languages}"
    use = f"score {model} < LINES" if left_to_right else f"fill_mask {model} 'TEXT with [MASK]'"
    options = " --config.finetuning.pooling=last" * left_to_right
    options += " --config.finetuning.language=NAME" * has_languages
    return [use, evaluation, *exports, finetune.format("classification") + options]
