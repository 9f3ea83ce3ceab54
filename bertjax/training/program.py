"""The program of a job on a mesh: its state as shapes with shardings, and its jitted steps.

`train` runs a program and `plan` compiles it for devices that are not there, so nothing here asks
JAX which devices there are, allocates, or compiles.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh

from bertjax import jobs
from bertjax.devices import cpu_products, sharding, xla_presets
from bertjax.jobs import lengths
from bertjax.models import parameters
from bertjax.options import faults as faults_lib
from bertjax.tasks import base, distillation, prediction
from bertjax.training import optim, schedules, state

TOO_OLD_FOR_KERNELS = ("TPU v2", "TPU v3")
# A v4 takes three to five times the instructions of a v5e for them (docs/performance.md).
SLOW_WITH_KERNELS = (*TOO_OLD_FOR_KERNELS, "TPU v4")


@dataclasses.dataclass(frozen=True)
class Program:
    """A job's functions on a mesh.

    `abstract_state` is the state as shapes that know their shardings; the steps are jitted, to be
    called or lowered under `jax.set_mesh(mesh)`: `init` takes a seed, `train_step` state, batch and
    `step_inputs`, `evaluate_step` parameters and batch, `predict_step` also a batch without labels.
    `begun` is what the monitors know as compiled; it grows, and `for_job` shares it as it does the
    compiled functions. `of_phases` are the programs of the phases, by name, whose model is another
    than config.model, or in which only embeddings learn; state and step inputs are the same for
    all of them.
    """

    job: jobs.Job
    mesh: Mesh
    learner: state.Learner
    abstract_state: state.TrainState
    step_inputs: state.StepInputs
    init: jax.stages.Wrapped | Callable[..., state.TrainState]
    train_step: jax.stages.Wrapped | Callable[..., tuple[state.TrainState, state.StepReport]]
    evaluate_step: jax.stages.Wrapped | Callable[..., tuple[base.Means, dict[str, Any]]]
    predict_step: jax.stages.Wrapped | Callable[..., dict[str, Any]]
    begun: set[Any] = dataclasses.field(default_factory=set, kw_only=True)
    of_phases: Mapping[str, Program] = dataclasses.field(default_factory=dict, kw_only=True)

    @property
    def config(self) -> ml_collections.ConfigDict:
        """The job's config, frozen, in which no option is open."""
        return self.job.config

    def in_phase(self, phase: jobs.Phase) -> Program:
        """Returns the program that trains in a phase."""
        return self.of_phases.get(phase.name, self)

    def at(self, step: int) -> Program:
        """Returns the program with the model of a step, as readers of the workdir have it."""
        phases = self.job.phases
        return self.in_phase(next((it for it in phases if step <= it.end_step), phases[-1]))

    @property
    def abstract_step_inputs(self) -> state.StepInputs:
        """The step inputs as shapes that know their sharding."""
        placed = _step_input_shardings(self.step_inputs, self.mesh, self.config.sharding)
        return jax.tree.map(_placed, self.step_inputs, placed)

    def scored(self, train_state: state.TrainState) -> parameters.Params:
        """Returns the parameters of a state to evaluate: the current ones, or their average."""
        if self.config.evaluation.ema and train_state.ema is not None:
            return train_state.ema
        return train_state.params

    def placed_step_inputs(self) -> state.StepInputs:
        """Returns the step inputs on the devices, made from the whole arrays of every process."""

        def put(value: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
            return jax.make_array_from_callback(
                like.shape, like.sharding, lambda index: np.asarray(value)[index]
            )

        return jax.tree.map(put, self.step_inputs, self.abstract_step_inputs)


def build(job: jobs.Job, mesh: Mesh) -> Program:
    """Returns the program of a job whose config is resolved."""
    first = _of_model(job, mesh)
    models = {(lengths.rotary_bases(job.config.model), False): first}
    for phase in job.phases:
        whole, kind = ((phase.rotary_bases, it) for it in (False, phase.only_embeddings))
        if whole not in models:
            models[whole] = _of_model(jobs.in_phase(job, phase), mesh)
        if kind not in models:
            models[kind] = _of_embeddings(models[whole])
    programs = {
        phase.name: models[phase.rotary_bases, phase.only_embeddings] for phase in job.phases
    }
    of_phases = {name: program for name, program in programs.items() if program is not first}
    return dataclasses.replace(first, of_phases=of_phases)


def _of_model(job: jobs.Job, mesh: Mesh) -> Program:
    """Returns the program of a job's config.model, whatever its phases have."""
    config = job.config
    check_batch_sizes(job, mesh)
    check_attention(config, mesh.devices.flat[0].device_kind)
    learner = state.make_learner(
        job.task,
        optimizer=optim.OptimizerOptions(**config.optimizer),
        schedule=schedule_options(job),
        seed=config.seed,
        prng_impl=config.prng_impl,
        accumulation_steps=config.gradient_accumulation_steps,
        fixed=_fixed(job),
    )
    shapes = jax.eval_shape(learner.init)
    placed = sharding.shardings(
        mesh,
        shapes.params,
        shapes,
        rule_table=config.sharding,
        split_kernels=config.split_kernels,
    )
    learner = dataclasses.replace(learner, gradients_where=placed.params)
    replicated = jax.sharding.NamedSharding(mesh, sharding.P())
    inputs_where = _step_input_shardings(learner.step_inputs, mesh, config.sharding)
    rows = sharding.batch_sharding(mesh)
    platform = mesh.devices.flat[0].platform
    _compile_fast(platform, config.model.dtype)
    return Program(
        job=job,
        mesh=mesh,
        learner=learner,
        abstract_state=jax.tree.map(_placed, shapes, placed),
        step_inputs=learner.step_inputs,
        init=jax.jit(learner.init, out_shardings=placed),
        train_step=_train_step(learner, mesh, placed, inputs_where, config.xla_preset),
        evaluate_step=jax.jit(
            functools.partial(
                state.evaluate_step,
                job.task,
                learner.graphdef,
                with_answers=job.evaluation.scorer is not None,
            ),
            in_shardings=(placed.params, rows),
            out_shardings=replicated,
        ),
        predict_step=jax.jit(
            functools.partial(prediction.predict_step, job.task, learner.graphdef),
            in_shardings=(placed.params, rows),
            out_shardings=replicated,
        ),
    )


def _train_step(
    learner: state.Learner, mesh: Mesh, placed: Any, inputs_where: Any, xla_preset: str
) -> jax.stages.Wrapped:
    """Returns the jitted step on state, batch and step inputs that lie as these shardings say."""
    platform = mesh.devices.flat[0].platform
    return jax.jit(
        learner.train_step,
        in_shardings=(placed, sharding.batch_sharding(mesh), inputs_where),
        out_shardings=(placed, jax.sharding.NamedSharding(mesh, sharding.P())),
        donate_argnums=0,
        compiler_options=xla_presets.compiler_options(xla_preset, platform),
    )


def _of_embeddings(program: Program) -> Program:
    """Returns the program whose step moves nothing but the rows of vocabulary entries."""
    learner = state.for_embeddings(program.learner, program.abstract_state.params)
    placed, inputs_where = (
        jax.tree.map(lambda leaf: leaf.sharding, tree)
        for tree in (program.abstract_state, program.abstract_step_inputs)
    )
    step = _train_step(learner, program.mesh, placed, inputs_where, program.config.xla_preset)
    return dataclasses.replace(program, learner=learner, train_step=step)


def _compile_fast(platform: str, dtype: str) -> None:
    """On GPU, has threefry's bits computed by JAX's kernel; on CPU, products of bfloat16.

    Otherwise threefry's rounds are unrolled into every parameter's initialization, which takes XLA
    most of a minute for BERT-base (docs/performance.md).
    """
    if platform == "cpu" and dtype == "bfloat16":
        cpu_products.round_behind()
    if platform == "gpu":
        jax.config.update("jax_threefry_gpu_kernel_lowering", True)


def for_job(program: Program, job: jobs.Job) -> Program:
    """Returns the program of a job that differs in seed, rate, batch size or length alone.

    The jitted functions are the same, so nothing is compiled twice.
    """
    check_batch_sizes(job, program.mesh)
    step_inputs = state.make_step_inputs(job.config.seed, schedule_options(job), _fixed(job))
    learner = dataclasses.replace(program.learner, step_inputs=step_inputs)
    of_phases = {
        phase.name: for_job(program.of_phases[phase.name], jobs.in_phase(job, phase))
        for phase in job.phases
        if phase.name in program.of_phases
    }
    return dataclasses.replace(
        program,
        job=job,
        learner=learner,
        step_inputs=step_inputs,
        of_phases=of_phases,
    )


def are_steps_the_same(saved: Mapping[str, Any], job: jobs.Job, step: int) -> bool:
    """Returns whether a run of config `saved` took the steps up to `step` that the job would take.

    Only the lengths of phases are looked at, and what follows from them.
    """
    before = jobs.phases(ml_collections.ConfigDict(saved))
    now = job.phases
    for was, phase in itertools.zip_longest(before, now):
        if was == phase:
            continue
        if was is None or phase is None:  # a whole phase more, or less
            if min(before[-1].end_step, now[-1].end_step) < step:
                return False
            break
        is_longer_only = dataclasses.replace(was, num_steps=phase.num_steps) == phase
        if not is_longer_only or step > min(was.end_step, phase.end_step):
            return False
        break
    steps = np.arange(step)
    old = schedule_of(ml_collections.ConfigDict(saved), before)
    before_rates, rates = (
        np.asarray(schedules.make_schedule(each)(steps)) for each in (old, schedule_options(job))
    )
    return np.array_equal(before_rates, rates)


def schedule_options(job: jobs.Job) -> schedules.ScheduleOptions:
    """Returns the schedule of a job's config over all its steps."""
    return schedule_of(job.config, job.phases)


def schedule_of(
    config: ml_collections.ConfigDict, phases: Sequence[jobs.Phase]
) -> schedules.ScheduleOptions:
    """Returns the schedule of a config whose phases are known, which follows its plan."""
    options, decisions = config.schedule, config.budget.decisions
    planned = jobs.phases(lengths.planned(config)) if decisions else phases
    total_steps = planned[-1].end_step
    course = lengths.course(decisions)

    def length(name: str, in_order: Sequence[jobs.Phase]) -> int:
        if tokens := options[f"{name}_tokens"]:
            return jobs.steps_of_tokens(in_order, tokens)
        if share := options[f"{name}_share"]:
            # Rounded down. Source: google-research/bert, run_classifier.py, num_warmup_steps.
            return int(share * total_steps)
        return options[f"{name}_steps"]

    has_shares = any(phase.rate_share != 1 for phase in phases)
    return schedules.ScheduleOptions(
        options.name,
        options.peak_learning_rate,
        warmup_steps=length("warmup", planned),
        total_steps=total_steps,
        decay_steps=length("decay", planned[::-1]),
        start_share=options.start_share,
        end_share=options.end_share,
        decay_shape=options.decay_shape,
        phase_starts=tuple(phase.first_step for phase in phases) if has_shares else (),
        phase_shares=tuple(phase.rate_share for phase in phases) if has_shares else (),
        **({f"course_{name}": it for name, it in _padded(course).items()} if decisions else {}),
    )


def _padded(course: lengths.Course) -> dict[str, np.ndarray]:
    """Returns a course in arrays of one length, so that a further decision compiles nothing."""
    starts = np.full(lengths.MOST_STRETCHES, np.iinfo(np.int32).max, np.int32)
    places, paces = np.zeros((2, lengths.MOST_STRETCHES), np.float32)
    number = len(course.starts)
    starts[:number], places[:number], paces[:number] = course.starts, course.places, course.paces
    return {"starts": starts, "places": places, "paces": paces}


def resolve(
    config: ml_collections.ConfigDict, platform: str, device_kind: str = ""
) -> ml_collections.ConfigDict:
    """Returns a copy in which every "auto" stands for what the platform wants.

    An `attention` of "auto" is left to devices that the kernels are for: which rows they take is
    decided where attention is computed.
    """
    config = jobs.unfrozen(config)
    is_cpu = platform == "cpu"
    if config.model.dtype == "auto":
        config.model.dtype = "float32" if is_cpu else "bfloat16"
    if config.prng_impl == "auto":
        config.prng_impl = "threefry2x32" if is_cpu else "rbg"
    takes_kernels = platform == "tpu" and device_kind not in SLOW_WITH_KERNELS
    if config.model.attention == "auto" and not takes_kernels:
        config.model.attention = "xla"
    return config


def check_attention(config: ml_collections.ConfigDict, device_kind: str) -> None:
    """Raises a ValueError if the attention kernel cannot be compiled for this kind of device."""
    has_terms = config.model.relative == "disentangled"  # whose kernels shift rows, as v4 cannot
    too_old = SLOW_WITH_KERNELS if has_terms else TOO_OLD_FOR_KERNELS
    if config.model.attention == "pallas" and device_kind in too_old:
        oldest = "v5" if has_terms else "v4"
        must = f"'xla' on {device_kind}, since the kernel needs a TPU {oldest} or a newer one"
        raise faults_lib.wrong("config.model.attention", config.model.attention, must)


def check_batch_sizes(job: jobs.Job, mesh: Mesh) -> None:
    """Raises a ValueError that lists every batch which the mesh and accumulation cannot divide."""
    config = job.config
    unit = job.task.row_unit if isinstance(job.task, base.HasKindsOfRows) else 1
    sizes = {
        (
            f"config.phases.{phase.name}.ramp_from"
            if phase.ramp_from
            else f"the global_batch_size of config.phases.{phase.name}"
        ): (
            phase.ramp_from or phase.global_batch_size,  # what divides the first batch divides all
            mesh.shape[sharding.DATA] * config.gradient_accumulation_steps * unit,
        )
        for phase in job.phases
    }
    if job.evaluation.sets:
        evaluation_size = config.evaluation.global_batch_size
        name = "config.evaluation.global_batch_size"
        sizes[name] = (evaluation_size, mesh.shape[sharding.DATA])
    of_kinds = f" x {unit} rows, of which each kind has its share" if unit > 1 else ""
    faults = [
        f"{name} is {size}; it must be a multiple of {multiple} (data-parallel devices x "
        f"micro-batches{of_kinds}): "
        + " or ".join(
            str(near) for near in (size - size % multiple, size + -size % multiple) if near
        )
        for name, (size, multiple) in sizes.items()
        if size % multiple
    ]
    faults_lib.check("the batch does not fit the mesh", faults)


def _fixed(job: jobs.Job) -> dict[str, Any]:
    return {} if job.teacher is None else {distillation.TEACHER: job.teacher.params}


def _step_input_shardings(
    step_inputs: state.StepInputs, mesh: Mesh, rule_table: str
) -> state.StepInputs:
    """Returns the shardings of the step inputs: parameters by the rules, numbers on all devices."""
    replicated = jax.sharding.NamedSharding(mesh, sharding.P())
    placed = jax.tree.map(lambda _: replicated, step_inputs)
    fixed = {
        name: sharding.shardings(mesh, params, params, rule_table=rule_table)
        for name, params in step_inputs.fixed.items()
    }
    return dataclasses.replace(placed, fixed=fixed)


def _placed(shape: Any, where: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=where)
